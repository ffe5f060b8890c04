"""Exported programs as they were timed: which rows count, which step each is, and what modes gain."""

from math import log

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

from neusight.api import Predictor
from neusight.errors import DataError
from neusight.evaluation import evaluate_programs
from neusight.evaluation.programs import Filters, speedups
from neusight.workloads import load_workload
from neusight.workloads.dispatch import DISPATCHES

ROW = {
    "gpu": "a100-sxm-80gb", "host": "here", "level": 1, "problem": "1_Conv", "graph": "small", "mode": "eager",
    "tf32": False, "conv_tf32": True, "l2_flushed": False, "suspect": False, "host_bytes": 0, "mean_ms": 0.5,
    "std_ms": 0.01, "measured_on": "2025-01-19",
}  # fmt: skip


@pytest.fixture(scope="module")
def predictor():
    return Predictor.load()


@pytest.fixture
def found(tmp_path, predictor):
    (tmp_path / "problems").mkdir()
    module = nn.Sequential(nn.Conv2d(32, 64, 3), nn.ReLU(), nn.Hardtanh())
    program = torch.export.export(module, (torch.zeros(8, 32, 128, 128),))
    torch.export.save(program, tmp_path / "problems" / "small.pt2")

    def evaluate(*rows):
        pq.write_table(pa.Table.from_pylist([ROW | row for row in rows]), tmp_path / "timings.parquet")
        return evaluate_programs(tmp_path / "timings.parquet", predictor)

    return evaluate


def test_modes_precisions_and_operands_are_steps_of_their_own(found):
    changes = ({}, {"mode": "compile"}, {"conv_tf32": False}, {"l2_flushed": True}, {"mode": "cuda_graph"})
    eager, fused, exact, cold, copied = (row["predicted_ms"] for row in found(*changes)["rows"])
    assert fused < eager < exact
    assert eager <= cold
    assert copied > fused


def test_a_program_runs_in_the_dtype_that_it_was_exported_in(tmp_path):
    for dtype in (torch.float16, torch.float32):
        program = torch.export.export(nn.Linear(64, 64).to(dtype), (torch.zeros(8, 64, dtype=dtype),))
        torch.export.save(program, tmp_path / "linear.pt2")
        (node,) = (node for node in load_workload(str(tmp_path / "linear.pt2")).nodes if node.kernels)
        assert f"torch.{node.kernels[0].dtype}" == str(dtype)


def test_what_operators_take_of_hosts_is_fitted_where_they_are_dispatched_one_by_one(found):
    assert found({"mode": "cuda_graph"})["dispatches"] == []
    assert {row["kind"] for row in found({})["dispatches"]} == set(DISPATCHES)


def test_a_usual_host_is_the_geometric_mean_of_those_that_launch_alike(found):
    *hosts, usual = (row for row in found({}, {"host": "there", "mean_ms": 2.0})["hosts"] if row["launch"] == "eager")
    first, second = (row["operator_us"] for row in hosts)
    assert (usual["host"], usual["operator_us"]) == ("all", pytest.approx((first * second) ** 0.5))
    assert usual["spread"] == pytest.approx(abs(log(first / second)) / 2**0.5)


def test_what_does_not_count_is_said_with_its_reason(found):
    answer = found({}, {"std_ms": 0.06}, {"suspect": True}, {"mode": "jit"}, {"graph": "none"}, {"gpu": "no-such-gpu"})
    assert len(answer["rows"]) == 1
    reasons = [row["reason"] for row in answer["skipped"]]
    for text in ("standard deviation above 10 %", "suspect", "mode 'jit'", "no none.pt2", "no-such-gpu"):
        assert any(text in reason for reason in reasons)


def test_filters_by_formula():
    assert Filters(spread=2.0).reason(ROW) == ""
    assert "above 1.9 %" in Filters(spread=1.9).reason(ROW)
    assert Filters(suspect=True).reason(ROW | {"suspect": True}) == ""


def test_gains_are_over_eager_of_the_same_gpu_host_and_day():
    row = {**ROW, "size": "below 1 ms", "predicted_ms": 4.0, "low_ms": 3.0, "high_ms": 6.0, "measured_ms": 2.0}
    fast = {**row, "mode": "compile", "predicted_ms": 2.0, "low_ms": 1.0, "high_ms": 4.0, "measured_ms": 2.5}
    others = [fast | {"host": "there"}, fast | {"measured_on": "2025-01-20"}, fast | {"gpu": "t4"}]
    (gain,) = speedups([row, *others, fast])
    assert (gain["mode"], gain["predicted_gain"], gain["measured_gain"]) == ("compile", 2.0, 0.8)
    assert (gain["low_gain"], gain["high_gain"], gain["direction"]) == (1.0, 4.0, False)


def test_a_folder_that_is_not_there_is_one_line(tmp_path, predictor):
    with pytest.raises(DataError, match="problems is not a folder"):
        evaluate_programs(tmp_path / "timings.parquet", predictor)
