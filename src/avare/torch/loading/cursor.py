"""One cursor for all loaders: where an epoch is, what was prefetched, what the consumer has received.

A loader draws *units*, loads their examples, and gives the consumer one batch per unit. A unit is a batch, or a
pool, of which a second stage chooses the batch when the pool is received: the cursor stores units and never looks
into them.

The state has four parts:

- ``epoch``: how many epochs have ended.
- ``drawn``: how many units of the current epoch have been drawn.
- ``ahead``: the units that were drawn and not received yet, oldest first. Their number is
  ``drawn - position``, where ``position`` is how many units of this epoch have been received.
- whether the consumer has *started*: whether it has received a unit from the current iteration.

An epoch of ``length`` units is *over* when ``position`` reaches ``length``. Every event is one of these:

=============  ==================  ==============================================================
event          when                what happens
=============  ==================  ==============================================================
`units`        started, or over    `finish`; then the new epoch begins with new units
`units`        otherwise           the same epoch: the units ahead come first, then new ones
draw                               ``drawn + 1``; the unit is appended to ``ahead``
`receive`                          the oldest unit leaves ``ahead``; started
`drop`                             the units before a place leave ``ahead``: they could not be loaded
`deliver`      over, not started   `finish`; this iteration is empty
`deliver`      otherwise           `units`, then one `drop` and `receive` per batch, and `finish` at the end
`finish`                           ``epoch + 1``, ``drawn = 0``, nothing ahead, not started
`load`                             the saved parts; not started
=============  ==================  ==============================================================

So a consumer that asks for an iterator twice, or loads a state, gets the rest of the epoch, and one that
stops in the middle of an epoch gets a new one. "Over, not started" is a state saved with the last batch of
an epoch: its rest is empty. `units`, `finish` and `load` also end all earlier iterations: these raise an error
from then on, and cannot take units from a new one.

A unit whose examples could not be loaded, because of an error, never arrives. A loaded unit therefore says which place
it has in its epoch, so that it is never taken for another one.

An example, with epochs of 3 units of which a worker loads one ahead:

>>> letters = iter("abcdef")
>>> cursor = Cursor(length=3)
>>> units = cursor.units(lambda: next(letters))
>>> next(units), next(units), cursor.receive()
('a', 'b', 'a')
>>> saved = cursor.state()
>>> saved
(0, 2, ['b'])
>>> cursor.load(*saved)
>>> list(cursor.units(lambda: next(letters)))
['b', 'c']
>>> [cursor.receive(), cursor.receive()], cursor.is_over
(['b', 'c'], True)
>>> list(cursor.deliver(lambda: cursor.units(lambda: next(letters)), lambda unit, _: unit.upper(), "def".index))
['D', 'E', 'F']
>>> cursor.epoch
2
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

Unit = TypeVar("Unit")
_NOTHING = object()


class Cursor(Generic[Unit]):
    """Counts the units of an epoch from draw to receipt: see the module for the rules.

    All methods take O(1), except `state` and `load`, which take O(units ahead).

    Parameters
    ----------
    length
        Units per epoch.
    """

    def __init__(self, length: int) -> None:
        self.length = length
        self.epoch = 0
        self.drawn = 0
        self.ahead: deque[Unit] = deque()
        self.latest: Unit | None = None
        """The unit received last; None if there is none since the start, or since a state was loaded."""
        self.ended: Callable[[], None] | None = None
        """Called at the end of each epoch, if it is not None."""
        self.has_started = False
        """Whether a unit has been received from the current iteration."""
        self._iteration = 0  # a number that identifies the current iteration

    @property
    def position(self) -> int:
        """How many units of this epoch have been received."""
        return self.drawn - len(self.ahead)

    @property
    def is_over(self) -> bool:
        """Whether all units of this epoch have been received."""
        return self.position >= self.length

    def units(self, draw: Callable[[], Unit]) -> Iterator[Unit]:
        """Begin an iteration, and return its units: those ahead, then what ``draw`` returns."""
        if self.has_started or self.is_over:
            self.finish()
        self._iteration += 1
        return self._units(draw, self._iteration)

    def deliver(
        self, load: Callable[[], Iterator[Any]], complete: Callable[[Unit, Any], Any], place: Callable[[Any], int]
    ) -> Iterator[Any]:
        """Begin an iteration of a consumer, and return its batches.

        Parameters
        ----------
        load
            Returns an iterator over the loaded units of a new iteration: it calls `units`, directly or
            through a ``DataLoader``.
        complete
            Makes a batch of a unit and what was loaded for it: the second stage. If it raises an error, the unit has
            not been received, and the next attempt gets the same one.
        place
            Returns the place of a loaded unit in its epoch, counted from 0.
        """
        if self.is_over and not self.has_started:
            self.finish()
            return iter(())
        loaded = load()  # which begins an iteration
        return Delivery(self, self._iteration, loaded, complete, place)

    def receive(self) -> Unit:
        """Count the oldest unit ahead as received, and return it."""
        self.has_started = True
        self.latest = self.ahead.popleft()
        return self.latest

    def drop(self, place: int) -> None:
        """Drop the units ahead before a place of this epoch: they could not be loaded."""
        while self.position < place:
            self.ahead.popleft()

    def finish(self) -> None:
        """End the epoch. Units that are still ahead are dropped."""
        if self.ended is not None:
            self.ended()
        self.epoch += 1
        self.drawn = 0
        self.ahead.clear()
        self.has_started = False
        self._iteration += 1

    def state(self) -> tuple[int, int, list[Unit]]:
        """What to save, so that `load` continues here: epoch, drawn and ahead."""
        return self.epoch, self.drawn, list(self.ahead)

    def load(self, epoch: int, drawn: int, ahead: Iterable[Unit] = ()) -> None:
        """Continue from a saved state. The next iteration gives the rest of its epoch."""
        self.epoch, self.drawn, self.ahead = epoch, drawn, deque(ahead)
        self.latest = None
        self.has_started = False
        self._iteration += 1

    def require(self, iteration: int) -> None:
        """Raise an error if an iteration is not the current one."""
        if iteration != self._iteration:
            raise RuntimeError(
                "another iteration has begun, the epoch was finished, or a state was loaded: this one cannot continue"
            )

    def _units(self, draw: Callable[[], Unit], iteration: int) -> Iterator[Unit]:
        again = deque(self.ahead)
        while True:
            self.require(iteration)
            if again:
                unit = again.popleft()
            elif self.drawn == self.length:
                return
            else:
                unit = draw()
                self.drawn += 1
                self.ahead.append(unit)
            yield unit


def without_end(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function. A ``StopIteration`` within it, which would end the epoch, becomes another error."""
    try:
        return function(*arguments)
    except StopIteration as error:
        raise RuntimeError("a dataset, collate function or score raised StopIteration: see the error above") from error


@dataclass
class Delivery(Iterator[Any]):
    """The batches of one iteration: see `Cursor.deliver`. Each counts as received when the consumer gets it."""

    _cursor: Cursor[Any]
    _iteration: int
    _loaded: Iterator[Any]
    _complete: Callable[[Any, Any], Any]
    _place: Callable[[Any], int]
    _is_over: bool = False
    _held: Any = _NOTHING  # a loaded unit that has not become a batch yet

    def __next__(self) -> Any:
        if self._is_over:
            raise StopIteration
        # Before anything is loaded: persistent workers give the batches of the last iteration to all.
        self._cursor.require(self._iteration)
        try:
            if self._held is _NOTHING:
                self._held = next(self._loaded)
        except StopIteration:
            self._is_over = True
            self._cursor.finish()
            raise
        self._cursor.drop(self._place(self._held))
        batch = without_end(self._complete, self._cursor.ahead[0], self._held)
        self._held = _NOTHING
        self._cursor.receive()
        return batch
