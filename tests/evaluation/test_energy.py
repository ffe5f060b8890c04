"""Meters: constants of boards are found again, readings stand beside what is predicted, every answer has an energy."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from neusight import Predictor
from neusight.devices import cluster_of, load_device
from neusight.distributed.training_run import usual_run
from neusight.errors import DataError
from neusight.estimates import Estimate
from neusight.evaluation import evaluate_energy
from neusight.laws.fitted import shipped_boards
from neusight.learn.boards import NAMES, BoardObservation, fit_boards, fitted
from neusight.serving import Closed
from neusight.workloads.decoders.known import known_decoder

TRUE = {"gpu.idle_share": 0.2, "gpu.switching": 0.5, "gpu.traffic": 1.1}
CONFIG = {
    "model_type": "llama", "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 4096,
}  # fmt: skip
STEADY = {"flops_per_byte": 0.25, "gb_per_s": 1372.0, "gflop_per_s": 343.0, "clock_mhz": 1410, "power_w": 227.0}
CELL = {"gpu": "h100-sxm-80gb", "model": "small", "mode": "static", "isl": 256, "osl": 32, "concurrency": 8}


def readings(gpu: str, limit_w: float, n: int = 80) -> list[BoardObservation]:
    random = np.random.default_rng(len(gpu))
    parts = zip(random.uniform(0.05, 0.4, n) * limit_w, random.uniform(0.05, 0.5, n) * limit_w, strict=True)
    true = tuple(TRUE.values())
    return [
        BoardObservation(
            source="bench",
            gpu=gpu,
            limit_w=limit_w,
            arithmetic_w=a,
            traffic_w=t,
            watts=min(float(np.dot(true, (limit_w, a, t))), limit_w),
        )
        for a, t in parts
    ]


def test_constants_are_found_again_with_and_without_each_gpu() -> None:
    seen = [*readings("l40", 300.0), *readings("a100", 400.0), *readings("h100-sxm", 700.0)]
    found = fitted(seen)
    assert found.values == pytest.approx(TRUE, rel=0.2)
    assert tuple(found.values) == NAMES
    assert {row["mean"] < 3.0 for row in found.errors} == {True}
    assert {(row["fit"], row["gpu"]) for row in found.errors} >= {("left out", gpu) for gpu in found.gpus}
    assert 0.0 <= found.spread < 0.05


def test_constants_that_ship_are_what_meters_say() -> None:
    shipped = shipped_boards()
    assert 0.1 < shipped.physics.gpu.idle_share < 0.35
    assert 0.05 < shipped.spread < 0.25
    assert {row["source"] for row in shipped.errors} == {"roofline_power", "argonne", "mlenergy"}
    assert (shipped.spread_of("gpu"), shipped.spread_of("systolic") > shipped.spread) == (shipped.spread, True)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "microbenchmarks").mkdir()
    (tmp_path / "serving").mkdir()
    frame = pd.DataFrame([STEADY | {"gpu": "a100-sxm-40gb"}])
    frame.to_csv(tmp_path / "microbenchmarks" / "roofline_power.csv", index=False)
    named = [("lab/read", "", 450.0), ("lab/flat", "power flat at 449 W", 449.0), ("lab/unread", "", None)]
    cells = [{**CELL, "cell": name, "fault": fault, "power_w": watts, "e2e_ms": 40.0} for name, fault, watts in named]
    pd.DataFrame(cells).to_parquet(tmp_path / "serving" / "cells.parquet")
    (tmp_path / "serving" / "models.json").write_text(json.dumps({"small": CONFIG}))
    return tmp_path


def test_readings_stand_beside_predictions(data: Path, predictor: Predictor) -> None:
    found = evaluate_energy(data, predictor)
    rows = {(row["what"], row["quantity"]): row for row in found["rows"]}
    assert set(rows) == {
        ("0.25 FLOP/B", "power_w"),
        *((f"lab/{name}", quantity) for name in ("read", "flat") for quantity in ("power_w", "joule_per_token")),
    }
    assert rows["lab/read", "joule_per_token"]["measured"] == pytest.approx(450.0 * 0.040 / (8 * 32))
    assert rows["0.25 FLOP/B", "power_w"]["measured"] == 227.0
    assert all(row["low"] <= row["predicted"] <= row["high"] for row in rows.values())
    # What a source says of its own meter keeps a reading out of the means.
    assert found["total"]["count"] == 3
    with pytest.raises(DataError, match="no reading of a meter"):
        evaluate_energy(data / "serving", predictor)


def test_fit_boards_learns_from_sound_rows(tmp_path: Path, predictor: Predictor) -> None:
    for kind in ("energy", "serving", "kernels"):
        (tmp_path / kind).mkdir()
    steady = {name: value for name, value in STEADY.items() if name != "flops_per_byte"}
    steady |= {"gpu": "a100-sxm-40gb", "family": "elementwise", "table": "roofline_power"}
    pd.DataFrame([steady] * 3).to_parquet(tmp_path / "energy" / "steady.parquet")
    row = {"source": "lab", "model": "small", "config": json.dumps(CONFIG), "gpu": "h100-sxm-80gb", "batch": 8,
           "isl": 256, "osl": 32, "e2e_max_ms": 40.0, "power_w": 450.0, "split": "fit", "suspect": None}  # fmt: skip
    rows = [row, row | {"split": "check", "suspect": "power is flat"}, row | {"power_w": None}]
    pd.DataFrame(rows).to_parquet(tmp_path / "serving" / "lab.parquet")
    found = fit_boards(tmp_path, predictor)
    assert {(e["source"], e["gpu"], e["rows"]) for e in found.errors if e["fit"] == "seen"} == {
        ("roofline_power", "a100-sxm-40gb", 3), ("lab", "h100-sxm-80gb", 1),
    }  # fmt: skip
    assert found.skipped == {"power is flat": 1}
    assert list(found.data) == ["energy/steady.parquet", "serving/lab.parquet"]


@pytest.mark.parametrize("gpu", ["h100-sxm-80gb", "tpu-v4", "tensordash", "gaudi2"])
def test_every_step_has_an_energy_between_waiting_and_the_limit(gpu: str, predictor: Predictor) -> None:
    step = predictor.estimate("resnet-50", gpu, batch=8, dtype="bfloat16" if gpu != "tensordash" else "float32")
    energy, device = step.board_energy, load_device(gpu)
    assert energy is not None
    assert energy.low_j <= energy.expected_j <= energy.high_j
    assert energy.idle_j <= energy.expected_j
    assert energy.idle_j + sum(step.energy_j.values()) == pytest.approx(energy.expected_j)
    assert gpu == "tensordash" or energy.expected_j <= device.tdp_w * step.latency_s
    assert (2 * step).board_energy == energy * 2 == (step + step).board_energy
    assert Estimate.from_dict(json.loads(json.dumps(step.to_dict()))) == step


def test_more_devices_of_training_draw_more(predictor: Predictor) -> None:
    words = {"tp": 2, "global_batch_size": 16, "seq_len": 1024}
    runs = (usual_run(known_decoder("gpt2-large"), cluster_of("h100-sxm-80gb", n), words) for n in (4, 8))
    one, two = (predictor.training(run) for run in runs)
    assert one.board_energy is not None and two.board_energy is not None
    assert two.board_energy.idle_j / two.latency_s == pytest.approx(2 * one.board_energy.idle_j / one.latency_s)
    assert one.board_energy.low_j < one.board_energy.expected_j < one.board_energy.high_j


def test_a_token_has_an_energy_with_an_interval(predictor: Predictor) -> None:
    answer = predictor.serving("llama-3.1-8b", "h100-sxm-80gb", Closed(concurrency=8, num_prompts=16, isl=64, osl=32))
    token = answer.token_energy
    assert token.low_j < answer.joule_per_output_token < token.high_j
    assert answer.joule_per_output_token * answer.output_tokens_per_s.mean == pytest.approx(answer.power_w)
    assert answer.board_energy.expected_j == pytest.approx(answer.power_w * answer.latency_s)


@pytest.mark.skipif(not os.environ.get("NEUSIGHT_DATA"), reason="needs the measured data")
def test_meters_of_the_data_sets(predictor: Predictor) -> None:
    found = evaluate_energy(Path(os.environ["NEUSIGHT_DATA"]), predictor)
    means = {row["source"]: row for row in found["means"]["source"]}
    for source in ("argonne", "mlenergy", "roofline_power"):
        assert means[source]["mean"] <= 15.0, source
        assert means[source]["inside"] >= 80.0, source
    # Of boards, whose libraries lie far apart, the power.
    tiny = [row for row in found["rows"] if (row["source"], row["quantity"]) == ("tiny", "power_w")]
    assert np.median([row["ape"] for row in tiny]) <= 15.0
