"""Rows of tables that people bring: parquet or CSV, cells checked one by one, unread columns named."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from neusight.datasets.schema import read_parquet
from neusight.errors import DataError, shown

Row = Mapping[str, Any]
_LARGEST = 10**6


def read_rows(path: Path, needed: Iterable[str], what: str) -> list[dict[str, Any]]:
    """Rows of a parquet or CSV file by column; cells without a value are left out.

    Args:
        path: the file.
        needed: columns without which it is another kind of table.
        what: the kind of table, for messages.

    Raises:
        DataError: no file, a file that cannot be read, a column that is missing, or no row.
    """
    columns, rows = (_csv if path.suffix == ".csv" else _parquet)(path, what)
    if missing := [name for name in needed if name not in columns]:
        raise DataError(f"{path} has no column {' and '.join(missing)}: it is no table of {what}")
    if not rows:
        raise DataError(f"{path} has no rows: give a table of {what} with at least one")
    return [{name: value for name, value in row.items() if not _empty(value)} for row in rows]


def _parquet(path: Path, _: str) -> tuple[list[str], list[dict[str, Any]]]:
    table = read_parquet(path)
    return list(table.column_names), table.to_pylist()


def _csv(path: Path, what: str) -> tuple[list[str], list[dict[str, Any]]]:
    """Columns with gaps hold counts as floats there."""
    import pandas as pd

    if path.is_dir() or not path.exists():
        fault = "is a folder" if path.is_dir() else "is not there"
        raise DataError(f"{path} {fault}: give a parquet or CSV file of {what}")
    try:
        frame = pd.read_csv(path)
    except (ValueError, OSError) as error:
        text = "it is empty" if path.stat().st_size == 0 else str(error).strip()
        raise DataError(f"{path} cannot be read as CSV ({text}): give a table of {what}") from None
    records = frame.to_dict("records")
    return [str(name) for name in frame], [{str(k): _whole(v) for k, v in row.items()} for row in records]


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _empty(value: Any) -> bool:
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))


def unread_columns(rows: Collection[Row], read: Collection[str], notes: Collection[str]) -> list[dict[str, Any]]:
    """Columns that nothing reads and that say something in any row, each with the number of rows that fill them.

    Args:
        rows: of ``read_rows``.
        read: columns that are read.
        notes: columns that change nothing: where a row comes from, and what else was measured.
    """
    known, filled, says = {*read, *notes}, Counter[str](), set()
    for row in rows:
        for name, value in row.items():
            if name not in known and not _empty(value):
                filled[name] += 1
                says |= {name} if value not in (0, False, "none", "False") else set()
    return [{"column": name, "rows": filled[name]} for name in sorted(says)]


def integer(row: Row, name: str, default: int | None = None) -> int:
    """A whole number of a row.

    Raises:
        DataError: it is none, or missing without a default.
    """
    value = row.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
        fault = f"{name} is missing" if value is None else f"{name} '{shown(value)}' is no whole number"
        raise DataError(f"{fault}: fill in the cell")
    return int(value)


def number(row: Row, name: str, default: float) -> float:
    """A number of a row.

    Raises:
        DataError: it is none.
    """
    value = row.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DataError(f"{name} '{shown(value)}' is no number: correct the row")
    return float(value)


def positive(row: Row, name: str, at_most: float = _LARGEST) -> float:
    """A number above 0 of a row.

    Raises:
        DataError: it is none.
    """
    value = row.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= at_most:
        raise DataError(f"{name} '{shown(value)}' is no positive number up to {at_most:g}: correct the row")
    return float(value)


def flag(row: Row, name: str, default: bool = False) -> bool:
    """Yes or no.

    Raises:
        DataError: neither.
    """
    value = row.get(name, default)
    word = {"true": True, "false": False, "1": True, "0": False}.get(str(value).lower())
    if word is None:
        raise DataError(f"{name} '{shown(value)}' is neither true nor false: correct the row")
    return word
