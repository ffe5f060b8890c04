"""How a library runs a convolution: as an implicit product or by Winograd's minimal filtering, whichever is faster.

Lavin and Gray 2016: outputs are computed in tiles of e x e from (e + r - 1)² products instead of e² r². Fused, with
e = 2, nothing but the operands reaches DRAM, and the filters are transformed before. In three steps, with e = 4,
transformed inputs, products and outputs are kernels of their own, and what passes between them goes through memory.
"""

from __future__ import annotations

import numpy as np

from neusight.devices.spec import GpuSpec
from neusight.executors.gpu.expected.times import further_kernel_s
from neusight.executors.gpu.tiling.library import Products
from neusight.kernels import KernelBatch
from neusight.kernels.work import Work, conv_gemm, conv_output, element_bytes, winograd_gain
from neusight.laws.bounds import flops_per_s, overlapped_s
from neusight.laws.cache import reread_missed_share, reusable_l2_bytes
from neusight.laws.dram import sustained_dram_bytes_per_s
from neusight.laws.physics import Physics
from neusight.laws.waves import idle_factor, issue_share, resident_blocks, rounds, tile_overhead_s
from neusight.quick_dataclasses import dataclass

IMPLICIT, FUSED, STEPS = range(3)
"""Algorithms, in the order of ``ConvPlan.each_s`` (definition)."""
IMPLICIT_TILES = ((128, 128), (128, 64), (128, 32))
"""(outputs, filters) of a block (cited: the names of cuDNN's ``scudnn`` kernels)."""
STEPS_TILES = ((32, 128), (64, 64), (128, 32), (128, 64), (128, 128))
"""The same of the products of Winograd in three steps, which are batched ``sgemm`` (cited: the names of its
kernels)."""
FUSED_TILES = ((1, 8, 16), (4, 8, 4), (2, 4, 16), (2, 8, 8), (4, 2, 16), (4, 4, 8))
"""(images, rows, columns) of the outputs of a block of fused Winograd: cuDNN's ``winograd_128x128`` in its variants
148, 442, 228, 244, 418 and 424, counted in tiles of two outputs a side (cited: their names and grids)."""
FUSED_BY_LIBRARY = {"maxwell": (0, 1, 2, 3, 4, 5), "ampere": (0, 1)}
"""Which of them a library has; others have the first (cited: the names of their kernels)."""
FUSED_FILTERS = 32
"""Filters of a block of fused Winograd (cited: its grid)."""


@dataclass(frozen=True)
class ConvPlan:
    """The fastest algorithm of each convolution; columns of shape (n,). ``algorithm``: 0 implicit, 1 fused, 2 steps.

    ``applies`` is False for convolutions that only an implicit product can compute, and for those in other dtypes than
    float32 that one computes fastest: their other columns mean nothing. ``unlimited_s`` is the time at full clock of
    all kernels [s], ``compute_s`` that of the products' arithmetic, ``flops`` the operations of their whole tiles.
    ``blocks`` are those of the products, ``each_s`` the times of all three algorithms, shape (3, n).
    """

    applies: np.ndarray
    algorithm: np.ndarray
    unlimited_s: np.ndarray
    compute_s: np.ndarray
    dram_bytes: np.ndarray
    flops: np.ndarray
    blocks: np.ndarray
    each_s: np.ndarray


@dataclass(frozen=True)
class _Blocks:
    """Number, operations of one [FLOP] and time of all [s]; columns of shape (n,)."""

    count: np.ndarray
    flops: np.ndarray
    compute_s: np.ndarray


