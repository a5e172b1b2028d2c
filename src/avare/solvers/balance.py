"""SAGA with steps of any length, for sparse rows and a penalty that is strong next to them: dual coordinate ascent.

The table holds a slope c_i per example, and G = sum_i c_i a_i. If the l2 term is strong, x need not follow G in small
steps: it can be, at any time, where the penalty balances G, the minimum of G . x + l2/2 |x|^2 + l1 |x|_1. Then only the
table is left to improve. A visit to example i moves its slope towards the one at x,

    c_i <- c_i + t_i (s_i l'(a_i . x) - c_i),    t_i = 1 / (1 + s_i L |a_i|^2 / l2),

with L the largest second derivative of the loss. This is stochastic dual coordinate ascent (Shalev-Shwartz and Zhang,
2013): each visit increases the dual objective, whatever the data. There is no step size, nothing lags, and a visit
reads and writes the entries of one row.

An epoch has n visits, and example i has a share of them in proportion to 1 / t_i (Zhao and Zhang, 2015): one heavy
example does not slow down all others. In place of independent draws, its visits are spread evenly over the epochs, and
shuffled within each: after e epochs it has been visited floor(e r_i + u_i) times, with r_i the visits per epoch and u_i
uniform in [0, 1). The time between two visits is then never long. On the text of `benchmarks/linear.py`, 10^-6 takes 5
epochs, 6 with uneven weights. With the draws of `Calibrated` it takes 8 and 10.

A bias without a penalty gets one that pulls it to its value after the last epoch (a proximal point).
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from avare._compilation import lean
from avare._state import Field, State, read
from avare.problems.base import Vector
from avare.problems.linear import Linear
from avare.problems.losses import slope
from avare.samplers.base import Sampler
from avare.solvers.metric import bends_of, squared_columns
from avare.solvers.saga_kernels import slopes_into
from avare.solvers.steps import Iterates, Settings

# The mean smoothness of an example over l2 up to which these steps are used: with more rows than columns, which make
# the objective strongly convex without the penalty as well, and with fewer.
_MANY_ROWS, _FEW_ROWS = 1.0, 100.0
_STIFFNESS = 10.0  # of a free bias: visits move it by a tenth of what they move the outputs by otherwise, ...
_SHARE = 0.01  # ... but it is at most this share of its curvature, so that few epochs are enough
_MARGIN = 0.5  # the estimate of the gradient must be this far below the tolerance, at first, to be verified


def squares_to_balance(problem: Linear, start: Vector | None) -> Vector | None:
    """Return the squared lengths of the rows if these steps serve a problem, otherwise None.

    They do if X is sparse, the l2 term is strong, and the start is 0 but for a free bias.
    """
    if problem._model.matrix.sparse is None or problem.l2 == 0.0:
        return None
    if start is not None and start[problem._l2 > 0.0].any():
        return None
    squares = problem._squared_lengths()
    most = _MANY_ROWS if problem.n > problem.width else _FEW_ROWS
    return squares if float(_ratios(problem, squares).mean()) <= most else None


class Memory(NamedTuple):
    """What visits read and write."""

    pulls: Vector
    """-G / l2, a row per column and a column per output; of a free bias with its own penalty."""
    table: Vector
    """The slope of each example, a column per output."""
    centre: Vector
    """What a free bias is pulled to, one number per output."""
    left: Vector
    """The sum of the squared differences since the last check, each example counted once per epoch."""


class Balance:
    """The visits of one run, with their memory: a `Method` of the loop."""

    size = math.inf
    """There is no step size."""

    def __init__(self, problem: Linear, sampler: Sampler, iterates: Iterates, squares: Vector, *, tol: float) -> None:
        self._problem, self._sampler, self._iterates, self._tol = problem, sampler, iterates, tol
        self.period = max(1, problem.n // sampler.batch_size)
        width, outputs = problem.width, problem.outputs
        self._free = problem._model.matrix.bias and problem._l2[-1] == 0.0
        self._stiffness = problem.l2
        if self._free:
            squares = squares - 1.0
            least = problem.l2 / max(float(squares.mean()), np.finfo(float).tiny)
            self._stiffness = min(_STIFFNESS * least, max(least, _SHARE * float(bends_of(problem).sum())))
            squares += problem.l2 / self._stiffness
        ratios = 1.0 + _ratios(problem, squares)
        self._damping, self._rates = 1.0 / ratios, ratios / ratios.mean()
        self._shares = squares / (problem.l2 * self._rates)  # what a squared difference counts for
        self._seed = int(sampler._generator.integers(1 << 62))
        self._memory = Memory(
            np.zeros((width, outputs)), np.zeros((problem.n, outputs)), np.zeros(outputs), np.zeros(1)
        )
        if self._free:
            self._memory.centre[:] = problem.coefficients(iterates.x)[:, -1]
        self._order: tuple[int, NDArray[np.int32]] = (-1, np.empty(0, dtype=np.int32))
        self._margin = _MARGIN
        self._scale_of_objective = problem._objective_at_zero()
        self._outputs = np.empty(outputs)

    # --- the method of a loop -----------------------------------------------------------------

    def advance(self, settings: Settings, step: int, sizes: Vector, noise: Vector) -> int:
        """Make the visits of some steps of one epoch, after `step` steps; return how many steps."""
        count, model = len(sizes), self._problem._model
        epoch, first = divmod(step, self.period)
        order = self._order_of(epoch) if count else self._order[1][:0]
        places = len(order) * first // self.period, len(order) * (first + count) // self.period
        _visit(
            model.matrix.sparse,
            model,
            order[places[0] : places[1]],
            (self._damping, self._shares),
            (self._problem.l2, self._stiffness, self._cut, 0.0 if self._free else self._cut),
            self._memory,
            self._outputs,
        )
        with self._sampler._lock:
            self._sampler._steps += count
        self._set_x()
        return count

    def check(self, step: int) -> str | None:
        """Return why the iterates have converged, if they have."""
        memory = self._memory
        estimate = math.sqrt(float(memory.left[0]))
        memory.left[0] = 0.0
        converged = self._converged(step, estimate)
        if self._free and converged is None:
            memory.centre[:] += memory.pulls[-1]
            self._set_x()
        return converged

    def norms(self) -> Vector:
        """Return how much the slopes of each example differ from the table's now, times the length of its row."""
        problem, slopes = self._problem, np.empty_like(self._memory.table)
        for part, outputs, _ in problem._outputs(problem.coefficients(self._iterates.x)):
            slopes_into(*problem._terms(part), outputs, slopes[part])
        return np.asarray(np.linalg.norm(slopes - self._memory.table, axis=1) * problem.lengths)

    def state(self) -> dict[str, Any]:
        """Return what else to save."""
        memory = {f"balance/{name}": array.copy() for name, array in zip(Memory._fields, self._memory, strict=True)}
        return {**memory, "balance/seed": self._seed, "balance/margin": self._margin}

    def read(self, state: Mapping[str, Any], step: int) -> State:
        """Return what `resume` takes from a saved state, or raise a ``ValueError``. Nothing changes."""
        fields = {
            f"balance/{name}": Field(np.float64, array.shape)
            for name, array in zip(Memory._fields, self._memory, strict=True)
        }
        more = {"balance/seed": Field(int, at_least=0), "balance/margin": Field(float, at_least=0.0, at_most=1.0)}
        return read(state, {**fields, **more}, "resume")

    def resume(self, values: State) -> None:
        """Continue from what `read` returned."""
        for name, array in zip(Memory._fields, self._memory, strict=True):
            array[...] = values[f"balance/{name}"]
        self._seed, self._margin = values["balance/seed"], values["balance/margin"]

    # --- their parts --------------------------------------------------------------------------

    @property
    def _cut(self) -> float:
        return self._problem.l1 / self._problem.l2

    def _order_of(self, epoch: int) -> NDArray[np.int32]:
        """The visits of an epoch."""
        if self._order[0] != epoch:
            offsets = np.random.default_rng(self._seed).random(self._problem.n)
            counts = np.floor((epoch + 1) * self._rates + offsets) - np.floor(epoch * self._rates + offsets)
            order = np.repeat(np.arange(self._problem.n, dtype=np.int32), counts.astype(np.int64))
            np.random.default_rng([self._seed, epoch]).shuffle(order)
            self._order = epoch, order
        return self._order[1]

    def _set_x(self) -> None:
        """Set the iterate to where the penalty balances the table."""
        pulls, cut = self._memory.pulls, self._cut
        table = self._iterates.x.reshape(self._problem.outputs, self._problem.width)
        table[:] = (pulls - np.clip(pulls, -cut, cut)).T if cut > 0.0 else pulls.T
        if self._free:
            table[:, -1] = self._memory.centre + pulls[-1]

    def _converged(self, step: int, estimate: float) -> str | None:
        if self._tol == 0.0:
            return None
        bound = self._tol * math.sqrt(2.0 * self._scale_of_objective)
        if estimate > self._margin * bound:
            return None
        problem, x = self._problem, self._iterates.x
        curvature = squared_columns(problem, bends_of(problem)) + problem._l2[: problem.width]
        whole = problem.coefficients(problem._subgradient(x, problem._gradient(x)))
        true = math.sqrt(float((whole**2 @ (1.0 / np.maximum(curvature, np.finfo(float).tiny))).sum()))
        if true > bound:  # wait until the estimate is smaller by as much as it was wrong
            self._margin = min(0.5 * self._margin, 0.7 * estimate / true)
            return None
        return f"converged after step {step}: the gradient is {true / bound * self._tol:.3g} of its scale"


