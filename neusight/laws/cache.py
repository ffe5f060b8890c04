"""What L2 does: blocks of a product that run together share panels, second passes over a row find it there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from neusight.devices.spec import DeviceSpec
from neusight.laws.dram import drift_cost
from neusight.laws.physics import DEFAULT, Physics

_HALVED = (8.0, 9.0)
"""Compute capabilities whose L2 is two partitions, each keeping what its own SMs read (NVIDIA A100 whitepaper)."""


@dataclass(frozen=True)
class Panels:
    """Bytes of a tiled product, shape (n,): what one wave of blocks reads together (``panel``), all waves
    (``shared``), and every block by itself (``unshared``); each with the result written once.
    """

    panel: np.ndarray
    shared: np.ndarray
    unshared: np.ndarray


def reusable_l2_bytes(device: DeviceSpec) -> float:
    """Capacity of L2 for data that all SMs read: half of it where both partitions keep a copy."""
    halved = device.capability in _HALVED
    return device.l2_capacity_bytes / (2.0 if halved else 1.0)


def _share(log2_ratio: np.ndarray, slope: float) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-slope * log2_ratio))


def missed_share(panel_bytes: np.ndarray, l2_bytes: float, physics: Physics = DEFAULT) -> np.ndarray:
    """Share of re-reads that come from DRAM, rising smoothly from ``always_missed`` to 1 around ``miss_centre``."""
    miss = _share(np.log2(panel_bytes / l2_bytes) - physics.miss_centre, physics.miss_slope)
    return physics.always_missed + (1 - physics.always_missed) * miss


def reread_missed_share(flight_bytes: np.ndarray, l2_bytes: float, physics: Physics = DEFAULT) -> np.ndarray:
    """Share of second passes over rows that come from DRAM: half when the rows in flight fill most of L2, since what
    they write fills the rest. Rows stream evenly, so that the step is sharper than for the panels of a product.
    """
    return _share(np.log2(flight_bytes / l2_bytes) - physics.row_miss_centre, physics.row_miss_slope)


def gemm_dram_bytes(
    compulsory: np.ndarray, panels: Panels, rounds: np.ndarray, device: DeviceSpec, physics: Physics = DEFAULT
) -> np.ndarray:
    """DRAM traffic of a tiled product: compulsory bytes, re-reads between waves that miss L2, and the reads of
    blocks that no longer run in step once the panels outgrow L2 many times, each with what a narrow access wastes.

    Args:
        compulsory: bytes of operands and result.
        panels: what waves and blocks read.
        rounds: blocks that an SM works through, one after another.
        device: its L2 and its kind of memory.
        physics: the constants.
    """
    l2_bytes = reusable_l2_bytes(device)
    shared = np.maximum(panels.shared, compulsory)
    waves = (shared - compulsory) * missed_share(panels.panel, l2_bytes, physics)
    depth = np.log2(panels.panel / l2_bytes) + physics.drift_rounds * np.log2(np.maximum(rounds, 1.0))
    lost = _share(depth - physics.drift_centre, physics.drift_slope)
    return compulsory + waves + drift_cost(device, physics) * np.maximum(panels.unshared - shared, 0.0) * lost
