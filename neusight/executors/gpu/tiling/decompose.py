"""Decomposers: how the kernels of each family are cut into the blocks that SMs run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from neusight.devices.spec import GpuSpec
from neusight.errors import CoverageError
from neusight.executors.gpu.expected.products import dilation
from neusight.executors.gpu.tiling.library import Products, TileChoice, best_cut, filling_parts, least_cost_tile
from neusight.kernels import KernelBatch
from neusight.kernels.precision import stored_bytes
from neusight.kernels.work import by_distinct, conv_gemm, element_bytes, filled_groups
from neusight.laws.physics import Physics
from neusight.laws.waves import resident_blocks
from neusight.quick_dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Tiling:
    """Tiles of a batch of kernels on one device; columns of shape (n,).

    A block computes ``tile_m x tile_n`` outputs over an inner extent of ``depth``; ``down x across`` blocks cover one
    of ``batch`` products, on average where products differ in height. A product that is cut into ``parts`` along its
    inner extent counts as so many products. Row-wise kernels have rows x cols as tile, pointwise ones 1 x elements.
    """

    tile_m: np.ndarray
    tile_n: np.ndarray
    depth: np.ndarray
    down: np.ndarray
    across: np.ndarray
    batch: np.ndarray
    resident: np.ndarray
    """Blocks that fit on an SM at once."""
    sm_count: int
    parts: np.ndarray | float = 1.0
    implicit_nchw: np.ndarray | bool = False
    """Of convolutions, whether images are operands in the order in which they lie in memory."""

    @property
    def tile_count(self) -> np.ndarray:
        """Blocks launched."""
        # An average times its number is whole again, but for the last bit.
        return np.rint(self.batch * self.down * self.across)

    @property
    def waves(self) -> np.ndarray:
        """Blocks an SM, counting one at a time: the unit in which the tail is felt."""
        return self.tile_count / self.sm_count

    def patch(self, running: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(rows, columns, products) of so many blocks that run at once: of each product a nearly square patch."""
        blocks = np.minimum(running, self.down * self.across)
        rows = np.minimum(self.down, np.ceil(np.sqrt(blocks)))
        cols = np.minimum(self.across, np.ceil(blocks / rows))
        rows = np.minimum(self.down, np.ceil(blocks / cols))
        return rows, cols, np.maximum(1.0, running / (self.down * self.across))

    @property
    def label(self) -> np.ndarray:
        """``128x64``."""
        shapes, where = np.unique(self.tile_m + 1j * self.tile_n, return_inverse=True)
        return np.array([f"{s.real:.0f}x{s.imag:.0f}" for s in shapes])[where]


LEARNED_DTYPES = ("float32",)
"""Dtypes whose kernels' names were observed; the tiles of others follow from cost."""


def product_tiling(products: Products, tile_m: np.ndarray, tile_n: np.ndarray, device: GpuSpec) -> Tiling:
    r"""Blocks of products with a given tile.

    .. math:: T = b \lceil m / t_m \rceil \lceil n / t_n \rceil

    Args:
        products: extents [elements].
        tile_m: t_m, rows of C in a block [elements].
        tile_n: t_n, columns of C in a block [elements].
        device: its SMs, and how many blocks stay on one.

    Source: CUTLASS, Efficient GEMM in CUDA (thread block tiles).
    """
    m, n, k, b = products
    return Tiling(
        tile_m=tile_m,
        tile_n=tile_n,
        depth=k,
        down=np.ceil(m / tile_m),
        across=np.ceil(n / tile_n),
        batch=b,
        resident=resident_blocks(tile_m * tile_n, device),
        sm_count=device.sm_count,
    )


def _gemm(batch: KernelBatch, device: GpuSpec, choice: TileChoice, physics: Physics) -> Tiling:
    """Tiles as observed or by cost; single products are cut along k where too few tiles would fill the device."""
    products = Products(*(batch[name].astype(float) for name in ("m", "n", "k", "batch")))
    tile_m, tile_n = np.empty(len(batch)), np.empty(len(batch))
    for op in ("linear", "bmm"):
        rows = np.flatnonzero((batch["op"] == "bmm") == (op == "bmm"))
        if len(rows):
            tile_m[rows], tile_n[rows] = _library_tiles(
                products.take(rows), batch["dtype"][rows], op, device, choice, physics=physics, cuttable=op == "linear"
            )
    whole, size = product_tiling(products, tile_m, tile_n, device), element_bytes(batch)
    rates = by_distinct(batch["dtype"], device.gemm_flops_per_s)
    parts = best_cut(products, (tile_m, tile_n), size, rates, device=device, physics=physics)[0]
    parts = np.where(batch["op"] == "bmm", 1.0, parts)
    return replace(whole, batch=products.b * parts, depth=products.k / parts, parts=parts)


