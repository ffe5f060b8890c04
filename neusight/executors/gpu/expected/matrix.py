"""Products on matrix units: which tile a library picks, and what its blocks ask of an SM, of L2 and of DRAM.

A library ships kernels for a handful of tiles and picks among them, and among cuts of the inner extent, by what it
expects them to take. So does this: of all candidates the one of least time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from math import prod

import numpy as np

from neusight.devices.spec import GpuSpec
from neusight.executors.gpu.expected.convolutions import is_implicit_nchw, layout_transform_bytes, layout_transform_s
from neusight.executors.gpu.expected.products import (
    LEAST_ASYNCHRONOUS_BYTES,
    WIDEST_COPY_BYTES,
    Product,
    by_image,
    compulsory,
    product_of,
)
from neusight.executors.gpu.expected.times import Times, further_kernel_s, hot_share, start_s
from neusight.executors.gpu.tiling.decompose import Tiling
from neusight.kernels import KernelBatch
from neusight.kernels.conditions import Conditions
from neusight.kernels.implementations import traits_of
from neusight.kernels.work import ACCUMULATOR_BYTES, GROUP, SCALE_BLOCK, among, element_bytes, work_of
from neusight.laws.cache import missed_share, reusable_l2_bytes
from neusight.laws.dram import sustained_dram_bytes_per_s
from neusight.laws.physics import Physics
from neusight.laws.power import flop_energy_j
from neusight.quick_dataclasses import dataclass

TILES: tuple[tuple[int, int], ...] = (
    *((256, 128), (128, 256), (192, 128), (128, 192), (128, 128), (256, 64), (64, 256)),
    *((128, 64), (64, 128), (64, 64), (128, 32), (32, 128), (64, 32), (32, 64), (128, 16), (16, 64), (32, 32)),
)
"""(tile_m, tile_n) in elements of C: shapes that cuBLAS and CUTLASS compile 16-bit and 8-bit kernels for (cited: the
names of their kernels)."""
FINE_TILES = tuple((rows, 128) for rows in range(16, 129, 16))
"""The same of libraries that compile all heights (cited: ggml-cuda, mmq.cu, mul_mat_q_case)."""
_WIDTHS = (16, 32, *range(64, 257, 32))
"""Sides of tiles where libraries compile all that accumulators allow (assumption: multiples of 32 are tuned for; names
of kernels would tell)."""
SPLITS = (1, 2, 4, 8, 16, 32, 64, 128)
"""Parts into which the inner extent may be cut (numerics: powers of two)."""
WIDE_BYTES = 2.0
"""Bytes of an operand's element from which every library has kernels that are cut along their depth (definition: 16
bit)."""
REFERENCE_RATE = 2048.0
"""FLOP a clock of the SM on which constants are stated: an A100's, in 16 bit (datasheet: A100 whitepaper, 2020)."""
REFERENCE_NM = 7.0
"""Process node on which the energy is stated (definition)."""
ROW_THREADS = 1024
"""Of a block that quantises a row (cited: vLLM, ``csrc/quantization/w8a8/fp8/common.cu``)."""
MICRO_THREADS, MICRO_ELEMENTS = 512.0, 8.0
"""Threads of such a block, at most, and elements of each, where few values share a scale (cited: vLLM,
``csrc/quantization/fp4``)."""
HEAD_THREADS = 128.0
"""Of a row of a head (cited: Triton, ``num_warps``: four of them)."""
REGISTER_BYTES = 4.0
"""Of the register whose values an instruction multiplies (cited: CUDA C++ Programming Guide: ``__dp4a``,
``__hfma2``)."""


@cache
def tile_shapes(most_accumulators: int) -> tuple[tuple[int, int], ...]:
    """Tiles of which libraries bring kernels: of all widths up to so many accumulators, ``TILES`` where they are 0."""
    if not most_accumulators:
        return TILES
    shapes = {
        shape: None
        for rows in (256, 192, 128, 64)
        for columns in reversed(_WIDTHS)
        if rows * columns <= most_accumulators
        for shape in ((rows, columns), (columns, rows))
    }
    return tuple(shapes)


