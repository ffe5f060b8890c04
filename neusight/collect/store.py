"""Where rows go: a journal that loses nothing, and at the end one file a table.

A row is on disk before the next is measured. A crash at any moment leaves each row in the journal, in its table's file
or in both, and who opens the folder again keeps it once, by its sample.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TextIO

from neusight.collect.tasks import Outcome
from neusight.datasets.schema import COLLECTED_TABLES, KERNEL_TABLES, MODEL_TABLE, Field, Table, read_parquet
from neusight.errors import DataError
from neusight.paths import read_json

PLAN = "collection.json"
JOURNAL = ".journal.jsonl"
SKIPPED = Table(
    "skipped",
    (
        *(Field(name, "string") for name in ("sample", "table", "reason")),
        *(Field(name, "string", required=False) for name in ("gpu", "family", "op", "dtype", "what")),
    ),
)
NAMES = Table(
    "names",
    (
        *(Field(name, "string") for name in ("sample", "of", "kernel_name", "kernel_names")),
        *(Field(f"{what}_{axis}", "integer", required=False) for what in ("grid", "block") for axis in "xyz"),
        *(Field(name, "number", required=False) for name in ("blocks_per_sm", "warps_per_sm")),
    ),
)
_SAMPLE = Field("sample", "string")


def table_of(name: str) -> Table:
    """The schema of a table by its name in tasks: a kernel family, ``nccl``, ``models``, ``names`` or ``skipped``.

    Raises:
        DataError: no such table.
    """
    if name in ("skipped", "names"):
        return SKIPPED if name == "skipped" else NAMES
    table = {"models": MODEL_TABLE, "nccl": KERNEL_TABLES["nccl"], **COLLECTED_TABLES}.get(name)
    if table is None:
        raise DataError(f"rows of '{name}' have no table: use a kernel family, nccl or models")
    columns = table.columns if any(c.name == "sample" for c in table.columns) else (_SAMPLE, *table.columns)
    return Table(table.name, columns, table.ops)


def place_of(name: str) -> Path:
    """Where the file of a table lies in a data set."""
    places = {name: Path(f"{name}.parquet") for name in ("skipped", "names")}
    places["models"] = Path("models", "latency.parquet")
    return places.get(name, Path("kernels", f"{name}.parquet"))


def read_rows(folder: Path, table: str) -> list[dict[str, Any]]:
    """All rows of a table's file; none where there is no file."""
    path = folder / place_of(table)
    return read_parquet(path).to_pylist() if path.is_file() else []


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
        self._journal = _locked(folder / JOURNAL)
        # A line that a crash cut off is not a row.
        self._journal.truncate((folder / JOURNAL).read_bytes().rfind(b"\n") + 1)
        _write_whole(folder / PLAN, json.dumps(plans, indent=2) + "\n")
        # What is on disk: the files first, then the lines of the journal that they lack.
        self.done: set[str] = set()
        self.counts: Counter[str] = Counter()
        for table in (*COLLECTED_TABLES, "nccl", "models", "names", "skipped"):
            if (path := folder / place_of(table)).is_file():
                for sample in read_parquet(path)["sample"].to_pylist():
                    self._count(table, sample)
        for entry in _lines(folder / JOURNAL):
            self._count(entry["table"], entry["row"]["sample"])

    def add(self, outcome: Outcome) -> None:
        """Keep what became of a task; on disk when this returns. A sample that is there already is passed over."""
        if outcome.sample in self.done:
            return
        table = "skipped" if outcome.reason else outcome.table
        self._journal.write(json.dumps({"table": table, "row": _row(outcome)}, default=str) + "\n")
        self._journal.flush()
        os.fsync(self._journal.fileno())
        self._count(table, outcome.sample)

    @property
    def rows(self) -> int:
        """Samples that are settled: measured or skipped. Names are no samples of their own."""
        return len(self.done) - self.counts["names"]

    def finish(self) -> None:
        """One file a table, with the rows of the journal, which is emptied when all are whole."""
        added: dict[str, list[dict[str, Any]]] = {}
        for entry in _lines(self.folder / JOURNAL):
            added.setdefault(entry["table"], []).append(entry["row"])
        for table, rows in added.items():
            every = {row["sample"]: row for row in (*read_rows(self.folder, table), *rows)}
            write_rows(self.folder / place_of(table), table, every.values())
        self._journal.seek(0)
        self._journal.truncate()

    def close(self) -> None:
        """Let another process have the folder."""
        self._journal.close()

    def _count(self, table: str, sample: str) -> None:
        if sample not in self.done:
            self.done.add(sample)
            self.counts[table] += 1


def _row(outcome: Outcome) -> dict[str, Any]:
    """The row of an outcome, or of ``SKIPPED``."""
    if not outcome.reason:
        return dict(outcome.row)
    known = {key: outcome.row.get(key) for key in ("gpu", "family", "op", "dtype")}
    what = ", ".join(f"{k}={v}" for k, v in outcome.row.items() if k not in ("sample", "split", *known))
    return {"sample": outcome.sample, "table": outcome.table, "reason": outcome.reason, "what": what, **known}


def _plans(folder: Path, options: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What the folder was and is now collected for, by kind of measurement.

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
    for kind, stated in json.loads(json.dumps(options)).items():
        for name, now in stated.items():
            if (then := before.get(kind, stated).get(name)) != now:
                raise DataError(
                    f"{folder} was collected with {name} {_as_given(then)}, not {_as_given(now)}: "
                    "repeat those options, or give a new folder"
                )
    return before | dict(options)


def _as_given(option: Any) -> str:
    """An option as the user gave it."""
    return ",".join(option) or "all" if isinstance(option, list) else str(option)


def _locked(path: Path) -> TextIO:
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


def write_rows(path: Path, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a table's file, whole or not at all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path.parent.mkdir(parents=True, exist_ok=True)
    schema = table_of(name).arrow()
    partial = path.with_name(f".{path.name}.partial")
    pq.write_table(pa.Table.from_pylist([dict(row) for row in rows], schema=schema), partial, compression="zstd")
    partial.replace(path)


def _write_whole(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
