"""What a table of measured rows holds, and CSV files of people as such tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from neusight.errors import DataError
from neusight.measured.choice import filled_cells
from neusight.measured.compare import kinds_of
from neusight.measured.table import PROVENANCE, MeasuredTable, read_table
from neusight.paths import writable


def overview(table: MeasuredTable) -> dict[str, Any]:
    """Rows by kind, source and device, and columns with the rows that fill them."""
    return {
        "file": str(table.path), "rows": len(table), "kinds": _counts(kinds_of(table)), "quantities": table.quantities,
        "sources": _counts(table.frame["source"].dropna()) if "source" in table.frame else {},
        "gpus": _counts(table.frame["gpu"].dropna()) if "gpu" in table.frame else {},
        "columns": [
            {"name": str(name), "part": _part(table, str(name)), "filled": int(filled_cells(table, str(name)).sum())}
            for name in table.frame
        ],
    }  # fmt: skip


def _counts(cells: Iterable[Any]) -> dict[str, int]:
    return dict(Counter(map(str, cells)).most_common())


def _part(table: MeasuredTable, name: str) -> str:
    return "quantity" if name in table.quantities else "provenance" if name in PROVENANCE else "question"


def import_tables(source: Path, into: Path, defaults: dict[str, str]) -> list[MeasuredTable]:
    """Write CSV files of measured rows as parquet.

    Args:
        source: a CSV file, or a folder of them.
        into: folder to create.
        defaults: values of columns that the files lack.

    Returns:
        The tables as they were written.

    Raises:
        DataError: no CSV file, one that is no table of measured rows, or a folder that is there already.
    """
    if into.exists():
        raise DataError(f"{into} is there already: give a new folder, tables do not change in place")
    writable(into, folder=True)
    tables = list(_read(source, defaults))
    if not tables:
        raise DataError(f"{source} holds no CSV files: give a file or a folder of measured rows")
    into.mkdir(parents=True, exist_ok=True)
    written = [replace(table, path=into / f"{table.path.stem}.parquet") for table in tables]
    for table in written:
        table.frame.to_parquet(table.path, index=False)
    return written


def _read(source: Path, defaults: dict[str, str]) -> Iterator[MeasuredTable]:
    for file in sorted(source.rglob("*.csv")) if source.is_dir() else [source]:
        table = read_table(file)
        missing = {name: value for name, value in defaults.items() if value and name not in table.frame}
        yield replace(table, frame=table.frame.assign(**missing))
