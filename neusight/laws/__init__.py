"""Physics that needs no data: bounds, waves, cache, DRAM and power. Pure functions over columns, with their sources."""

from neusight.laws.bounds import Bound, bound_of

__all__ = ["Bound", "bound_of"]
