"""Gradient norms of each example: in the outputs of a model, in single layers, and in all parameters."""
