"""DRAM as kernels meet it: the bandwidth that it sustains, and what narrow accesses waste."""

from __future__ import annotations

from neusight.devices.spec import GpuSpec
from neusight.laws.physics import Physics


def sustained_dram_bytes_per_s(device: GpuSpec, physics: Physics) -> float:
    r"""Bandwidth [B/s] of long streams.

    .. math:: W = \eta\, W_{peak},\quad \eta = \eta_{HBM}\ \text{(over } g \text{ before Volta)}\
              \text{or}\ \eta_{GDDR}\ \text{(times } e \text{ without ECC)}

    Args:
        device: peak bandwidth [B/s] and kind of memory.
        physics: the sustained shares, g and e, ``hbm_share``, ``gddr_share``, ``controller_gain`` and
            ``plain_gddr_gain`` [-].

    Source: g from NVIDIA's V100 whitepaper (2017); the shares fitted by eye to pointwise kernels of neusight-fp32.
    Validity: streams far beyond L2; pointwise kernels of seven NVIDIA GPUs come out within 0.8 to 3.5 %.
    """
    if device.dram_family != "HBM":
        gain = 1.0 if device.inline_ecc else physics.memory.plain_gddr_gain
        return device.dram_bandwidth_bytes_per_s * physics.memory.gddr_share * gain
    share = physics.memory.hbm_share / (physics.memory.controller_gain if device.facts.early_memory_controller else 1.0)
    return device.dram_bandwidth_bytes_per_s * share


def drift_cost(device: GpuSpec, physics: Physics) -> float:
    """Bytes fetched for a byte used [-] by a block of a product that has lost step with its neighbours.

    A slice of a panel's row is shorter than a DRAM access; a unified L1 keeps what the slice leaves.

    Args:
        device: whether its L1 is unified (NVIDIA from Volta on).
        physics: ``drift_unified`` and ``drift`` [-].

    Source: fitted (by eye, to deep float32 products of P4, P100, V100 and T4).
    Validity: NVIDIA GPUs; those of other vendors are assumed to be as Pascal's.
    """
    return physics.cache.drift_unified if device.facts.unified_l1 else physics.cache.drift
