"""The losses of linear models: value, slope and curvature in the outputs of one example.

An output is z = a.x, of example a; softmax has one for each class, the others one only.

==============  ==========================================  =======================  ==========
loss            value                                       slope                    curvature
==============  ==========================================  =======================  ==========
softmax         log sum_k exp(z_k) - z_y                    softmax(z) - e_y         <= 1/2
logistic        log(1 + exp(-y z))                          -y / (1 + exp(y z))      <= 1/4
least squares   (z - y)^2 / 2                               z - y                    1
huber           r^2 / 2, or d |r| - d^2 / 2 where |r| > d   r cut to [-d, d]         <= 1
smoothed hinge  0 / (1 - yz)^2 / 2g / 1 - yz - g / 2        0 / -y (1 - yz) / g / -y  <= 1/g
==============  ==========================================  =======================  ==========
"""

import math
from typing import NamedTuple

from avare._compilation import inlined

SOFTMAX, LOGISTIC, LEAST_SQUARES, HUBER, SMOOTHED_HINGE = range(5)


class Loss(NamedTuple):
    """A loss as kernels know it."""

    kind: int
    parameter: float
    """Huber's d, the smoothed hinge's g; else unused."""


# --- kernels -------------------------------------------------------------------------------


@inlined
def value(loss, target, outputs):
    """The loss of one example."""
    z = outputs[0]
    if loss.kind == SOFTMAX:
        return _log_sum_exp(outputs) - outputs[int(target)]
    if loss.kind == LOGISTIC:
        margin = target * z
        return math.log1p(math.exp(-abs(margin))) + max(-margin, 0.0)
    if loss.kind == LEAST_SQUARES:
        return 0.5 * (z - target) ** 2
    if loss.kind == HUBER:
        residual = abs(z - target)
        if residual <= loss.parameter:
            return 0.5 * residual * residual
        return loss.parameter * (residual - 0.5 * loss.parameter)
    short = 1.0 - target * z
    if short <= 0.0:
        return 0.0
    if short >= loss.parameter:
        return short - 0.5 * loss.parameter
    return 0.5 * short * short / loss.parameter


@inlined
def slope(loss, target, outputs):
    """Turn the outputs of one example into the loss's derivatives by them; return their length."""
    if loss.kind == SOFTMAX:
        _softmax(outputs)
        outputs[int(target)] -= 1.0
        squares = 0.0
        for k in range(len(outputs)):
            squares += outputs[k] * outputs[k]
        return math.sqrt(squares)
    z = outputs[0]
    if loss.kind == LOGISTIC:
        result = -target * _sigmoid(-target * z)
    elif loss.kind == LEAST_SQUARES:
        result = z - target
    elif loss.kind == HUBER:
        result = min(max(z - target, -loss.parameter), loss.parameter)
    else:
        result = -target * min(max(1.0 - target * z, 0.0) / loss.parameter, 1.0)
    outputs[0] = result
    return abs(result)


@inlined
def curve(loss, target, outputs, directions):
    """Turn directions, in the outputs of one example, into the second derivative times them."""
    if loss.kind == SOFTMAX:
        _softmax(outputs)
        mean = 0.0
        for k in range(len(outputs)):
            mean += outputs[k] * directions[k]
        for k in range(len(outputs)):
            directions[k] = outputs[k] * (directions[k] - mean)
        return
    z = outputs[0]
    if loss.kind == LOGISTIC:
        chance = _sigmoid(z)
        directions[0] *= chance * (1.0 - chance)
    elif loss.kind == HUBER:
        directions[0] *= 1.0 if abs(z - target) <= loss.parameter else 0.0
    elif loss.kind == SMOOTHED_HINGE:
        directions[0] *= 1.0 / loss.parameter if 0.0 < 1.0 - target * z < loss.parameter else 0.0


@inlined
def mean_curvature(loss, target, outputs, directions):
    """The mean of the second derivatives by each output; outputs and directions are overwritten."""
    if loss.kind == SOFTMAX:
        _softmax(outputs)
        squares = 0.0
        for k in range(len(outputs)):
            squares += outputs[k] * outputs[k]
        return (1.0 - squares) / len(outputs)
    directions[0] = 1.0
    curve(loss, target, outputs, directions)
    return directions[0]


@inlined
def _sigmoid(z):
    small = math.exp(-abs(z))
    return (1.0 if z >= 0.0 else small) / (1.0 + small)


@inlined
def _log_sum_exp(outputs):
    largest = outputs[0]
    for k in range(1, len(outputs)):
        largest = max(largest, outputs[k])
    total = 0.0
    for k in range(len(outputs)):
        total += math.exp(outputs[k] - largest)
    return largest + math.log(total)


@inlined
def _softmax(outputs):
    largest = outputs[0]
    for k in range(1, len(outputs)):
        largest = max(largest, outputs[k])
    total = 0.0
    for k in range(len(outputs)):
        outputs[k] = math.exp(outputs[k] - largest)
        total += outputs[k]
    for k in range(len(outputs)):
        outputs[k] /= total
