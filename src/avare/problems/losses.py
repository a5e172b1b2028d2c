"""How kernels find a loss: by the type of its parameters.

A loss is a function of one example's target and outputs. An output is z = a.x, where a is the example's row of X. Most
losses have one output; softmax has one per class. Each loss has its own file, with

- a ``NamedTuple`` of its parameters, which may have no field;
- its value, slope and curvature: plain functions, compiled by `register_kernels`;
- a class derived from `Linear`, which builds the ``NamedTuple`` from its arguments.

Kernels call `value` and `slope` below. Numba chooses the version when they are compiled.

==============  ==========================================  =======================  ==========
loss            value                                       slope                    curvature
==============  ==========================================  =======================  ==========
softmax         log sum_k exp(z_k) - z_y                    softmax(z) - e_y         <= 1/2
logistic        log(1 + exp(-y z))                          -y / (1 + exp(y z))      <= 1/4
least squares   (z - y)^2 / 2                               z - y                    1
huber           r^2 / 2, or d |r| - d^2 / 2 if |r| > d      r clipped to [-d, d]     <= 1
smoothed hinge  0 / (1 - yz)^2 / 2g / 1 - yz - g / 2        0 / -y (1 - yz) / g / -y  <= 1/g
==============  ==========================================  =======================  ==========
"""

from collections.abc import Callable
from typing import Any

from avare._compilation import ByType, inlined, lean

_VALUE, _SLOPE = map(ByType, ("value", "slope"))
_VALUE_AT, _SLOPE_AT, _CURVATURE_AT = map(ByType, ("value_at", "slope_at", "curvature_at"))

value = _VALUE.function
"""``value(loss, target, outputs)``: the loss of one example."""
slope = _SLOPE.function
"""``slope(loss, target, outputs)``: replace the outputs by the derivatives of the loss; return their norm."""
_value_at, slope_at, curvature_at = _VALUE_AT.function, _SLOPE_AT.function, _CURVATURE_AT.function

Function = Callable[[Any, float, float], float]


def register_kernels(parameters: type, *, value: Function, slope: Function, curvature: Function) -> None:
    """Compile the functions of a loss with one output, and make them known to all kernels.

    Each is a plain function of the parameters, the target (-1 or 1 for two classes) and the output z. It must be
    one that Numba can compile: numbers, ``if`` and `math`.

    Parameters
    ----------
    parameters : type
        The ``NamedTuple`` that `Linear.loss` returns, and that the functions take first.
    value : callable
        The loss.
    slope : callable
        Its derivative by z.
    curvature : callable
        Its second derivative by z.

    Examples
    --------
    >>> import math
    >>> from typing import NamedTuple
    >>> class Poisson(NamedTuple):
    ...     pass
    >>> register_kernels(
    ...     Poisson,
    ...     value=lambda loss, count, z: math.exp(z) - count * z,
    ...     slope=lambda loss, count, z: math.exp(z) - count,
    ...     curvature=lambda loss, count, z: math.exp(z),
    ... )
    """
    for family, function in ((_VALUE_AT, value), (_SLOPE_AT, slope), (_CURVATURE_AT, curvature)):
        family.version(parameters)(inlined(function))
    _enter(parameters, _value_of_one, _slope_of_one)


def register_vector_kernels(parameters: type, *, value: Callable[..., float], slope: Callable[..., float]) -> None:
    """Compile the functions of a loss with one output per class, and make them known to all kernels.

    They take the same arguments as the functions of the same name in this module; outputs are arrays, and the target
    is the index of the class, as a float. The class of the loss defines `Linear.terms_at` and what follows it.

    >>> from typing import NamedTuple
    >>> class Unit(NamedTuple):
    ...     pass
    >>> register_vector_kernels(
    ...     Unit,
    ...     value=lambda loss, target, outputs: outputs.sum() - outputs[int(target)],
    ...     slope=lambda loss, target, outputs: 1.0,
    ... )
    """
    _enter(parameters, inlined(value), inlined(slope))


def _enter(parameters: type, value: Callable[..., Any], slope: Callable[..., Any]) -> None:
    _VALUE.version(parameters)(value)
    _SLOPE.version(parameters)(slope)


# --- kernels of losses with one output -----------------------------------------------------


@inlined
def _value_of_one(loss, target, outputs):
    return _value_at(loss, target, outputs[0])


@inlined
def _slope_of_one(loss, target, outputs):
    outputs[0] = slope_at(loss, target, outputs[0])
    return abs(outputs[0])


@lean
def terms_into(loss, targets, sample_weight, outputs, slopes, curvatures):
    """Set the slopes and curvatures of all examples, times their weights; return the sum of the losses."""
    total = 0.0
    for i in range(len(outputs)):
        factor, target, z = sample_weight[i] if len(sample_weight) > 0 else 1.0, targets[i], outputs[i, 0]
        total += factor * _value_at(loss, target, z)
        slopes[i, 0] = factor * slope_at(loss, target, z)
        curvatures[i, 0] = factor * curvature_at(loss, target, z)
    return total
