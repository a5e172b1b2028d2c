"""Exact gradient norms per example, from the backward pass that trains."""

from avare.torch.gradient_norms.exact import GradientNorms
from avare.torch.gradient_norms.uses import Fallback

__all__ = ["Fallback", "GradientNorms"]
