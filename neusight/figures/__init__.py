"""Charts as values: marks with their intervals, which a browser, a notebook and a file show alike."""

from neusight.figures.chart import Chart, named
from neusight.figures.marks import Bar, Dot, Line, Scale, stacked

__all__ = ["Bar", "Chart", "Dot", "Line", "Scale", "named", "stacked"]
