"""The store loses no row, keeps none twice, and refuses what is not its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from neusight.collect.store import JOURNAL, Store, place_of, read_rows
from neusight.collect.tasks import KernelTask, Outcome
from neusight.errors import DataError
from neusight.kernels import Gemm

ASKED = {"kernels": {"seed": 0, "families": []}}


def outcome(m: int, reason: str = "") -> Outcome:
    task = KernelTask(kernel=Gemm(m=m, n=8, k=8), split="train")
    row = {**task.describe(), "gpu": "toy", "latency_ms": m / 10}
    return Outcome(sample=task.sample, table="gemm", row=row, reason=reason)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "set"


@pytest.fixture
def opened(folder: Path) -> Iterator[Store]:
    store = Store(folder, ASKED)
    yield store
    store.close()


def latencies(folder: Path) -> list[float]:
    return sorted(row["latency_ms"] for row in read_rows(folder, "gemm"))


def test_a_row_is_on_disk_when_add_returns_and_is_kept_once(opened: Store, folder: Path) -> None:
    opened.add(outcome(1))
    assert json.loads((folder / JOURNAL).read_text())["row"]["latency_ms"] == 0.1
    opened.add(outcome(1))
    opened.finish()
    assert latencies(folder) == [0.1]


def test_what_a_crash_left_is_found_again(folder: Path) -> None:
    store = Store(folder, ASKED)
    for m in range(1, 6):
        store.add(outcome(m))
    store.close()  # As a crash: no finish().
    again = Store(folder, ASKED)
    assert len(again.done) == 5
    for m in range(4, 9):
        again.add(outcome(m))
    again.finish()
    again.close()
    assert latencies(folder) == [m / 10 for m in range(1, 9)]
    assert [p.name for p in folder.glob("kernels/*")] == ["gemm.parquet"]


def test_a_line_that_was_cut_off_is_no_row(folder: Path) -> None:
    store = Store(folder, ASKED)
    store.add(outcome(1))
    store.add(outcome(2))
    store.close()
    text = (folder / JOURNAL).read_text()
    (folder / JOURNAL).write_text(text[:-20])
    again = Store(folder, ASKED)
    assert {*again.done} == {outcome(1).sample}
    again.add(outcome(2))
    again.close()  # What comes after it is kept, whatever happens then.
    assert {*Store(folder, ASKED).done} == {outcome(1).sample, outcome(2).sample}


def test_a_crash_between_file_and_journal_doubles_nothing(folder: Path) -> None:
    store = Store(folder, ASKED)
    store.add(outcome(1))
    journal = (folder / JOURNAL).read_text()
    store.finish()
    store.close()
    (folder / JOURNAL).write_text(journal)
    again = Store(folder, ASKED)
    assert again.rows == 1
    again.add(outcome(2))
    again.finish()
    again.close()
    assert latencies(folder) == [0.1, 0.2]
    assert [p.name for p in folder.glob("kernels/*")] == ["gemm.parquet"]


def test_what_could_not_be_measured_has_its_reason(opened: Store, folder: Path) -> None:
    opened.add(outcome(7, reason="out of memory: 9 GiB"))
    opened.finish()
    (row,) = read_rows(folder, "skipped")
    assert (row["family"], row["reason"], row["gpu"]) == ("gemm", "out of memory: 9 GiB", "toy")
    assert "m=7" in row["what"]
    assert not (folder / place_of("gemm")).exists()


def test_other_options_are_refused_and_other_kinds_are_not(opened: Store, folder: Path) -> None:
    opened.close()
    with pytest.raises(DataError, match="was collected with seed 0, not 1: repeat"):
        Store(folder, {"kernels": {"seed": 1, "families": []}})
    with pytest.raises(DataError, match="families all, not gemm"):
        Store(folder, {"kernels": {"seed": 0, "families": ["gemm"]}})
    Store(folder, {"models": {"target": "cpu"}}).close()
    Store(folder, ASKED).close()


def test_two_collectors_cannot_write_together(opened: Store, folder: Path) -> None:
    with pytest.raises(DataError, match="another collection is writing"):
        Store(folder, ASKED)


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(DataError, match="holds something else"):
        Store(tmp_path, ASKED)
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]
