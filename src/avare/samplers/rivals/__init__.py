"""The rivals of the paper: one sampler per file."""
