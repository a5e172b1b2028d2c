"""Figures, tables and a web page, made from stored results only."""

from avare.plotting import calibration as calibration
from avare.report.writing import ReportError as ReportError
from avare.report.writing import write as write

__all__ = [
    "ReportError",
    "calibration",
    "write",
]
