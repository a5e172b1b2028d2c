"""Which experiments there are, by name."""

from importlib.metadata import entry_points

from avare.experiments.base import Experiment

GROUP = "avare.experiments"
"""The group of entry points by which other packages add experiments."""

_EXPERIMENTS: dict[str, Experiment] = {}
_loaded: set[str] = set()  # entry points


def register(experiment: Experiment) -> Experiment:
    """Add an experiment to the command and the report; return it.

    A package that is installed can do without: an entry point of the group ``avare.experiments`` that names the
    instance is found by itself.
    """
    for kind in experiment.kinds:
        owner = _EXPERIMENTS.get(_owners().get(kind, ""))
        if owner is not None and owner.name != experiment.name:
            raise ValueError(f"kind = {kind!r}: belongs to the experiment {owner.name}")
    _EXPERIMENTS[experiment.name] = experiment
    return experiment


def names() -> list[str]:
    """Return the names of all experiments, in the order in which the report shows them.

    >>> names()[:3]
    ['paper', 'compare', 'nets']
    """
    for point in entry_points(group=GROUP):
        if point.value not in _loaded:
            register(point.load())
            _loaded.add(point.value)
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
    """Return the experiment whose records have this ``spec["experiment"]``."""
    names()
    owners = _owners()
    if not isinstance(kind, str) or kind not in owners:
        raise ValueError(f"spec['experiment'] = {kind!r}: must be one of {', '.join(owners)}")
    return _EXPERIMENTS[owners[kind]]


def _owners() -> dict[str, str]:
    return {kind: each.name for each in _EXPERIMENTS.values() for kind in each.kinds}
