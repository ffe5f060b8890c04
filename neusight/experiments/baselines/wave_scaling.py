"""Wave scaling (Yu et al. 2021, section 3.3): a kernel measured on one GPU, carried over to another.

It holds for kernels that are the same on both. With bandwidth D, clock C, blocks a wave W and boundedness ``gamma``

    T_d = T_o (D_o / D_d)^gamma (W_o C_o / (W_d C_d))^(1 - gamma)

for kernels of more than one wave; a kernel that no GPU needs more than one wave for is carried over by clock and by
the blocks that its busiest SM runs, both to the power of ``1 - gamma``. ``gamma`` follows from the arithmetic intensity
x and the ridge point R of the destination: ``1 - x / 2R`` below the ridge, ``R / 2x`` above it. So does the code that
was published with the paper (``analysis/wave_scaling``).
"""

from __future__ import annotations

import numpy as np

from neusight.devices.spec import DeviceSpec
from neusight.executors.gpu.tiling import TileChoice, Tiling, tile
from neusight.kernels import KernelBatch
from neusight.kernels.work import work_of
from neusight.laws.bounds import flops_per_s

_NO_PRODUCTS = TileChoice({}, {}, {})
"""Kernels that are the same on every GPU are no products, whose tile is a choice."""


def scaling_factor(batch: KernelBatch, origin: DeviceSpec, destination: DeviceSpec) -> np.ndarray:
    """Latency on the destination over that on the origin, of elementwise kernels or row reductions, shape (n,)."""
    here, there = (tile(batch, device, _NO_PRODUCTS) for device in (origin, destination))
    compute = 1.0 - boundedness(batch, destination)
    clock = origin.base_clock_hz / destination.base_clock_hz
    bandwidth = origin.dram_bandwidth_bytes_per_s / destination.dram_bandwidth_bytes_per_s
    waves = _blocks_a_wave(here) / _blocks_a_wave(there)
    large = bandwidth ** (1.0 - compute) * (waves * clock) ** compute
    busiest = np.ceil(there.waves) / np.ceil(here.waves)
    small = (there.tile_count < _blocks_a_wave(there)) & (here.tile_count < _blocks_a_wave(here))
    return np.where(small, (clock * busiest) ** compute, large)


def boundedness(batch: KernelBatch, device: DeviceSpec) -> np.ndarray:
    """``gamma``: how much of a kernel's time goes with DRAM bandwidth, from 1 (all) to 0, shape (n,)."""
    work = work_of(batch)
    over_ridge = work.flops / work.bytes * device.dram_bandwidth_bytes_per_s / flops_per_s(batch, device)
    return np.where(over_ridge <= 1.0, 1.0 - 0.5 * over_ridge, 0.5 / np.maximum(over_ridge, 1.0))


def _blocks_a_wave(tiling: Tiling) -> np.ndarray:
    return tiling.sm_count * tiling.resident
