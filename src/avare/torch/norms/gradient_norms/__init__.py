"""Exact gradient norms per example, from the backward pass that trains."""

from avare.torch.norms.gradient_norms.exact import GradientNorms

__all__ = ["GradientNorms"]
