"""Rows that ``neusight collect`` measured: a file has the columns ``sample`` and ``family``, a row its kernel's fields.

Collectives run several devices and are no single kernels: their rows are of the table ``nccl``, which has no family.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.datasets.checks import check_columns, check_filled, check_known
from neusight.datasets.schema import COLLECTED_TABLES, Column
from neusight.kernels import KERNEL_CLASSES

if TYPE_CHECKING:
    import pandas as pd

SKIPPED = "skipped*.parquet"
"""Files of what a collection could not measure, beside its tables: sample, family, op, dtype, reason."""


def is_collected(names: Sequence[str]) -> bool:
    """Whether a file with columns of these names is one of ``COLLECTED_TABLES``."""
    return {"sample", "family"} <= set(names)


def collected(frame: pd.DataFrame) -> np.ndarray:
    """The rows of a frame that carry the fields of their kernel, as a mask."""
    if not is_collected(list(frame)):
        return np.zeros(len(frame), dtype=bool)
    return (frame["sample"].notna() & frame["family"].isin(COLLECTED_TABLES)).to_numpy(dtype=bool)


def doubled(frame: pd.DataFrame) -> np.ndarray:
    """Rows whose sample has an earlier row on the same GPU, as a mask."""
    if "sample" not in frame:
        return np.zeros(len(frame), dtype=bool)
    return (frame.duplicated(["gpu", "sample"]) & frame["sample"].notna()).to_numpy(dtype=bool)


def kernel_columns(family: str) -> tuple[Column, ...]:
    """The columns of a collected table that are fields of its kernel."""
    names = {f.name for f in fields(KERNEL_CLASSES[family])}
    return tuple(c for c in COLLECTED_TABLES[family].columns if c.name in names)


def collected_frame(path: Path, table: Any) -> pd.DataFrame:
    """The rows of a collected file, checked; columns that no row fills have the type of their table all the same.

    Args:
        path: of the file, for messages.
        table: the ``pyarrow.Table`` that it holds.

    Raises:
        DataError: an unknown family, a missing column, one of another type, or a required one that is empty.
    """
    families = [f for f in table["family"].unique().to_pylist() if f is not None]
    check_known(path, "family", families, COLLECTED_TABLES)
    for family in families:
        check_columns(path, COLLECTED_TABLES[family], table.schema)
    frame: pd.DataFrame = _typed(table, families).to_pandas()
    check_filled(path, frame, ("sample", "family"))
    for family in families:
        check_filled(path, frame[frame["family"] == family], COLLECTED_TABLES[family].required)
    return frame


def _typed(table: Any, families: Sequence[str]) -> Any:
    """The table with every known column in the type of its kind."""
    types = {f.name: f.type for family in families for f in COLLECTED_TABLES[family].arrow()}
    for place, name in enumerate(table.schema.names):
        if name in types:
            table = table.set_column(place, name, table[name].cast(types[name]))
    return table
