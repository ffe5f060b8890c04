"""From kernels to latencies: bound, utilisation and interval for batches of kernels on one device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class KernelEstimates:
    """Estimates for a batch of kernels; every array has shape (n,).

    ``latency_s = overhead_s + bound_s / utilisation`` and ``latency_s >= bound_s`` for any model and input.
    ``low_s`` and ``high_s`` enclose the 90 % interval. ``source`` names the tile model that answered
    (``gemm``), a model used outside the family it was trained on (``gemm (transferred)``), or ``roofline`` (fallback).
    """

    latency_s: np.ndarray
    low_s: np.ndarray
    high_s: np.ndarray
    bound_s: np.ndarray
    overhead_s: np.ndarray
    utilisation: np.ndarray
    limiter: np.ndarray
    """``compute``, ``dram``, ``l2``, ``power`` or ``launch``: the law that sets the bound (or the overhead above it)."""
    tile: np.ndarray
    """Tile shape as text, ``128x64``."""
    tile_count: np.ndarray
    waves: np.ndarray
    in_domain: np.ndarray
    source: np.ndarray
