"""Calibrating from the command line: plan, measure, fit, and estimates that take the correction up and say so."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from cli_runs import as_json as data
from cli_runs import error, invoke, unsaid

from neusight.collect.plan import read_plan, write_plan
from neusight.collect.store import read_rows
from neusight.collect.tasks import KernelTask, identity
from neusight.devices import load_device
from neusight.errors import DataError
from neusight.executors.gpu.predictor import KernelPredictor
from neusight.kernels import Gemm, Kernel, KernelBatch, Memory

FACTOR = 1.5
COUNT = 24


@pytest.fixture(autouse=True)
def own_calibrations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NEUSIGHT_CALIBRATIONS", str(tmp_path / "calibrations"))
    return tmp_path / "calibrations"


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Linear layers of an L4 that takes half as long again as predicted, and one of a T4."""
    sizes = (64 * np.exp2(np.random.default_rng(0).uniform(4, 6, (COUNT, 3))).astype(int)).tolist()
    batch = KernelBatch.of([Gemm(m=m, n=n, k=k, bias=True) for m, n, k in sizes])
    answer = KernelPredictor.load().predict(batch, load_device("l4"))
    latency_s = answer.overhead_s + FACTOR * (answer.latency_s - answer.overhead_s)
    columns = {"op": "linear", "dtype": "float32", "batch": 1, **{name: batch[name] for name in "mnk"}}
    frame = pd.DataFrame({"gpu": "l4", **columns, "latency_ms": 1e3 * latency_s})
    path = tmp_path_factory.mktemp("measured") / "gemm.parquet"
    pd.concat([frame, frame.iloc[:1].assign(gpu="t4")]).to_parquet(path)
    return path


def test_what_is_fitted_is_taken_up_and_named(measured: Path, own_calibrations: Path, tmp_path: Path) -> None:
    kernel = ("kernel", "gemm", "m=2048", "n=2048", "k=2048", "--gpu", "l4")
    step = ("predict", "gpt2", "--gpu", "l4")
    before, step_before = data(*kernel), data(*step)
    answer = data("calibrate", "--gpu", "NVIDIA L4", "--data", measured)
    assert answer["file"] == str(own_calibrations / "l4.json")
    assert (answer["gpu"], answer["rows"], answer["left_out"]) == ("l4", COUNT, 0)
    assert [row["kind"] for row in answer["errors"]] == ["linear"]
    assert answer["errors"][0]["after"] < 0.2 * answer["errors"][0]["before"]
    after, step_after = data(*kernel), data(*step)
    assert after["latency_s"] == pytest.approx(FACTOR * before["latency_s"], rel=0.05)
    assert f"corrected by {COUNT} kernels measured on l4" in invoke(*kernel).stderr
    assert step_after["latency_s"] > 1.2 * step_before["latency_s"]
    assert step_after["provenance"]["calibration"].startswith(f"{COUNT} kernels measured on l4 (")
    assert "corrected by" in invoke(*step).stdout
    assert data(*kernel, "--calibration", "none") == before
    # A variant of the board that was measured keeps what was measured.
    changed = (*kernel, "--set", "dram_bandwidth=310GB/s")
    assert data(*changed)["latency_s"] == pytest.approx(
        FACTOR * data(*changed, "--calibration", "none")["latency_s"], rel=0.05
    )


