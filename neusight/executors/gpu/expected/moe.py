"""Mixtures of experts: two grouped products over the experts that have tokens, and the passes beside them.

In one kernel, blocks of all groups share the SMs. Each group fills whole tiles, so that few tokens on many experts
compute mostly padding, which costs nothing as long as the weights take longer to arrive.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np

from neusight.devices.spec import GpuSpec
from neusight.executors.gpu.expected.matrix import WIDE_BYTES, MatrixUnit, Product, Shape, product_energy_j
from neusight.executors.gpu.expected.times import Times, hot_share, start_s
from neusight.kernels import KernelBatch
from neusight.kernels.conditions import Conditions
from neusight.kernels.implementations import Traits, traits_of
from neusight.kernels.moe import products_of
from neusight.kernels.work import by_distinct, element_bytes, filled_groups, result_bytes, weight_bytes
from neusight.laws.dram import sustained_dram_bytes_per_s
from neusight.laws.physics import Physics
from neusight.quick_dataclasses import dataclass

TILE_ROWS, TILE_COLUMNS = (16.0, 32.0, 64.0, 128.0, 256.0), (64.0, 128.0, 256.0)
"""Tiles, in elements of C, that grouped kernels are compiled or tuned for (cited: files of tuned tiles of vLLM's
``fused_moe``)."""
FEW, MANY = (16.0, 32.0), (64.0, 64.0)
"""Tiles of SGLang's ``fused_moe`` for shapes that nobody tuned: for no more tokens than experts, and for more (cited:
``get_default_config``)."""
FIRST = (128.0, 128.0)
"""Tile of the first kernel in the list of CUTLASS's grouped ones (assumption: as of products in float32; names of
kernels of FlashInfer that was not tuned would tell)."""
MANY_PAIRS = 1024.0
"""Token-expert pairs from which on sorting takes several kernels (cited: vLLM's and SGLang's
``moe_align_block_size``)."""


@dataclass(frozen=True)
class _Setting:
    """On what, in which way and by which constants kernels run."""

    device: GpuSpec
    conditions: Conditions
    physics: Physics


@dataclass(frozen=True)
class Groups:
    """Grouped products with what their kernels are like; columns of shape (n,).

    ``product`` has the mean rows of a group as m, and as batch the groups that have any. ``even`` groups have all the
    same rows, others those of an exponential distribution; ``fullest`` are the most. ``tokens`` and ``offered`` are
    rows before routing and the pairs that all experts, not only the device's, get; ``groups`` those of the device.
    """

    product: Product
    fullest: np.ndarray
    groups: np.ndarray
    tokens: np.ndarray
    offered: np.ndarray
    even: np.ndarray
    dtype: np.ndarray
    block: np.ndarray
    micro: np.ndarray
    widened: np.ndarray
    promoted: np.ndarray
    usual: np.ndarray
    fallback: np.ndarray
    traits: Traits

    @property
    def activates_apart(self) -> np.ndarray:
        """Whether a pass activates what the first product wrote: one that promotes sums leaves that to it."""
        return np.asarray(self.traits["activates_apart"] | self.promoted)

    @property
    def pairs(self) -> np.ndarray:
        """Rows of all groups."""
        return self.product.m * self.product.batch


def moe_times(batch: KernelBatch, device: GpuSpec, conditions: Conditions, physics: Physics) -> Times:
    r"""What layers of experts ask of each resource.

    .. math:: t = \|t_{up} + t_{down}\|_p + n_k t_0 + c P / f + b / W

    Both products one after the other, resource by resource, see ``grouped_times``; n_k kernels that start, the sort of
    P token-expert pairs, and b bytes of passes: quantisation, permutation, activation, sum.

    Args:
        batch: of the family ``moe``.
        device: peak rates, f boost clock [Hz], memories.
        conditions: engine and variant tell the kernels: ``triton``, or CUTLASS's where it is not.
        physics: n_k, c and the rest, group ``moe``; shared laws of matrix units and L2.

    Source: vLLM's and SGLang's ``fused_moe`` and TensorRT-LLM's ``moe_kernels.cu`` for what runs; constants fitted.
    Validity: bfloat16 and 8-bit layers on NVIDIA GPUs from Ampere on; other dtypes by the same law at their peak rates.
    """
    setting = _Setting(device, conditions, physics)
    up, down = (_experts(product, batch, conditions, device) for product in products_of(batch))
    first, second = (_product_times(groups, setting) for groups in (up, down))
    joined = {f.name: getattr(first, f.name) + getattr(second, f.name) for f in fields(Times) if f.name != "overlap"}
    joined["dram_s"] = joined["dram_s"] + _sums_s(down, setting)
    joined["fixed_overhead_s"] = _auxiliary_kernel_s(up, down, setting)
    return Times(**joined, overlap=physics.matrix.overlap)


def grouped_times(batch: KernelBatch, device: GpuSpec, conditions: Conditions, physics: Physics) -> Times:
    r"""What grouped products ask of each resource.

    .. math::
        T = \lceil n / t_n \rceil \sum_g \lceil m_g / t_m \rceil,\quad
        t_c = r(T) \frac{2 (t_m t_n + h (t_m + t_n)) (k + k_0)}{\eta R / N},\quad
        t_D = \frac{w (1 - h_w) + a (1 - h_a)}{W}

    Args:
        batch: of the family ``grouped_gemm``: weights w [B] of the groups that have rows, activations a [B].
        device: R peak [FLOP/s], N SMs, W bandwidth [B/s].
        conditions: what caches hold of the weights, h_w; of the activations it is what fits, h_a.
        physics: shares of the rate, group ``moe``; the law of tiles, group ``matrix``.

    Source: as for single products, see ``matrix_times``. Validity: bfloat16 and 8-bit products on NVIDIA GPUs;
    other dtypes by the same law at their peak rates.
    """
    times = _product_times(_grouped(batch, conditions, device), _Setting(device, conditions, physics))
    return replace(times, fixed_overhead_s=start_s(device, conditions, physics))


def moe_shape(batch: KernelBatch, device: GpuSpec, conditions: Conditions, physics: Physics) -> dict[str, np.ndarray]:
    """Dimensionless inputs of a learned correction, for both families of groups; columns of shape (n,)."""
    moe = batch.family == "moe"
    first = products_of(batch)[0] if moe else batch
    groups = _experts(first, batch, conditions, device) if moe else _grouped(batch, conditions, device)
    p, (tile_m, tile_n) = groups.product, _tiles(groups, _Setting(device, conditions, physics))
    tiles = _row_tiles(groups, tile_m, physics) * np.ceil(p.n / tile_n)
    ridge = p.flops_per_s / sustained_dram_bytes_per_s(device, physics)
    return {
        "rows": np.log2(p.m),
        "row_fill": groups.pairs / (_row_tiles(groups, tile_m, physics) * tile_m),
        "intensity": np.log2(2.0 * p.m / p.b_bytes / ridge),
        "groups": np.log2(p.batch),
        "idle_groups": p.batch / groups.groups,
        "skew": np.log2(groups.fullest / p.m),
        "waves": np.clip(np.log2(tiles / device.sm_count), -6.0, 8.0),
        "wave_fill": tiles / device.sm_count / np.ceil(tiles / device.sm_count),
        "elsewhere": np.log2(groups.offered / groups.pairs),
        "width": np.log2(p.n / tile_n),
        "depth": np.log2(p.k / MatrixUnit(device, physics).prologue_depth(p)),
        "hot": hot_share(device, conditions.cycled_bytes, physics),
        "block": groups.block.astype(float),
        "narrow": np.log2(2.0 / p.a_bytes),
        "triton": groups.traits["by_registers"].astype(float),
        "usual": groups.usual.astype(float),
    }


def _grouped(batch: KernelBatch, conditions: Conditions, device: GpuSpec) -> Groups:
    filled, fullest = filled_groups(batch)
    rows = batch["tokens"].astype(float)
    # A contiguous layout holds groups as they fell, a masked one is filled evenly unless it says otherwise.
    even = (batch["largest"] == 0) & traits_of("moe", conditions)["even_groups"]
    return Groups(
        product=_mean_product(batch, filled, device),
        fullest=fullest,
        groups=batch["groups"].astype(float),
        tokens=rows,
        offered=rows,
        even=even,
        **_kinds(batch, conditions, device),
    )


def _experts(product: KernelBatch, layer: KernelBatch, conditions: Conditions, device: GpuSpec) -> Groups:
    """One of a layer's products."""
    tokens = layer["tokens"].astype(float)
    return Groups(
        product=_mean_product(product, product["groups"].astype(float), device),
        fullest=filled_groups(product)[1],
        groups=layer["experts"].astype(float),
        tokens=tokens,
        offered=tokens * layer["top_k"],
        even=layer["distribution"] == "balanced",
        **_kinds(product, conditions, device),
    )


