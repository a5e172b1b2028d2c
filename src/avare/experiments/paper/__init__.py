"""The paper's experiments, and how our numbers compare with its own."""
