"""Logarithmic axes with readable numbers, whether they span much or little."""

from typing import Any

import numpy as np
from matplotlib import ticker
from numpy.typing import NDArray

from avare.plotting.charts import SUPERSCRIPTS


def log_axis(axis: Any, means: NDArray[np.float64], tops: NDArray[np.float64]) -> None:
    """Make the y axis logarithmic, with limits by the means below and the bands above, and readable ticks."""
    low, high = np.log10(np.nanmin(means)), np.log10(np.nanmax(tops))
    margin = 0.06 * (high - low) + 0.02
    axis.set_yscale("log")
    axis.set_ylim(10.0 ** float(low - margin), 10.0 ** float(high + margin))
    log_ticks(axis.yaxis)


def log_ticks(axis: Any) -> None:
    """Put numbers on an axis that is logarithmic, whether it spans much or little."""
    low, high = axis.get_view_interval()
    locator: ticker.Locator = ticker.LogLocator(numticks=7)
    if 0.0 < low < high <= 50.0 * low:
        locator = ticker.LogLocator(subs=(1.0, 2.0, 5.0))
        if sum(low <= value <= high for value in locator.tick_values(low, high)) < 2:
            locator = ticker.AutoLocator()
        axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: tick_text(value)))
    axis.set_major_locator(locator)
    axis.set_minor_formatter(ticker.NullFormatter())


def tick_text(value: float) -> str:
    """Write a number for an axis.

    >>> tick_text(2000.0), tick_text(0.005), tick_text(1e-7)
    ('2000', '0.005', '10⁻⁷')
    """
    if value == 0.0 or 1e-3 <= abs(value) < 1e5:
        return f"{value:.6g}"
    digits, exponent = f"{value:.3e}".split("e")
    power = f"10{str(int(exponent)).translate(SUPERSCRIPTS)}"
    return power if float(digits) == 1.0 else f"{float(digits):g} × {power}"