def _mean_product(batch: KernelBatch, filled: np.ndarray, device: GpuSpec) -> Product:
    """The product of the mean group, for each of those that have rows."""
    size, rates = element_bytes(batch), by_distinct(batch["dtype"], device.gemm_flops_per_s)
    n, k = batch["n"].astype(float), batch["k"].astype(float)
    return Product(batch["tokens"] / filled, n, k, filled, size, weight_bytes(batch), result_bytes(batch), rates)


def _kinds(batch: KernelBatch, conditions: Conditions, device: GpuSpec) -> dict[str, Any]:
    """Which kernels run."""
    narrow, block, traits = element_bytes(batch) < WIDE_BYTES, batch["scaling"] == "block", traits_of("moe", conditions)
    mixed, facts = weight_bytes(batch) < element_bytes(batch), device.facts
    promotes = block & ~mixed & ~traits["applies_scales"]
    return {
        "dtype": batch["dtype"],
        "block": block,
        "micro": (batch["scaling"] == "micro") | (narrow & mixed),
        "widened": mixed & ~narrow,
        "promoted": promotes & (facts.reads_shared_memory and facts.applies_block_scales),
        "traits": traits,
        "usual": ~traits["tuned"] & ~block,
        "fallback": np.where(narrow, ~traits["tuned_narrow"] & ~block, ~traits["tuned_wide"])
        & facts.stalls_untuned_groups,
    }


