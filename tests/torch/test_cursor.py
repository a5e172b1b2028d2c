"""The epoch cursor: every transition of its table, and random walks against a slow, plain model."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from avare.torch.loading.cursor import Cursor

STALE = "another iteration has begun, the epoch was finished, or a state was loaded: this one cannot continue"


def check(cursor: Cursor[Any]) -> None:
    """Assert all invariants of a cursor."""
    assert cursor.epoch >= 0, cursor.state()
    assert 0 <= cursor.position <= cursor.drawn <= cursor.length, cursor.state()
    assert cursor.drawn > 0 or not cursor.has_started, cursor.state()


class Source:
    """Units 0, 1, 2, ..."""

    def __init__(self, first: int = 0) -> None:
        self.next = first

    def __call__(self) -> int:
        self.next += 1
        return self.next - 1


def take(units: Iterator[Any], count: int) -> list[Any]:
    return list(itertools.islice(units, count))


def started(length: int = 4, drawn: int = 3, received: int = 1) -> Cursor[int]:
    """A cursor in the middle of its first epoch."""
    cursor: Cursor[int] = Cursor(length)
    take(cursor.units(Source()), drawn)
    for _ in range(received):
        cursor.receive()
    return cursor


# --- each row of the table -----------------------------------------------------------------


def test_a_draw_goes_ahead() -> None:
    cursor: Cursor[int] = Cursor(4)
    units = cursor.units(Source())
    assert (cursor.drawn, cursor.position, list(cursor.ahead)) == (0, 0, [])  # nothing is drawn before it is asked for
    assert take(units, 2) == [0, 1]
    assert (cursor.drawn, cursor.position, list(cursor.ahead), cursor.epoch) == (2, 0, [0, 1], 0)


def test_receive() -> None:
    cursor = started()
    assert (cursor.latest, cursor.position, list(cursor.ahead)) == (0, 1, [1, 2])
    assert cursor.receive() == 1 == cursor.latest


def test_a_new_iteration_of_a_consumer_that_has_started_is_a_new_epoch() -> None:
    cursor = started()
    assert list(cursor.units(Source(10))) == [10, 11, 12, 13]
    assert cursor.state() == (1, 4, [10, 11, 12, 13])


def test_a_new_iteration_of_a_consumer_that_has_not_started_continues() -> None:
    cursor = started(received=0)
    assert list(cursor.units(Source(10))) == [0, 1, 2, 10]
    assert cursor.epoch == 0


def test_a_new_iteration_after_the_last_unit_is_a_new_epoch() -> None:
    cursor = started(drawn=4, received=4)
    cursor.load(*cursor.state())  # not started
    assert cursor.is_over
    assert take(cursor.units(Source(10)), 1) == [10]
    assert cursor.epoch == 1 and not cursor.is_over


def test_finish() -> None:
    cursor = started()
    cursor.finish()
    assert cursor.state() == (1, 0, []) and cursor.latest == 0
    assert len(list(cursor.units(Source()))) == 4 and cursor.epoch == 1


def test_load_continues_with_the_units_ahead() -> None:
    saved = started().state()
    assert saved == (0, 3, [1, 2])
    cursor = started(drawn=2, received=2)
    cursor.load(*saved)
    assert cursor.latest is None and cursor.position == 1
    assert list(cursor.units(Source(10))) == [1, 2, 10]
    assert saved == (0, 3, [1, 2])  # is a copy


def test_an_epoch_without_end_is_never_over() -> None:
    cursor = started(10**9, drawn=1000, received=1000)
    assert not cursor.is_over and cursor.position == 1000


def test_units_finish_and_load_end_earlier_iterations() -> None:
    cursor: Cursor[int] = Cursor(4)
    first = cursor.units(Source())
    next(first)
    second = cursor.units(Source())
    with pytest.raises(RuntimeError, match=STALE):
        next(first)
    assert next(second) == 0
    cursor.load(*cursor.state())
    with pytest.raises(RuntimeError, match=STALE):
        next(second)
    third, fourth = cursor.units(Source()), cursor.units(Source())
    with pytest.raises(RuntimeError, match=STALE):
        next(third)  # also among the units ahead
    assert next(fourth) == 0
    cursor.finish()
    with pytest.raises(RuntimeError, match=STALE):
        next(fourth)


# --- deliveries ----------------------------------------------------------------------------


def deliver(cursor: Cursor[int], source: Source) -> Iterator[Any]:
    """Each unit is loaded at once; its place is that of the oldest unit ahead."""
    return cursor.deliver(lambda: cursor.units(source), lambda unit, _: f"batch {unit}", lambda _: cursor.position)


def test_a_delivery_receives_each_unit_and_finishes_the_epoch() -> None:
    cursor: Cursor[int] = Cursor(2)
    source = Source()
    batches = deliver(cursor, source)
    assert iter(batches) is batches
    for place in range(2):
        assert next(batches) == f"batch {place}"
        assert cursor.position == place + 1 and cursor.epoch == 0
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(batches)
        assert cursor.state() == (1, 0, [])
    assert list(deliver(cursor, source)) == ["batch 2", "batch 3"] and cursor.epoch == 2


def test_a_state_saved_with_the_last_unit_has_an_empty_rest_once() -> None:
    cursor: Cursor[int] = Cursor(2)
    cursor.load(5, 2)
    assert list(deliver(cursor, Source())) == [] and cursor.epoch == 6
    assert len(list(deliver(cursor, Source()))) == 2


def test_all_units_taken_one_by_one_leave_no_empty_rest() -> None:
    cursor: Cursor[int] = Cursor(2)
    take(deliver(cursor, Source()), 2)
    assert len(list(deliver(cursor, Source(2)))) == 2 and cursor.epoch == 2


def test_asking_for_a_delivery_changes_nothing() -> None:
    cursor: Cursor[int] = Cursor(3)
    for _ in range(3):
        deliver(cursor, Source())
    assert cursor.state() == (0, 0, [])
    assert len(list(deliver(cursor, Source()))) == 3 and cursor.epoch == 1


def test_an_earlier_delivery_takes_nothing_from_a_later_one() -> None:
    cursor: Cursor[int] = Cursor(3)
    source = Source()
    first = deliver(cursor, source)
    next(first)
    second = deliver(cursor, source)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=STALE):
            next(first)
    assert list(second) == ["batch 1", "batch 2", "batch 3"]


def test_a_pool_and_its_second_stage() -> None:
    pools: Iterator[list[int]] = iter([[1, 5, 3], [2, 2, 8], [7, 0, 1]])
    cursor: Cursor[list[int]] = Cursor(2)
    fails = [True]

    def choose(pool: list[int], _: Any) -> int:
        if fails.pop() if fails else False:
            raise KeyError("score")
        return max(pool)

    def begin() -> Iterator[Any]:
        return cursor.deliver(lambda: cursor.units(lambda: next(pools)), choose, lambda _: cursor.position)

    with pytest.raises(KeyError):
        next(begin())
    assert cursor.state() == (0, 1, [[1, 5, 3]])  # not received: the same pool comes again
    assert list(begin()) == [5, 8]


def test_a_unit_that_never_arrives_is_dropped() -> None:
    cursor: Cursor[int] = Cursor(6)

    def load() -> Iterator[Any]:
        """Two units at once are lost, and later another one."""
        return (loaded for loaded in enumerate(cursor.units(Source())) if loaded[0] not in (0, 1, 3))

    seen = []
    for unit in cursor.deliver(load, lambda _, loaded: loaded[1], lambda loaded: loaded[0]):
        assert cursor.latest == unit and not cursor.ahead
        check(cursor)
        seen.append((unit, cursor.position))
    assert seen == [(2, 3), (4, 5), (5, 6)] and cursor.state() == (1, 0, [])


def test_stop_iteration_of_a_function_is_an_error() -> None:
    def choose(unit: int, _: Any) -> int:
        raise StopIteration

    cursor: Cursor[int] = Cursor(2)
    batches = cursor.deliver(lambda: cursor.units(Source()), choose, lambda _: cursor.position)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="raised StopIteration"):
            next(batches)
    assert cursor.state() == (0, 1, [0])  # the same unit again


# --- invariants ----------------------------------------------------------------------------


class Plain:
    """The same, by a list of the units of the epoch with whether each was received."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.finished = 0
        self.history: list[tuple[int, bool]] = []
        self.started = False
        self.current = 0

    def begin(self) -> "PlainIteration":
        if self.started or sum(done for _, done in self.history) == self.length:
            self.finish()
        self.current += 1
        return PlainIteration(self)

    def receive(self) -> int:
        place = [done for _, done in self.history].index(False)
        unit = self.history[place][0]
        self.history[place] = unit, True
        self.started = True
        return unit

    def finish(self) -> None:
        self.load((self.finished + 1, 0, []))

    def load(self, state: tuple[int, int, list[Any]]) -> None:
        (self.finished, drawn, ahead), self.started = state, False
        self.history = [(-1, True)] * (drawn - len(ahead)) + [(unit, False) for unit in ahead]
        self.current += 1

    def state(self) -> tuple[int, int, list[Any]]:
        return (self.finished, len(self.history), [unit for unit, done in self.history if not done])


