"""Charts as values: marks with their intervals, which browsers, notebooks and files show in the same way."""

from neusight.figures.chart import Chart, named
from neusight.figures.marks import Bar, Dot, Line, Scale, stacked

__all__ = ["Bar", "Chart", "Dot", "Line", "Scale", "named", "stacked"]