def _row_tiles(groups: Groups, tile_m: np.ndarray | float, physics: Physics) -> np.ndarray:
    """Tiles along the rows of all groups: whole ones in each; the mean of ``ceil`` over an exponential distribution."""
    p = groups.product
    share = p.m / tile_m
    spread = 1.0 / -np.expm1(-1.0 / share)
    tiles = p.batch * np.where(groups.even, np.ceil(share - 1e-9), spread)
    padded = np.maximum(p.batch * np.ceil(groups.fullest / tile_m) - tiles, 0.0)
    return np.asarray(tiles + physics.moe.padded_share * padded * (groups.block & ~groups.traits["gathers_rows"]))


@dataclass(frozen=True)
class _Rates:
    """What kernels reach on a device whatever their tiles: FLOP/s of an SM, intensity below which operands take as long
    as the arithmetic, and bytes a second between L2 and an SM.
    """

    flops_per_s: np.ndarray
    half: np.ndarray
    port: float

    @classmethod
    def of(cls, groups: Groups, setting: _Setting) -> _Rates:
        """The rates of kernels by what they are like."""
        device, physics = setting.device, setting.physics
        moe, unit = physics.moe, MatrixUnit(device, physics)
        share = groups.traits.constants("rate_constant", moe)
        share = np.where(groups.usual, moe.usual_rate, np.where(groups.fallback, moe.fallback_rate, share))
        scaled = np.where(groups.promoted, moe.promoted_rate, np.where(groups.block, moe.block_rate, 1.0))
        share *= scaled * np.where(groups.widened, moe.widened_rate, 1.0)
        share *= traits_of("matrix", setting.conditions).constants("share_constant", physics.matrix)
        asynchronous = groups.traits["asynchronous"]
        share *= np.where(asynchronous, 1.0, unit.synchronous_share(groups.product))
        registers = groups.traits["by_registers"] | ~asynchronous
        half = np.where(registers, unit.half_by_registers(groups.product), unit.half(groups.product))
        return cls(unit.sustained(groups.product) / device.sm_count * share, half, unit.port)


