"""Kernel x device → tiles: shape, count, waves. One decomposer a family; a second registration raises."""

from neusight.tiling.decompose import Tiling, decomposer, tile
from neusight.tiling.library import TileChoice

__all__ = ["TileChoice", "Tiling", "decomposer", "tile"]
