"""From a batch to an estimate of the gradient, and to the norms that the sampler learns.

``plain`` sums the gradients of the batch, ``table`` sums their differences from the last ones (SAGA), ``anchor`` their
differences from the gradients at a mode. ``lagged`` is SAGA for a sparse X, together with its update.
"""
