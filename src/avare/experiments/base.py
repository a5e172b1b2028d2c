"""What an experiment is: what to run, how to do one run, and what its records show; and which experiments there are.

An experiment is one class that derives from `Experiment`, and one instance of it, passed to
`avare.experiments.register`. The command ``avare reproduce`` and the report know experiments by
their registry only. A complete one is in CONTRIBUTING.md.
"""

import warnings
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from typing import Any, ClassVar

from numpy.typing import NDArray

from avare import _validation as validation
from avare.experiments.data import Data, Place
from avare.experiments.document import Figure, Panel, Section, Table
from avare.experiments.store import Record, RecordError, Result, Spec, key_of, mapping_in

RUNS = 10
"""How many runs of each setting a full experiment has: seeds 0 to 9."""


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """A run to do: all that determines it, and its data.

    >>> import numpy as np
    >>> data = Data("mine", np.array([[1.0]]), np.array([1.0]))
    >>> task = Task({"experiment": "own", "dataset": "mine", "seed": 0}, data)
    >>> task.key == Task({"seed": 0, "dataset": "mine", "experiment": "own"}, data).key
    True
    """

    spec: Spec
    data: Data
    optimum: float | None = None

    @property
    def key(self) -> str:
        """The key of its record in a store."""
        return key_of(self.spec)


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """Runs that do not depend on each other's records.

    >>> Stage("runs", []).title
    'runs'
    """

    title: str  # what the runs are, in a word or two, for the progress display
    tasks: Sequence[Task]


Stages = Generator[Stage, list[Record], None]
"""Yields stages; after each, ``yield`` returns the stage's records, so that the next can depend on them."""


@dataclass(frozen=True, slots=True)
class Request:
    """What the command ``avare reproduce`` was asked to run.

    >>> Request(words=("own",), quick=True).jobs
    1
    """

    words: tuple[str, ...] = ()  # those of `Experiment.words` that were named
    runs: int | None = None  # seeds of each setting; None: the experiment's own number
    epochs: int | None = None  # of each run; None: the experiment's own number
    quick: bool = False  # whether to run less of everything
    rules: tuple[str, ...] = ("decreasing", "constant")  # step sizes
    samplers: tuple[str, ...] = ()  # (): the experiment's own
    plan: Place = None  # a file with settings that only the experiment knows
    folder: Place = None  # to look into first for the files of datasets
    jobs: int = 1  # how many runs are done at a time
    progress: bool = False  # whether downloads show their progress


@dataclass(frozen=True, slots=True, eq=False)
class Summary:
    """What the records of an experiment show.

    >>> Summary(lead="12 runs of 2 samplers", numbers={"runs": 12}).lead
    '12 runs of 2 samplers'
    """

    lead: str = ""  # for the top of the page, such as "12 runs of 2 samplers"
    notices: tuple[str, ...] = ()  # warnings for the top of the page
    tables: Mapping[str, Table] = field(default_factory=dict)  # by the names of their files
    figures: Mapping[str, Figure] = field(default_factory=dict)  # by the names of their files
    panels: tuple[Panel, ...] = ()  # tabs of the page
    details: tuple[Section, ...] = ()  # for the tab "How it was run"
    numbers: Mapping[str, Any] = field(default_factory=dict)  # all that is shown, with all digits; lists are joined

    @property
    def parts(self) -> tuple[str | Table, ...]:
        """What the command prints: tables, notices, and what is at the top of tabs."""
        lines = [words for panel in self.panels for words in (*panel.verdict, *panel.lead) if isinstance(words, str)]
        return (*self.tables.values(), *self.notices, *lines)


