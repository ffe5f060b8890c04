"""Cells of measured rows as columns of kernels: whole numbers checked, names coded, dtypes by their own names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.errors import DataError
from neusight.kernels.precision import PRODUCT_DTYPES

if TYPE_CHECKING:
    import pandas as pd

_STORED_NAMES = {**dict.fromkeys(("fp8", "fp8_block", "fp8_static", "fp8_row"), "float8"), "half": "float16"}
DTYPE_NAMES = {
    **_STORED_NAMES,
    **dict.fromkeys(("int8_wo", "int4_wo"), "float16"),
    **{"sq": "int8", "int8_row": "int8", "w4a16_mxfp4": "bfloat16", "w4a8_mxfp4_mxfp8": "float8"},
    "nvfp4": "float4",
}
"""Names that data sets use for the dtypes of ``neusight.kernels``: of quantised weights that of the arithmetic, as
TensorRT-LLM's plugin has it (``_wo``: weights only; ``w4a8``: weights of 4 bits, activations of 8); ``sq`` is
SmoothQuant."""
MAY_BE_ZERO = (
    *("padding", "window", "largest", "read_bytes", "write_bytes", "flops"),
    *("kv_len", "prefix_len", "v_dim", "value_dim", "selected", "top_k"),
    *("per_node", "output_height", "output_width"),
)
"""Whole numbers of a row that are no extent."""


def counts(rows: pd.DataFrame, *names: str) -> dict[str, np.ndarray]:
    """Shape columns as int64, none empty or negative, and zero only where ``MAY_BE_ZERO``.

    Raises:
        DataError: naming the row and the column.
    """
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


def counts_or(rows: pd.DataFrame, name: str, missing: int) -> np.ndarray:
    """As ``counts``, of a column that may be missing or have empty cells."""
    if name not in rows:
        return np.full(len(rows), missing, dtype=np.int64)
    return counts(rows[[name]].fillna(missing), name)[name]


def coded(values: Any) -> tuple[np.ndarray, list[str]]:
    """For each row which of the distinct strings it has: a table is then applied to a handful of values."""
    import pandas as pd

    if isinstance(values.dtype, pd.CategoricalDtype) and not values.hasnans:
        codes = values.cat.codes.to_numpy()
        there = np.bincount(codes, minlength=len(values.cat.categories)) > 0
        return (np.cumsum(there) - 1)[codes], [str(n) for n in values.cat.categories[there]]
    codes, names = pd.factorize(values, use_na_sentinel=False)
    return codes, [str(n) for n in names]


def strings(values: Any) -> np.ndarray:
    """Cells as an array of str."""
    codes, names = coded(values)
    return np.array(names)[codes]


def strings_or(rows: pd.DataFrame, name: str, missing: str = "") -> np.ndarray:
    """As ``strings``, of a column that may be missing or have empty cells."""
    return strings(rows[name].fillna(missing)) if name in rows else np.full(len(rows), missing)


def flags_or(rows: pd.DataFrame, name: str, missing: np.ndarray | bool) -> np.ndarray:
    """A column of truth values that may be missing or have empty cells."""
    if name not in rows:
        return np.broadcast_to(missing, (len(rows),))
    stated = rows[name].notna().to_numpy(dtype=bool)
    return np.where(stated, (rows[name] == True).to_numpy(dtype=bool), missing)  # noqa: E712 - neither False nor missing


def dtypes(rows: pd.DataFrame, column: str = "dtype") -> np.ndarray:
    """Dtypes of ``neusight.kernels``: of the arithmetic, or in which something else lies in memory.

    Raises:
        DataError: a name that stands for none.
    """
    codes, names = coded(rows[column])
    usual = DTYPE_NAMES if column == "dtype" else _STORED_NAMES
    known = np.array([usual.get(n, n) for n in names])
    if unknown := sorted(set(known) - set(PRODUCT_DTYPES)):
        raise DataError(f"{column} '{unknown[0]}' is no kernel dtype: keep rows of {', '.join(PRODUCT_DTYPES)}")
    return known[codes]
