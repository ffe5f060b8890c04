"""Read measurements: parquet to checked pandas frames, and frames to the columns that predictors compute on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.datasets.schema import (
    KERNEL_TABLES,
    MODEL_TABLE,
    TABLE_OF_OP,
    TWO_TENSOR_OPS,
    check_columns,
    read_parquet,
    table_without_op,
)
from neusight.errors import DataError, nearest
from neusight.kernels import DTYPE_BYTES, KernelBatch
from neusight.op_costs import FLOPS_PER_ELEMENT
from neusight.paths import data_dir

if TYPE_CHECKING:
    import pandas as pd

DTYPE_NAMES = {"fp8": "float8", "fp8_block": "float8", "fp8_static": "float8", "half": "float16"}
"""Names that data sets use for the dtypes of ``neusight.kernels``."""


def load_kernels(path: Path | None = None, families: Sequence[str] | None = None) -> pd.DataFrame:
    """Kernel measurements as one frame, a row a measured kernel, ``latency_ms`` in milliseconds.

    Args:
        path: a parquet file or a folder of them; default ``$NEUSIGHT_DATA/neusight-fp32/kernels``.
        families: names of tables to keep (gemm, elementwise, row_reduction, conv2d, …); default all.

    Returns:
        The columns of all files, with ``family`` (the table's name) and, where a file has none, ``op`` and ``split``.
        A shape column that a family lacks is NaN in its rows.

    Raises:
        DataError: nothing there, a truncated or foreign file, an unknown op or family.
    """
    import pandas as pd

    if unknown := [f for f in families or () if f not in KERNEL_TABLES]:
        hint = nearest(unknown[0], KERNEL_TABLES)
        raise DataError(f"no kernel family '{unknown[0]}': one of {', '.join(KERNEL_TABLES)}{hint}")
    path = path if path is not None else data_dir() / "neusight-fp32" / "kernels"
    files = parquet_files(path)
    if families and len(files) > 1:
        files = [f for f in files if f.stem not in KERNEL_TABLES or f.stem in families]
    frames = [_kernel_frame(f) for f in files]
    if families:
        frames = [f[f["family"].isin(list(families))] for f in frames]
    if not any(len(f) for f in frames):
        raise DataError(f"{path} has no row of {', '.join(families or KERNEL_TABLES)}: give another file")
    return pd.concat(frames, ignore_index=True) if len(frames) > 1 else frames[0].reset_index(drop=True)


def load_models(path: Path | None = None) -> pd.DataFrame:
    """Whole-model measurements: gpu, model, mode, dtype, batch, seq_len, option, e2e_ms, forward_ms, backward_ms [ms].

    Args:
        path: the parquet file; default ``$NEUSIGHT_DATA/neusight-fp32/models/latency.parquet``.

    Raises:
        DataError: the file is missing, truncated, or no table of model latencies.
    """
    path = path if path is not None else data_dir() / "neusight-fp32" / "models" / "latency.parquet"
    table = read_parquet(path)
    check_columns(path, MODEL_TABLE, table.schema)
    frame = table.to_pandas()
    _check_filled(path, frame, ("gpu", "model", "mode", "batch", "seq_len", "e2e_ms"))
    _check_known(path, "mode", list(frame["mode"].unique()), ("inference", "training"))
    frame["dtype"] = frame["dtype"].fillna("float32") if "dtype" in frame else "float32"
    frame["option"] = frame["option"].fillna("") if "option" in frame else ""
    for name in ("forward_ms", "backward_ms"):
        frame[name] = frame[name].astype("float64") if name in frame else np.nan
    return frame


def parquet_files(path: Path) -> list[Path]:
    """The file itself, or the parquet files of a folder in order of name.

    Raises:
        DataError: nothing there.
    """
    if not path.exists():
        raise DataError(f"{path} is not there: give a parquet file or a folder of them")
    files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if not files:
        raise DataError(f"{path} holds no parquet file: give the folder that holds gemm.parquet and its like")
    return files


def _kernel_frame(path: Path) -> pd.DataFrame:
    """One file, checked, with ``family``, ``op`` and ``split`` filled in."""
    table = read_parquet(path)
    if "op" not in table.schema.names:
        found = table_without_op(path, table.schema)
        check_columns(path, found, table.schema)
        frame = table.to_pandas()
        frame["op"] = frame["family"] = found.name
    else:
        ops = [op for op in table["op"].unique().to_pylist() if op is not None]
        _check_known(path, "op", ops, TABLE_OF_OP)
        for found in {TABLE_OF_OP[op].name: TABLE_OF_OP[op] for op in ops}.values():
            check_columns(path, found, table.schema)
        frame = table.to_pandas()
        frame["family"] = frame["op"].map({op: TABLE_OF_OP[op].name for op in ops})
    _check_filled(path, frame, ("gpu", "op", "latency_ms"))
    if "split" not in frame:
        frame["split"] = ""
    return frame


def _check_known(path: Path, column: str, values: Sequence[Any], known: Collection[str]) -> None:
    if unknown := sorted({str(v) for v in values} - set(known)):
        hint = nearest(unknown[0], known)
        raise DataError(f"{path}: {column} '{unknown[0]}' is not known: one of {', '.join(known)}{hint}")


def _check_filled(path: Path, frame: pd.DataFrame, columns: Sequence[str]) -> None:
    for name in columns:
        empty = frame[name].isna().to_numpy()
        if empty.any():
            raise DataError(f"{path}: {name} is empty in row {int(empty.argmax())}: fill it or drop the row")


def to_batches(frame: pd.DataFrame) -> list[tuple[KernelBatch, np.ndarray]]:
    """Rows as kernels: one batch a family, each with the positions (int64) that its rows have in ``frame``.

    Every row lands in exactly one batch. Kernels depend on op, shape and dtype alone, never on what was observed.

    Raises:
        DataError: a family that is no single kernel (moe, nccl, allreduce), an empty or non-positive shape.
    """
    families = frame["family"] if "family" in frame else frame["op"].map({o: t.name for o, t in TABLE_OF_OP.items()})
    codes, names = _coded(families)
    batches = []
    for code, family in enumerate(names):
        make = _MAKERS.get(family)
        if make is None:
            raise DataError(f"rows of '{family}' are no single kernels: keep families {', '.join(_MAKERS)}")
        positions = np.flatnonzero(codes == code)
        batches.append((make(frame.iloc[positions]), positions))
    return batches


def _counts(rows: pd.DataFrame, *names: str) -> dict[str, np.ndarray]:
    """Shape columns as int64, none empty or negative (``padding`` and ``window`` may be 0)."""
    columns = {}
    for name in names:
        values = rows[name].to_numpy(dtype=np.float64)
        low = 0 if name in ("padding", "window") else 1
        bad = ~(values >= low)
        if bad.any():
            where = rows.index[int(bad.argmax())]
            raise DataError(f"row {where}: {name} is {values[bad][0]:g}, must be at least {low}: fix or drop the row")
        columns[name] = values.astype(np.int64)
    return columns


def _coded(values: Any) -> tuple[np.ndarray, list[str]]:
    """For each row which of the distinct strings it has: a table is then applied to a handful of values."""
    import pandas as pd

    codes, names = pd.factorize(values, use_na_sentinel=False)
    return codes, [str(n) for n in names]


def _strings(values: Any) -> np.ndarray:
    codes, names = _coded(values)
    return np.array(names)[codes]


def _dtype(rows: pd.DataFrame) -> np.ndarray:
    codes, names = _coded(rows["dtype"])
    known = np.array([DTYPE_NAMES.get(n, n) for n in names])
    if unknown := sorted(set(known) - DTYPE_BYTES.keys()):
        raise DataError(f"dtype '{unknown[0]}' is no kernel dtype: keep rows of {', '.join(DTYPE_BYTES)}")
    return known[codes]


def _element_bytes(rows: pd.DataFrame) -> np.ndarray:
    codes, names = _coded(rows["dtype"])
    return np.array([DTYPE_BYTES[DTYPE_NAMES.get(n, n)] for n in names], dtype=np.int64)[codes]


def _flops(rows: pd.DataFrame, elements: np.ndarray) -> np.ndarray:
    codes, names = _coded(rows["op"])
    return (elements * np.array([FLOPS_PER_ELEMENT[n] for n in names])[codes]).astype(np.int64)


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
    op, dtype = _strings(rows["op"]), _dtype(rows)
    shape = _counts(rows, "rows", "cols")
    elements = shape["rows"] * shape["cols"]
    size = elements * _element_bytes(rows)
    return KernelBatch.from_columns(
        "elementwise",
        op=op,
        elements=elements,
        read_bytes=size * np.where(np.isin(op, TWO_TENSOR_OPS), 2, 1),
        write_bytes=size,
        flops=_flops(rows, elements),
        dtype=dtype,
    )


def _row_reduction(rows: pd.DataFrame) -> KernelBatch:
    """layer_norm also reads weight and bias, a value a column, and writes mean and reciprocal deviation, one a row."""
    op, dtype = _strings(rows["op"]), _dtype(rows)
    shape = _counts(rows, "rows", "cols")
    elements, norm, size = shape["rows"] * shape["cols"], op == "layer_norm", _element_bytes(rows)
    return KernelBatch.from_columns(
        "row_reduction",
        op=op,
        read_bytes=(elements + 2 * shape["cols"] * norm) * size,
        write_bytes=(elements + 2 * shape["rows"] * norm) * size,
        flops=_flops(rows, elements),
        dtype=dtype,
        **shape,
    )


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
        dtype=_dtype(rows),
    )


_MAKERS: dict[str, Callable[[Any], KernelBatch]] = {
    "gemm": _gemm,
    "elementwise": _elementwise,
    "row_reduction": _row_reduction,
    "conv2d": _conv2d,
    "attention_context": _attention,
    "attention_generation": _attention,
}