@dataclass(frozen=True)
class MatrixUnit:
    """What a device and the constants make of any tile."""

    device: GpuSpec
    physics: Physics

    @property
    def port(self) -> float:
        """Bytes a second between L2 and one SM, of kernels that share panels as often as the device can."""
        matrix, levels = self.physics.matrix, self.device.facts.panel_sharing_levels
        ports = matrix.l2_share * self.device.sustained_l2_bytes_per_s / self.device.sm_count
        return ports * matrix.cluster_gain**levels

    def sharing(self, conditions: Conditions) -> np.ndarray:
        """Panels that cross the ports, at least 1, over those of kernels that share them as often as the device can."""
        levels = self.device.facts.panel_sharing_levels
        fewer = np.maximum(levels - traits_of("matrix", conditions)["panel_sharing_levels"], 0)
        return np.asarray(self.physics.matrix.cluster_gain ** fewer.astype(float))

    @property
    def step_s(self) -> float:
        """Latency for a 16-bit element of the inner extent: Little's law, with what the stages of a pipeline hold."""
        return self.physics.matrix.step_s * self._own(self.device.facts.step_constants)

    def waiting_s(self, p: Product) -> np.ndarray:
        """The same by how operands are copied [s]: copies that pass registers have one step
        under way, others by threads as many as before units that fetch blocks by themselves.
        """
        matrix = self.physics.matrix
        threads_s = np.where(p.copy_bytes < LEAST_ASYNCHRONOUS_BYTES, matrix.register_steps, 1.0) * matrix.step_s
        return np.broadcast_to(np.where(_is_aligned(p), self.step_s, threads_s), p.m.shape)

    def sustained(self, p: Product) -> np.ndarray:
        """Rate [FLOP/s] of tiles without end at full clock: blocks are fetched whole from rows at multiples of 16 bytes
        alone (CUDA Driver API, cuTensorMapEncodeTiled), others are for the instructions of warps.
        """
        matrix = self.physics.matrix
        narrow = np.where(p.a_bytes < WIDE_BYTES, matrix.narrow_share, 1.0)
        share = matrix.share * narrow * p.share * np.where(_is_aligned(p), 1.0, self.synchronous_share(p))
        return np.asarray(p.flops_per_s * share * clock_gain(self.device, self.physics))

    def synchronous_share(self, p: Product) -> np.ndarray:
        """Share [-] of the peak rate that warps' own instructions reach: all of it, but where matrix units read shared
        memory by themselves, no more of them fit in a clock than on earlier units.
        """
        if not self.device.facts.reads_shared_memory:
            return np.ones(len(p.m))
        wide_rate = self.rate_ratio(p) * p.a_bytes / WIDE_BYTES
        return np.minimum(self.physics.attention.synchronous / wide_rate, 1.0)

    def prologue_depth(self, p: Product) -> np.ndarray:
        """Inner extent whose time a tile spends filling its pipeline and writing its result: stages hold so many bytes,
        and results are no narrower than those of wide operands.
        """
        depth = self.physics.matrix.prologue_depth * self._own(self.device.facts.prologue_constants)
        return np.asarray(depth * WIDE_BYTES / np.minimum(p.a_bytes, WIDE_BYTES))

    def _own(self, names: Iterable[str]) -> float:
        """Factor of the device's kind of unit: the product of the constants of these names."""
        return prod(getattr(self.physics.matrix, name) for name in names)

    def rate_ratio(self, p: Product) -> np.ndarray:
        """FLOP a clock of an SM, over ``REFERENCE_RATE``."""
        return p.flops_per_s / (self.device.sm_count * self.device.boost_clock_hz * REFERENCE_RATE)

    def half(self, p: Product) -> np.ndarray:
        r"""Tile intensity below which operands take as long as the arithmetic, with what narrow copies add.

        .. math:: \frac{c F}{2} e \left(\frac{1}{b} - \frac{1}{16}\right)

        Each element of a tile's edge and step, of e bytes, takes e/b copies of b bytes and c cycles, in each of
        which an SM computes F FLOP.
        """
        whole = self._half(p) * self._own(self.device.facts.half_constants)
        copies = p.a_bytes * (1.0 / p.copy_bytes - 1.0 / WIDEST_COPY_BYTES)
        flops_per_cycle = self.sustained(p) / (self.device.sm_count * self.device.boost_clock_hz)
        copied = self.physics.matrix.copy_cycles * copies * flops_per_cycle / 2.0
        return np.where(_is_aligned(p), whole, self.half_by_registers(p) + copied)

    def half_by_registers(self, p: Product) -> np.ndarray:
        """The same where operands pass through registers although matrix units could read shared memory."""
        facts = self.device.facts
        return self._half(p) * (1.0 if facts.reads_shared_memory else self._own(facts.half_constants))

    def _half(self, p: Product) -> np.ndarray:
        # Narrow operands bring as many FLOP a byte as the faster unit needs more of.
        matrix = self.physics.matrix
        operands = self.rate_ratio(p) * p.a_bytes / 2.0 / self.device.facts.shared_memory_gain
        return np.asarray(matrix.half * operands)


