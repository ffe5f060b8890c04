"""The whole way on a CPU as a stand-in: collect, be killed, go on, verify, train, evaluate; real kernels and files."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner, Result

from neusight.api import Predictor
from neusight.cli.app import app
from neusight.collect.plan import plan, usual_limits, write_plan
from neusight.collect.session import write_card
from neusight.collect.store import JOURNAL, place_of, read_rows, write_rows
from neusight.devices import DeviceSpec, load_device
from neusight.kernels import KERNEL_CLASSES, KernelBatch
from neusight.kernels.work import work_of
from neusight.laws.bounds import bound_of
from neusight.measured import compare, read_table

ROWS = 32
FAMILIES = ("gemm", "elementwise", "row_reduction", "memory")


def neusight(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments])


def answer(*arguments: str | Path) -> Any:
    result = neusight(*arguments, "--format", "json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def begun(out: Path, planned: Path) -> subprocess.Popen[str]:
    options = ["--device", "cpu", "--plan", str(planned)]
    command = [sys.executable, "-m", "neusight", "collect", "--out", str(out), *options]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def until(process: subprocess.Popen[str], met: Callable[[], bool]) -> None:
    while not met():
        assert process.poll() is None, process.stderr and process.stderr.read()
        time.sleep(0.05)


def journal(out: Path) -> list[dict[str, Any]]:
    path = out / JOURNAL
    lines = path.read_text().splitlines() if path.is_file() else []
    return [json.loads(line)["row"] for line in lines if line.endswith("}")]


def rows_of(out: Path) -> dict[str, dict[str, Any]]:
    found = [row for family in (*KERNEL_CLASSES, "skipped") for row in read_rows(out, family)]
    assert len(found) == len({row["sample"] for row in found})
    return {row["sample"]: row for row in found}


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@dataclass
class History:
    """One collection: killed as by a power cut, gone on with, interrupted with Ctrl-C, and gone on with to its end."""

    out: Path
    planned: set[str]
    killed: list[dict[str, Any]]
    orphans: list[int]
    interrupted: dict[str, dict[str, Any]]
    said: str
    codes: tuple[int, int]


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    out = tmp_path_factory.mktemp("measured") / "cpu"
    # In a file, since every process would else read the shapes of all ready workloads to plan the same kernels.
    planned, device = out.with_name("plan.json"), load_device("a2")
    tasks = list(islice(plan(device, FAMILIES, ("float32",), 0, usual_limits(device, on_gpu=False)), ROWS))
    write_plan(planned, tasks)
    process = begun(out, planned)
    until(process, lambda: len(journal(out)) >= ROWS // 4)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.kill()
    process.wait()
    killed = journal(out)
    process = begun(out, planned)
    until(process, lambda: len(journal(out)) >= len(killed) + 2)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    interrupted = rows_of(out)
    assert not journal(out)
    last = begun(out, planned)
    last.communicate(timeout=300)
    codes = (process.returncode, last.returncode)
    return History(out, {task.sample for task in tasks}, killed, [int(c) for c in children], interrupted, said, codes)


def test_no_row_is_lost_or_doubled_by_a_kill_or_ctrl_c(history: History) -> None:
    rows = rows_of(history.out)
    assert ROWS // 4 <= len(history.killed) < len(history.interrupted) < ROWS
    assert {*rows} == history.planned
    # What was on disk is what was kept, not measured anew.
    before = [*history.killed, *history.interrupted.values()]
    assert all(rows[row["sample"]]["latency_ms"] == row["latency_ms"] for row in before)


def test_ctrl_c_says_in_one_line_how_to_go_on(history: History) -> None:
    assert history.codes == (130, 0)
    (line,) = history.said.splitlines()
    assert "the same command goes on" in line


def test_the_workers_of_a_killed_collector_end(history: History) -> None:
    deadline = time.monotonic() + 30
    while any(map(alive, history.orphans)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert history.orphans
    assert not any(map(alive, history.orphans))


def test_the_set_verifies_and_its_device_predicts(history: History) -> None:
    assert not [row for row in answer("datasets", "verify", history.out) if row["fault"]]
    assert (history.out / "card.md").read_text().startswith("# ")
    (device,) = history.out.glob("devices/*.toml")
    assert answer("kernel", "gemm", "m=512", "n=512", "k=512", "--gpu", device)["latency_s"] > 0


def lawful(folder: Path, device: DeviceSpec) -> None:
    """Latencies of a law in place of measured ones; how steady those are depends on how busy the machine was."""
    for family in FAMILIES:
        rows, kind = read_rows(folder, family), KERNEL_CLASSES[family]
        kernels = [kind(**{f.name: row[f.name] for f in fields(kind)}) for row in rows]
        batch = KernelBatch.of(kernels)
        # Half of what the device could.
        times_ms = 1e3 * (2.0 * bound_of(batch, work_of(batch), device).bound_s + device.launch_overhead_s)
        changed = [row | {"latency_ms": float(ms), "suspect": None} for row, ms in zip(rows, times_ms, strict=True)]
        write_rows(folder / place_of(family), changed)
    write_card(folder, "cpu")


def test_tile_models_train_on_it_and_are_evaluated_on_it(history: History, tmp_path: Path) -> None:
    out, trained = tmp_path / "set", tmp_path / "trained"
    shutil.copytree(history.out, out)
    (device,) = out.glob("devices/*.toml")
    lawful(out, load_device(str(device)))
    assert neusight("train", "--data", out, "--out", trained, "--regressor", "linear").exit_code == 0
    assert {path.parent.name for path in trained.glob("*/manifest.json")} == {"gemm", "stream"}
    tables = [read_table(out / place_of(family)) for family in FAMILIES]
    scores = [pd.concat([compare(table, Predictor.load(folder))[0] for table in tables]) for folder in (trained, None)]
    assert [len(scored) for scored in scores] == 2 * [len(rows_of(out))]
    own, shipped = (float(np.median(np.abs(scored.predicted / scored.measured - 1.0))) for scored in scores)
    # What learned from this machine knows it better than what never saw a CPU.
    assert own < shipped


def test_a_mistake_is_one_line(tmp_path: Path) -> None:
    for options, code, message in (
        (["--device", "cpu", "--families", "gem"], 1, "did you mean gemm"),
        (["--device", "cpu", "--minutes", "0"], 2, "give a number from 0.01"),
        (["--device", "cuda"], 1, "--device cpu"),
    ):
        result = neusight("collect", "--out", tmp_path / "set", *options)
        assert result.exit_code == code, result.stderr
        assert message in result.stderr
        assert len(result.stderr.splitlines()) == 1, result.stderr
    assert not (tmp_path / "set").exists()
