"""Safe: bound each norm, and use the distribution that is best in the worst case within the bounds."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from avare import _validation as validation
from avare._randomness import Seed
from avare.batch import Batch
from avare.samplers.base import Sampler, one_per_example
from avare.samplers.registry import register
from avare.simplex.intervals import safest
from avare.state import Field, Fields, State, checksum, refuse_unless
from avare.structures.weighted_draws import draw_batch

_UNIFORM = 1e-12  # the share of the uniform distribution
_LARGEST = 1e300  # larger norms count as this,
_LARGEST_FACTOR = 1e150  # and larger constants and paths as this, so that no bound overflows


@register(example=lambda n: {"smoothness": 1.0 + np.arange(n) % 5})
class Safe(Sampler):
    r"""Safe adaptive importance sampling (Stich, Raj & Jaggi, 2017).

    After `update` has received the norm of an example, the norm can change by at most :math:`L_i` times the length
    of the path of the iterates. So it is bounded by

    .. math:: l_i = \max(n_i - L_i \ell_i, 0) \;\le\; \|g_i\| \;\le\; u_i = n_i + L_i \ell_i,

    with :math:`n_i` its last reported norm and :math:`\ell_i` the length of the path since then. Of all
    distributions, the one in proportion to

    .. math:: c_i = \min(\max(\tau, l_i), u_i), \qquad \tau = \textstyle\sum c_i^2 / \sum c_i,

    has the smallest second moment relative to uniform sampling, for the worst norms within the bounds.

    Choose it if smoothness constants are known, steps are short, and it must never be worse than uniform
    sampling: while the bounds hold, its second moment (of draws with replacement) is never above uniform's.

    **Report the path** (`sgd` and `sgld` do): call ``move(distance)`` after each step, with the distance between the
    iterates, and ``update`` before it, because norms belong to the present iterate. Without
    `move` the path has length 0, and norms count as reported.

    Our additions: before the first norm of an example is reported, l = 0, and u is `bound`, or the largest norm so
    far if that is larger or no bound is given. While no norm above zero is known, draws are uniform. p is
    mixed with 1e-12 of uniform, so that no probability is zero; the guarantee still holds.
    Norms above 1e300 count as 1e300, constants and paths above 1e150 as 1e150.

    Cost: O(N) per step: each interval widens at its own rate with every move, so that the order of their ends, and
    with it tau and all of p, changes at every step. Memory: 24 bytes per example, and the same again during a draw.

    Parameters
    ----------
    n : int
        Number of examples.
    batch_size : int, default=128
        m, the number of draws per step.
    smoothness : array-like
        L, one number per example: the Lipschitz constants of the gradients.
    bound : float or None, default=None
        A bound on the norms that have not been reported yet.
    replacement : bool, default=False
        Whether an index may occur twice in a batch.
    seed : int, SeedSequence, BitGenerator, Generator or None, default=None
        See `Sampler`.

    Examples
    --------
    >>> sampler = Safe(4, batch_size=2, smoothness=[1.0, 1.0, 1.0, 1.0], seed=0)
    >>> sampler.update([0, 1, 2, 3], [1.0, 2.0, 30.0, 4.0])
    >>> sampler.probabilities().round(3)
    array([0.027, 0.054, 0.811, 0.108])
    >>> sampler.move(3.0)
    >>> sampler.bounds()
    (array([ 0.,  0., 27.,  1.]), array([ 4.,  5., 33.,  7.]))
    >>> sampler.probabilities().round(3)
    array([0.093, 0.116, 0.628, 0.163])

    References
    ----------
    S. U. Stich, A. Raj, M. Jaggi. Safe Adaptive Importance Sampling. NeurIPS 2017.
    """

    follows_path = True
    needs = ("smoothness",)
    hyperparameters = ("smoothness_checksum", "bound")

    def __init__(
        self,
        n: int,
        batch_size: int = 128,
        *,
        smoothness: ArrayLike,
        bound: float | None = None,
        replacement: bool = False,
        seed: Seed = None,
    ) -> None:
        super().__init__(n, batch_size, replacement=replacement, seed=seed)
        constants = one_per_example("smoothness", smoothness, self.n)
        self._smoothness = np.minimum(constants, _LARGEST_FACTOR)
        self._smoothness_checksum = checksum({"smoothness": constants})
        self.bound = 0.0 if bound is None else validation.number("bound", bound, above=0.0, at_most=_LARGEST)
        """The given bound, or 0."""
        self._norms = np.zeros(self.n)  # the last reported ones
        self._visited_at = np.full(self.n, -1.0)  # the length of the path then; -1: not reported yet
        self._path = 0.0
        self._largest = self.bound  # u of those not reported yet
        self._tau = 0.0  # of the last draw: the first guess for the next

    def move(self, distance: float) -> None:
        """Report the length of a step: the distance between the last iterate and the new one. O(1).

        Parameters
        ----------
        distance : float
            Finite and not negative. Otherwise a ``ValueError`` is raised, and nothing has changed.
        """
        distance = validation.number("distance", distance, at_least=0.0)
        with self._lock:
            self._path = min(self._path + distance, _LARGEST_FACTOR)

    def bounds(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the lower and the upper bound of each norm, l and u. O(N).

        While no norm above zero is known, u is infinite for examples without a reported norm.
        """
        with self._lock:
            unvisited = self._largest if self._largest > 0.0 else math.inf
            drift, visited = self._smoothness * (self._path - self._visited_at), self._visited_at >= 0.0
            lower = np.where(visited, np.maximum(self._norms - drift, 0.0), 0.0)
            return lower, np.where(visited, self._norms + drift, unvisited)

    def compute_probabilities(self) -> NDArray[np.float64]:
        return self._solve()[0]

    def _solve(self) -> tuple[NDArray[np.float64], float]:
        """Return the probabilities, and tau."""
        if self._largest == 0.0:
            return np.full(self.n, 1.0 / self.n), 0.0
        p, tau = safest(*self.bounds(), guess=self._tau)
        p *= 1.0 - _UNIFORM
        p += _UNIFORM / self.n
        return p, tau

    def draw(self, size: int) -> Batch:
        p, self._tau = self._solve()
        return draw_batch(p, size, self.replacement, self.generator)

    def learn(self, indices: NDArray[np.int64], norms: NDArray[np.float64]) -> None:
        self._norms[indices] = np.minimum(norms, _LARGEST)
        self._visited_at[indices] = self._path
        self._largest = min(max(self._largest, float(norms.max(initial=0.0))), _LARGEST)

    def fields(self) -> Fields:
        return {
            "smoothness": None,
            "norms": Field(np.float64, (self.n,), at_least=0.0, at_most=_LARGEST),
            "visited_at": Field(np.float64, (self.n,), at_least=0.0, at_most=_LARGEST_FACTOR, also=-1.0),
            "path": Field(float, at_least=0.0, at_most=_LARGEST_FACTOR),
            "largest": Field(float, at_least=self.bound, at_most=_LARGEST),
            "tau": Field(float, at_least=0.0),
        }

    def check_state(self, values: State) -> None:
        norms, visited_at, largest = values["norms"], values["visited_at"], values["largest"]
        refuse_unless(visited_at <= values["path"], visited_at, "state['visited_at']", "is beyond state['path']")
        refuse_unless(norms <= largest, norms, "state['norms']", "is above state['largest']")
