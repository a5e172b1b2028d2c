"""Figures, tables and a web page, made from stored results only."""

from avare.report.writing import write

__all__ = ["write"]