def clock_gain(device: GpuSpec, physics: Physics) -> float:
    """Clock of a board while no limit acts, over its datasheet's boost clock, which some kinds of board exceed."""
    return physics.matrix.boost_gain if device.facts.clock_above_boost else 1.0


def pick_tiles(
    p: Product, device: GpuSpec, physics: Physics, cuttable: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(tile_m, tile_n, parts, seconds) of least time, each of shape (n,): arithmetic, L2, latency of every candidate.

    Libraries cut single products alone, of those for which they have such kernels (``cuttable``), and a cut pays only
    where the tiles leave SMs idle.
    """
    seconds, split_s = _tile_costs(p, device, physics), further_kernel_s(device, physics)
    matrix = physics.matrix
    able = np.flatnonzero((p.batch == 1) & cuttable)
    bounds = (p.most_parts, p.least_rows, p.least_columns, p.all_heights)
    most, least_m, least_n, fine, _ = np.broadcast_arrays(*bounds, p.m)
    best, parts, least = np.zeros(len(p.m), dtype=int), np.ones(len(p.m)), np.full(len(p.m), np.inf)
    shapes = tile_shapes(device.facts.tile_accumulators)
    usual, shapes = len(shapes), (*shapes, *(FINE_TILES if fine.any() else ()))
    for number, shape in enumerate(shapes):
        able_m, able_n = least_m <= shape[0], least_n <= shape[1]
        unable_s = np.where(able_m & able_n & (fine == (number >= usual)), 0.0, np.inf)
        tiles = np.ceil(p.m / shape[0]) * np.ceil(p.n / shape[1]) * p.batch
        time_s = seconds(shape, tiles, 1, slice(None)) + unable_s
        better = time_s < least
        least = np.where(better, time_s, least)
        best[better], parts[better] = number, 1.0
        idle = able[tiles[able] < matrix.idle_rounds * device.sm_count]
        for cut in SPLITS[1:]:
            least_extent = max(cut * matrix.least_depth, matrix.least_cut_extent)
            rows = idle[(p.k[idle] >= least_extent) & (most[idle] >= cut)]
            if not len(rows):
                break
            time_s = seconds(shape, tiles[rows], cut, rows) + split_s + unable_s[rows]
            better = time_s < least[rows]
            won = rows[better]
            least[won], best[won], parts[won] = time_s[better], number, cut
    tile_m, tile_n = np.array(shapes, dtype=float).T
    return tile_m[best], tile_n[best], parts, least


def _tile_costs(p: Product, device: GpuSpec, physics: Physics) -> Callable[..., np.ndarray]:
    """Time [s] of tiles as a function of their shape, their number, the parts each is cut into, and rows of ``p``."""
    unit, count = MatrixUnit(device, physics), device.sm_count
    half, each_s, step_s = unit.half(p), 2.0 * count / unit.sustained(p), unit.waiting_s(p)
    prologue_depth = unit.prologue_depth(p)

    def seconds(shape: tuple[int, int], tiles: np.ndarray, parts: int, rows: np.ndarray | slice) -> np.ndarray:
        some, blocks = p.take(rows), tiles * parts  # type: ignore[arg-type]
        depth, share = some.k / parts, blocks / count
        work = (shape[0] * shape[1] + half[rows] * _edges(some, shape)) * (depth + prologue_depth[rows])
        compute_s = np.ceil(share) * work * each_s[rows]
        panels_s = _l2_bytes(some, shape, tiles, parts) / (unit.port * np.minimum(blocks, count))
        chain = np.ceil(share / physics.matrix.blocks_of_sm) * depth
        waiting_s = chain * step_s[rows] * _stage_share(some, shape, physics)
        return np.asarray(np.sqrt(compute_s**2 + panels_s**2 + waiting_s**2))

    return seconds


def _l2_bytes(p: Product, shape: Shape, tiles: np.ndarray, parts: np.ndarray | float) -> np.ndarray:
    """Bytes between L2 and the SMs: each tile's panels, the result, and partial results where it is cut."""
    height, width = np.minimum(shape[0], p.m), np.minimum(shape[1], p.n)
    partial = np.where(np.asarray(parts) > 1, 2.0 * ACCUMULATOR_BYTES * parts, 0.0)
    return tiles * (height * p.a_bytes + width * p.b_bytes) * p.k + p.batch * p.m * p.n * (p.c_bytes + partial)


def _cuttable(batch: KernelBatch, p: Product, conditions: Conditions) -> np.ndarray:
    """Whether the library has kernels that cut the inner extent."""
    if batch.family != "gemm":
        return np.ones(len(batch), dtype=bool)
    traits, scaled = traits_of("matrix", conditions), among(batch["scaling"], ("block", "micro"))
    narrow = traits["cuts_narrow"] & (traits["cuts_scaled"] | ~scaled)
    return np.asarray((p.a_bytes >= WIDE_BYTES) | narrow)


def _is_aligned(p: Product) -> np.ndarray:
    """Whether all rows begin at a multiple of the widest copy, shape (n,)."""
    return np.asarray(p.copy_bytes >= WIDEST_COPY_BYTES)


Shape = tuple[np.ndarray | float, np.ndarray | float]
"""(tile_m, tile_n) [elements]."""


def _edges(p: Product, shape: Shape) -> np.ndarray:
    """Elements of A's width that a tile reads from shared memory in a step of the inner extent: narrower weights lie
    there as in memory and are widened in registers (Frantar et al. 2024, MARLIN, section 3.4), shape (n,).
    """
    return np.asarray(shape[0] + shape[1] * np.minimum(p.b_bytes / p.a_bytes, 1.0))


def _stage_share(p: Product, shape: Shape, physics: Physics) -> np.ndarray:
    """Share of the stages of a pipeline that an element of the inner extent takes, over one of 16 bit, shape (n,)."""
    wide = np.maximum(p.a_bytes, physics.matrix.least_stage_bytes) / WIDE_BYTES
    return np.asarray(wide * _edges(p, shape) / (shape[0] + shape[1]))


def product_tiling(batch: KernelBatch, device: GpuSpec, conditions: Conditions, physics: Physics) -> Tiling:
    """The blocks that a library runs: of convolutions in NCHW that are one product an image as they lie, those of it,
    where images that are turned first would take longer.
    """
    p, implicit_nchw = _run_product(batch, device, conditions, physics), np.zeros(len(batch), dtype=bool)
    cuttable = _cuttable(batch, p, conditions)
    tile_m, tile_n, parts, seconds = pick_tiles(p, device, physics, cuttable)
    rows = np.flatnonzero(is_implicit_nchw(batch)) if batch.family == "conv2d" else np.zeros(0, dtype=int)
    if len(rows):
        lying, some = by_image(batch.take(rows), device, physics), batch.take(rows)
        moved_s = layout_transform_bytes(some).sum(axis=0) / sustained_dram_bytes_per_s(device, physics)
        *picked, lying_s = pick_tiles(lying, device, physics, cuttable[rows])
        better = lying_s < seconds[rows] + moved_s
        for column, choice in zip((tile_m, tile_n, parts), picked, strict=True):
            column[rows[better]] = choice[better]
        implicit_nchw[rows[better]] = True
        p = p.replaced(rows[better], lying.take(better))
    return Tiling(
        tile_m=tile_m,
        tile_n=tile_n,
        depth=p.k / parts,
        down=np.ceil(p.m / tile_m),
        across=np.ceil(p.n / tile_n),
        batch=p.batch * parts,
        resident=np.ones(len(p.m)),
        sm_count=device.sm_count,
        parts=parts,
        implicit_nchw=implicit_nchw,
    )


def _run_product(batch: KernelBatch, device: GpuSpec, conditions: Conditions, physics: Physics) -> Product:
    """With the share of the rate that the kernels of a library sustain."""
    p = product_of(batch, device, physics)
    traits = traits_of("matrix", conditions)
    share = p.share * traits.constants("share_constant", physics.matrix)
    return replace(p, share=share, all_heights=traits["all_heights"])


def _product(batch: KernelBatch, device: GpuSpec, conditions: Conditions, physics: Physics, tiling: Tiling) -> Product:
    """That of a tiling."""
    p = _run_product(batch, device, conditions, physics)
    rows = np.flatnonzero(np.broadcast_to(tiling.implicit_nchw, len(batch)))
    return p.replaced(rows, by_image(batch.take(rows), device, physics)) if len(rows) else p


def matrix_times(
    batch: KernelBatch, device: GpuSpec, conditions: Conditions, physics: Physics, tiling: Tiling
) -> Times:
    r"""What products ask of each resource.

    .. math::
        t_c = r \frac{2 (t_m t_n + h (t_m + t_n)) (k / s + k_0)}{\eta R / N},\quad
        t_2 = \frac{T (t_m + t_n) (k / s) e}{W_2 \min(T, N) / N},\quad
        t_l = \lceil T / 2N \rceil (k / s) \tau

    Rounds r of the busiest SM at the rate its tile sustains; panels through the ports of the SMs that have a block;
    a chain of steps along the inner extent, each of which waits for its operands.

    Args:
        batch: products of the family ``gemm`` in dtypes of matrix units, or the implicit ones of ``conv2d``.
        device: R peak [FLOP/s], N SMs, W_2 ports between SMs and L2 [B/s].
        conditions: what caches hold, how the kernel was launched.
        physics: η, h, k_0, τ and the rest, group ``matrix``.
        tiling: T tiles of (t_m, t_n), cut into s parts.

    Source: CUTLASS, Efficient GEMM in CUDA (tiles, split-K); Little's law; constants fitted. Validity: 16-bit and
    8-bit products on NVIDIA GPUs from Volta on; others by the same law.
    """
    p, t = _product(batch, device, conditions, physics, tiling), tiling
    matrix, law = physics.matrix, MatrixUnit(device, physics)
    tiles, depth = t.tile_count, p.k / t.parts
    share = tiles / device.sm_count
    shape, traits = (t.tile_m, t.tile_n), traits_of("matrix", conditions)
    busiest = np.where(traits["shares_blocks_evenly"], share, np.ceil(share))
    work = (t.tile_m * t.tile_n + law.half(p) * _edges(p, shape)) * (depth + law.prologue_depth(p))
    compute_s = busiest * 2.0 * work * device.sm_count / law.sustained(p)
    promoted_s = busiest * _promotion_s(batch, t.tile_m * t.tile_n * depth, device, physics)
    dram, l2 = _traffic(p, t, device, physics)
    once = compulsory(p) if batch.family == "gemm" else work_of(batch).bytes
    missed, hot = _missed(p, once, device, conditions, physics)
    # Of an implicit product, windows that overlap are one image in DRAM, however often they are read.
    cold = (missed + dram) * once / compulsory(p)
    active = np.minimum(tiles, device.sm_count)
    dram_s = cold / sustained_dram_bytes_per_s(device, physics)
    step_s = law.waiting_s(p) * _stage_share(p, shape, physics) * (1.0 - (1.0 - matrix.step_hot) * hot)
    energy_j = 2.0 * p.batch * p.m * p.n * p.k * _unit_energy_j(p, device, physics)
    loading_s = dram_s + p.batch * p.n * p.k * t.down * matrix.widening / _lane_clocks(device)
    compute_s = compute_s * _conversion(batch, physics) + promoted_s + np.where(traits["pipelined"], 0.0, loading_s)
    if batch.family == "gemm":
        on_lanes = (batch["weight_dtype"] != "") & (p.m <= traits["vector_rows"])
        compute_s = np.where(on_lanes, _lanes_s(batch, p, device, physics), compute_s)
    return Times(
        compute_s=compute_s,
        dram_s=dram_s,
        l2_s=l2 * law.sharing(conditions) / (law.port * active),
        serial_s=np.ceil(share / matrix.blocks_of_sm) * depth * step_s,
        fixed_overhead_s=start_s(device, conditions, physics) * traits.constants("start_constant", matrix)
        + np.where(t.parts > 1.0, further_kernel_s(device, physics), 0.0)
        + _quantisation_s(batch, device, conditions, physics)
        + np.where(t.implicit_nchw, 0.0, layout_transform_s(batch, device, conditions, physics)),
        switching_j=energy_j * np.where(conditions.random, 1.0, matrix.quiet_energy),
        dram_bytes=cold,
        overlap=matrix.overlap,
    )


def _missed(
    p: Product, once: np.ndarray, device: GpuSpec, conditions: Conditions, physics: Physics
) -> tuple[np.ndarray, np.ndarray]:
    """(Bytes of operands and result, each once, that DRAM reads and writes [B], share of operands that L2 holds).

    Where operands take turns an allocator hands out the same memory for each result.
    """
    result_since = np.where(np.isfinite(conditions.cycled_bytes), once, conditions.cycled_bytes)
    input_since = np.where(conditions.one_input, result_since, conditions.cycled_bytes)
    a, b, c = p.batch * p.m * p.k * p.a_bytes, p.batch * p.k * p.n * p.b_bytes, p.batch * p.m * p.n * p.c_bytes
    since = (input_since, conditions.cycled_bytes, result_since)
    hot_a, hot_b, hot_c = (hot_share(device, bytes_, physics) for bytes_ in since)
    missed = a * (1.0 - hot_a) + b * (1.0 - hot_b)
    return missed + c * (1.0 - hot_c), 1.0 - missed / (a + b)


def _conversion(batch: KernelBatch, physics: Physics) -> np.ndarray:
    """Factor [-] of weights that are widened first; 1 for families without them."""
    if batch.family != "gemm":
        return np.ones(len(batch))
    return np.asarray(1.0 + np.where(batch["weight_dtype"] != "", physics.matrix.unpack_cost, 0.0))


def _lanes_s(batch: KernelBatch, p: Product, device: GpuSpec, physics: Physics) -> np.ndarray:
    """Time [s] in which ordinary lanes widen each weight once and multiply it with all rows, several values in a
    register at once; partial sums of groups are scaled.
    """
    scaled = np.where(among(batch["scaling"], ("group",)), physics.matrix.group_cycles / GROUP, 0.0)
    cycles = physics.matrix.unpacking + p.m * (p.a_bytes / REGISTER_BYTES + scaled)
    return np.asarray(p.batch * p.n * p.k * cycles / _lane_clocks(device))


def _lane_clocks(device: GpuSpec) -> float:
    """Instructions a second of all ordinary lanes at boost clock [1/s]."""
    return device.sm_count * device.cuda_cores_per_sm * device.boost_clock_hz


def _promotion_s(batch: KernelBatch, products: np.ndarray, device: GpuSpec, physics: Physics) -> np.ndarray:
    """Time [s] for which the lanes of an SM scale and add partial sums of so many multiplications: of blocks, unless
    matrix units apply their scales, and of groups.
    """
    if batch.family != "gemm":
        return np.zeros(len(batch))
    matrix, facts = physics.matrix, device.facts
    exposed = matrix.promotion_exposed if facts.reads_shared_memory else 1.0
    block = 0.0 if facts.applies_block_scales else exposed * matrix.promotion_cycles / SCALE_BLOCK
    cycles = np.select([batch["scaling"] == name for name in ("block", "group")], [block, matrix.group_cycles / GROUP])
    return np.asarray(products * cycles * device.sm_count / _lane_clocks(device))


def _quantisation_s(batch: KernelBatch, device: GpuSpec, conditions: Conditions, physics: Physics) -> np.ndarray:
    """Time [s] of what makes 16-bit activations narrow: they are read and written, and before that read by a pass which
    looks for the largest of all, where an engine has one scale for a whole tensor; rows may each take a block. Those of
    heads, which lie apart, do in both passes (SGLang, ``per_tensor_quant_mla_fp8``).
    """
    if batch.family != "gemm":
        return np.zeros(len(batch))
    matrix, traits, apart = physics.matrix, traits_of("matrix", conditions), batch["batch"] > 1
    whole, once, searches = batch["scaling"] == "tensor", 2.0 + element_bytes(batch), traits["quantise_searches"]
    bytes_, searched = once + np.where(whole & (searches | apart), 2.0, 0.0), whole & searches
    rows = batch["batch"] * batch["m"].astype(float)
    moved_s = matrix.quantise_cost * bytes_ * rows * batch["k"] / sustained_dram_bytes_per_s(device, physics)
    widths = HEAD_THREADS, np.minimum(batch["k"] / MICRO_ELEMENTS, MICRO_THREADS)
    threads = np.select([apart, batch["scaling"] == "micro"], widths, ROW_THREADS)
    at_once = device.sm_count * np.clip(device.max_threads_per_sm // threads, 1.0, device.max_blocks_per_sm)
    rows_s = rows * bytes_ / once / at_once * matrix.quantise_row_cycles / device.boost_clock_hz
    start = matrix.quantise_start * further_kernel_s(device, physics)
    starts_s = start + np.where(searched, start + matrix.search_s, 0.0)
    longest_s = np.maximum(moved_s, np.where(traits["quantise_rows"] | apart, rows_s, 0.0))
    return np.where(batch["quantised"], starts_s + longest_s, 0.0)


def product_energy_j(p: Product, dtype: np.ndarray, device: GpuSpec, physics: Physics) -> np.ndarray:
    """Energy [J] of a FLOP of products in these dtypes: on matrix units, or on the ordinary pipelines where the device
    has no such units for a dtype.
    """
    on_units = np.isin(dtype, list(device.matrix_flops_per_s))
    return np.where(on_units, _unit_energy_j(p, device, physics), flop_energy_j(device, physics))


def _unit_energy_j(p: Product, device: GpuSpec, physics: Physics) -> np.ndarray:
    r"""Energy [J] of a FLOP on matrix units, all of the SM included.

    .. math:: E = E_0 \left(\frac{l}{7}\right)^a \left(\frac{F}{2048}\right)^{-b}

    Args:
        p: dtype's rate gives F, 16-bit FLOP a clock of an SM.
        device: l, process node [nm].
        physics: E_0 ``pj_per_flop`` [pJ], a ``node_exponent``, b ``unit_exponent``; half the bits cost
            ``narrow_energy``.

    Source: form from what boards sustain under their limits: the kind of unit matters more than the node; fitted.
    Validity: NVIDIA GPUs of 4 to 12 nm.
    """
    matrix = physics.matrix
    ratio = MatrixUnit(device, physics).rate_ratio(p) * p.a_bytes / 2.0
    node = (device.process_nm / REFERENCE_NM) ** matrix.node_exponent
    pj = matrix.pj_per_flop * node * ratio**-matrix.unit_exponent
    return np.asarray(1e-12 * pj * matrix.narrow_energy ** np.log2(2.0 / p.a_bytes))


def _traffic(p: Product, t: Tiling, device: GpuSpec, physics: Physics) -> tuple[np.ndarray, np.ndarray]:
    """(bytes that waves of blocks read again from DRAM, bytes between L2 and the SMs)."""
    tiles = t.tile_count
    running = np.minimum(tiles, device.sm_count)
    rows, cols, products = t.patch(running)
    panel = products * (rows * t.tile_m * p.a_bytes + cols * t.tile_n * p.b_bytes) * (p.k / t.parts)
    missed = missed_share(panel, reusable_l2_bytes(device), physics)
    once = p.batch * (p.m * p.k * p.a_bytes + p.k * p.n * p.b_bytes)
    # The last wave has no more panels than blocks.
    again = np.maximum(tiles / running * panel - once, 0.0) * missed
    return again, _l2_bytes(p, (t.tile_m, t.tile_n), tiles / t.parts, t.parts)
