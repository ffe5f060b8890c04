"""Kernel x device → tiles: shape, count, waves. One decomposer a family."""

from neusight.executors.gpu.tiling.decompose import Tiling, tile
from neusight.executors.gpu.tiling.library import TileChoice

__all__ = ["TileChoice", "Tiling", "tile"]
