"""Which experiments there are, by name."""

import warnings
from collections.abc import Iterable
from functools import cache
from importlib.metadata import entry_points

from avare.experiments.base import Experiment
from avare.experiments.records import RecordError, Result, mapping_in
from avare.experiments.store import Record

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
    known = names()
    if name not in known:
        raise ValueError(f"name = {name!r}: must be one of {', '.join(known)}")
    return _EXPERIMENTS[name]


def of_kind(kind: object) -> Experiment:
    """Return the experiment whose records have this ``spec["experiment"]``.

    >>> of_kind("reproduce").name
    'paper'
    """
    owners = {each: name for name in names() for each in _EXPERIMENTS[name].kinds}
    if not isinstance(kind, str) or kind not in owners:
        raise RecordError(f"spec['experiment'] = {kind!r}: must be one of {', '.join(owners)}")
    return _EXPERIMENTS[owners[kind]]


def parsed(records: Iterable[Record]) -> tuple[dict[str, list[Result]], list[str]]:
    """Return stored records by the name of their experiment, and the files of those that it cannot show, with why."""
    results: dict[str, list[Result]] = {name: [] for name in names()}
    skipped = []
    for record in records:
        try:
            owner = of_kind(mapping_in(record, "spec").get("experiment"))
            result = owner.parse(record)
            owner.summarise([result])
        except Exception as error:  # whatever is odd about one record, the others count
            words = str(error) if isinstance(error, RecordError) else f"cannot be shown: {error!r}"
            skipped.append(f"{record['key']}.json: {words}")
        else:
            results[owner.name].append(result)
    return results, skipped


@cache
def _find_others() -> None:
    """Register what other packages bring; one that cannot be loaded is left out, with a warning."""
    for point in entry_points(group=GROUP):
        try:
            register(point.load())
        except Exception as error:
            warnings.warn(f"the experiment {point.name} ({point.value}) cannot be loaded: {error!r}", stacklevel=3)
