"""Storage of rows: a journal that loses nothing, and at the end one file a table.

A row is on disk before the next is measured. A crash at any moment leaves each row in the journal, in its table's file
or in both, and opening the folder again keeps it once, by its sample.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from neusight.collect.tasks import Outcome
from neusight.errors import DataError
from neusight.kernels import KERNEL_CLASSES
from neusight.kernels.families import COMPOSED
from neusight.paths import read_json

PLAN = "collection.json"
JOURNAL = ".journal.jsonl"
FAMILIES = tuple(family for family in KERNEL_CLASSES if family not in COMPOSED)
"""Families of kernels that are measured on one device."""
_PLACES = {"steps": Path("steps", "steps.parquet")} | {name: Path(f"{name}.parquet") for name in ("skipped", "names")}


def place_of(name: str) -> Path:
    """Path in a data set of the table of a kernel family, of ``steps``, ``names`` or ``skipped``."""
    return _PLACES.get(name, Path("kernels", f"{name}.parquet"))


def read_rows(folder: Path, table: str) -> list[dict[str, Any]]:
    """All rows of a table's file; none where there is no file."""
    import pyarrow.parquet as pq

    path = folder / place_of(table)
    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist() if path.is_file() else []
    return rows


class Store:
    """The folder of a collection, held by one process at a time."""

    def __init__(self, folder: Path, options: Mapping[str, Mapping[str, Any]]) -> None:
        """Open or go on.

        Args:
            folder: made if it is not there.
            options: by kind of measurement the options that decide its plan; they are the same in every session.

        Raises:
            DataError: the folder holds something else, or another collector has it open.
        """
        self.folder = folder
        plans = _plans(folder, options)
        folder.mkdir(parents=True, exist_ok=True)
        self._journal = _open_locked(folder / JOURNAL)
        # A line that a crash cut off is not a row.
        self._journal.truncate((folder / JOURNAL).read_bytes().rfind(b"\n") + 1)
        text = json.dumps(plans, indent=2) + "\n"
        _write_whole(folder / PLAN, lambda partial: partial.write_text(text, encoding="utf-8"))
        # What is on disk: the files first, then the lines of the journal that they lack.
        self.done: dict[str, str] = {}
        for table in (*self.tables(), "names", "skipped"):
            self.done |= {row["sample"]: table for row in read_rows(folder, table)}
        for entry in _lines(folder / JOURNAL):
            self.done.setdefault(entry["row"]["sample"], entry["table"])

    def add(self, outcome: Outcome) -> None:
        """Keep what became of a task; on disk when this returns. A sample that is there already is passed over."""
        if outcome.sample in self.done:
            return
        table = "skipped" if outcome.reason else outcome.table
        self._journal.write(json.dumps({"table": table, "row": _row(outcome)}, default=str) + "\n")
        self._journal.flush()
        os.fsync(self._journal.fileno())
        self.done[outcome.sample] = table

    @staticmethod
    def tables() -> tuple[str, ...]:
        """Names of tables of measured rows."""
        return (*FAMILIES, "collective", "steps")

    @property
    def rows(self) -> int:
        """Samples that are settled: measured or skipped. Names are no samples of their own."""
        return sum(table != "names" for table in self.done.values())

    def finish(self) -> None:
        """One file a table, with the rows of the journal, which is emptied when all are whole."""
        added: dict[str, list[dict[str, Any]]] = {}
        for entry in _lines(self.folder / JOURNAL):
            added.setdefault(entry["table"], []).append(entry["row"])
        for table, rows in added.items():
            every = {row["sample"]: row for row in (*read_rows(self.folder, table), *rows)}
            write_rows(self.folder / place_of(table), [*every.values()])
        self._journal.seek(0)
        self._journal.truncate()

    def close(self) -> None:
        """Let another process have the folder."""
        self._journal.close()


def _row(outcome: Outcome) -> dict[str, Any]:
    """The row of an outcome, or of one that was skipped."""
    if not outcome.reason:
        return dict(outcome.row)
    columns = {key: outcome.row.get(key) for key in ("gpu", "family", "op", "dtype")}
    what = ", ".join(f"{k}={v}" for k, v in outcome.row.items() if k not in ("sample", "split", *columns))
    return {"sample": outcome.sample, "table": outcome.table, "reason": outcome.reason, "what": what, **columns}


def _plans(folder: Path, options: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Earlier and current options of the folder's collection, by kind of measurement.

    Raises:
        DataError: it holds something else, or the same kind with other options.
    """
    path = folder / PLAN
    if not path.is_file():
        if folder.is_dir() and any(folder.iterdir()):
            raise DataError(f"{folder} holds something else: give a new folder, or one that a collection began")
        return dict(options)
    try:
        before: dict[str, Any] = read_json(path)
    except ValueError as error:
        raise DataError(f"{path} cannot be read ({error}): give a new folder") from error
    for kind, declared in json.loads(json.dumps(options)).items():
        for name, now in declared.items():
            if (then := before.get(kind, declared).get(name)) != now:
                raise DataError(
                    f"{folder} was collected with {name} {_as_given(then)}, not {_as_given(now)}: "
                    "repeat those options, or give a new folder"
                )
    return before | dict(options)


def _as_given(option: Any) -> str:
    """An option as the user gave it."""
    return ",".join(option) or "all" if isinstance(option, list) else str(option)


def _open_locked(path: Path) -> TextIO:
    """The journal, open for appending, and for this process alone."""
    import fcntl

    journal = path.open("a+", encoding="utf-8")
    try:
        fcntl.flock(journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        journal.close()
        raise DataError(
            f"another collection is writing to {path.parent}: wait for it, or give another folder"
        ) from None
    return journal


def _lines(path: Path) -> Iterable[dict[str, Any]]:
    """Entries of the journal: the table's name and the row."""
    return map(json.loads, path.read_text(encoding="utf-8").splitlines())


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write a table, whole or not at all, with the columns that any row fills."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path.parent.mkdir(parents=True, exist_ok=True)
    names = dict.fromkeys(name for row in rows for name, value in row.items() if value is not None)
    table = pa.table({name: [row.get(name) for row in rows] for name in names})
    _write_whole(path, lambda partial: pq.write_table(table, partial, compression="zstd"))


def _write_whole(path: Path, write: Callable[[Path], Any]) -> None:
    """Write a file next to its place, and put it there."""
    partial = path.with_name(f".{path.name}.partial")
    write(partial)
    partial.replace(path)
