"""One bad task does not end a collection: it is retried, recorded with its reason, and the others are measured."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from neusight import Predictor
from neusight.collect import session
from neusight.collect.collectives import OPS, planned
from neusight.collect.kernels import collect_kernels
from neusight.collect.names import join_names, unnamed
from neusight.collect.session import CollectionRequest, Report, run
from neusight.collect.store import Store, place_of, read_rows
from neusight.collect.tasks import Outcome, Task, identity
from neusight.collect.workers import introduction
from neusight.devices import load_device, to_toml
from neusight.errors import DataError, DeviceError, UnmeasurableError
from neusight.kernels import Gemm
from neusight.measured import compare, read_table
from neusight.workers import WorkerLost


@dataclass(frozen=True)
class Trick:
    """A task that does something nasty on its way to a row."""

    number: int
    trick: str = ""
    folder: str = ""

    @property
    def limit_s(self) -> float:
        return 1.0 if self.trick == "hangs" else 60.0

    @property
    def sample(self) -> str:
        return identity(asdict(self))

    @property
    def table(self) -> str:
        return "gemm"

    def describe(self) -> dict[str, Any]:
        kernel = {"m": self.number, "n": 8, "k": 8, "batch": 1, "layout": "tn", "bias": False}
        head = {"sample": self.sample, "family": "gemm", "op": "linear", "dtype": "float32", "split": "train"}
        return {**head, **kernel, "repeat": 0}

    def measure(self, bench: Any) -> dict[str, Any]:
        if self.trick == "memory":
            raise MemoryError("operands of 999 GiB exceed half of the memory")
        if self.trick == "cannot":
            raise UnmeasurableError("no such unit here")
        if self.trick == "memory once" and not (mark := Path(self.folder, "full")).exists():
            mark.touch()
            raise MemoryError("earlier graphs hold the memory")
        if self.trick == "fault":
            raise RuntimeError("mat1 and mat2 shapes cannot be multiplied\nand more lines")
        if self.trick == "hangs":
            time.sleep(60)
        if self.trick == "spoils once" and not (mark := Path(self.folder, "spoilt")).exists():
            mark.write_text(str(os.getpid()))
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return {"latency_ms": float(os.getpid())}


def test_a_bad_task_does_not_end_the_run(tmp_path: Path) -> None:
    """In a real process, which some of the tasks take down with them."""
    tricks = ("memory", "cannot", "fault", "hangs", "spoils once", "memory once")
    tasks = [Trick(i + 1, trick, str(tmp_path)) for i, trick in enumerate(tricks)]
    report = run(CollectionRequest(out=tmp_path / "set", target="cpu"), {"kernels": {}}, lambda device: tasks)
    rows = {row["m"]: row for row in read_rows(tmp_path / "set", "gemm")}
    skipped = {row["what"].split("m=")[1][0]: row["reason"] for row in read_rows(tmp_path / "set", "skipped")}
    assert skipped == {
        "1": "out of memory: operands of 999 GiB exceed half of the memory",
        "2": "no such unit here",
        "3": "RuntimeError: mat1 and mat2 shapes cannot be multiplied",
        "4": "2 workers were lost with it: no answer in 1 s",
    }
    assert {*rows} == {5, 6}
    # A process whose device is spoilt measures nothing more.
    assert rows[5]["latency_ms"] != float((tmp_path / "spoilt").read_text())
    assert (report.rows, report.skipped, report.lost_workers) == (2, 4, 3)


class Here:
    """A worker without a process of its own: tasks are done when they are handed in, or take the worker down."""

    name = "here:0"

    def run(self, limit_s: float, function: Any, *arguments: Any) -> Any:
        if function is introduction:
            device = load_device("l4")
            return {"device": to_toml(device), "gpu": device.id, "host": "here", "software": "none"}
        (task,) = arguments
        if task.trick == "dies":
            raise WorkerLost("the process ended")
        row = {**task.describe(), "gpu": "l4", "latency_ms": 1.0}
        return Outcome(sample=task.sample, table=task.table, row=row)

    def restart(self) -> None: ...

    def stop(self) -> None: ...


def collected(folder: Path, tasks: Iterable[Task], minutes: float = 1.0, limit: int | None = None) -> Report:
    request = CollectionRequest(out=folder, minutes=minutes, limit=limit)
    return run(request, {"kernels": {}}, lambda device: tasks, workers=[Here()])


def test_when_all_workers_are_lost_what_was_measured_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "RESTARTS", 0)
    with pytest.raises(DeviceError, match=r"every worker was lost.*run the same command again"):
        collected(tmp_path, [Trick(1), Trick(2, "dies"), Trick(3)])
    assert [row["m"] for row in read_rows(tmp_path, "gemm")] == [1]
    report = collected(tmp_path, [Trick(1), Trick(3)])
    assert (report.rows, report.new) == (2, 1)


def test_time_and_limit_end_a_run(tmp_path: Path) -> None:
    tasks = [Trick(i + 1) for i in range(9)]
    assert collected(tmp_path, tasks, limit=4).rows == 4
    report = collected(tmp_path, tasks, minutes=1e-9)
    assert (report.rows, report.new) == (4, 0)


def test_slow_planning_takes_none_of_the_time_and_nothing_measured_is_an_error(tmp_path: Path) -> None:
    def planned() -> Iterable[Task]:
        time.sleep(0.2)
        yield Trick(1)

    assert collected(tmp_path / "slow", planned(), minutes=0.1 / 60).rows == 1
    with pytest.raises(DataError, match="nothing was measured: give more --minutes"):
        collected(tmp_path / "empty", [Trick(1)], minutes=1e-9)


def test_names_are_joined_to_their_rows(tmp_path: Path) -> None:
    collected(tmp_path, [Trick(1), Trick(2)])
    first, second = unnamed(tmp_path)
    assert first.kernel == Gemm(m=1, n=8, k=8)
    store = Store(tmp_path, {})
    names = {"kernel_name": "sgemm_32x32", "kernel_names": "sgemm_32x32", "grid": "7x1x1"}
    store.add(Outcome(sample=first.sample, table="names", row={**first.describe(), **names}))
    store.finish()
    store.close()
    join_names(tmp_path)
    assert [task.of for task in unnamed(tmp_path)] == [second.of]
    rows = {row["m"]: row for row in read_rows(tmp_path, "gemm")}
    assert (rows[1]["kernel_name"], rows[1]["grid"], rows[2]["kernel_name"]) == ("sgemm_32x32", "7x1x1", None)


def test_collectives_between_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neusight.collect.collectives.HOST_SIZES", (4096,))
    monkeypatch.setattr("neusight.collect.kernels.local_workers", lambda request: [Here()])
    request = CollectionRequest(out=tmp_path / "set", target="cpu")
    report = collect_kernels(request, ("collective",))
    rows = read_rows(tmp_path / "set", "collective")
    assert {row["op"] for row in rows} == {*OPS}
    assert all(row["latency_ms"] > 0 and row["ranks"] == 2 for row in rows)
    assert report.new == report.rows == len(OPS)
    scored, skipped = compare(read_table(tmp_path / "set" / place_of("collective")), Predictor.load())
    assert len(scored) == len(OPS) and not skipped
    assert collect_kernels(request, ("collective",)).new == 0


def test_collectives_take_powers_of_two_of_the_devices() -> None:
    assert planned(1, on_gpu=True) == []
    assert {c.kernel.ranks for c in planned(6, on_gpu=True)} == {2, 4}
    assert len({c.sample for c in planned(8, on_gpu=True)}) == len(planned(8, on_gpu=True))


def test_what_cannot_begin_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="no device 'tpu'"):
        CollectionRequest(out=tmp_path, target="tpu").hired()

    def lost(*_: Any) -> None:
        raise WorkerLost("the process ended")

    monkeypatch.setattr(Here, "run", lost)
    with pytest.raises(DeviceError, match="here:0 cannot begin"):
        collected(tmp_path / "set", [])
