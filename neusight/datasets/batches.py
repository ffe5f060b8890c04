"""Rows as kernels: frames of measurements to the columns that laws, tilings and predictors compute on.

A collected row carries the fields of its kernel. Tables of other origins have a shape, from which the fields follow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.datasets.load import collected, kernel_columns
from neusight.datasets.schema import TABLE_OF_OP
from neusight.errors import DataError
from neusight.kernels import DTYPE_BYTES, KernelBatch
from neusight.kernels.operators import operator, operator_bytes

if TYPE_CHECKING:
    import pandas as pd

DTYPE_NAMES = {"fp8": "float8", "fp8_block": "float8", "fp8_static": "float8", "half": "float16"}
"""Names that data sets use for the dtypes of ``neusight.kernels``."""
MAY_BE_ZERO = ("padding", "window", "largest", "read_bytes", "write_bytes", "flops")
"""Whole numbers of a kernel that are no extent."""


def to_batches(frame: pd.DataFrame) -> list[tuple[KernelBatch, np.ndarray]]:
    """Rows as kernels, each batch with the positions (int64) that its rows have in ``frame``.

    One batch a family; rows of its collected table and of another of that name are two. Every row lands in exactly one
    batch. Kernels depend on op, shape and dtype alone, never on what was observed.

    Raises:
        DataError: a family that is no single kernel (moe, nccl, allreduce), an empty or non-positive shape.
    """
    families = frame["family"] if "family" in frame else frame["op"].map({o: t.name for o, t in TABLE_OF_OP.items()})
    own = collected(frame)
    codes, names = _coded(families)
    batches = []
    for code, family in enumerate(names):
        for stated, make in ((True, _as_stated), (False, _from_shape)):
            positions = np.flatnonzero((codes == code) & (own == stated))
            if len(positions):
                batches.append((make(family, frame.iloc[positions]), positions))
    return batches


def single_kernels(frame: pd.DataFrame) -> np.ndarray:
    """The rows that ``to_batches`` can turn into kernels, by their family, as a mask."""
    return collected(frame) | frame["family"].isin(_MAKERS).to_numpy(dtype=bool)


def _as_stated(family: str, rows: pd.DataFrame) -> KernelBatch:
    """Collected rows: the fields of the kernel as they are."""
    of = {kind: [c.name for c in kernel_columns(family) if c.kind == kind] for kind in ("integer", "string", "boolean")}
    words = {name: _strings(rows[name]) for name in of["string"]} | {"dtype": _dtype(rows)}
    flags = {name: rows[name].to_numpy(dtype=bool) for name in of["boolean"]}
    return KernelBatch.from_columns(family, **words, **flags, **_counts(rows, *of["integer"]))


def _from_shape(family: str, rows: pd.DataFrame) -> KernelBatch:
    if family not in _MAKERS:
        raise DataError(f"rows of '{family}' are no single kernels: keep families {', '.join(_MAKERS)}")
    return _MAKERS[family](rows)


def _counts(rows: pd.DataFrame, *names: str) -> dict[str, np.ndarray]:
    """Shape columns as int64, none empty or negative, and zero only where ``MAY_BE_ZERO``."""
    columns = {}
    for name in names:
        values = rows[name].to_numpy(dtype=np.float64)
        low = 0 if name in MAY_BE_ZERO else 1
        bad = ~(values >= low)
        if bad.any():
            where = rows.index[int(bad.argmax())]
            raise DataError(f"row {where}: {name} is {values[bad][0]:g}, must be at least {low}: fix or drop the row")
        columns[name] = rows[name].to_numpy().astype(np.int64)
    return columns


def _coded(values: Any) -> tuple[np.ndarray, list[str]]:
    """For each row which of the distinct strings it has: a table is then applied to a handful of values."""
    import pandas as pd

    codes, names = pd.factorize(values, use_na_sentinel=False)
    return codes, [str(n) for n in names]


def _strings(values: Any) -> np.ndarray:
    codes, names = _coded(values)
    return np.array(names)[codes]


def _dtype(rows: pd.DataFrame, column: str = "dtype") -> np.ndarray:
    codes, names = _coded(rows[column])
    known = np.array([DTYPE_NAMES.get(n, n) for n in names])
    if unknown := sorted(set(known) - DTYPE_BYTES.keys()):
        raise DataError(f"{column} '{unknown[0]}' is no kernel dtype: keep rows of {', '.join(DTYPE_BYTES)}")
    return known[codes]


def _gemm(rows: pd.DataFrame) -> KernelBatch:
    """Float32 ``linear`` rows are torch's with bias; those of serving engines, in narrower dtypes, have none."""
    op, dtype = _strings(rows["op"]), _dtype(rows)
    linear = op == "linear"
    batch = _counts(rows.fillna({"batch": 1}), "batch")["batch"] if "batch" in rows else 1
    return KernelBatch.from_columns(
        "gemm",
        op=op,
        batch=np.where(linear, 1, batch),
        layout=np.where(linear, "tn", "nn"),
        bias=linear & (dtype == "float32"),
        dtype=dtype,
        **_counts(rows, "m", "n", "k"),
    )