def plan_convolutions(batch: KernelBatch, work: Work, device: GpuSpec, physics: Physics) -> ConvPlan:
    r"""Compare the three algorithms and take the fastest.

    .. math::
        t = \left(t_c^p + (D / W)^p\right)^{1/p} + t_x,\quad
        t_c = r\,f \frac{2 t_m t_n (k + k_0)}{\eta R / N} \left(1 + \frac{c}{i}\right)

    with t_c the products' blocks at the rate that an SM sustains, D what they move, and t_x what runs before and after
    them: nothing for implicit products, the transform of the filters for fused Winograd, those of inputs and outputs
    for Winograd in steps.

    Args:
        batch: convolutions, any direction.
        work: of the batch [FLOP, B].
        device: gives rates [FLOP/s], number of SMs and L2 [B].
        physics: W, sustained bandwidth [B/s], and the group ``convolution``.

    Source: Lavin and Gray 2016 (algorithms); tiles from kernel names and grids of cuDNN 8; constants fitted.
    Validity: square filters of 3 to 7, unit stride, float32; measured for 3x3 on Pascal to Ampere, where held-out GPUs
    come out within 10 to 15 %. The algorithm that ran is found for three kernels in four.
    """
    plans = [algorithm(batch, work, device, physics) for algorithm in (_implicit, _fused, _steps)]
    each_s = np.stack([plan[0] for plan in plans])
    best = np.argmin(each_s, axis=0)
    rows = np.arange(len(best))
    blocks, moved = [plan[1] for plan in plans], np.stack([plan[2] for plan in plans])
    count, flops, compute_s = (
        np.stack([getattr(b, name) for b in blocks])[best, rows] for name in ("count", "flops", "compute_s")
    )
    # The shares hold for float32, products in other dtypes are tiled like any other.
    applies = (winograd_gain(batch) > 1) & ((best > IMPLICIT) | (batch["dtype"] == "float32"))
    return ConvPlan(applies, best, each_s[best, rows], compute_s, moved[best, rows], count * flops, count, each_s)


AlgorithmCost = tuple[np.ndarray, _Blocks, np.ndarray]
"""Time [s], blocks and DRAM traffic [B] of an algorithm."""


def _implicit(batch: KernelBatch, work: Work, device: GpuSpec, physics: Physics) -> AlgorithmCost:
    groups, m, n, k = conv_gemm(batch)
    products = Products(m, n, k, groups)
    sm_rate = _sm_rate(batch, device, physics) * physics.convolution.implicit_share
    blocks = _product_blocks(products, IMPLICIT_TILES, sm_rate, device, physics)
    return _joined(blocks.compute_s, work.bytes, device, physics), blocks, work.bytes


def _fused(batch: KernelBatch, work: Work, device: GpuSpec, physics: Physics) -> AlgorithmCost:
    """A gradient of weights reduces over outputs, for which fused Winograd has no tiles."""
    law, (inner, outer) = physics.convolution, _channels(batch)
    height, width = _extents(batch)
    kinds = np.array([FUSED_TILES[i] for i in FUSED_BY_LIBRARY.get(device.facts.blas_generation, (0,))], dtype=float)
    images, rows, columns = kinds.T[:, :, None]
    spatial = np.ceil(batch["batch"] / images) * np.ceil(height / rows) * np.ceil(width / columns)
    count = spatial.min(axis=0) * np.ceil(outer / FUSED_FILTERS)
    outputs = kinds[0].prod()
    products = 2.0 * outputs / 4.0 * FUSED_FILTERS * _points(batch, 2)
    rate = _sm_rate(batch, device, physics) * law.fused_share
    each_s = products * (inner + law.fused_depth) / rate
    compute_s = rounds(count, device.sm_count, physics.cuda_cores.tail_share) * each_s
    filters = (_points(batch, 2) + batch["kernel_height"] ** 2.0) * inner * outer * element_bytes(batch)
    before_s = filters / sustained_dram_bytes_per_s(device, physics) + further_kernel_s(device, physics)
    time_s = _joined(compute_s, work.bytes, device, physics) + before_s
    time_s = np.where(batch["op"] == "weight_grad", np.inf, time_s)
    return time_s, _Blocks(count, products * inner, compute_s), work.bytes + filters


