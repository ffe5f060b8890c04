"""What measured rows could have taken, and what the profiler saw of them.

Work and limits are those of ``neusight.kernels.work`` and ``neusight.laws.bounds``. The tile, split and kind of each
measured kernel are read from its name, grid and block: BLAS libraries are column-major, so for a row-major C[m,n] they
compute Cᵀ, and the first number of a kernel's name tiles n, the second m (checked against the grids: ceil(n/first) x
ceil(m/second) blocks in every cuBLAS row of the float32 data set). AMD's rocprof counts a grid in threads, CUPTI in
blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.datasets.batches import to_batches
from neusight.datasets.columns import DTYPE_NAMES
from neusight.datasets.load import device_of
from neusight.datasets.schema import SERVING_OPS
from neusight.devices import DeviceSpec
from neusight.errors import DeviceError
from neusight.kernels import KernelBatch, work_of
from neusight.kernels.precision import PRODUCT_DTYPES
from neusight.laws.bounds import GEMM_FAMILIES, peak_flops_per_s

if TYPE_CHECKING:
    import pandas as pd

Batches = Sequence[tuple[KernelBatch, np.ndarray]]
_PRODUCTS = (
    *GEMM_FAMILIES,
    *("attention_context", "attention_generation", "attention_mla", "attention_sparse"),
)
MIXED = "attention_mixed"
"""Table of attention over prompts and decoding sequences in one launch."""
_ORIGIN = ("gpu", "dtype", "framework", "version", "kernel", "kv_cache_dtype", "eager", "timing", "operands")
_GEMM_TILE, _ROWS_FIRST_TILE = r"(?:_MT|gemm_)(\d+)x(\d+)", r"_tilesize(\d+)x(\d+)"
_CONV_TILE = r"(?:scudnn|scudnn_winograd|gemm)_(\d+)x(\d+)"
# First match wins, so that the special comes before the general.
_KINDS: tuple[tuple[str, str], ...] = (
    ("winograd_nonfused", r"winograd_nonfused|winogradforward"),
    ("winograd", r"winograd"),
    ("fft", r"gcgemm|fft"),
    ("depthwise", r"dgrad2d|depthwise|conv_depth"),
    ("implicit_gemm", r"scudnn|implicit_convolve|implicit_gemm|precomputed_convolve"),
    ("explicit_gemm", r"explicit_convolve"),
    ("gemv", r"gemv|gemmsn|gemmk1|gemm_k1|dot_kernel"),
    ("cutlass", r"cutlass"),
    ("tensile", r"cijk_"),
    ("sliced_gemm", r"gemm_\d+x\d+_sliced"),
    ("gemm", r"gemm"),
    ("vectorized", r"vectorized_elementwise|vectorized_layer_norm"),
    ("elementwise", r"elementwise"),
    ("softmax_warp", r"softmax_warp"),
    ("softmax_block", r"softmax"),
    ("row_reduction", r"layer_norm|rowwise|reduce"),
)


def measured(frame: pd.DataFrame, devices: Mapping[str, DeviceSpec] | None = None) -> pd.DataFrame:
    """The rows with their work and their device's limits, in SI units, as rules and the physics check need them.

    Adds ``latency_s``, ``execution_s`` (without the launch where that was measured, else the latency), ``flops``,
    ``bytes`` (compulsory: every tensor once), ``passes`` (kernels that share them), ``padded_flops`` (whole tiles),
    ``flops_per_s``, ``bytes_per_s`` (peaks), ``l2_bytes``, ``bound_s`` (roofline), ``same`` (number of the group of
    rows of the same kernel, GPU and software) and the columns of ``observed_tiles``.

    Args:
        frame: rows as ``load_kernels`` gives them.
        devices: by id; default the catalogue.

    Raises:
        DataError: a shape that is no kernel. DeviceError: a GPU that neither ``devices`` nor the catalogue has.
    """
    out = frame.join(observed_tiles(frame))
    out["latency_s"] = frame["latency_ms"] * 1e-3
    alone = frame["execution_ms"] * 1e-3 if "execution_ms" in frame else out["latency_s"]
    out["execution_s"] = alone.fillna(out["latency_s"])
    batches = to_batches(frame)
    flops, moved, passes = np.zeros(len(frame)), np.zeros(len(frame)), np.ones(len(frame))
    for batch, positions in batches:
        work = work_of(batch)
        flops[positions], moved[positions] = work.flops, work.bytes
        passes[positions] = batch.columns.get("passes", 1)
    out["flops"], out["bytes"], out["passes"], out["same"] = flops, moved, passes, _same(frame, batches)
    _add_limits(out, devices or {})
    padded = 2.0 * out["grid"] / out["split_k"] * out["tile_m"] * out["tile_n"] * out.get("k", np.nan)
    out["padded_flops"] = padded.where(out["family"] == "gemm").fillna(out["flops"])
    out["bound_s"] = np.maximum(out["flops"] / out["flops_per_s"], out["bytes"] / out["bytes_per_s"])
    return out


def unable(device: DeviceSpec, family: str, dtype: str) -> str:
    """Why rows of a family in a dtype of a data set cannot be compared with a device's limits; '' where they can."""
    if why := unestimated(family, dtype):
        return why
    try:
        peak_flops_per_s(device, DTYPE_NAMES.get(dtype, dtype), product=family in _PRODUCTS)
    except DeviceError as error:
        return str(error)
    return ""


