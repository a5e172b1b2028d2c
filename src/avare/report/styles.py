"""One look a sampler, the same in every figure and on the page, told apart without colour too."""

import itertools
from collections.abc import Iterable, Iterator
from typing import NamedTuple

# Okabe & Ito's colours, which the colour-blind tell apart; their yellow is too pale for lines.
BLACK, ORANGE, SKY, GREEN, BLUE, VERMILION, PURPLE = (
    "#000000",
    "#E69F00",
    "#56B4E9",
    "#009E73",
    "#0072B2",
    "#D55E00",
    "#CC79A7",
)


class Style(NamedTuple):
    """How a line is drawn."""

    colour: str
    dash: str
    """Plotly's word; `MATPLOTLIB_DASHES` has the other's."""
    marker: str
    """Matplotlib's sign; `PLOTLY_MARKERS` has the other's."""


MATPLOTLIB_DASHES = {"solid": "-", "dash": (0, (5, 2)), "dashdot": (0, (6, 2, 1.2, 2)), "dot": (0, (1.2, 1.6))}
PLOTLY_MARKERS = {
    "o": "circle",
    "s": "square",
    "^": "triangle-up",
    "D": "diamond",
    "v": "triangle-down",
    "P": "cross",
    "X": "x",
    "<": "triangle-left",
    ">": "triangle-right",
    "h": "hexagon",
    "*": "star",
    "p": "pentagon",
    "d": "diamond-tall",
    "8": "octagon",
    "H": "hexagon2",
}

_FIXED = {
    "Avare": Style(BLUE, "solid", "o"),
    "Calibrated": Style(VERMILION, "solid", "s"),
    "Uniform": Style(BLACK, "solid", "^"),
    "Mabs": Style(ORANGE, "dash", "D"),
    "Vrb": Style(GREEN, "dashdot", "v"),
    "Osmd": Style(PURPLE, "dash", "P"),
    "Static": Style(SKY, "solid", "X"),
    "Mixture": Style(SKY, "dashdot", "<"),
    "Safe": Style(GREEN, "dot", ">"),
    "Stratified": Style(BLUE, "dash", "h"),
    "Srg": Style(PURPLE, "dot", "*"),
    "Optimal": Style(BLACK, "dot", "p"),
    "UpperBound": Style(ORANGE, "dot", "d"),
}


def order(names: Iterable[str]) -> list[str]:
    """Names in the order in which they are listed everywhere: known samplers first, then by the alphabet.

    >>> order(["New", "Uniform", "Avare"])
    ['Avare', 'Uniform', 'New']
    """
    return ranked(set(names), _FIXED)


def ranked(names: Iterable[str], known: Iterable[str]) -> list[str]:
    """The known in their order, then the others by the alphabet.

    >>> ranked(["b", "a", "z"], ["z", "y"])
    ['z', 'a', 'b']
    """
    listed = list(known)
    return sorted(names, key=lambda name: rank(name, listed))


def rank(name: str, known: Iterable[str]) -> tuple[int, str]:
    """What puts one name before another in `ranked`.

    >>> rank("b", ["a", "b"]), rank("c", ["a", "b"])
    ((1, 'b'), (2, 'c'))
    """
    listed = list(known)
    return (listed.index(name) if name in listed else len(listed), name)


def assign(names: Iterable[str]) -> dict[str, Style]:
    """A style for each name: its own if the sampler is known, otherwise the next that is free.

    >>> assign(["Avare"])["Avare"].colour
    '#0072B2'
    """
    styles = {}
    free = _free()
    for name in order(names):
        styles[name] = _FIXED[name] if name in _FIXED else next(free)
    return styles


def of_method(method: str) -> Style:
    """The look of a method whose regret is shown.

    >>> of_method("sgd").marker
    'o'
    """
    looks = {"sgd": Style(BLUE, "solid", "o"), "sgld": Style(VERMILION, "solid", "s")}
    return looks.get(method, Style(GREEN, "solid", "v"))


def _free() -> Iterator[Style]:
    """Looks that no known sampler has, and when all are used, the same again."""
    taken = {(style.colour, style.dash) for style in _FIXED.values()}
    colours = (VERMILION, SKY, GREEN, PURPLE, ORANGE, BLUE, BLACK)
    pairs = [(colour, dash) for dash in MATPLOTLIB_DASHES for colour in colours if (colour, dash) not in taken]
    markers = itertools.cycle(["8", "H", *list(PLOTLY_MARKERS)[:-2]])
    return (Style(colour, dash, next(markers)) for colour, dash in itertools.cycle(pairs))
