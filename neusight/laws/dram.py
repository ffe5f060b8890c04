"""DRAM as kernels meet it: its kind, the bandwidth that it sustains, and what narrow accesses waste."""

from __future__ import annotations

from neusight.devices.spec import DeviceSpec
from neusight.laws.physics import DEFAULT, Physics

VOLTA = 7.0
"""Compute capability from which NVIDIA's memory controller is a new one, and global loads pass through an L1 that is
one with shared memory (NVIDIA Tesla V100 GPU Architecture whitepaper, 2017)."""
ECC_LEAVES = 1.015
"""Usable bytes over decimal GB of the datasheet: 15/16 of GiB are 1.007 of GB, all of them 1.07."""


def dram_family(device: DeviceSpec) -> str:
    """Kind of memory: ``HBM``, ``GDDR`` or ``LPDDR``; other kinds count as GDDR.

    Args:
        device: ``dram_kind`` as its datasheet names it.
    """
    kind = device.dram_kind.upper()
    return next((name for name in ("LPDDR", "HBM") if name in kind), "GDDR")


def inline_ecc(device: DeviceSpec) -> bool:
    """Whether check bits lie in the same memory as data: GDDR of which a driver offers no more than the datasheet's
    figure read as decimal GB, since of the GiB that are there one in sixteen holds check bits.

    Args:
        device: its kind of memory, capacity and usable capacity.
    """
    return dram_family(device) == "GDDR" and device.usable_bytes < ECC_LEAVES * device.dram_capacity_bytes


def before_volta(device: DeviceSpec) -> bool:
    """Whether an NVIDIA GPU is older than Volta; one that does not tell its compute capability is not.

    Args:
        device: vendor and compute capability.
    """
    return (device.capability or VOLTA) < VOLTA


def sustained_dram_bytes_per_s(device: DeviceSpec, physics: Physics = DEFAULT) -> float:
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
    if dram_family(device) != "HBM":
        gain = 1.0 if inline_ecc(device) else physics.memory.plain_gddr_gain
        return device.dram_bandwidth_bytes_per_s * physics.memory.gddr_share * gain
    share = physics.memory.hbm_share / (physics.memory.controller_gain if before_volta(device) else 1.0)
    return device.dram_bandwidth_bytes_per_s * share


def drift_cost(device: DeviceSpec, physics: Physics = DEFAULT) -> float:
    """Bytes fetched for a byte used [-] by a block of a product that has lost step with its neighbours.

    A slice of a panel's row is shorter than a DRAM access; a unified L1 keeps what the slice leaves.

    Args:
        device: its kind of memory, and whether its L1 is unified (NVIDIA from Volta on).
        physics: ``drift_unified``, ``drift_hbm`` and ``drift_gddr`` [-].

    Source: fitted (by eye, to deep float32 products of P4, P100, V100 and T4).
    Validity: NVIDIA GPUs; those of other vendors are assumed to be as Pascal's.
    """
    if device.vendor == "nvidia" and not before_volta(device):
        return physics.cache.drift_unified
    return physics.cache.drift_hbm if dram_family(device) == "HBM" else physics.cache.drift_gddr
