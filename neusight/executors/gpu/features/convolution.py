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
from neusight.kernels.work import Work, by_distinct, conv_gemm, conv_output, element_bytes, winograd_gain
from neusight.laws.bounds import flops_per_s, peak_flops_per_s
from neusight.laws.waves import rounds

IMPLICIT_SHARE = 0.6
"""Share of peak that implicit products sustain with large tiles; fitted to p4, p100, v100 and t4 together."""
FUSED_SHARE = 0.35
"""The same of fused Winograd."""
STEPS_SHARE = 0.65
"""The same of the products of Winograd in three steps."""
STEPS_LAUNCH_S = 1e-4
"""What the launches between the three steps add [s]; fitted likewise."""
PROLOGUE_DEPTH = 8.0
"""Inner extent whose time a tile spends on its beginning and end (assumption: as ``Physics.prologue_depth``)."""
NARROW = 1.4
"""By how much a tile of intensity 1 is slower than one without end; fitted likewise."""
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


def plan_convolutions(batch: KernelBatch, work: Work, device: DeviceSpec, dram_bytes_per_s: float) -> ConvPlan:
    r"""Compare the three algorithms at typical sustained rates and take the fastest.

    .. math::
        t_{implicit} = \frac{t(g, m, n, k)}{0.6},\quad t_{fused} = \frac{t_v((2+r-1)^2, \ldots)}{0.35},\quad
        t_{steps} = \frac{t((4+r-1)^2, \ldots)}{0.65} + 10^{-4} + \frac{D}{W}

    with t the time of products at peak rate, t_v at that of the vector pipelines, which fused transforms keep to.

    Args:
        batch: convolutions, any direction.
        work: of the batch [FLOP, B].
        device: gives rates [FLOP/s] and number of SMs.
        dram_bytes_per_s: W, sustained bandwidth [B/s].

    Source: Lavin and Gray 2016 (algorithms); shares and launches fitted. Validity: square filters of 3 to 7, unit
    stride, float32 on Pascal to Ampere; held-out GPUs come out within 20 to 24 %.
    """
    groups, m, n, k = conv_gemm(batch)
    rate = flops_per_s(batch, device)
    implicit_s = _product_s(Products(m, n, k, groups), rate, device) / IMPLICIT_SHARE
    # Fused, the transforms keep the products in the vector pipelines.
    vector = np.minimum(rate, by_distinct(batch["dtype"], lambda d: peak_flops_per_s(device, d, product=False)))
    fused_s = _winograd_s(batch, 2, vector, device) / FUSED_SHARE
    steps_s = _winograd_s(batch, 4, rate, device) / STEPS_SHARE + STEPS_LAUNCH_S
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


def _winograd_s(batch: KernelBatch, edge: int, rate: np.ndarray, device: DeviceSpec) -> np.ndarray:
    """Time [s], at full rate, of the (e + r - 1)² products that minimal filtering leaves (Lavin and Gray 2016)."""
    tiles = _tiles_of(batch, edge)
    inputs, outputs = batch["in_channels"].astype(float), batch["out_channels"].astype(float)
    to_input, to_weight = batch["op"] == "input_grad", batch["op"] == "weight_grad"
    m = np.where(to_weight, outputs, tiles)
    n = np.where(to_input | to_weight, inputs, outputs)
    k = np.where(to_weight, tiles, np.where(to_input, outputs, inputs))
    return _product_s(Products(m, n, k, _points(batch, edge)), rate, device)


def _points(batch: KernelBatch, edge: int) -> np.ndarray:
    return (edge + batch["kernel_height"].astype(float) - 1) ** 2


def _transformed_bytes(batch: KernelBatch, edge: int) -> np.ndarray:
    """Transformed inputs and untransformed outputs, each written once and read once, and the transformed filters."""
    inputs, outputs = batch["in_channels"].astype(float), batch["out_channels"].astype(float)
    values = 2 * _tiles_of(batch, edge) * (inputs + outputs) + inputs * outputs
    return _points(batch, edge) * values * element_bytes(batch)


def _product_s(products: Products, rate: np.ndarray, device: DeviceSpec) -> np.ndarray:
    """Time [s] of products with the best tile of the library, at a rate [FLOP/s] that grows with its intensity."""
    m, n, k, b = products
    tiles = b * np.ceil(m / _TILE_M) * np.ceil(n / _TILE_N)
    each = 2.0 * _TILE_M * _TILE_N * (k + PROLOGUE_DEPTH) * device.sm_count / rate * (1 + NARROW / _INTENSITY)
    return (rounds(tiles, device.sm_count) * each).min(axis=0)