def answerable(frame: pd.DataFrame, devices: Mapping[str, DeviceSpec]) -> np.ndarray:
    """Rows in a family and dtype that their GPU computes in, as a mask; what has no dtype is none of them.

    Args:
        frame: rows as ``load_kernels`` gives them.
        devices: those beside the data, by id; else those of the catalogue.

    Raises:
        DeviceError: a GPU that neither has.
    """
    able = np.zeros(len(frame), dtype=bool)
    for (gpu, family, dtype), rows in frame.groupby(["gpu", "family", "dtype"], observed=True).indices.items():
        able[rows] = not unable(device_of(str(gpu), devices), str(family), str(dtype))
    return able


def unestimated(family: str, dtype: str) -> str:
    """Why no device answers rows of a family in a dtype of a data set; '' where some may."""
    if family == MIXED:
        return "prompts and decoding in one launch are not estimated as one kernel"
    return "" if DTYPE_NAMES.get(dtype, dtype) in PRODUCT_DTYPES else f"dtype '{dtype}' is not estimated"


def _same(frame: pd.DataFrame, batches: Batches) -> np.ndarray:
    import pandas as pd

    same, groups = np.zeros(len(frame), dtype=np.int64), 0
    origin = frame[[name for name in _ORIGIN if name in frame]]
    if "rows" in frame:
        # A block of theirs has a row, however many elements there are in all.
        origin = origin.assign(by_rows=frame["rows"].where(frame["op"].isin(SERVING_OPS)))
    for batch, positions in batches:
        keys = pd.DataFrame({f"kernel's {name}": column for name, column in batch.columns.items()})
        keys = keys.join(origin.iloc[positions].reset_index(drop=True))
        codes = keys.groupby(list(keys), dropna=False, sort=False).ngroup().to_numpy()
        same[positions], groups = codes + groups, groups + codes.max() + 1
    return same


def _add_limits(out: pd.DataFrame, devices: Mapping[str, DeviceSpec]) -> None:
    """Datasheet peaks of each row's GPU."""
    keys = out.groupby(["gpu", "dtype", "family"], sort=False).ngroup().to_numpy()
    first = np.unique(keys, return_index=True)[1]
    kinds = out[["gpu", "dtype", "family"]].iloc[first].to_numpy()
    limits = np.array([_limits(device_of(gpu, devices), dtype, family) for gpu, dtype, family in kinds]).reshape(-1, 3)
    out[["flops_per_s", "bytes_per_s", "l2_bytes"]] = limits[keys]


def _limits(device: DeviceSpec, dtype: str, family: str) -> tuple[float, float, float]:
    peak = peak_flops_per_s(device, DTYPE_NAMES.get(dtype, dtype), product=family in _PRODUCTS)
    return peak, device.dram_bandwidth_bytes_per_s, device.on_chip_bytes


def observed_tiles(frame: pd.DataFrame) -> pd.DataFrame:
    """Tiles as observed, a row for each row of ``frame``, on its index.

    Returns:
        ``kind`` (str, '' where unknown), ``tile_m``, ``tile_n`` (elements of C[m,n]; for a convolution output pixels
        and output channels; for elementwise kernels 1 and the elements a block; for row reductions rows a block and
        cols), ``split_k`` (parts of the inner dimension), ``grid`` (blocks launched) and ``kernels`` (how many ran).
        NaN where the name and grid don't tell.
    """
    import pandas as pd

    names = _column(frame, "kernel_name", "")
    every = _column(frame, "kernel_names", "")
    blocks = _blocks(frame)
    out = pd.DataFrame({"kind": _kinds(names, every), "grid": blocks}, index=frame.index)
    out[["tile_m", "tile_n", "split_k"]] = np.nan
    out["kernels"] = _launches(every, names)
    _tile_gemms(frame, names, out)
    _tile_convolutions(frame, names, out)
    _tile_elementwise(frame, out)
    _tile_rows(frame, out)
    return out[["kind", "tile_m", "tile_n", "split_k", "grid", "kernels"]]


def tile_coverage(frame: pd.DataFrame) -> pd.DataFrame:
    """Share of rows whose tile is known, by gpu (rows) and family (columns)."""
    known = observed_tiles(frame)["tile_m"].notna()
    return known.groupby([frame["gpu"], frame["family"]]).mean().unstack()


def _column(frame: pd.DataFrame, name: str, empty: Any) -> pd.Series:
    import pandas as pd

    return frame[name].fillna(empty) if name in frame else pd.Series(empty, index=frame.index)