def _steps(batch: KernelBatch, work: Work, device: GpuSpec, physics: Physics) -> AlgorithmCost:
    law, products = physics.convolution, _winograd_products(batch, 4)
    blocks = _product_blocks(products, STEPS_TILES, _sm_rate(batch, device, physics) * law.steps_share, device, physics)
    transformed = _transformed_elements(products) * element_bytes(batch)
    # What a step leaves in L2 the next one finds there.
    missed = transformed * reread_missed_share(transformed, reusable_l2_bytes(device), physics)
    around_s = law.transform_passes * (missed + work.bytes) / sustained_dram_bytes_per_s(device, physics)
    time_s = _joined(blocks.compute_s, missed, device, physics) + around_s + 3.0 * further_kernel_s(device, physics)
    return time_s, blocks, work.bytes + 2.0 * missed


def _joined(compute_s: np.ndarray, moved: np.ndarray, device: GpuSpec, physics: Physics) -> np.ndarray:
    """Arithmetic and traffic of one kernel, at once [s]."""
    return overlapped_s((compute_s, moved / sustained_dram_bytes_per_s(device, physics)), physics.cuda_cores.overlap)


def _sm_rate(batch: KernelBatch, device: GpuSpec, physics: Physics) -> np.ndarray:
    """Rate [FLOP/s] of an SM that convolutions sustain a share of."""
    generation = physics.convolution.ampere if device.facts.blas_generation == "ampere" else 1.0
    return flops_per_s(batch, device) / device.sm_count * issue_share(device, physics) * generation


def _product_blocks(
    products: Products, tiles: tuple[tuple[int, int], ...], sm_rate: np.ndarray, device: GpuSpec, physics: Physics
) -> _Blocks:
    """Blocks of a product with the tile of least time, at most at ``sm_rate`` [FLOP/s] and less the narrower it is."""
    m, n, k, b = products
    tile_m, tile_n = (np.array(sides, dtype=float)[:, None] for sides in zip(*tiles, strict=True))
    count = b * np.ceil(m / tile_m) * np.ceil(n / tile_n)
    narrow = 1.0 + physics.convolution.narrow * (tile_m + tile_n) / (tile_m * tile_n)
    elements, resident = tile_m * tile_n, np.maximum(count / device.sm_count, 1.0)
    loop_s = 2.0 * elements * k * narrow / sm_rate * idle_factor(elements, resident, physics.cuda_cores.idle_cost)
    held = np.minimum(resident_blocks(elements, device), resident)
    each_s = loop_s + tile_overhead_s(elements, held, device, physics)
    compute_s = rounds(count, device.sm_count, physics.cuda_cores.tail_share) * each_s
    best, rows = np.argmin(compute_s, axis=0), np.arange(len(m))
    area = elements[best, 0]
    return _Blocks(count[best, rows], 2.0 * area * k, compute_s[best, rows])


def _channels(batch: KernelBatch) -> tuple[np.ndarray, np.ndarray]:
    """Channels that a convolution, or the gradient of its input, reduces over, and those that it computes."""
    inputs, outputs = batch["in_channels"].astype(float), batch["out_channels"].astype(float)
    back = batch["op"] == "input_grad"
    return np.where(back, outputs, inputs), np.where(back, inputs, outputs)


def _extents(batch: KernelBatch) -> tuple[np.ndarray, np.ndarray]:
    """Height and width of what is computed: an input for its gradient, else an output."""
    back, (height, width) = batch["op"] == "input_grad", conv_output(batch)
    return np.where(back, batch["height"], height), np.where(back, batch["width"], width)


def _points(batch: KernelBatch, edge: int) -> np.ndarray:
    return (edge + batch["kernel_height"].astype(float) - 1) ** 2


def _winograd_products(batch: KernelBatch, edge: int) -> Products:
    """The (e + r - 1)² products that minimal filtering leaves (Lavin and Gray 2016)."""
    height, width = _extents(batch)
    tiles = batch["batch"] * np.ceil(height / edge) * np.ceil(width / edge)
    inner, outer = _channels(batch)
    to_weight = batch["op"] == "weight_grad"
    return Products(
        np.where(to_weight, outer, tiles),
        np.where(to_weight, inner, outer),
        np.where(to_weight, tiles, inner),
        _points(batch, edge),
    )


def _transformed_elements(products: Products) -> np.ndarray:
    """Those of the transformed operands and results of the products."""
    m, n, k, points = products
    return points * (m * k + k * n + m * n)