def _library_tiles(
    products: Products,
    dtypes: np.ndarray,
    op: str,
    device: GpuSpec,
    choice: TileChoice | None,
    *,
    physics: Physics,
    cuttable: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """(tile_m, tile_n) that a library runs products with: as observed in ``LEARNED_DTYPES``, else, and without a
    choice, by cost, with cuts along the inner extent where it makes them.
    """
    tile_m, tile_n = np.empty(len(dtypes)), np.empty(len(dtypes))
    for dtype in sorted(set(dtypes.tolist())):
        rows = np.flatnonzero(dtypes == dtype)
        own = products.take(rows)
        if dtype in LEARNED_DTYPES and choice is not None:
            tile_m[rows], tile_n[rows] = choice.pick(op, own, device, physics, cuttable)
        else:
            size, rate = np.full(len(rows), float(stored_bytes(dtype))), device.gemm_flops_per_s(dtype)
            tile_m[rows], tile_n[rows] = least_cost_tile(
                own, size, rate, device=device, physics=physics, cuttable=cuttable
            )
    return tile_m, tile_n


def _conv2d(batch: KernelBatch, device: GpuSpec, choice: TileChoice, physics: Physics) -> Tiling:
    """The implicit product's tiles: those of ``linear``. A gradient of filters has few, and an inner extent of all
    pixels, along which libraries cut it until the device is full (cuDNN, ``CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0`` and
    ``_3``: blocks of pixels that add to the same result).
    """
    groups, m, n, k = conv_gemm(batch)
    k = k * dilation(batch, physics)
    products = Products(m, n, k, groups)
    whole = product_tiling(
        products, *_library_tiles(products, batch["dtype"], "linear", device, choice, physics=physics), device
    )
    parts = filling_parts(whole.tile_count, k, whole.resident * device.sm_count)
    parts = np.where(batch["op"] == "weight_grad", parts, 1.0)
    return replace(whole, batch=groups * parts, depth=k / parts, parts=parts)


def _attention(batch: KernelBatch, device: GpuSpec, choice: TileChoice, physics: Physics) -> Tiling:
    """Blocks of 128 queries (64 with heads wider than 64) that walk over the keys: FlashAttention-2's outer loop over
    queries (Dao 2023, section 3.2); the sizes are an assumption.
    """
    rows = np.where(batch["head_dim"] > 64, 64.0, 128.0)
    heads = (batch["batch"] * batch["heads"]).astype(float)
    queries, width = batch["q_len"].astype(float), batch["head_dim"].astype(float)
    return product_tiling(Products(queries, width, batch["kv_len"].astype(float), heads), rows, width, device)


def _grouped_gemm(batch: KernelBatch, device: GpuSpec, choice: TileChoice, physics: Physics) -> Tiling:
    """Whole tiles for each group: ``ceil(largest / tile_m)`` down the fullest, and the rest of the tokens spread
    evenly over the other groups that have rows. Exact where tokens are spread evenly, else an approximation, since
    only the fullest group is known. One tile shape for all groups, the cheapest for their average height.
    """
    tokens, n, k = (batch[name].astype(float) for name in ("tokens", "n", "k"))
    filled, fullest = filled_groups(batch)
    products = Products(tokens / filled, n, k, filled)
    tile_m, tile_n = _library_tiles(products, batch["dtype"], "linear", device, None, physics=physics)
    down = np.ceil(fullest / tile_m) + _even_tiles(tokens - fullest, filled - 1.0, tile_m)
    return replace(product_tiling(products, tile_m, tile_n, device), down=down / filled)


def _even_tiles(rows: np.ndarray, groups: np.ndarray, tile_m: np.ndarray) -> np.ndarray:
    """Tiles of ``rows`` over ``groups`` that differ by one row at most; none without groups."""
    each, more = np.divmod(rows, np.maximum(groups, 1.0))
    return more * np.ceil((each + 1.0) / tile_m) + (groups - more) * np.ceil(each / tile_m)


POINTWISE_THREADS = 128
"""Threads of a block of PyTorch's vectorised kernel, each of which takes four elements (cited: ``CUDALoops.cuh``)."""


def _pointwise(batch: KernelBatch, device: GpuSpec, choice: TileChoice, physics: Physics) -> Tiling:
    """Blocks of ``POINTWISE_THREADS`` with four elements each."""
    elements = np.maximum(batch["elements"].astype(float), 1.0)
    ones = np.ones(len(batch))
    a_block = 4.0 * POINTWISE_THREADS
    return Tiling(
        tile_m=ones,
        tile_n=a_block * ones,
        depth=ones,
        down=ones,
        across=np.ceil(elements / a_block),
        batch=ones,
        resident=min(device.max_threads_per_sm / POINTWISE_THREADS, device.max_blocks_per_sm) * ones,
        sm_count=device.sm_count,
    )


WARP_SOFTMAX_COLS = 1024
"""Up to which length a warp keeps a row of a softmax in registers (cited: PyTorch, ``PersistentSoftmax.cuh``)."""
WHOLE_ROWS = ("softmax", "norm_backward", "layer_norm", "rms_norm", "batch_norm", "group_norm", "cum", "sort", "topk")
"""Parts of the names of operators that need a row in one block: they write all of it, or keep its order."""
REDUCING_THREADS, LEAST_VALUES, MOST_VALUES = 512, 16, 256
"""Threads of a block of PyTorch's sums and maxima, and values each of them reduces, at least and at most, where a row
is shared out over blocks (cited: PyTorch, ``Reduce.cuh``)."""


def _rows(batch: KernelBatch, device: GpuSpec, choice: TileChoice, physics: Physics) -> Tiling:
    """PyTorch's kernels: softmax of up to 1024 columns has a warp for one or two rows and four warps a block; longer
    rows a block of up to 1024 threads; normalisations a block of 128 threads a row; sums and their like share a long
    row out over as many blocks as fill the device.
    """
    rows, cols = batch["rows"].astype(float), np.maximum(batch["cols"].astype(float), 1.0)
    ops = batch["op"].astype(str)
    softmax = np.char.find(ops, "softmax") >= 0
    warp = softmax & (cols <= WARP_SOFTMAX_COLS)
    per_block = np.where(warp, np.where(cols <= 128, 8.0, 4.0), 1.0)
    parts = row_parts(batch, device)
    threads = np.where(softmax & ~warp, np.clip(2 ** np.floor(np.log2(cols / 4)), 128, 1024), POINTWISE_THREADS)
    threads = np.where(parts > 1.0, REDUCING_THREADS, threads)
    resident = np.minimum(device.max_threads_per_sm / threads, device.max_blocks_per_sm)
    ones = np.ones(len(batch))
    return Tiling(
        tile_m=per_block,
        tile_n=np.ceil(cols / parts),
        depth=cols,
        down=np.ceil(rows / per_block),
        across=parts,
        batch=ones,
        resident=np.maximum(resident, 1.0),
        sm_count=device.sm_count,
    )


def row_parts(batch: KernelBatch, device: GpuSpec) -> np.ndarray:
    """Blocks that share a row: 1 where the operator needs it whole, else enough to fill the device, of threads with
    ``LEAST_VALUES`` to ``MOST_VALUES`` each.
    """
    rows, cols = batch["rows"].astype(float), np.maximum(batch["cols"].astype(float), 1.0)
    values = np.ceil(cols / REDUCING_THREADS)
    filling = device.sm_count * (device.max_threads_per_sm // REDUCING_THREADS)
    parts = np.minimum(np.ceil(filling / rows), np.ceil(values / LEAST_VALUES))
    shared = (values >= MOST_VALUES) & (rows <= filling) & (by_distinct(batch["op"], _keeps_rows_whole) == 0)
    return np.where(shared, np.maximum(parts, np.ceil(values / MOST_VALUES)), 1.0)


def _keeps_rows_whole(op: str) -> bool:
    return any(part in op for part in WHOLE_ROWS)


_DECOMPOSERS: dict[str, Callable[[KernelBatch, GpuSpec, TileChoice, Physics], Tiling]] = {
    "gemm": _gemm,
    "conv2d": _conv2d,
    "attention": _attention,
    "grouped_gemm": _grouped_gemm,
    **dict.fromkeys(("elementwise", "memory", "optimizer"), _pointwise),
    "row_reduction": _rows,
}
"""How the kernels of each family are cut into blocks."""


def tile(batch: KernelBatch, device: GpuSpec, choice: TileChoice, physics: Physics) -> Tiling:
    """Cut every kernel of the batch into blocks.

    Raises:
        CoverageError: a family without a decomposer.
    """
    if batch.family not in _DECOMPOSERS:
        raise CoverageError(f"no tiling for kernel family '{batch.family}': one of {', '.join(_DECOMPOSERS)}")
    return _DECOMPOSERS[batch.family](batch, device, choice, physics)
