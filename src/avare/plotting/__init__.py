"""How curves look, and figures that need no stored results."""

from avare.plotting.charts import BLACK as BLACK
from avare.plotting.charts import BLUE as BLUE
from avare.plotting.charts import DASHES as DASHES
from avare.plotting.charts import DOTS as DOTS
from avare.plotting.charts import GREEN as GREEN
from avare.plotting.charts import GREY as GREY
from avare.plotting.charts import ORANGE as ORANGE
from avare.plotting.charts import PURPLE as PURPLE
from avare.plotting.charts import RC_PARAMS as RC_PARAMS
from avare.plotting.charts import SKY as SKY
from avare.plotting.charts import SMALLEST as SMALLEST
from avare.plotting.charts import SUPERSCRIPTS as SUPERSCRIPTS
from avare.plotting.charts import VERMILION as VERMILION
from avare.plotting.charts import Chart as Chart
from avare.plotting.charts import Curve as Curve
from avare.plotting.charts import Dot as Dot
from avare.plotting.charts import Style as Style
from avare.plotting.charts import assign as assign
from avare.plotting.charts import blank as blank
from avare.plotting.charts import crosses as crosses
from avare.plotting.charts import dots as dots
from avare.plotting.charts import draw as draw
from avare.plotting.charts import line as line
from avare.plotting.charts import log_axis as log_axis
from avare.plotting.charts import log_ticks as log_ticks
from avare.plotting.charts import order as order
from avare.plotting.charts import rank as rank
from avare.plotting.charts import ranked as ranked
from avare.plotting.charts import scatter as scatter
from avare.plotting.charts import styles_of as styles_of
from avare.plotting.charts import tick_text as tick_text
from avare.plotting.charts import tick_values as tick_values
from avare.plotting.charts import verbatim as verbatim
from avare.plotting.charts import visible as visible
from avare.plotting.learned import Calibrating as Calibrating
from avare.plotting.learned import area as area
from avare.plotting.learned import calibration as calibration
from avare.plotting.results import chain_figure as chain_figure
from avare.plotting.results import run_figure as run_figure

# What experiments of your own and figures need; the rest is shared by the report.
__all__ = [
    "Calibrating",
    "Chart",
    "Curve",
    "Dot",
    "Style",
    "area",
    "calibration",
    "chain_figure",
    "draw",
    "run_figure",
    "styles_of",
]
