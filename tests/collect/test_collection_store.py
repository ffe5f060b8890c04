"""The store loses no row, keeps none twice, and refuses what is not its own."""

from __future__ import annotations

import json
from collections.abc import Callable
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


def added(folder: Path, *rows: int) -> Store:
    store = Store(folder, ASKED)
    for m in rows:
        store.add(outcome(m))
    return store


def test_add_keeps_a_row_once_and_at_once(folder: Path) -> None:
    store = added(folder, 1)
    assert json.loads((folder / JOURNAL).read_text())["row"]["latency_ms"] == 0.1
    store.add(outcome(1))
    store.add(outcome(7, reason="out of memory: 9 GiB"))
    store.finish()
    assert [row["latency_ms"] for row in read_rows(folder, "gemm")] == [0.1]
    (row,) = read_rows(folder, "skipped")
    assert (row["family"], row["reason"], row["gpu"]) == ("gemm", "out of memory: 9 GiB", "toy")
    assert "m=7" in row["what"]
    with pytest.raises(DataError, match="another collection is writing"):
        Store(folder, ASKED)


def crash(store: Store, journal: Path) -> None:
    store.close()


def cut_line(store: Store, journal: Path) -> None:
    store.close()
    journal.write_text(journal.read_text()[:-20])


def crash_after_files(store: Store, journal: Path) -> None:
    text = journal.read_text()
    store.finish()
    store.close()
    journal.write_text(text)


@pytest.mark.parametrize(("end", "kept"), [(crash, 3), (cut_line, 2), (crash_after_files, 3)])
def test_store_finds_again_what_a_crash_left(folder: Path, end: Callable[[Store, Path], None], kept: int) -> None:
    end(added(folder, 1, 2, 3), folder / JOURNAL)
    again = Store(folder, ASKED)
    assert {*again.done} == {outcome(m).sample for m in range(1, kept + 1)} and again.rows == kept
    for m in (3, 4):
        again.add(outcome(m))
    again.close()  # What comes after a cut line is kept, whatever happens then.
    last = Store(folder, ASKED)
    last.finish()
    last.close()
    assert sorted(row["latency_ms"] for row in read_rows(folder, "gemm")) == [0.1, 0.2, 0.3, 0.4]
    assert [p.name for p in folder.glob("kernels/*")] == [place_of("gemm").name]


def test_store_refuses_other_options_and_folders(folder: Path, tmp_path: Path) -> None:
    added(folder).close()
    for options, message in (({"seed": 1}, "with seed 0, not 1: repeat"), ({"families": ["gemm"]}, "all, not gemm")):
        with pytest.raises(DataError, match=message):
            Store(folder, {"kernels": ASKED["kernels"] | options})
    Store(folder, {"models": {"target": "cpu"}}).close()
    Store(folder, ASKED).close()
    with pytest.raises(DataError, match="holds something else"):
        Store(tmp_path, ASKED)
    assert [p.name for p in tmp_path.iterdir()] == ["set"]