def _ratios(problem: Linear, squares: Vector) -> Vector:
    """The smoothness constant of each example over l2."""
    return np.asarray(bends_of(problem) * squares / problem.l2)


# --- kernels -------------------------------------------------------------------------------


@lean
def _visit(sparse, model, order, factors, penalty, memory, outputs):
    """Visit examples in order."""
    pulls, table = memory.pulls, memory.table
    damping, shares = factors
    l2, stiffness, cut, cut_of_bias = penalty
    count, last = table.shape[1], len(pulls) - 1
    for place in range(len(order)):
        index = order[place]
        first, end = sparse.starts[index], sparse.starts[index + 1]
        for k in range(count):
            z = 0.0
            for entry in range(first, end):
                pull = pulls[sparse.columns[entry], k]
                z += np.float64(sparse.values[entry]) * (pull - min(max(pull, -cut), cut))
            if model.matrix.bias:
                pull = pulls[last, k]
                z += memory.centre[k] + pull - min(max(pull, -cut_of_bias), cut_of_bias)
            outputs[k] = z
        slope(model.loss, model.targets[index], outputs)
        weight = model.sample_weight[index] if len(model.sample_weight) > 0 else 1.0
        square = 0.0
        for k in range(count):
            difference = weight * outputs[k] - table[index, k]
            square += difference * difference
            change = damping[index] * difference
            table[index, k] += change
            for entry in range(first, end):
                pulls[sparse.columns[entry], k] -= np.float64(sparse.values[entry]) * (change / l2)
            if model.matrix.bias:
                pulls[last, k] -= change / stiffness
        memory.left[0] += shares[index] * square
