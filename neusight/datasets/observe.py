"""What the profiler saw: the tile, split and kind of each measured kernel, read from its name, grid and block.

BLAS libraries are column-major, so for a row-major C[m,n] they compute Cᵀ: the first number of a kernel's name tiles
n, the second m (checked against the grids: ceil(n/first) x ceil(m/second) blocks in every cuBLAS row of the float32
data set). AMD's rocprof counts a grid in threads, CUPTI in blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

_GEMM_TILE = r"(?:_MT|gemm_)(\d+)x(\d+)"
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
