"""Evaluation: errors by formula on files made here."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from neusight import Predictor
from neusight.datasets import load_kernels
from neusight.errors import DataError, DeviceError
from neusight.evaluation import compare_kernels, evaluate_kernels, evaluate_models
from neusight.evaluation.kernels import without_drift
from neusight.evaluation.models import plan_named
from neusight.requests import Plan

GPT2 = {"model_type": "gpt2", "n_layer": 12, "n_head": 12, "n_embd": 768, "n_positions": 1024, "vocab_size": 50257}


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    return Predictor.load()


def gemm_file(path: Path, predictor: Predictor, factors: dict[str, list[float]], **columns: object) -> Path:
    """Measurements that are the predictions times ``factors``, by GPU, under the conditions that such rows have."""
    rows = [
        {"gpu": gpu, "op": "linear", "batch": 1, "m": 64 * (i + 1), "n": 128, "k": 256, "factor": factor}
        for gpu, given in factors.items()
        for i, factor in enumerate(given)
    ]
    frame = pd.DataFrame(rows).assign(**{"dtype": "float32", "split": "test", "latency_ms": 1.0})
    for gpu in factors:
        own = frame["gpu"] == gpu
        frame[own].drop(columns="factor").to_parquet(path)
        predicted = compare_kernels(load_kernels(path), gpu, predictor).predicted
        frame.loc[own, "latency_ms"] = predicted * frame.loc[own, "factor"]
    frame.drop(columns="factor").assign(**columns).to_parquet(path)
    return path


def test_kernel_errors_by_formula(predictor: Predictor, tmp_path: Path) -> None:
    # measured = 2x, 1x, 0.8x what is predicted: errors -50 %, 0 %, +25 %
    file = gemm_file(tmp_path / "gemm.parquet", predictor, {"l4": [2.0, 1.0, 0.8], "t4": [1.0]})
    found = evaluate_kernels(file, predictor)
    l4, t4 = found["rows"]
    assert (l4["gpu"], l4["op"], l4["dtype"], l4["count"]) == ("l4", "linear", "float32", 3)
    assert l4["mape"] == pytest.approx(25)
    assert l4["median_ape"] == pytest.approx(25)
    assert l4["bias"] == pytest.approx(-25 / 3)
    assert t4["mape"] == pytest.approx(0, abs=1e-9)
    assert t4["inside"] == 100
    assert found["total"]["count"] == 4
    assert found["total"]["mape"] == pytest.approx(75 / 4)


def test_kernels_of_one_split(predictor: Predictor, tmp_path: Path) -> None:
    file = gemm_file(tmp_path / "gemm.parquet", predictor, {"l4": [1.0, 3.0]}, split=["train", "test"])
    # In other company the clock under a power limit is solved for to the last digits but two.
    assert evaluate_kernels(file, predictor, split="train")["total"]["mape"] == pytest.approx(0, abs=1e-7)
    with pytest.raises(DataError, match="no rows of split 'dev': it has test, train"):
        evaluate_kernels(file, predictor, split="dev")


def test_dtypes_that_cannot_be_computed_are_skipped_with_their_reason(predictor: Predictor, tmp_path: Path) -> None:
    dtypes = ["float32", "nvfp4", "bfloat16"]
    file = gemm_file(tmp_path / "gemm.parquet", predictor, {"t4": [1.0, 1.0, 1.0]}, dtype=dtypes)
    found = evaluate_kernels(file, predictor)
    assert [row["dtype"] for row in found["rows"]] == ["float32"]
    reasons = {row["dtype"]: (row["count"], row["reason"]) for row in found["skipped"]}
    assert reasons["nvfp4"][0] == 1
    assert "t4 does not compute in float4" in reasons["nvfp4"][1]
    assert "t4 does not compute in bfloat16" in reasons["bfloat16"][1]
    file = gemm_file(tmp_path / "other.parquet", predictor, {"t4": [1.0]}, dtype="bfloat16")
    with pytest.raises(DataError, match="t4 does not compute in bfloat16"):
        evaluate_kernels(file, predictor)


def test_a_gpu_that_nobody_knows(predictor: Predictor, tmp_path: Path) -> None:
    file = gemm_file(tmp_path / "gemm.parquet", predictor, {"l4": [1.0]}, gpu="l44")
    with pytest.raises(DeviceError, match="l44"):
        evaluate_kernels(file, predictor)


def model_file(path: Path, *rows: dict[str, object]) -> Path:
    base = {"gpu": "l4", "model": "mine", "mode": "inference", "dtype": "float32", "batch": 2, "seq_len": 128}
    base |= {"option": "", "e2e_ms": 1.0, "forward_ms": None, "backward_ms": None}
    pd.DataFrame([base | row for row in rows]).astype({"forward_ms": float, "backward_ms": float}).to_parquet(path)
    (path.parent / "mine.json").write_text(json.dumps(GPT2))
    return path


def test_model_errors_by_formula_and_phases(predictor: Predictor, tmp_path: Path) -> None:
    step = predictor.estimate("gpt2", "l4", mode="training", batch=2, seq_len=128, attention="eager")
    e2e_ms, forward_ms = step.latency_s * 2e3, step.by_phase["forward"] * 1e3 * 0.8
    row = {"mode": "training", "e2e_ms": e2e_ms, "forward_ms": forward_ms, "backward_ms": e2e_ms - forward_ms}
    found = evaluate_models(model_file(tmp_path / "latency.parquet", row), tmp_path, predictor)
    (got,) = found["rows"]
    assert got["ape"] == pytest.approx(50)
    assert got["forward_ape"] == pytest.approx(25)
    assert got["predicted_ms"] == pytest.approx(step.latency_s * 1e3)
    assert got["low_ms"] <= got["predicted_ms"] <= got["high_ms"]
    assert found["means"] == [{"gpu": "l4", "mode": "training", "option": "", **found["total"]}]
    assert found["by_vendor"][0]["vendor"] == "nvidia"


def test_what_cannot_be_compared_is_listed_with_its_reason(predictor: Predictor, tmp_path: Path) -> None:
    rows = [{"option": ""}, {"option": "magic"}, {"option": "dp4"}, {"model": "other"}]
    found = evaluate_models(model_file(tmp_path / "latency.parquet", *rows), tmp_path, predictor)
    assert len(found["rows"]) == 1
    reasons = {row["option"] or row["model"]: row["reason"] for row in found["skipped"]}
    assert "pp<n>_<micro-batches>" in reasons["magic"]
    assert "global batch 2 is no multiple of dp 4" in reasons["dp4"]
    assert "other.json" in reasons["other"]


def test_rows_compiled_and_on_several_gpus_are_what_the_predictor_says_of_them(
    predictor: Predictor, tmp_path: Path
) -> None:
    rows: list[dict[str, object]] = [
        {"option": "fusion"},
        {"option": "tp2", "gpu": "a100-sxm-40gb", "mode": "training"},
    ]
    found = evaluate_models(model_file(tmp_path / "latency.parquet", *rows), tmp_path, predictor)
    fused, shared = found["rows"]
    size = {"batch": 2, "seq_len": 128, "attention": "eager"}
    alone = predictor.estimate("gpt2", "l4", launch="compiled", **size)
    assert fused["predicted_ms"] == pytest.approx(1e3 * alone.latency_s)
    step = {"mode": "training", "optimizer": "adam", "fused_optimizer": True, "seq_len": 128, "attention": "eager"}
    two = predictor.estimate("gpt2", "a100-sxm-40gb", plan=Plan(tp=2, micro_batch_size=2, global_batch_size=2), **step)
    assert shared["predicted_ms"] == pytest.approx(1e3 * two.latency_s)


@pytest.mark.parametrize(
    ("option", "batch", "plan"),
    [
        ("dp4", 4, Plan(dp=4, micro_batch_size=1, global_batch_size=4)),
        ("tp4", 4, Plan(tp=4, micro_batch_size=4, global_batch_size=4)),
        ("pp4_1", 4, Plan(pp=4, micro_batch_size=4, global_batch_size=4)),
        ("pp2_4", 8, Plan(pp=2, micro_batch_size=2, global_batch_size=8)),
    ],
)
def test_options_name_plans(option: str, batch: int, plan: Plan) -> None:
    assert plan_named(option, batch) == plan


def test_nothing_to_compare_says_why(predictor: Predictor, tmp_path: Path) -> None:
    file = model_file(tmp_path / "latency.parquet", {"option": "magic"})
    with pytest.raises(DataError, match="'magic' is not estimated"):
        evaluate_models(file, tmp_path, predictor)
    with pytest.raises(DataError, match="none of t4"):
        evaluate_models(file, tmp_path, predictor, gpus=["t4"])
    with pytest.raises(DataError, match="not a folder"):
        evaluate_models(file, tmp_path / "nowhere", predictor)


def test_launches_that_grew_along_the_table_are_no_execution() -> None:
    n = 2000
    rng = np.random.default_rng(1)
    work_ms, place = rng.uniform(0.01, 1.0, n), np.arange(n)
    launch_ms = 0.05 + 0.3 * (place / n) ** 2
    left = without_drift(np.full(n, "forward"), place, work_ms + launch_ms, work_ms)
    assert np.abs(left / work_ms - 1).mean() < 0.05
    steady = without_drift(np.full(n, "forward"), place, work_ms + 0.05, work_ms)
    replayed = without_drift(np.full(n, "forward"), place, np.full(n, np.nan), work_ms)
    assert np.isnan(steady).all()
    assert np.isnan(replayed).all()