def test_a_calibration_elsewhere_is_named(measured: Path, own_calibrations: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    result = invoke("calibrate", "--gpu", "l4", "--data", measured, "--out", file)
    assert result.exit_code == 0, result.output
    assert "mine.json: 24 kernels of l4" in result.stdout
    assert not own_calibrations.exists()
    rows = data("evaluate", measured, "--by", "gpu")["summary"]
    better = data("evaluate", measured, "--by", "gpu", "--calibration", file)["summary"]
    assert [row["gpu"] for row in rows] == ["l4", "t4"]
    assert better[0]["mean"] < 5 < rows[0]["mean"]
    assert better[1] == rows[1]
    swept = invoke("sweep", "gpt2", "--gpu", "l4,t4", "--calibration", file)
    assert swept.stderr.count("note: corrected by") == 1


def test_other_tile_models_refuse_it_in_a_line(measured: Path, own_calibrations: Path) -> None:
    assert invoke("calibrate", "--gpu", "l4", "--data", measured).exit_code == 0
    file = own_calibrations / "l4.json"
    content = json.loads(file.read_text())
    content["tile_models"]["gemm"] = "0" * 64
    file.write_text(json.dumps(content))
    line = error("predict", "gpt2", "--gpu", "l4")
    assert "l4.json was fitted on another 'gemm' tile model" in line
    assert "neusight calibrate" in line
    assert invoke("predict", "gpt2", "--gpu", "t4").exit_code == 0
    assert invoke("predict", "gpt2", "--gpu", "l4", "--calibration", "none").exit_code == 0


def test_mistakes_are_told_in_a_line(measured: Path, tmp_path: Path) -> None:
    fit, plan = ("calibrate", "--gpu"), ("calibrate", "plan", "--gpu", "l4")
    wrong: dict[tuple[object, ...], str] = {
        (*fit, "a100-pcie-40gb", "--data", measured): "has no rows of a100-pcie-40gb: it has l4, t4",
        (*fit, "l44", "--data", measured): "did you mean l4",
        (*fit, "l4", "--data", tmp_path / "none.parquet"): "none.parquet",
        ("kernel", "softmax", "rows=8", "cols=8", "-g", "l4", "--calibration", "none.json"): "none.json",
        (*plan, "--families", "gem"): "did you mean gemm",
    }
    assert not unsaid(wrong)
    for missing in (("--gpu", "l4"), ("--data", measured)):
        result = invoke("calibrate", *missing)
        assert result.exit_code == 2
        assert "is missing" in result.stderr


def test_a_plan_can_be_collected(tmp_path: Path) -> None:
    file = tmp_path / "plans" / "plan.json"
    families = ("--families", "memory,grouped_gemm")
    result = invoke("calibrate", "plan", "--gpu", "l4", "--count", 6, *families, "--out", file, "--format", "csv")
    assert result.exit_code == 0, result.output
    assert f"next: neusight collect --plan {file}" in result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == "place,sample,family,op,dtype,kernel,origin"
    tasks = read_plan(file)
    assert [line.split(",")[1] for line in lines[1:]] == [task.sample for task in tasks]
    assert {task.kernel.family for task in tasks} == {"memory", "grouped_gemm"}


def test_what_a_plan_names_is_measured_and_nothing_else(tmp_path: Path) -> None:
    kernels: list[Kernel] = [
        Gemm(m=64, n=64, k=64),
        Memory(op="copy", elements=4096, read_bytes=16384, write_bytes=16384),
    ]
    tasks = [KernelTask(kernel=kernel, split="train") for kernel in kernels]
    write_plan(tmp_path / "plan.json", tasks)
    command = ("collect", "--plan", tmp_path / "plan.json", "--device", "cpu", "--workers", 1)
    assert data(*command, "--out", tmp_path / "set")["rows"] == 2
    kept = {row["sample"] for family in ("gemm", "memory") for row in read_rows(tmp_path / "set", family)}
    assert kept == {task.sample for task in tasks}
    # Another plan is another collection.
    asked = json.loads((tmp_path / "set" / "collection.json").read_text())
    assert identity([task.sample for task in tasks]) in json.dumps(asked)
    refused = invoke(*command, "--out", tmp_path / "other", "--families", "gemm")
    assert refused.exit_code == 2


def test_a_plan_that_is_none_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    for text, message in (
        ("{", "cannot read the plan"),
        ('{"a":' * 6000, "nested too deeply"),
        ('{"protocol": 9}', "protocol 9 is not 1"),
        ('{"protocol": 1, "kernels": []}', "has no kernels"),
        ('{"protocol": 1, "kernels": [{"family": "poetry"}]}', "is no plan"),
    ):
        file.write_text(text)
        line = error("collect", "--plan", file, "--device", "cpu", "--out", tmp_path / "set")
        assert message in line
        assert str(file) in line
        assert not (tmp_path / "set").exists()
    write_plan(file, [KernelTask(kernel=Gemm(m=64, n=64, k=64), split="train")])
    content = json.loads(file.read_text())
    content["kernels"][0]["m"] = 128
    file.write_text(json.dumps(content))
    with pytest.raises(DataError, match="is another kernel"):
        read_plan(file)
