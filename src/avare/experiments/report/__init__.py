"""Figures, tables and a web page, made from stored results only."""

from avare.experiments.report.writing import write

__all__ = ["write"]
