"""Parts of the page that several of its tabs use: charts and the switches of their lines."""

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from avare.experiments.runs import numbers
from avare.report.styles import PLOTLY_MARKERS, Style

_MOST_POINTS = 400  # a line: a screen shows no more
_SWITCHES = (("default", "Default"), ("log", "Log"), ("linear", "Linear"))


def controls(name: str, labels: Sequence[str], styles: Mapping[str, Style]) -> str:
    """Switches for the lines, which are their legend too, and for the axes."""
    boxes = "\n".join(
        f'<label><input type="checkbox" value="{html.escape(label)}" checked autocomplete="off">'
        f"{swatch(styles[label])}{html.escape(label)}</label>"
        for label in labels
    )
    radios = "\n".join(
        f'<label><input type="radio" name="{name}-axes" value="{value}" autocomplete="off"'
        f"{' checked' if value == 'default' else ''}>{text}</label>"
        for value, text in _SWITCHES
    )
    return (
        f'<div class="controls">\n<fieldset><legend>Samplers</legend>\n{boxes}\n'
        '<span class="together"><button type="button" data-all="yes">All</button> '
        '<button type="button" data-all="no">None</button></span></fieldset>\n'
        f"<fieldset><legend>Vertical axes</legend>\n{radios}</fieldset>\n</div>\n"
    )


def chart(place: str, heading: str, description: str) -> str:
    """Where a chart is drawn."""
    return (
        f"<figure><figcaption><h3>{html.escape(heading)}</h3></figcaption>"
        f'<div class="chart" id="{place}" role="img" aria-label="{html.escape(description)}"></div></figure>\n'
    )


def swatch(style: Style) -> str:
    """A short piece of the line, so that the switches are the legend."""
    dashes = {"solid": "", "dash": "6 3", "dashdot": "7 3 2 3", "dot": "2 2.5"}[style.dash]
    stroke = "currentColor" if style.colour == "#000000" else style.colour
    corners = " ".join(f"{16 + x:.1f},{6 + y:.1f}" for x, y in outline(style.marker))
    return (
        '<svg width="32" height="12" viewBox="0 0 32 12" aria-hidden="true">'
        f'<line x1="0" y1="6" x2="32" y2="6" stroke="{stroke}" stroke-width="2" stroke-dasharray="{dashes}"/>'
        f'<polygon points="{corners}" fill="{stroke}"/></svg>'
    )


def outline(marker: str) -> list[tuple[float, float]]:
    """The corners of a marker of radius about 4 around the origin, y downwards."""
    if marker in "PX":
        plus = [
            (-1, -4),
            (1, -4),
            (1, -1),
            (4, -1),
            (4, 1),
            (1, 1),
            (1, 4),
            (-1, 4),
            (-1, 1),
            (-4, 1),
            (-4, -1),
            (-1, -1),
        ]
        turn = math.pi / 4 if marker == "X" else 0.0
        return [(x * math.cos(turn) - y * math.sin(turn), x * math.sin(turn) + y * math.cos(turn)) for x, y in plus]
    if marker == "d":
        return [(0, -5), (2.5, 0), (0, 5), (-2.5, 0)]
    # Number of corners, and the direction of the first in quarters of a circle from above.
    corners, turn = {
        "o": (24, 0.0),
        "s": (4, 0.5),
        "D": (4, 0.0),
        "^": (3, 0.0),
        ">": (3, 1.0),
        "v": (3, 2.0),
        "<": (3, 3.0),
        "h": (6, 0.0),
        "H": (6, 1.0),
        "p": (5, 0.0),
        "8": (8, 0.25),
        "*": (10, 0.0),
    }[marker]
    angles = [turn * math.pi / 2 + 2 * math.pi * j / corners for j in range(corners)]
    radii = [5.0 if marker != "*" or j % 2 == 0 else 2.2 for j in range(corners)]
    return [(radius * math.sin(angle), -radius * math.cos(angle)) for radius, angle in zip(radii, angles, strict=True)]


def points(x: NDArray[np.float64], curve: Any) -> dict[str, Any]:
    """A line with its band: of something with mean, deviation and lowest."""
    keep = np.unique(np.linspace(0, len(x) - 1, min(len(x), _MOST_POINTS)).astype(np.intp))
    return {
        "x": rounded(x[keep]),
        "mean": rounded(curve.mean[keep]),
        "deviation": rounded(curve.deviation[keep]),
        "lowest": rounded(curve.lowest[keep]),
    }


def in_plotly(style: Style) -> dict[str, str]:
    """A style in Plotly's words."""
    return {"colour": style.colour, "dash": style.dash, "marker": PLOTLY_MARKERS[style.marker]}


def rounded(values: NDArray[np.float64]) -> list[float | None]:
    """Five digits are more than a screen shows; null where there is no number."""
    return numbers([float(f"{value:.5g}") for value in values.tolist()])
