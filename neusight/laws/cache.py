"""What L2 does: blocks of a product that run together share panels, second passes over a row find it there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

MISS_SLOPE = 0.64
MISS_CENTRE = 1.0
"""log2 of (panel bytes / L2) at which half of the shared reads miss."""

DRIFT_CENTRE = 4.0
"""log2 of (panel bytes / L2) at which blocks have drifted so far apart that half of their reads are not shared."""

ALWAYS_MISSED = 0.05
ROW_MISS_SLOPE = 1.5
ROW_MISS_CENTRE = -1.0


@dataclass(frozen=True)
class Panels:
    """Bytes of a tiled product, shape (n,): what one wave of blocks reads together (``panel``), all waves
    (``shared``), and every block by itself (``unshared``); each with the result written once.
    """

    panel: np.ndarray
    shared: np.ndarray
    unshared: np.ndarray


def _share(log2_ratio: np.ndarray, slope: float = MISS_SLOPE) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-slope * log2_ratio))


def missed_share(panel_bytes: np.ndarray, l2_bytes: float) -> np.ndarray:
    """Share of re-reads that come from DRAM, rising smoothly from 0.05 to 1 around twice the capacity of L2."""
    miss = _share(np.log2(panel_bytes / l2_bytes) - MISS_CENTRE)
    return ALWAYS_MISSED + (1 - ALWAYS_MISSED) * miss


def reread_missed_share(flight_bytes: np.ndarray, l2_bytes: float) -> np.ndarray:
    """Share of second passes over rows that come from DRAM: half when the rows in flight fill half of L2, since what
    they write fills the other half. Rows stream evenly, so that the step is sharper than for the panels of a product.
    """
    return _share(np.log2(flight_bytes / l2_bytes) - ROW_MISS_CENTRE, ROW_MISS_SLOPE)


def gemm_dram_bytes(compulsory: np.ndarray, panels: Panels, l2_bytes: float) -> np.ndarray:
    """DRAM traffic of a tiled product: compulsory bytes, re-reads between waves that miss L2, and the reads of
    blocks that no longer run in step once the panels outgrow L2 many times.
    """
    shared = np.maximum(panels.shared, compulsory)
    waves = (shared - compulsory) * missed_share(panels.panel, l2_bytes)
    drift = np.maximum(panels.unshared - shared, 0.0) * _share(np.log2(panels.panel / l2_bytes) - DRIFT_CENTRE)
    return compulsory + waves + drift
