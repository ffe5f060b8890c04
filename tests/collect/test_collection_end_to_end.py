"""The whole way on a CPU as a stand-in: collect, be killed, go on, verify, train, evaluate; real kernels and files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from neusight.collect.plan import plan, usual_limits
from neusight.collect.store import JOURNAL, read_rows
from neusight.devices.read import read_table
from neusight.kernels import KERNEL_CLASSES

ROWS = 60
FAMILIES = ("gemm", "elementwise", "row_reduction", "memory")
COMMAND = (sys.executable, "-m", "neusight")


def neusight(*arguments: str | Path, code: int = 0) -> str:
    done = subprocess.run([*COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=300)
    assert done.returncode == code, done.stderr
    return done.stdout


def collection(out: Path) -> list[str]:
    options = ["--device", "cpu", "--dtypes", "float32", "--families", ",".join(FAMILIES), "--limit", str(ROWS)]
    return ["collect", "--out", str(out), *options]


def rows_of(out: Path) -> dict[str, dict[str, Any]]:
    found = [row for family in (*KERNEL_CLASSES, "skipped") for row in read_rows(out, family)]
    assert len(found) == len({row["sample"] for row in found})
    return {row["sample"]: row for row in found}


def journal(out: Path) -> list[dict[str, Any]]:
    path = out / JOURNAL
    return [json.loads(line)["row"] for line in path.read_text().splitlines()] if path.is_file() else []


def killed_half_way(out: Path) -> list[dict[str, Any]]:
    """Kill a collector as a power cut would, and return the rows it had on disk."""
    process = subprocess.Popen([*COMMAND, *collection(out)], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while len(journal(out)) < ROWS // 3 and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    return journal(out)


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    out = tmp_path_factory.mktemp("measured") / "cpu"
    before = killed_half_way(out)
    neusight(*collection(out))
    return out, before


def test_no_row_is_lost_or_doubled_by_a_kill(collected: tuple[Path, list[dict[str, Any]]]) -> None:
    out, before = collected
    rows = rows_of(out)
    (device,) = out.glob("devices/*.toml")
    spec = read_table(tomllib.loads(device.read_text()), device.name)
    planned = plan(spec, FAMILIES, ("float32",), 0, usual_limits(spec, on_gpu=False))
    assert ROWS // 3 <= len(before) < ROWS
    assert {*rows} == {task.sample for task in islice(planned, ROWS)}
    # What was on disk is what was kept, not measured anew.
    assert all(rows[row["sample"]]["latency_ms"] == row["latency_ms"] for row in before)


def test_the_worker_of_a_killed_collector_ends(tmp_path: Path) -> None:
    out = tmp_path / "cpu"
    process = subprocess.Popen([*COMMAND, *collection(out)], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    while not journal(out):
        time.sleep(0.05)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.kill()
    process.wait()
    deadline = time.monotonic() + 10
    while any(_alive(int(child)) for child in children) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert children
    assert not any(_alive(int(child)) for child in children)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_ctrl_c_keeps_what_was_measured_and_says_how_to_go_on(tmp_path: Path) -> None:
    out = tmp_path / "cpu"
    process = subprocess.Popen(
        [*COMMAND, *collection(out)], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    while not journal(out):
        time.sleep(0.05)
    # To the whole group of processes, as a terminal does.
    os.kill(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the same command goes on" in said.splitlines()[-1]
    assert len(said.splitlines()) == 1
    assert rows_of(out)
    assert not journal(out)


def test_the_set_verifies(collected: tuple[Path, list[dict[str, Any]]]) -> None:
    out, _ = collected
    found = json.loads(neusight("datasets", "verify", out, "--format", "json"))
    assert found["ok"], found["problems"]
    assert {*found["hashes"].values()} == {"ok"}
    covered = found["tables"]["coverage"]
    assert {row["family"] for row in covered} == {*FAMILIES}
    assert (out / "card.md").read_text().startswith("# ")


def test_the_device_file_is_valid(collected: tuple[Path, list[dict[str, Any]]]) -> None:
    out, _ = collected
    (device,) = out.glob("devices/*.toml")
    answer = json.loads(neusight("kernel", "gemm", "m=512", "n=512", "k=512", "--gpu", device, "--format", "json"))
    assert answer["latency_ms"] > 0


def test_tile_models_train_on_it_and_are_evaluated_on_it(
    collected: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    out, _ = collected
    trained = tmp_path / "trained"
    neusight("train", "--data", out, "--out", trained, "--backend", "linear")
    assert {path.parent.name for path in trained.glob("*/manifest.json")} == {*FAMILIES}
    own = json.loads(neusight("evaluate", "kernels", out, "--tile-models", trained, "--format", "json"))
    shipped = json.loads(neusight("evaluate", "kernels", out, "--format", "json"))
    rows = sum(row["repeat"] == 0 for row in rows_of(out).values())
    assert own["total"]["count"] == shipped["total"]["count"] == rows
    # What learned from this machine knows it better than what never saw a CPU.
    assert own["total"]["median_ape"] < shipped["total"]["median_ape"]


def test_a_mistake_is_one_line(tmp_path: Path) -> None:
    for options, message in (
        (["--device", "cpu", "--families", "gem"], "did you mean gemm"),
        (["--device", "cpu", "--dtypes", "bf16"], "no dtype 'bf16'"),
        (["--device", "cpu", "--minutes", "0"], "give a positive number"),
        (["--device", "cuda"], "--device cpu"),
    ):
        command = [*COMMAND, "collect", "--out", str(tmp_path / "set"), *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 1, done.stderr
        assert message in done.stderr
        assert len(done.stderr.splitlines()) == 1, done.stderr
    assert not (tmp_path / "set").exists()