def _elementwise(rows: pd.DataFrame) -> KernelBatch:
    shape = _counts(rows, "rows", "cols")
    stated = _stated("elementwise", rows, **shape)
    return KernelBatch.from_columns("elementwise", elements=shape["rows"] * shape["cols"], **stated)


def _row_reduction(rows: pd.DataFrame) -> KernelBatch:
    shape = _counts(rows, "rows", "cols")
    return KernelBatch.from_columns("row_reduction", **_stated("row_reduction", rows, **shape), **shape)


def _stated(family: str, frame: pd.DataFrame, rows: np.ndarray, cols: np.ndarray) -> dict[str, np.ndarray]:
    """Names, bytes and FLOP of rows, by the table of operators, a lookup for each distinct operator and dtype."""
    op, dtype, elements = _strings(frame["op"]), _dtype(frame), rows * cols
    work = {name: np.empty(len(frame), np.int64) for name in ("read_bytes", "write_bytes", "flops")}
    for name, width in {(str(o), str(d)) for o, d in zip(op, dtype, strict=True)}:
        here, found = (op == name) & (dtype == width), operator(family, name)
        extents = (elements[here], rows[here], cols[here])
        work["read_bytes"][here], work["write_bytes"][here] = operator_bytes(found, extents, DTYPE_BYTES[width])
        work["flops"][here] = found.flops * elements[here]
    return {"op": op, "dtype": dtype, **work}


def _conv2d(rows: pd.DataFrame) -> KernelBatch:
    shape = _counts(rows, "batch", "in_channels", "out_channels", "kernel_size", "input_size", "stride", "padding")
    kernel, image = shape.pop("kernel_size"), shape.pop("input_size")
    square = {"kernel_height": kernel, "kernel_width": kernel, "height": image, "width": image}
    return KernelBatch.from_columns("conv2d", op="forward", dtype=_dtype(rows), **square, **shape)


def _attention(rows: pd.DataFrame) -> KernelBatch:
    """Context: causal over the sequence. Generation: one query over the cached tokens and itself."""
    shape = _counts(rows, "batch", "num_heads", "num_kv_heads", "head_dim", "window")
    if (rows["family"] == "attention_context").all():
        q_len = kv_len = _counts(rows, "seq_len")["seq_len"]
    else:
        q_len, kv_len = np.ones(len(rows), np.int64), _counts(rows, "kv_len")["kv_len"] + 1
    dtype, cache = _dtype(rows), _dtype(rows, "kv_cache_dtype")
    return KernelBatch.from_columns(
        "attention",
        batch=shape["batch"],
        heads=shape["num_heads"],
        kv_heads=shape["num_kv_heads"],
        q_len=q_len,
        kv_len=kv_len,
        head_dim=shape["head_dim"],
        window=shape["window"],
        causal=True,
        dtype=dtype,
        kv_dtype=np.where(cache == dtype, "", cache),
    )


_MAKERS: dict[str, Callable[[Any], KernelBatch]] = {
    "gemm": _gemm,
    "elementwise": _elementwise,
    "row_reduction": _row_reduction,
    "conv2d": _conv2d,
    "attention_context": _attention,
    "attention_generation": _attention,
}
