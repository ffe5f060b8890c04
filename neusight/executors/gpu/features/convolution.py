"""How a library runs a convolution: as an implicit product or by Winograd's minimal filtering, whichever is faster.

Lavin and Gray 2016: outputs are computed in tiles of e x e from (e + r - 1)² products instead of e² r². Fused, with
e = 2, nothing but the operands reaches DRAM; in three steps, with e = 4, transformed inputs, products and outputs do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from neusight.devices.spec import DeviceSpec
from neusight.executors.gpu.tiling.library import TILES, Products
from neusight.kernels import KernelBatch
from neusight.kernels.work import Work, conv_gemm, conv_output, element_bytes, winograd_gain
from neusight.laws.bounds import flops_per_s
from neusight.laws.dram import sustained_dram_bytes_per_s
from neusight.laws.physics import Physics
from neusight.laws.waves import issue_share, rounds

_TILE_M = np.array([t[0] for t in TILES], dtype=float)[:, None]
_TILE_N = np.array([t[1] for t in TILES], dtype=float)[:, None]
_INTENSITY = _TILE_M * _TILE_N / (_TILE_M + _TILE_N)


@dataclass(frozen=True)
class ConvPlan:
    """The fastest algorithm of each convolution; columns of shape (n,). ``algorithm``: 0 implicit, 1 fused, 2 steps.

    ``applies`` is False for convolutions that only an implicit product can compute, and for those in other dtypes than
    float32 that one computes fastest: their other columns mean nothing.
    """

    applies: np.ndarray
    algorithm: np.ndarray
    compute_s: np.ndarray
    dram_bytes: np.ndarray
    flops: np.ndarray


def plan_convolutions(batch: KernelBatch, work: Work, device: DeviceSpec, physics: Physics) -> ConvPlan:
    r"""Compare the three algorithms at typical sustained rates and take the fastest.

    .. math::
        t_{implicit} = \frac{t(g, m, n, k)}{\eta_i},\quad t_{fused} = \frac{t((2+r-1)^2, \ldots)}{\eta_f},\quad
        t_{steps} = \frac{t((4+r-1)^2, \ldots)}{\eta_s} + t_0 + \frac{D}{W}

    with t the time of products at the rate that an SM's schedulers can issue.

    Args:
        batch: convolutions, any direction.
        work: of the batch [FLOP, B].
        device: gives rates [FLOP/s] and number of SMs.
        physics: W, sustained bandwidth [B/s], and the group ``convolution``.

    Source: Lavin and Gray 2016 (algorithms); shares and launches fitted. Validity: square filters of 3 to 7, unit
    stride, float32 on Pascal to Ampere; held-out GPUs come out within 20 to 24 %.
    """
    groups, m, n, k = conv_gemm(batch)
    rate = flops_per_s(batch, device) * issue_share(device, physics)
    law, dram_bytes_per_s = physics.convolution, sustained_dram_bytes_per_s(device, physics)
    implicit_s = _product_s(Products(m, n, k, groups), rate, device, physics) / law.implicit_share
    fused_s = _winograd_s(batch, 2, rate, device, physics) / law.fused_share
    steps_s = _winograd_s(batch, 4, rate, device, physics) / law.steps_share + law.steps_launch_s
    moved = work.bytes + _transformed_bytes(batch, 4)
    compute_s = np.stack([implicit_s, fused_s, steps_s])
    dram_bytes = np.stack([work.bytes, work.bytes, moved])
    flops = np.stack([work.flops, work.flops / _gain(batch, 2), work.flops / _gain(batch, 4)])
    # The steps run one after another, so that their traffic adds to their arithmetic.
    total_s = compute_s + np.stack([np.zeros_like(m), np.zeros_like(m), moved / dram_bytes_per_s])
    best = np.argmin(np.maximum(total_s, dram_bytes / dram_bytes_per_s), axis=0)
    rows = np.arange(len(best))
    # The shares hold for float32, products in other dtypes are tiled like any other.
    applies = (winograd_gain(batch) > 1) & ((best > 0) | (batch["dtype"] == "float32"))
    return ConvPlan(applies, best, total_s[best, rows], dram_bytes[best, rows], flops[best, rows])


def _gain(batch: KernelBatch, edge: int) -> np.ndarray:
    """Multiplications saved: ``(e r / (e + r - 1))²``."""
    r = batch["kernel_height"].astype(float)
    return (edge * r / (edge + r - 1)) ** 2


def _tiles_of(batch: KernelBatch, edge: int) -> np.ndarray:
    height, width = conv_output(batch)
    return batch["batch"] * np.ceil(height / edge) * np.ceil(width / edge)


def _winograd_s(
    batch: KernelBatch, edge: int, rate: np.ndarray, device: DeviceSpec, physics: Physics
) -> np.ndarray:
    """Time [s], at full rate, of the (e + r - 1)² products that minimal filtering leaves (Lavin and Gray 2016)."""
    tiles = _tiles_of(batch, edge)
    inputs, outputs = batch["in_channels"].astype(float), batch["out_channels"].astype(float)
    to_input, to_weight = batch["op"] == "input_grad", batch["op"] == "weight_grad"
    m = np.where(to_weight, outputs, tiles)
    n = np.where(to_input | to_weight, inputs, outputs)
    k = np.where(to_weight, tiles, np.where(to_input, outputs, inputs))
    return _product_s(Products(m, n, k, _points(batch, edge)), rate, device, physics)


def _points(batch: KernelBatch, edge: int) -> np.ndarray:
    return (edge + batch["kernel_height"].astype(float) - 1) ** 2


def _transformed_bytes(batch: KernelBatch, edge: int) -> np.ndarray:
    """Transformed inputs and untransformed outputs, each written once and read once, and the transformed filters."""
    inputs, outputs = batch["in_channels"].astype(float), batch["out_channels"].astype(float)
    values = 2 * _tiles_of(batch, edge) * (inputs + outputs) + inputs * outputs
    return _points(batch, edge) * values * element_bytes(batch)


def _product_s(products: Products, rate: np.ndarray, device: DeviceSpec, physics: Physics) -> np.ndarray:
    """Time [s] of products with the best tile of the library, at a rate [FLOP/s] that grows with its intensity."""
    m, n, k, b = products
    tiles = b * np.ceil(m / _TILE_M) * np.ceil(n / _TILE_N)
    depth = k + physics.lanes.prologue_depth
    each = 2.0 * _TILE_M * _TILE_N * depth * device.sm_count / rate * (1 + physics.convolution.narrow / _INTENSITY)
    return (rounds(tiles, device.sm_count, physics.lanes.tail_share) * each).min(axis=0)
