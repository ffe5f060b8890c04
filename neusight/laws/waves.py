"""Tiles on SMs: how many fit at once, and what the last, partly filled round costs."""

from __future__ import annotations

import numpy as np

from neusight.laws.physics import DEFAULT

FULL_TILE = 128 * 128
"""Accumulators that keep an SM's pipelines busy: two 64x128 blocks or one of 128x128 (assumption: the largest tiles
that BLAS libraries run at full rate)."""


def rounds(tiles: np.ndarray, sm_count: int, tail_share: float = DEFAULT.lanes.tail_share) -> np.ndarray:
    r"""Tiles [-] that the busiest SM works through.

    .. math:: r = \max(w + \tau (\lceil w \rceil - w), \min(\lceil w \rceil, 1)),\quad w = T / N

    Between the even share (τ = 0) and whole rounds (τ = 1), and no less than one tile.

    Args:
        tiles: T, blocks of the kernel [-].
        sm_count: N, SMs of the device [-].
        tail_share: τ [-].

    Source: whole rounds as in NVIDIA, Matrix Multiplication Background User's Guide (wave quantisation); τ fitted.
    Validity: blocks of equal work. With τ = 0 held-out GPUs come out 0.4 points worse (linear), with τ = 1 0.1.
    """
    share = tiles / sm_count
    whole = np.ceil(share)
    return np.maximum(share + tail_share * (whole - share), np.minimum(whole, 1.0))


def idle_factor(tile_elements: np.ndarray, resident: np.ndarray, idle_cost: float = DEFAULT.lanes.idle_cost) -> np.ndarray:
    r"""Slow-down [-], at least 1, of an SM whose resident blocks hold too little work to hide latencies.

    .. math:: f = 1 + c \max(0, 1 - n E / E_{full})

    Args:
        tile_elements: E, accumulators of a block [-].
        resident: n, blocks that an SM holds at once [-].
        idle_cost: c [-].

    Source: fitted, form and constant. Validity: float32 tiles of 32x32 to 256x128.
    """
    return 1.0 + idle_cost * np.maximum(0.0, 1.0 - resident * tile_elements / FULL_TILE)
