"""Draw examples in proportion to weights that change: in place of ``torch.utils.data.WeightedRandomSampler``."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Sampler

from avare import _validation as validation
from avare.state import Field, State, checksum
from avare.structures import WeightTree
from avare.structures.seeded_tree import SeededTree
from avare.torch.loading.ranks import Mode, Ranks
from avare.torch.loading.tensors import as_array, with_arrays, with_tensors

_AHEAD = 256  # indices that iteration draws at a time


class WeightedSampler(Sampler[int]):
    """Draw indices in proportion to weights, which may change at any time.

    It replaces ``WeightedRandomSampler`` in one line, for any number of weights up to 2·10⁹, as float64. Iteration
    draws a few indices ahead. `update` takes back those that were not yielded yet, together with their random numbers:
    the very next index follows the new weights. A ``DataLoader`` with workers asks for ``prefetch_factor`` batches per
    worker before it needs them, and these were drawn with the weights of that time.

    With several processes, every rank has all weights, draws the same seeded sequence and yields its own part
    of it: the ranks draw disjoint parts of what one process would draw. Each yields ``num_samples / ranks`` indices,
    rounded up with replacement and down without.

    Memory: 9 bytes per weight; without replacement 19 during a pass.

    Parameters
    ----------
    weights : array or tensor of shape (n,)
        Finite and not negative; they need not sum to 1. An index whose weight is 0 is never drawn.
    num_samples : int, optional
        Indices per pass. By default n; without replacement, the number of weights above 0.
    replacement : bool, default=True
        Whether a pass may contain an index twice. Without replacement, each draw is from the indices that the pass has
        not drawn yet, in proportion to their weights.
    seed : int, optional
        Seed of the random numbers. With several processes, None becomes one seed for all of them.
    distributed : "auto" or None, default="auto"
        Whether to share the draws with the other processes, if a process group is initialised.

    Examples
    --------
    >>> import torch
    >>> sampler = WeightedSampler([1.0, 0.0, 3.0], num_samples=6, seed=0)
    >>> list(sampler)
    [2, 2, 0, 0, 2, 2]
    >>> sampler.update([0, 1], [0.0, 5.0])  # at the next draw
    >>> sorted(set(sampler.draw(100).tolist()))
    [1, 2]
    >>> loader = torch.utils.data.DataLoader(torch.arange(3), batch_size=2, sampler=sampler)
    >>> len(loader)
    3
    """

    _resumes: bool  # whether the next iteration continues a pass
    _place: int  # in what was drawn ahead

    def __init__(
        self,
        weights: Any,
        num_samples: int | None = None,
        replacement: bool = True,
        *,
        seed: int | None = None,
        distributed: Mode = "auto",
    ) -> None:
        tree = WeightTree(as_array("weights", weights))
        self.replacement = validation.boolean("replacement", replacement)
        self._wanted = None if num_samples is None else validation.integer("num_samples", num_samples, at_least=1)
        self._ranks = Ranks(tree.n, 1, distributed)
        if self._ranks.is_sharded:
            raise ValueError("distributed = 'sharded': every rank has all weights")
        settings = {"num_samples": num_samples, "replacement": replacement, "seed": seed}
        if self._ranks.world > 1:
            settings["checksum of weights"] = checksum(tree.state())
        common_seed = self._ranks.agree(settings)
        self._draws = SeededTree(tree, common_seed if seed is None else seed)
        self._pass = 0  # a number that identifies the current pass
        self._require_enough()
        self._begin(None)

    @property
    def weights(self) -> NDArray[np.float64]:
        """The present weights; do not write to them. O(1)."""
        return self._draws.tree.values

    @property
    def num_samples(self) -> int:
        """Indices per pass, over all ranks. O(1), or O(N) for the number of weights above 0."""
        if self._wanted is not None:
            return self._wanted
        return len(self.weights) if self.replacement else int(np.count_nonzero(self.weights))

    def __len__(self) -> int:
        """The number of indices that a pass yields on this rank."""
        world = self._ranks.world
        return -(-self.num_samples // world) if self.replacement else self.num_samples // world

    def __iter__(self) -> Iterator[int]:
        """Yield the indices of a pass, or those that are left of the pass of a loaded state.

        It ends the pass of an earlier iterator, which raises an error if it is asked for more.
        """
        self._ranks.check_unchanged()
        if not self._resumes:
            self._require_enough()
            self._take_back()
            self._begin(None if self.replacement else np.zeros(len(self.weights), dtype=np.bool_))
        self._resumes = False
        current, left = self._pass, self._length - self._given
        while left > 0:
            if self._place == len(self._ahead) and not self._draw_ahead():
                return  # weights that were set to zero are missing
            index = self._ahead[self._place]
            self._place += 1
            self._given += 1
            left -= 1
            yield index
            if left > 0 and self._pass != current:
                raise RuntimeError("another iteration has begun, or a state was loaded: this one cannot continue")
        if self._pass == current:
            self._begin(None)

    def draw(self, size: int) -> torch.Tensor:
        """Draw a batch for a loop of your own; without replacement, its indices are distinct. O(size log N).

        It is independent of the passes of an iteration. With several ranks, each gets ``size`` indices of its own.
        """
        self._take_back()
        world = self._ranks.world
        indices, _ = self._draws.draw(validation.integer("size", size, at_least=0) * world, self.replacement)
        return torch.from_numpy(indices[self._ranks.rank :: world])

    def update(self, indices: Any, weights: Any) -> None:
        """Replace the weights of some examples, from the next draw on. O(log N) each.

        Without replacement, an index that the pass has already drawn does not come back before the next pass. With
        several ranks, all of them must call this after the same number of draws: each passes its own indices and
        weights, and receives those of all. A wrong value is an error on every rank, and nothing has changed.
        """
        where, what = self._gathered(as_array("indices", indices), as_array("weights", weights))
        self._take_back()
        self._draws.tree.replace(where, what)
        if self._drawn is not None:
            left = ~self._drawn[where]
            self._left.replace(where[left], what[left])

    def state_dict(self) -> State:
        """Return all that is needed to resume with the same draws: the weights and the place in the pass. O(N).

        It is the same on all ranks.
        """
        self._take_back()
        drawn = np.empty(0, dtype=np.bool_) if self._drawn is None else self._drawn
        return with_tensors(self._draws.state(**self._arguments(), given=self._given, length=self._length, drawn=drawn))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a saved state: the next iteration continues its pass. O(N).

        A damaged state, or one of different arguments, is a ``ValueError``, and nothing changes.
        """
        counts = dict.fromkeys(("given", "length"), Field(int, at_least=0, at_most=2**62))
        fields = {**counts, "drawn": Field(np.bool_, (None,))}
        values = self._draws.read(with_arrays(state), self._arguments(), fields, "this sampler")
        drawn = values["drawn"] if len(values["drawn"]) else None
        if values["given"] > values["length"] or (drawn is not None and len(drawn) != len(self.weights)):
            raise ValueError(f"state['given'] = {values['given']}: does not fit the other fields")
        self._draws.restore(values)
        self._begin(drawn)
        self._given, self._length = values["given"], values["length"]
        self._resumes = 0 < self._given < self._length

    def _arguments(self) -> State:
        return {"n": len(self.weights), "replacement": int(self.replacement), "ranks": self._ranks.world}

    def _require_enough(self) -> None:
        """Raise an error if there are not enough weights above zero for a pass."""
        if self._draws.tree.total == 0.0:
            raise ValueError("weights: all are 0, so there is nothing to draw")
        if not self.replacement and self.num_samples > (above := int(np.count_nonzero(self.weights))):
            raise ValueError(
                f"num_samples = {self.num_samples}: only {above} weights are above 0, and without replacement each is "
                "drawn once"
            )

    def _begin(self, drawn: NDArray[np.bool_] | None) -> None:
        """Begin a pass, or end one: which indices were drawn is needed during a pass without replacement only."""
        self._pass += 1
        self._resumes = False
        self._given, self._length, self._place = 0, len(self), 0
        self._ahead: list[int] = []
        self._drawn = drawn
        self._taken = np.empty(0, dtype=np.int64)  # what all ranks draw ahead
        if drawn is not None:
            self._left = WeightTree(np.where(drawn, 0.0, self.weights))

    def _draw_ahead(self) -> bool:
        """Draw some indices ahead; return whether there are any for this rank."""
        size, world = min(_AHEAD, self._length - self._given), self._ranks.world
        if self._drawn is None:
            self._taken, _ = self._draws.draw(size * world, replacement=True)
        else:
            self._taken = self._draws.take(size * world, self._left)
            self._drawn[self._taken] = True
        self._ahead = self._taken[self._ranks.rank : len(self._taken) // world * world : world].tolist()
        self._place = 0
        return len(self._ahead) > 0

    def _take_back(self) -> None:
        """Undo the draws that no rank has yielded yet."""
        unused = self._taken[self._place * self._ranks.world :]
        if not len(unused):
            return
        self._draws.rewind(len(unused))
        if self._drawn is not None:
            self._drawn[unused] = False
            self._left.replace(unused, self.weights[unused])
        self._ahead, self._taken, self._place = [], self._taken[:0], 0

    def _gathered(self, indices: Any, weights: Any) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return indices and weights of all ranks, checked."""
        own: Any = None
        try:
            own = self._draws.tree.checked(indices, weights, "weights")
        finally:  # whatever it is, the other ranks must not wait
            found = self._ranks.objects((self._given, own))
        if self._ranks.world == 1:
            return own
        for rank, (given, pair) in enumerate(found):
            if pair is None:
                raise ValueError(f"rank {rank} received invalid weights: nothing has changed on any rank")
            if given != self._given:
                raise RuntimeError(
                    f"rank {rank} has yielded {given} indices, and rank {self._ranks.rank} {self._given}: call "
                    "update() after the same number of draws on all ranks"
                )
        return np.concatenate([pair[0] for _, pair in found]), np.concatenate([pair[1] for _, pair in found])
