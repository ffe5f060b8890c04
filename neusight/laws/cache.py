"""What L2 does: blocks of a product that run together share panels, second passes over a row find it there."""

from __future__ import annotations

import numpy as np

from neusight.devices.spec import GpuSpec
from neusight.laws.dram import drift_cost
from neusight.laws.physics import Physics
from neusight.quick_dataclasses import dataclass


@dataclass(frozen=True)
class Panels:
    """Bytes [B] of a tiled product, shape (n,): what one wave of blocks reads together (``panel``), all waves
    (``shared``), and every block by itself (``unshared``); the latter two with the result written once.
    """

    panel: np.ndarray
    shared: np.ndarray
    unshared: np.ndarray


def reusable_l2_bytes(device: GpuSpec) -> float:
    r"""Capacity of L2 [B] for data that all SMs read.

    .. math:: C = C_{L2} / p

    Args:
        device: capacity [B] and p, the partitions of which each keeps a copy.

    Source: NVIDIA A100 whitepaper (2020), where each partition caches what the SMs connected to it access.
    Validity: NVIDIA GPUs; other vendors' L2 counts as one.
    """
    return device.l2_capacity_bytes / device.facts.l2_partitions


def _share(log2_ratio: np.ndarray, slope: float) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-slope * log2_ratio))


def missed_share(panel_bytes: np.ndarray, l2_bytes: float, physics: Physics) -> np.ndarray:
    r"""Share [-] of what waves of blocks read again that comes from DRAM.

    .. math:: s = s_0 + \frac{1 - s_0}{1 + e^{-a (\log_2(P / C) - c)}}

    Args:
        panel_bytes: P, bytes that one wave reads together [B].
        l2_bytes: C, capacity that all SMs share [B].
        physics: s_0 ``always_missed``, a ``miss_slope``, c ``miss_centre`` [-].

    Source: fitted form and constants (by eye, to float32 products of neusight-fp32).
    Validity: products of the tiles in ``TILES``.
    """
    miss = _share(np.log2(panel_bytes / l2_bytes) - physics.cache.miss_centre, physics.cache.miss_slope)
    return physics.cache.always_missed + (1 - physics.cache.always_missed) * miss


def reread_missed_share(flight_bytes: np.ndarray, l2_bytes: float, physics: Physics) -> np.ndarray:
    r"""Share [-] of second passes over rows that come from DRAM.

    .. math:: s = \frac{1}{1 + e^{-a (\log_2(F / C) - c)}}

    Half when the rows in flight fill most of L2, since what they write fills the rest.

    Args:
        flight_bytes: F, bytes of the rows that all resident blocks work on [B].
        l2_bytes: C, capacity that they share [B].
        physics: a ``row_miss_slope`` and c ``row_miss_centre`` [-].

    Source: fitted form and constants (by eye, to softmax and layer_norm of neusight-fp32).
    Validity: float32 rows of up to a few 10⁵ columns; without the law the error of physics alone more than
    doubles.
    """
    return _share(np.log2(flight_bytes / l2_bytes) - physics.cache.row_miss_centre, physics.cache.row_miss_slope)


def gemm_dram_bytes(
    compulsory: np.ndarray, panels: Panels, rounds: np.ndarray, device: GpuSpec, physics: Physics
) -> np.ndarray:
    r"""DRAM traffic [B] of a tiled product: compulsory bytes, re-reads between waves that miss L2, and the reads of
    blocks that no longer run in step.

    .. math::
        D = B + s(P) \max(0, S - B)
            + w \max(0, U - \max(S, B)) \frac{1}{1 + e^{-a (\log_2(P / C) + r \log_2 R - c)}}

    Blocks of a wave share the panels they read as long as they walk along the inner extent in step. Once panels
    outgrow L2 many times, a block that has lost step fetches its own, at ``w`` bytes for a byte used.

    Args:
        compulsory: B, bytes of operands and result [B].
        panels: P, S and U, what a wave, all waves and single blocks read [B].
        rounds: R, blocks that an SM works through, one after another [-].
        device: C its L2 [B]; w by its kind of memory and its L1, see ``drift_cost``.
        physics: a ``drift_slope``, c ``drift_centre``, r ``drift_rounds`` [-].

    Source: fitted form and constants (by eye, to float32 products of P4 and P100 with inner extents up to 65,536).
    Validity: products of the tiles in ``TILES``. Left out, the loss of step costs held-out GPUs 0.4 (linear) to 0.7
    points (bmm), ``experiments/ablation``.
    """
    l2_bytes = reusable_l2_bytes(device)
    shared = np.maximum(panels.shared, compulsory)
    waves = (shared - compulsory) * missed_share(panels.panel, l2_bytes, physics)
    depth = np.log2(panels.panel / l2_bytes) + physics.cache.drift_rounds * np.log2(np.maximum(rounds, 1.0))
    lost = _share(depth - physics.cache.drift_centre, physics.cache.drift_slope)
    return compulsory + waves + drift_cost(device, physics) * np.maximum(panels.unshared - shared, 0.0) * lost
