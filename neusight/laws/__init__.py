"""Physics that needs no data: work, bounds, waves, cache and power. Pure functions over columns, with their sources."""

from neusight.laws.bounds import Bound, bound_of
from neusight.laws.work import Work, work_of

__all__ = ["Bound", "Work", "bound_of", "work_of"]