def _blocks(frame: pd.DataFrame) -> pd.Series:
    """Blocks launched; NaN without a grid. rocprof's grids are threads: they come with Tensile or hip kernels."""
    if "grid_x" not in frame:
        return _column(frame, "grid_x", np.nan).astype(float)
    blocks = frame["grid_x"] * frame["grid_y"] * frame["grid_z"].astype(float)
    in_threads = _column(frame, "framework", "").str.contains("rocm", regex=False) & _is_blas(frame)
    threads = frame["block_x"] * frame["block_y"] * frame["block_z"].astype(float)
    return (blocks / threads.where(in_threads, 1.0)).where(blocks > 0)


def _is_blas(frame: pd.DataFrame) -> pd.Series:
    return _column(frame, "kernel_name", "").str.startswith("Cijk_")


def _kinds(names: pd.Series, every: pd.Series) -> pd.Series:
    """The kind of each distinct pair of names, mapped back to the rows."""
    import pandas as pd

    codes, distinct = pd.factorize(every.where(every.str.contains("winograd", regex=False), names))
    text = pd.Series(distinct).str.lower()
    kinds = pd.Series("", index=text.index)
    for kind, pattern in reversed(_KINDS):
        kinds[text.str.contains(pattern)] = kind
    return pd.Series(kinds.to_numpy()[codes], index=names.index)


def _launches(every: pd.Series, names: pd.Series) -> pd.Series:
    """Kernels listed in ``kernel_names``; 1 where only the main kernel is recorded, NaN where none is."""
    listed = every.str.strip(";").str.count(";") + 1.0
    return listed.where(every != "", (names != "").astype(float).where(names != ""))


def _tiles(names: pd.Series, pattern: str) -> tuple[np.ndarray, np.ndarray]:
    import pandas as pd

    codes, distinct = pd.factorize(names)
    extents = pd.Series(distinct, dtype=object).astype(str).str.extract(pattern).astype(float).to_numpy()[codes]
    return extents[:, 0], extents[:, 1]


def _tile_gemms(frame: pd.DataFrame, names: pd.Series, out: pd.DataFrame) -> None:
    """Tile from the name; split from the blocks over the tiles of the output (swizzled grids launch a few more)."""
    is_gemm = (frame["family"] == "gemm").to_numpy()
    if not is_gemm.any():
        return
    rows = frame[is_gemm]
    tile_n, tile_m = _tiles(names[is_gemm], _GEMM_TILE)
    # Others name tiles of matrices that lie in columns, of which ours are the transposed; xmma's kernels of rows.
    first, second = _tiles(names[is_gemm], _ROWS_FIRST_TILE)
    tile_m, tile_n = np.where(np.isnan(first), tile_m, first), np.where(np.isnan(second), tile_n, second)
    batch = np.where(rows["op"] == "linear", 1.0, _column(rows, "batch", 1.0))
    tiles = np.ceil(rows["n"] / tile_n) * np.ceil(rows["m"] / tile_m) * batch
    out.loc[is_gemm, "tile_m"], out.loc[is_gemm, "tile_n"] = tile_m, tile_n
    out.loc[is_gemm, "split_k"] = np.maximum(np.rint(out.loc[is_gemm, "grid"] / tiles), 1.0)


def _tile_convolutions(frame: pd.DataFrame, names: pd.Series, out: pd.DataFrame) -> None:
    """Implicit GEMM tiles output pixels by output channels; transforms (Winograd, FFT) tile something else."""
    direct = ((frame["family"] == "conv2d") & out["kind"].isin(["implicit_gemm", "gemm"])).to_numpy()
    if direct.any():
        tile_m, tile_n = _tiles(names[direct], _CONV_TILE)
        out.loc[direct, "tile_m"], out.loc[direct, "tile_n"] = tile_m, tile_n


def _tile_elementwise(frame: pd.DataFrame, out: pd.DataFrame) -> None:
    """Elements a block, rounded up to the power of two that the launch code uses.

    Tensors beyond 2**31 bytes are processed by several launches, of which the profiler's grid is one: no tile then.
    """
    pointwise = ((frame["family"] == "elementwise") & out["grid"].notna()).to_numpy()
    if pointwise.any():
        elements = _elements(frame[pointwise])
        per_block = 2.0 ** np.ceil(np.log2(elements / out.loc[pointwise, "grid"]))
        out.loc[pointwise, "tile_m"] = np.where(elements * 4 < 2**31, 1.0, np.nan)
        out.loc[pointwise, "tile_n"] = per_block.where(elements * 4 < 2**31)


def _elements(rows: pd.DataFrame) -> pd.Series:
    """As the kernel states them, else of the tensor's rows and columns."""
    stated = _column(rows, "elements", np.nan).astype(float)
    return stated.fillna(rows["rows"] * rows["cols"]) if "rows" in rows else stated


def _tile_rows(frame: pd.DataFrame, out: pd.DataFrame) -> None:
    reduction = ((frame["family"] == "row_reduction") & out["grid"].notna()).to_numpy()
    if reduction.any():
        rows = frame[reduction]
        out.loc[reduction, "tile_m"] = np.ceil(rows["rows"] / out.loc[reduction, "grid"])
        out.loc[reduction, "tile_n"] = rows["cols"]