class PlainIteration:
    """Says what an iteration does when it is asked for a unit."""

    def __init__(self, plain: Plain) -> None:
        self.plain, self.number, self.closed = plain, plain.current, False
        self.again: list[int] | None = None  # not known before the first unit

    def next(self, new: int) -> int | type[Exception]:
        """A unit, which is ``new`` if it must be drawn, or the kind of the error."""
        if self.closed:
            return StopIteration
        if self.number != self.plain.current:
            self.closed = True
            return RuntimeError
        if self.again is None:
            self.again = self.plain.state()[2]
        if self.again:
            return self.again.pop(0)
        if len(self.plain.history) == self.plain.length:
            self.closed = True
            return StopIteration
        self.plain.history.append((new, False))
        return new


EVENTS = ("begin", "draw", "draw", "draw", "receive", "receive", "draw from an earlier one", "finish", "save", "load")


@given(st.integers(1, 5), st.lists(st.sampled_from(EVENTS), max_size=80))
def test_random_walks_against_a_plain_model(length: int, events: list[str]) -> None:
    cursor: Cursor[int] = Cursor(length)
    plain, source = Plain(length), Source()
    iterations = [(cursor.units(source), plain.begin())]
    saved = cursor.state()
    for event in events:
        if event == "begin":
            iterations.append((cursor.units(source), plain.begin()))
        elif event.startswith("draw"):
            units, model = iterations[-1 if event == "draw" else 0]
            expected = model.next(source.next)
            if isinstance(expected, int):
                assert next(units) == expected
            else:
                with pytest.raises(expected):
                    next(units)
        elif event == "receive" and cursor.ahead:
            assert cursor.receive() == plain.receive() == cursor.latest
        elif event == "finish":
            cursor.finish()
            plain.finish()
        elif event == "save":
            saved = cursor.state()
        elif event == "load":
            cursor.load(*saved)
            plain.load(saved)
        check(cursor)
        assert cursor.state() == plain.state()
        assert cursor.position == sum(done for _, done in plain.history)
        assert cursor.is_over == (cursor.position == length)
