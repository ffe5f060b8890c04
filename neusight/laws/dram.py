"""DRAM as kernels meet it: its kind, the bandwidth that it sustains, and what narrow accesses waste."""

from __future__ import annotations

from neusight.devices.spec import DeviceSpec
from neusight.laws.physics import DEFAULT, Physics

VOLTA = 7.0
"""Compute capability from which NVIDIA's memory controller is a new one, and global loads pass through an L1 that is
one with shared memory."""


def dram_family(device: DeviceSpec) -> str:
    """``HBM``, ``GDDR`` or ``LPDDR``; other kinds count as GDDR."""
    kind = device.dram_kind.upper()
    return next((name for name in ("LPDDR", "HBM") if name in kind), "GDDR")


def before_volta(device: DeviceSpec) -> bool:
    """Whether an NVIDIA GPU is older than Volta; one that does not tell its compute capability is not."""
    return (device.capability or VOLTA) < VOLTA


def sustained_dram_bytes_per_s(device: DeviceSpec, physics: Physics = DEFAULT) -> float:
    """Bandwidth of long streams."""
    if dram_family(device) != "HBM":
        return device.dram_bandwidth_bytes_per_s * physics.gddr_share
    share = physics.hbm_share / (physics.controller_gain if before_volta(device) else 1.0)
    return device.dram_bandwidth_bytes_per_s * share


def drift_cost(device: DeviceSpec, physics: Physics = DEFAULT) -> float:
    """Bytes fetched for a byte used by a block of a product that has lost step with its neighbours."""
    if device.vendor == "nvidia" and not before_volta(device):
        return physics.drift_unified
    return physics.drift_hbm if dram_family(device) == "HBM" else physics.drift_gddr
