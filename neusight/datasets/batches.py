"""Rows as kernels: frames of measurements to the columns that laws, tilings and predictors compute on.

A collected row carries the fields of its kernel. Tables of other origins have a shape, from which the fields follow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.datasets import serving
from neusight.datasets.columns import coded, counts, counts_or, dtypes, flags_or, strings, strings_or
from neusight.datasets.load import collected, kernel_columns
from neusight.datasets.schema import TABLE_OF_OP
from neusight.errors import DataError
from neusight.kernels import DTYPE_BYTES, KERNEL_CLASSES, KernelBatch
from neusight.kernels.families import LATER_FIELDS
from neusight.kernels.operators import operator, operator_bytes

if TYPE_CHECKING:
    import pandas as pd


def to_batches(frame: pd.DataFrame) -> list[tuple[KernelBatch, np.ndarray]]:
    """Rows as kernels, each batch with the positions (int64) that its rows have in ``frame``.

    One batch a family; rows of its collected table and of another of that name are two. Every row lands in exactly one
    batch. Kernels depend on op, shape and dtype alone, never on what was observed.

    Raises:
        DataError: an unknown family, an empty or non-positive shape.
    """
    families = frame["family"] if "family" in frame else frame["op"].map({o: t.name for o, t in TABLE_OF_OP.items()})
    own = collected(frame)
    codes, names = coded(families)
    batches = []
    for code, family in enumerate(names):
        for stated, make in ((True, _as_stated), (False, _from_shape)):
            positions = np.flatnonzero((codes == code) & (own == stated))
            if len(positions):
                batches.append((make(family, frame.iloc[positions]), positions))
    return batches


def single_kernels(frame: pd.DataFrame) -> np.ndarray:
    """The rows that are kernels of one device, by their family, as a mask: all but collectives."""
    return ~frame["family"].isin(COLLECTIVES).to_numpy(dtype=bool)


def _as_stated(family: str, rows: pd.DataFrame) -> KernelBatch:
    """Collected rows: the fields of the kernel as they are, and where later ones are missing their defaults."""
    usual: dict[str, Any] = {f.name: f.default for f in fields(KERNEL_CLASSES[family]) if f.name in LATER_FIELDS}
    of = {kind: [c.name for c in kernel_columns(family) if c.kind == kind] for kind in ("integer", "string", "boolean")}
    counted = counts(rows, *(name for name in of["integer"] if name not in usual))
    counted |= {name: counts_or(rows, name, usual[name]) for name in of["integer"] if name in usual}
    words = {name: strings_or(rows, name) if name in usual else strings(rows[name]) for name in of["string"]}
    flags = {name: flags_or(rows, name, False) for name in of["boolean"]}
    return KernelBatch.from_columns(family, **{**words, "dtype": dtypes(rows)}, **flags, **counted)


def _from_shape(family: str, rows: pd.DataFrame) -> KernelBatch:
    if family not in _MAKERS:
        raise DataError(f"rows of '{family}' are no kernels: keep families {', '.join(_MAKERS)}")
    return _MAKERS[family](rows)


def _gemm(rows: pd.DataFrame) -> KernelBatch:
    """Float32 ``linear`` rows are torch's with bias; those of serving engines have none unless they say so."""
    op, dtype = strings(rows["op"]), dtypes(rows)
    linear = op == "linear"
    return KernelBatch.from_columns(
        "gemm",
        op=op,
        batch=np.where(linear, 1, counts_or(rows, "batch", 1)),
        layout=np.where(linear, "tn", "nn"),
        bias=flags_or(rows, "bias", linear & (dtype == "float32")),
        dtype=dtype,
        **serving.schemes(rows),
        **counts(rows, "m", "n", "k"),
    )


def _elementwise(rows: pd.DataFrame) -> KernelBatch:
    shape = counts(rows, "rows", "cols")
    stated = _stated("elementwise", rows, **shape)
    return KernelBatch.from_columns("elementwise", elements=shape["rows"] * shape["cols"], **stated)


def _row_reduction(rows: pd.DataFrame) -> KernelBatch:
    shape = counts(rows, "rows", "cols")
    return KernelBatch.from_columns("row_reduction", **_stated("row_reduction", rows, **shape), **shape)


def _memory(rows: pd.DataFrame) -> KernelBatch:
    shape = counts(rows, "rows", "cols")
    stated = _stated("memory", rows, **shape)
    own = {name: stated[name] for name in ("op", "dtype", "read_bytes", "write_bytes")}
    return KernelBatch.from_columns("memory", elements=shape["rows"] * shape["cols"], **own)


def _stated(family: str, frame: pd.DataFrame, rows: np.ndarray, cols: np.ndarray) -> dict[str, np.ndarray]:
    """Names, bytes, FLOP and passes of rows, by the table of operators: a lookup for each distinct name and dtype."""
    op, dtype, elements = strings(frame["op"]), dtypes(frame), rows * cols
    work = {name: np.empty(len(frame), np.int64) for name in ("read_bytes", "write_bytes", "flops", "passes")}
    for name, width in {(str(o), str(d)) for o, d in zip(op, dtype, strict=True)}:
        here, form = (op == name) & (dtype == width), operator(family, name)
        extents = (elements[here], rows[here], cols[here])
        work["read_bytes"][here], work["write_bytes"][here] = operator_bytes(form, extents, DTYPE_BYTES[width])
        work["flops"][here], work["passes"][here] = form.flops * elements[here], form.passes
    return {"op": op, "dtype": dtype, **work}


def _conv2d(rows: pd.DataFrame) -> KernelBatch:
    shape = counts(rows, "batch", "in_channels", "out_channels", "kernel_size", "input_size", "stride", "padding")
    kernel, image = shape.pop("kernel_size"), shape.pop("input_size")
    square = {"kernel_height": kernel, "kernel_width": kernel, "height": image, "width": image}
    return KernelBatch.from_columns("conv2d", op="forward", dtype=dtypes(rows), **square, **shape)


COLLECTIVES = ("nccl", "collectives", "allreduce")
"""Tables of what several devices do together."""
_MAKERS: dict[str, Callable[[Any], KernelBatch]] = {
    "gemm": _gemm,
    "elementwise": _elementwise,
    "row_reduction": _row_reduction,
    "conv2d": _conv2d,
    "memory": _memory,
    "attention_context": serving.attention,
    "attention_generation": serving.attention,
    "attention_mla": serving.latent_attention,
    "attention_sparse": serving.latent_attention,
    "grouped_gemm": serving.grouped_gemm,
    "moe": serving.experts,
    **dict.fromkeys(COLLECTIVES, serving.collective),
}
