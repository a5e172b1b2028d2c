r"""A Newton step on the simplex with floors.

From a point x of :math:`\{x : x_i \ge f_i, \sum x = 1\}`, the step minimises the model

.. math:: s^\top d + \tfrac12 d^\top A d

over all d for which x + d is in the same set. The result is the projection of :math:`x - A^{-1} s` onto
the set, in the norm of A.

*Solve.* By an active set. Minimise over the coordinates that are not at their floors, with
``sum d = 0``. Move there, or up to the first floor on the way, which is then active. If no floor is in
the way, release the active floor whose slope is lowest; stop if there is none to release. Each round
solves a system in the free coordinates, O(K^3), and decreases the model, so that no set occurs
twice. Usually there are one to three rounds.

*Example.* x = (0.5, 0.5, 0), A = I, s = (1, 0, -0.2), floors 0. The third coordinate is at its floor. On
the others the minimum of the model is d = (-0.5, 0.5, 0), where the first coordinate reaches its floor.
The slope of the third, -0.2, is now below that of the second, 0.5, so the third is released:
d = (-0.5, 0.15, 0.35) and x = (0, 0.65, 0.35). The slope of the first, 0.5, is above the common 0.15, so
this is the solution.
"""

import numpy as np

from avare._compilation import kernel

_PULL = 1e-13  # of the largest slope: smaller differences count as zero
_SMALLEST = 1e-300  # a step
_ROUNDS = 20  # per coordinate; only rounding errors can make a set occur twice and reach this limit


@kernel
def newton_step(point, slope, metric, floors):
    """Return the point of the simplex that minimises ``slope·d + d·metric·d / 2``. O(K^3) per round.

    Parameters
    ----------
    point
        x, K numbers that are not below the floors and sum to 1.
    slope
        s, K numbers.
    metric
        A, K x K, symmetric and positive definite.
    floors
        f, K numbers that sum to at most 1.

    Examples
    --------
    >>> import numpy as np
    >>> newton_step(np.array([0.5, 0.5, 0.0]), np.array([1.0, 0.0, -0.2]), np.eye(3), np.zeros(3)).round(10)
    array([0.  , 0.65, 0.35])
    """
    x, free = point.copy(), point > floors
    for _ in range(_ROUNDS * len(x)):
        some = np.flatnonzero(free)
        if not len(some):
            break
        slopes = slope + metric @ (x - point)
        # The step to the minimum of the model on the free coordinates, where all of them have the slope `level`.
        inner = np.ascontiguousarray(metric[some][:, some])
        down, ones = np.linalg.solve(inner, -slopes[some]), np.linalg.solve(inner, np.ones(len(some)))
        level = -down.sum() / ones.sum()
        step = down + level * ones
        room = np.where(step < 0.0, (floors[some] - x[some]) / np.minimum(step, -_SMALLEST), np.inf)
        blocking = room.argmin()
        x[some] = np.maximum(x[some] + min(room[blocking], 1.0) * step, floors[some])
        if room[blocking] < 1.0:
            x[some[blocking]], free[some[blocking]] = floors[some[blocking]], False
            continue
        slopes = slope + metric @ (x - point)
        released = np.where(free, np.inf, slopes).argmin()
        if free[released] or slopes[released] >= level - _PULL * np.abs(slopes).max():
            break
        free[released] = True
    x[x.argmax()] += 1.0 - x.sum()  # errors do not add up over many steps
    return x
