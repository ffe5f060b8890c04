"""Tiles on SMs: how many fit at once, and what the last, partly filled round costs."""

from __future__ import annotations

import numpy as np

from neusight.laws.physics import DEFAULT

FULL_TILE = 128 * 128
"""Accumulators that keep an SM's pipelines busy: two 64x128 blocks or one of 128x128."""


def rounds(tiles: np.ndarray, sm_count: int, tail_share: float = DEFAULT.tail_share) -> np.ndarray:
    """Tiles that the busiest SM works through: between the even share and the next whole number.

    ``w + tail_share (ceil(w) - w)`` with ``w = tiles / SMs``, and no less than one tile.
    """
    share = tiles / sm_count
    whole = np.ceil(share)
    return np.maximum(share + tail_share * (whole - share), np.minimum(whole, 1.0))


def idle_factor(tile_elements: np.ndarray, resident: np.ndarray, idle_cost: float = DEFAULT.idle_cost) -> np.ndarray:
    """Slow-down, at least 1, of an SM whose resident blocks hold too little work to hide latencies."""
    return 1.0 + idle_cost * np.maximum(0.0, 1.0 - resident * tile_elements / FULL_TILE)
