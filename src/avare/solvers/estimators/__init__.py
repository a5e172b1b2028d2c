"""From a batch to an estimate of the gradient, and to the norms that the sampler learns.

``plain`` sums the gradients of the batch, or for any problem their differences from the gradients at a mode. ``table``
sums differences for linear models: from the last gradients (SAGA), or from the gradients at a mode.
"""
