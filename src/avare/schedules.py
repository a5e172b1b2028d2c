"""Step sizes and floors: pure functions of the step t = 1, 2, ...

Each function here returns a schedule. Call it with t, an integer or an array of integers. Schedules are immutable,
comparable and can be pickled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from avare import _validation as validation
from avare._compilation import inlined

__all__ = ["Schedule", "auto", "constant", "floor", "inverse_time", "polynomial"]

_LARGEST_C = 1e6  # times the default


@dataclass(frozen=True, slots=True)
class Schedule:
    """A value for each step t, where t counts from 1.

    >>> steps: Schedule = constant(0.5)  # all functions of this module, except `auto`, return one
    >>> steps(1), steps([1, 2])
    (0.5, array([0.5, 0.5]))

    Parameters
    ----------
    formula : callable
        Function of t, an integer or an array, and of the constants. It returns the value at t.
    constants : tuple of float
        Further arguments of the formula.
    """

    formula: Callable[..., Any]
    constants: tuple[float, ...]

    @overload
    def __call__(self, t: int) -> float: ...
    @overload
    def __call__(self, t: Sequence[int] | NDArray[np.int64]) -> NDArray[np.float64]: ...
    def __call__(self, t: Any) -> Any:
        """Return the value at step t, or the values at an array of steps."""
        if not isinstance(t, int):
            t = np.asarray(t)
        if np.min(t) < 1 if isinstance(t, np.ndarray) else t < 1:
            raise ValueError(f"t = {t}: steps count from 1")
        return self.formula(t, *self.constants)


def floor(n: int, batch_size: int = 1, delta: float = 1.0, c: float | None = None, p_min: float = 0.0) -> Schedule:
    r"""Return the schedule of the smallest probability that Avare allows at step t.

    .. math:: \varepsilon_t = \frac{1}{C^{1-\delta/3} (C + m(t-1))^{\delta/3}} + p_{\min}

    Parameters
    ----------
    n : int
        Number of examples.
    batch_size : int, default=1
        m, the number of draws per step.
    delta : float, default=1.0
        How fast the iterates settle, in (0, 1]. For step sizes that fall as t^-b, use
        delta = b for SGD and b/2 for SGLD.
    c : float or None, default=None
        C, at least 1 / (1/n - p_min), which is also the default (n if p_min = 0).
        C = 2n makes the paper's theorem hold for every horizon. At most a million times the default.
    p_min : float, default=0.0
        The limit of the floor, in [0, 1/n]. Use 0 for decreasing steps; 1 / (5n) is a safe
        choice for constant steps.

    Examples
    --------
    >>> schedule = floor(1000, batch_size=10)
    >>> schedule(1), schedule(701)
    (0.001, 0.0005)
    """
    n = validation.integer("n", n, at_least=1)
    batch_size = validation.integer("batch_size", batch_size, at_least=1)
    delta = validation.number("delta", delta, above=0.0, at_most=1.0)
    p_min = validation.number("p_min", p_min, at_least=0.0)
    if p_min * n > 1.0:
        raise ValueError(f"p_min = {p_min}: must be at most 1/n = {1.0 / n}")
    smallest = np.inf if p_min * n == 1.0 else n / (1.0 - p_min * n)
    if c is None:
        c = smallest
    elif c != smallest:  # infinite if p_min = 1/n
        c = validation.number("c", c, above=0.0)
        if c < smallest * (1.0 - 1e-12):
            raise ValueError(f"c = {c}: must be at least 1 / (1/n - p_min) = {smallest}")
        if c > _LARGEST_C * max(n, smallest):  # weights without replacement would lose all digits
            raise ValueError(f"c = {c}: must be at most a million times 1 / (1/n - p_min)")
    return Schedule(_floor_of_step, (batch_size, float(c), delta, p_min))


def inverse_time(n: int, smoothness: float, strong_convexity: float, batch_size: int = 1) -> Schedule:
    r"""Return the paper's step sizes for SGD, :math:`\alpha_t = m / (2 N L + m \mu t)`.

    Parameters
    ----------
    n : int
        N, the number of examples.
    smoothness : float
        L, the largest smoothness constant of an example.
    strong_convexity : float
        mu, the strong convexity of the whole sum.
    batch_size : int, default=1
        m, the number of draws per step.

    Examples
    --------
    >>> inverse_time(100, smoothness=0.25, strong_convexity=1.0)(50)
    0.01
    """
    n = validation.integer("n", n, at_least=1)
    smoothness = validation.number("smoothness", smoothness, at_least=0.0)
    strong_convexity = validation.number("strong_convexity", strong_convexity, at_least=0.0)
    if smoothness == 0.0 and strong_convexity == 0.0:
        raise ValueError("smoothness = 0.0 and strong_convexity = 0.0: one must be above 0")
    batch_size = validation.integer("batch_size", batch_size, at_least=1)
    return Schedule(_inverse_time, (2.0 * n * smoothness / batch_size, strong_convexity))


def polynomial(scale: float, offset: float, power: float) -> Schedule:
    r"""Return the step sizes :math:`\alpha_t = E / (F + t - 1)^\beta`.

    Parameters
    ----------
    scale : float
        E, above 0.
    offset : float
        F, at least 1.
    power : float
        beta, in [0, 1].

    Examples
    --------
    >>> polynomial(3.0, offset=2.0, power=1.0)(5)
    0.5
    """
    scale = validation.number("scale", scale, above=0.0)
    offset = validation.number("offset", offset, at_least=1.0)
    power = validation.number("power", power, at_least=0.0, at_most=1.0)  # above 1, the sum of all steps is finite
    return Schedule(_polynomial, (scale, offset, power))


def constant(value: float) -> Schedule:
    """Return the same step size at each step.

    >>> constant(0.1)(7)
    0.1
    """
    return Schedule(_polynomial, (validation.number("value", value, above=0.0), 1.0, 0.0))


def auto(power: float | None = None) -> Auto:
    r"""Return a request for step sizes that fit the problem and the sampler; `sgd` finds them while it runs.

    Parameters
    ----------
    power : float or None, default=None
        How fast steps fall. By default as fast as noise demands, which is right for averaged iterates: the same
        as ``step_size="auto"``. With a number in [0, 1], sizes are found in the first tenth of the steps and then
        fall as t^-power: 0 keeps them constant, 1 is for the last iterate.

    Examples
    --------
    >>> auto(1.0)
    Auto(power=1.0)
    """
    return Auto(None if power is None else validation.number("power", power, at_least=0.0, at_most=1.0))


@dataclass(frozen=True, slots=True)
class Auto:
    """The request that `auto` returns: step sizes that a solver has to find.

    >>> Auto(power=0.5) == auto(0.5)
    True
    """

    power: float | None


def _floor_of_step(t: Any, batch_size: float, c: float, delta: float, p_min: float) -> Any:
    return _floor((batch_size, c, delta, p_min), t - 1)


def _inverse_time(t: Any, offset: float, slope: float) -> Any:
    return 1.0 / (offset + slope * t)


def _polynomial(t: Any, scale: float, offset: float, power: float) -> Any:
    return scale / (offset + t - 1) ** power


# --- kernels -------------------------------------------------------------------------------


def _floor(constants: tuple[float, ...], steps: Any) -> Any:
    """Return the floor after a number of steps (or an array of numbers), from the constants of `floor`."""
    batch_size, c, delta, p_min = constants
    c = min(c, 1e300)  # it is infinite if p_min = 1/n; either way it adds nothing
    return (c / (c + batch_size * steps)) ** (delta / 3.0) / c + p_min


floor_at = inlined(_floor)
"""The same inside a kernel."""
