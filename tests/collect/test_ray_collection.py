"""Two workers of a Ray cluster collect one set; one of them is killed; the set is complete."""

from __future__ import annotations

import os
import signal
import tomllib
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import pytest

from neusight.collect.plan import plan, usual_limits
from neusight.collect.session import CollectionRequest, run
from neusight.collect.store import read_rows
from neusight.collect.tasks import Task
from neusight.devices.read import read_table
from neusight.kernels import KERNEL_CLASSES

ray = pytest.importorskip("ray", reason="Ray is an optional extra")
ROWS = 12


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    yield
    ray.shutdown()


def test_a_set_is_complete_although_a_worker_is_killed(tmp_path: Path) -> None:
    request = CollectionRequest(out=tmp_path / "set", target="cpu", ray="auto", workers=2, limit=ROWS, budget_s=0.01)
    planned: list[str] = []
    killed: list[int] = []

    def tasks(device: str) -> Iterable[Task]:
        spec = read_table(tomllib.loads(device), "the drafted device")
        chosen = list(islice(plan(spec, ("gemm", "elementwise"), ("float32",), 0, usual_limits(spec, False)), ROWS))
        planned.extend(task.sample for task in chosen)
        return chosen

    def kill_one(done: int, wanted: int | None, left_s: float) -> None:
        if done >= ROWS // 3 and not killed:
            killed.append(_actors()[0])
            os.kill(killed[0], signal.SIGKILL)

    report = run(request, {"kernels": {"target": "cpu"}}, tasks, kill_one)
    rows = [row for family in (*KERNEL_CLASSES, "skipped") for row in read_rows(request.out, family)]
    assert sorted(row["sample"] for row in rows) == sorted(planned)
    assert report.lost_workers == 1
    assert report.rows + report.skipped == ROWS == report.new


def _actors() -> list[int]:
    """Numbers of the processes that call themselves actors, of this test's cluster alone: whose parent it started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes().startswith(b"ray::Actor") and _parent(_parent(int(path.parent.name))) == os.getpid():
                found.append(int(path.parent.name))
        except OSError:
            continue  # A process that has ended since.
    return found


def _parent(process: int) -> int:
    """The second field behind a process's name in parentheses (proc(5), stat)."""
    return int(Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])