class Experiment(ABC):
    """What to run, how to do one run, and what the records show.

    >>> import numpy as np
    >>> class Mean(Experiment):
    ...     name = "mean"
    ...     kinds = ("mean",)
    ...
    ...     def run(self, spec, X, y, optimum):
    ...         return {"seconds": {"steps": 0.0}, "status": "finished", "mean": float(y.mean())}
    ...
    ...     def summarise(self, results):
    ...         return Summary(lead=f"{len(results)} runs")
    >>> Mean().run({"experiment": "mean"}, None, np.array([1.0, 3.0]), None)["mean"]
    2.0
    >>> Mean().describe({"experiment": "mean", "dataset": "digits", "seed": 3})
    'mean, digits, seed 3'
    """

    name: ClassVar[str]
    """Its name in the registry."""
    kinds: ClassVar[tuple[str, ...]]
    """The values of ``spec["experiment"]`` of its records."""
    words: ClassVar[tuple[str, ...] | None] = None
    """What ``avare reproduce`` accepts to run it or parts of it; None: its name."""
    takes: ClassVar[tuple[str, ...]] = ()
    """Fields of `Request` that few experiments use, and this one does: "plan"."""
    shown: ClassVar[tuple[str, ...]] = ("finished",)
    """The statuses of records that a summary shows."""

    # --- running ------------------------------------------------------------------------

    def stages(self, request: Request) -> Stages:
        """Yield what to run. Nothing runs before the first ``yield``: refuse bad requests there."""
        raise ValueError(f"{self.name}: is not run by avare reproduce")

    @abstractmethod
    def run(self, spec: Spec, X: Any, y: NDArray[Any], optimum: float | None) -> Record:
        """Do one run, in any process, from its arguments alone.

        Returns
        -------
        dict
            JSON values: ``"seconds"`` (by part: "steps", "evaluation"), ``"status"``, and what was measured, most often
            ``"trace"`` (a list per column). Spec, versions, machine and date are added to it.
        """

    def describe(self, spec: Spec) -> str:
        """Describe a run in a few words, for the progress display."""
        texts = [value for key, value in spec.items() if isinstance(value, str) and key != "data_digest"]
        return ", ".join([*texts, f"seed {spec['seed']}"] if "seed" in spec else texts)

    def closing(self, records: Sequence[Record]) -> Summary | None:
        """Return what the command prints of the runs it was asked for: by default, what the page shows of them."""
        return self.summarise([self.parse(record) for record in records])

    # --- reading ------------------------------------------------------------------------

    def parse(self, data: Mapping[str, Any]) -> Result:
        """Read a stored record; raise a `RecordError` if it lacks what the summary needs."""
        return Result.of(data, self.shown)

    @abstractmethod
    def summarise(self, results: Sequence[Result]) -> Summary | None:
        """Return what all records of `kinds` show, of which some are not to be shown; None if that is nothing."""


# --- by name --------------------------------------------------------------------------------

GROUP = "avare.experiments"
"""The group of entry points by which other packages add experiments."""

_EXPERIMENTS: dict[str, Experiment] = {}


def register(experiment: Experiment) -> None:
    """Add an experiment to the command and the report; replace the one of the same name.

    An installed package need not call it: an entry point of the group ``avare.experiments`` that names an instance
    is found.

    >>> register(get("compare"))  # an instance of your own class
    >>> "compare" in names()
    True
    """
    for other in _EXPERIMENTS.values():
        for kind in set(other.kinds) & set(experiment.kinds) if other.name != experiment.name else ():
            raise ValueError(f"kind = {kind!r}: belongs to the experiment {other.name}")
    _EXPERIMENTS[experiment.name] = experiment


def names() -> list[str]:
    """Return the names of all experiments, in the order in which the report shows them.

    >>> names()[:2]
    ['compare', 'paper']
    """
    _find_others()
    return list(_EXPERIMENTS)


def get(name: str) -> Experiment:
    """Return the experiment of a name.

    >>> get("compare").name
    'compare'
    """
    return _EXPERIMENTS[validation.choice("name", name, names())]


def of_kind(kind: object) -> Experiment:
    """Return the experiment whose records have this ``spec["experiment"]``.

    >>> of_kind("reproduce").name
    'paper'
    """
    owners = {each: name for name in names() for each in _EXPERIMENTS[name].kinds}
    if not isinstance(kind, str) or kind not in owners:
        raise RecordError(f"spec['experiment'] = {kind!r}: must be one of {', '.join(owners)}")
    return _EXPERIMENTS[owners[kind]]


def showable(
    records: Iterable[Record], attempt: Callable[[Sequence[Result]], object]
) -> tuple[list[Result], list[str]]:
    """Return the records that can be shown together, as summaries get them, and the files of the others, with why.

    The attempt is made with all of them; only if it fails, with halves of them, and halves of these. Results whose
    specs have rare types come last, so that an odd one is passed over, and not those that do not fit to it.
    """
    results, skipped = [], []
    for record in records:
        try:
            results.append(of_kind(mapping_in(record, "spec").get("experiment")).parse(record))
        except Exception as error:  # whatever is odd about one record, the others count
            words = str(error) if isinstance(error, RecordError) else f"cannot be shown: {error!r}"
            skipped.append(f"{record['key']}.json: {words}")
    types = [tuple(sorted((key, type(value).__name__) for key, value in each.spec.items())) for each in results]
    frequent = Counter(types)
    order = sorted(range(len(results)), key=lambda place: -frequent[types[place]])

    def add(sound: list[Result], more: list[Result]) -> list[Result]:
        try:
            attempt([*sound, *more])
        except (ImportError, OSError):  # which no record causes
            raise
        except Exception as error:
            if len(more) <= 1:
                skipped.extend(f"{each.stored['key']}.json: cannot be shown: {error!r}" for each in more)
                return sound
            half = len(more) // 2
            return add(add(sound, more[:half]), more[half:])
        return [*sound, *more]

    return add([], [results[place] for place in order]), skipped


@cache
def _find_others() -> None:
    """Register what other packages bring; one that cannot be loaded is left out, with a warning."""
    for point in entry_points(group=GROUP):
        try:
            register(point.load())
        except Exception as error:
            warnings.warn(f"the experiment {point.name} ({point.value}) cannot be loaded: {error!r}", stacklevel=3)