def _tiles(groups: Groups, setting: _Setting) -> tuple[np.ndarray, np.ndarray]:
    """(tile_m, tile_n) of least time, or what an engine takes without looking."""
    least = np.full(len(groups.tokens), np.inf)
    best = np.zeros(len(least), dtype=int)
    rates, fewest = _Rates.of(groups, setting), np.where(groups.micro, groups.traits["least_scaled_rows"], 0.0)
    for row, tile_m in enumerate(TILE_ROWS):
        row_tiles = _row_tiles(groups, tile_m, setting.physics)
        for col, tile_n in enumerate(TILE_COLUMNS):
            compute_s, l2_s = _clocked_s(groups, (tile_m, tile_n), row_tiles, rates, setting)
            better = (compute_s + l2_s < least) & (tile_m >= fewest)
            least = np.where(better, compute_s + l2_s, least)
            best[better] = row * len(TILE_COLUMNS) + col
    tile_m, tile_n = np.array(TILE_ROWS)[best // len(TILE_COLUMNS)], np.array(TILE_COLUMNS)[best % len(TILE_COLUMNS)]
    unsought = [groups.fallback, groups.usual & (groups.tokens <= groups.groups), groups.usual]
    return tuple(  # type: ignore[return-value]
        np.select(unsought, [FIRST[side], FEW[side], MANY[side]], tile) for side, tile in enumerate((tile_m, tile_n))
    )


def _clocked_s(
    groups: Groups, tile: Shape, row_tiles: np.ndarray, rates: _Rates, setting: _Setting
) -> tuple[np.ndarray, np.ndarray]:
    """(arithmetic, panels through the ports between L2 and SMs) of tiles [s]."""
    p, (tile_m, tile_n), device, physics = groups.product, tile, setting.device, setting.physics
    tiles = row_tiles * np.ceil(p.n / tile_n)
    share = tiles / device.sm_count
    whole = np.ceil(share)
    busiest = np.maximum(share + physics.moe.tail_share * (whole - share), np.minimum(whole, 1.0))
    work = (tile_m * tile_n + rates.half * (tile_m + tile_n)) * (p.k + MatrixUnit(device, physics).prologue_depth(p))
    panels = tiles * p.k * (np.minimum(tile_m, p.m) * p.a_bytes + tile_n * p.b_bytes)
    panels += groups.pairs * p.n * p.c_bytes
    return busiest * 2.0 * work / rates.flops_per_s, panels / (rates.port * np.minimum(tiles, device.sm_count))


def _product_times(groups: Groups, setting: _Setting) -> Times:
    device, physics = setting.device, setting.physics
    p, matrix = groups.product, physics.matrix
    tile_m, tile_n = _tiles(groups, setting)
    row_tiles, rates = _row_tiles(groups, tile_m, physics), _Rates.of(groups, setting)
    compute_s, l2_s = _clocked_s(groups, (tile_m, tile_n), row_tiles, rates, setting)
    hot = hot_share(device, setting.conditions.cycled_bytes, physics)
    activations = groups.pairs * (p.k * p.a_bytes + p.n * p.c_bytes)
    cold = p.batch * p.n * p.k * p.b_bytes * (1.0 - hot)
    # L2 holds a share of them from the kernel that wrote them to the one that reads them.
    cold += activations * (1.0 - hot_share(device, activations, physics))
    tiles = row_tiles * np.ceil(p.n / tile_n)
    chain = np.ceil(tiles / (matrix.blocks_of_sm * device.sm_count)) * p.k * p.a_bytes / WIDE_BYTES
    step_s = MatrixUnit(device, physics).step_s * (1.0 - (1.0 - matrix.step_hot) * hot)
    return Times(
        compute_s=compute_s,
        dram_s=cold / sustained_dram_bytes_per_s(device, physics),
        l2_s=l2_s,
        serial_s=chain * step_s + _empty_s(groups, (tile_m, tile_n), tiles, setting),
        fixed_overhead_s=np.zeros(len(hot)),
        switching_j=2.0 * groups.pairs * p.n * p.k * product_energy_j(p, groups.dtype, device, physics),
        dram_bytes=cold,
        overlap=matrix.overlap,
    )


def _empty_s(groups: Groups, tile: Shape, tiles: np.ndarray, setting: _Setting) -> np.ndarray:
    """Time of blocks that find nothing to do [s]: Triton's grid has tiles for all pairs, and one more an expert."""
    grid = (groups.offered / tile[0] + groups.groups) * np.ceil(groups.product.n / tile[1])
    device = setting.device
    empty = np.where(groups.traits["worst_grid"], np.maximum(grid - tiles, 0.0), 0.0)
    return np.asarray(empty / device.sm_count * setting.physics.moe.empty_cycles / device.boost_clock_hz)


def _auxiliary_kernel_s(up: Groups, down: Groups, setting: _Setting) -> np.ndarray:
    """Time of starts, of sorting and of passes [s]; of the products' starts where they do the rest on their way."""
    device, physics = setting.device, setting.physics
    moe, alone_s, traits = physics.moe, start_s(device, setting.conditions, physics), up.traits
    kernels = traits.constants("kernels_constant", moe) + moe.scale_kernels * (up.product.a_bytes < WIDE_BYTES)
    kernels += traits["routes"] + up.promoted + moe.micro_kernels * (up.micro & traits["activates_apart"])
    kernels += moe.sort_kernels * up.offered / (up.offered + MANY_PAIRS)
    sort_s = up.offered * moe.pair_cycles / device.boost_clock_hz
    moved = _pass_bytes(up, down) * traits.constants("passes_constant", moe)
    held = hot_share(device, moved / 2.0, physics)
    ports = physics.memory.l2_share * device.sustained_l2_bytes_per_s
    pass_s = moved * ((1.0 - held) / sustained_dram_bytes_per_s(device, physics) + held / ports)
    return np.where(traits["passes_apart"], kernels * alone_s + sort_s + pass_s, 2.0 * alone_s)


def _sums_s(down: Groups, setting: _Setting) -> np.ndarray:
    """Time [s] of memory where the second product adds its rows to their tokens' sums, which it reads and writes."""
    moved = 2.0 * WIDE_BYTES * down.pairs * down.product.n
    moved_s = moved / sustained_dram_bytes_per_s(setting.device, setting.physics)
    return np.where(down.traits["passes_apart"], 0.0, moved_s)


def _pass_bytes(up: Groups, down: Groups) -> np.ndarray:
    """Bytes that passes read and write.

    Products that gather their rows need none in order; Triton's passes run over the pairs of all experts. Narrow
    products have their operands quantised, each read in 16 bits and written in few, but for the second where the first
    activates and scales what it writes.
    """
    hidden, ffn, size, traits = up.product.k, down.product.k, up.product.a_bytes, up.traits
    rows, apart = np.where(traits["worst_grid"], up.offered, up.pairs), up.activates_apart
    elements = np.minimum(up.tokens, up.pairs) * hidden + apart * rows * ffn
    quantised = (size < WIDE_BYTES) * (WIDE_BYTES + size) * elements
    permuted = np.where(traits["gathers_rows"], 0.0, 2.0 * size * up.pairs * hidden)
    activated = WIDE_BYTES * apart * rows * (up.product.n + ffn)
    summed = WIDE_BYTES * (rows + up.tokens) * hidden
    return np.asarray(quantised + permuted + activated + summed)
