"""Loops over the arrays of one batch, compiled.

Operations of NumPy and PyTorch on arrays this small take longer to start than to run, above all after a training step,
which leaves nothing of them in the processor's cache.
"""

from avare._compilation import lean


@lean
def scale(weights, factor, scaled):
    """Multiply the weights of a draw by a factor."""
    for j in range(len(weights)):
        scaled[j] = factor * weights[j]


@lean
def copy_part(all_indices, all_weights, first, offset, indices, weights):
    """Copy a part of a draw, with an offset added to the indices."""
    for j in range(len(indices)):
        indices[j] = all_indices[first + j] + offset
        weights[j] = all_weights[first + j]


@lean
def add_targets(sums, weights, labels, ignored):
    """Add the sum of the weights, the numbers of targets that count, weighted and plain, and the number of examples."""
    for i in range(len(weights)):
        count = 0
        for k in range(labels.shape[1]):
            count += labels[i, k] != ignored
        sums[0] += weights[i]
        sums[1] += weights[i] * count
        sums[2] += count
        sums[3] += 1
