"""Kernel x device → tiles: shape, count, waves. One decomposer a family; a second registration raises."""

from neusight.executors.gpu.tiling.decompose import Tiling, decomposer, tile
from neusight.executors.gpu.tiling.library import TileChoice

__all__ = ["TileChoice", "Tiling", "decomposer", "tile"]
