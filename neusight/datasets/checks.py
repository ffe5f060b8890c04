"""Hold a file against its table: every fault is one line with the file, what is wrong and the remedy."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neusight.datasets.schema import ARROW, KERNEL_TABLES, Kind, Table
from neusight.errors import DataError, nearest

if TYPE_CHECKING:
    import pandas as pd


def check_columns(path: Path, table: Table, schema: Any) -> None:
    """Hold a file's ``pyarrow.Schema`` against ``table``: all required columns, each of a fitting type.

    Raises:
        DataError: naming the columns that are missing or of the wrong type.
    """
    names = set(schema.names)
    if missing := [c.name for c in table.columns if c.required and c.name not in names]:
        hint = nearest(missing[0], names - set(table.required))
        raise DataError(
            f"{path} lacks {', '.join(missing)} of a {table.name} table: it needs {', '.join(table.required)}{hint}"
        )
    for column in table.columns:
        if column.name in names and not _fits(schema.field(column.name).type, column.kind):
            found = schema.field(column.name).type
            raise DataError(
                f"{path}: column {column.name} is {found}, not {column.kind}: store it as {ARROW[column.kind]}"
            )


def _fits(found: Any, kind: Kind) -> bool:
    """Whether an arrow type can stand for ``kind``; an all-null column fits everything that is optional."""
    import pyarrow.types as t

    if t.is_dictionary(found):
        found = found.value_type
    number = t.is_integer(found) or t.is_floating(found)
    tests = {
        "string": t.is_string(found) or t.is_large_string(found) or t.is_string_view(found),
        "integer": t.is_integer(found),
        "number": number,
        "boolean": t.is_boolean(found),
    }
    return t.is_null(found) or tests[kind]


def table_without_op(path: Path, schema: Any) -> Table:
    """The kernel table that a file without an ``op`` column is, by its columns.

    Raises:
        DataError: no table has its required columns there.
    """
    candidates = [t for t in KERNEL_TABLES.values() if not t.ops and set(t.required) <= set(schema.names)]
    if not candidates:
        raise DataError(
            f"{path} is no kernel table (columns {', '.join(schema.names[:6])}, …): "
            "it needs gpu, op, dtype, latency_ms and the op's shape"
        )
    return max(candidates, key=lambda t: len(t.required))


def check_known(path: Path, column: str, values: Sequence[Any], known: Collection[str]) -> None:
    """Refuse values of a column that are none of ``known``.

    Raises:
        DataError: naming the first, with the nearest known ones.
    """
    if unknown := sorted({str(v) for v in values} - set(known)):
        hint = nearest(unknown[0], known)
        raise DataError(f"{path}: {column} '{unknown[0]}' is not known: one of {', '.join(known)}{hint}")


def check_filled(path: Path, frame: pd.DataFrame, columns: Sequence[str]) -> None:
    """Refuse empty cells in these columns.

    Raises:
        DataError: naming the column and the row in the file.
    """
    for name in columns:
        empty = frame[name].isna().to_numpy()
        if empty.any():
            raise DataError(
                f"{path}: {name} is empty in row {frame.index[int(empty.argmax())]}: fill it or drop the row"
            )
