"""A loss from outside the package: log cosh of the residual, a smooth absolute value."""

import math
from typing import NamedTuple

from avare.problems import Linear, register, register_kernels


class LogCoshLoss(NamedTuple):
    pass


@register()
class LogCosh(Linear):
    """Robust regression with log cosh(a.x - y)."""

    target = "numbers"
    curvature = 1.0

    def loss(self) -> LogCoshLoss:
        return LogCoshLoss()


def value(loss: LogCoshLoss, target: float, z: float) -> float:
    r = abs(z - target)
    return r + math.log1p(math.exp(-2.0 * r)) - math.log(2.0)


def slope(loss: LogCoshLoss, target: float, z: float) -> float:
    return math.tanh(z - target)


def curvature(loss: LogCoshLoss, target: float, z: float) -> float:
    return 1.0 - math.tanh(z - target) ** 2


register_kernels(LogCoshLoss, value=value, slope=slope, curvature=curvature)
