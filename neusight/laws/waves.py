"""Tiles on SMs: how many fit at once, and what the last, partly filled round costs."""

from __future__ import annotations

import numpy as np

from neusight.devices.spec import DeviceSpec
from neusight.laws.physics import Physics

FULL_TILE = 128 * 128
"""Accumulators that keep an SM's pipelines busy: two 64x128 blocks or one of 128x128 (assumption: the largest tiles
that BLAS libraries run at full rate)."""


def rounds(tiles: np.ndarray, sm_count: int, tail_share: float) -> np.ndarray:
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


def idle_factor(tile_elements: np.ndarray, resident: np.ndarray, idle_cost: float) -> np.ndarray:
    r"""Slow-down [-], at least 1, of an SM whose resident blocks hold too little work to hide latencies.

    .. math:: f = 1 + c \max(0, 1 - n E / E_{full})

    Args:
        tile_elements: E, accumulators of a block [-].
        resident: n, blocks that an SM holds at once [-].
        idle_cost: c [-].

    Source: fitted, form and constant. Validity: float32 tiles of 32x32 to 256x128.
    """
    return 1.0 + idle_cost * np.maximum(0.0, 1.0 - resident * tile_elements / FULL_TILE)


DUAL = 100
"""Lanes of a compute unit of AMD from which its peak counts two operations a lane, dual-issued or packed."""


def issue_share(device: DeviceSpec, physics: Physics) -> float:
    """Share [-] of the peak of FMAs that an SM's schedulers can issue beside everything else that a loop holds.

    Args:
        device: cores of its SMs, as its peak rate and clock tell, and how its architecture issues FMAs.
        physics: ``lanes.issue_shared``, ``lanes.issue_whole`` and ``lanes.issue_dual`` [-].

    Source: CUDA C++ Programming Guide, Arithmetic Instructions: from 8.6 on an SM has 128 float32 lanes and four
    schedulers of one instruction a clock, so that whatever is no FMA takes a slot from FMAs; SMs of 64 lanes have slots
    to spare, and Pascal issues two. Validity: float32 products; the shares are fitted.
    """
    if "float32" in device.matrix_flops_per_s:
        # CDNA multiplies float32 on matrix units, whose rate is not the cores'.
        return 1.0
    issue = device.facts.issue
    if issue == "paired" and device.cuda_cores_per_sm >= DUAL:
        return physics.cuda_cores.issue_dual
    return {"shared": physics.cuda_cores.issue_shared, "whole": physics.cuda_cores.issue_whole}.get(issue, 1.0)
