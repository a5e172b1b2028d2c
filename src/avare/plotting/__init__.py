"""How curves look, and figures that need no stored results."""

from avare.plotting.charts import Chart, Curve, Style
from avare.plotting.figures import calibration
from avare.plotting.figures import chain_figure as chain_figure  # for `Chain.plot` and `Run.plot`
from avare.plotting.figures import run_figure as run_figure

# What an experiment of your own needs, and what a user draws. `avare.plotting.charts` has the rest.
__all__ = ["Chart", "Curve", "Style", "calibration"]
