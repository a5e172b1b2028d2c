"""What the doors to frameworks share: `avare.torch.transformers`, `avare.torch.lightning` and plain loops."""
