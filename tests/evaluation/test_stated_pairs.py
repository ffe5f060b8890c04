"""Pairs in this project's own words: anyone's, and the published effects that the repository declares."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from neusight import Predictor
from neusight.datasets.rows import read_rows
from neusight.distributed.training_run import TrainingRun
from neusight.errors import DataError
from neusight.evaluation.what_if import NEEDED, evaluate_what_if
from neusight.evaluation.what_if.cases import pair_of
from neusight.paths import checkout_dir
from neusight.what_if import StepQuestion
from neusight.what_if.questions import changed

PUBLISHED = checkout_dir("experiments") / "what-if" / "published.toml"
ROW = {"optimisation": "amp", "model": "gpt2", "gpu": "l4", "metric": "time", "gain": 1.5}


def row(told: dict[str, Any], **cells: Any) -> dict[str, Any]:
    return {**ROW, "mode": "training", "told": {"optimizer": "adam", **told}, **cells}


def test_a_pair_differs_in_what_is_applied_alone() -> None:
    case = pair_of(row({"apply": ["amp"], "upon": ["compile"], "batch": 2}))
    assert isinstance(case.before, StepQuestion)
    assert case.before.request.engine.launch == "compiled"
    assert changed(case.before, case.after) == {"request.precision", "request.grad_scaler"}


def test_one_optimisation_in_place_of_another() -> None:
    case = pair_of(row({"apply": ["amp"], "instead_of": ["tf32"]}))
    assert (str(case.before.request.precision), str(case.after.request.precision)) == ("tf32", "amp_float16")


def test_what_else_the_first_has_is_of_the_first_alone() -> None:
    case = pair_of(row({"apply": ["fused-optimizer"], "first": {"optimizer": "bert_adam"}}))
    assert isinstance(case.before, StepQuestion) and isinstance(case.after, StepQuestion)
    assert (case.before.request.optimizer, case.after.request.optimizer) == ("bert_adam", "adam")
    assert (case.before.setting.fused_optimizer, case.after.setting.fused_optimizer) == (False, True)


def test_several_machines_are_a_training_run() -> None:
    told = {"apply": ["compile"], "nodes": 2, "network": "100Gb/s", "global_batch": 8, "seq_len": 128}
    case = pair_of(row(told))
    assert isinstance(case.before, TrainingRun)
    assert (case.before.cluster.devices, case.before.plan.dp) == (2, 2)


def test_a_pair_without_an_optimisation_is_refused() -> None:
    with pytest.raises(DataError, match="add apply"):
        pair_of(row({"batch": 2}))
    with pytest.raises(DataError, match="no JSON object"):
        pair_of({**ROW, "told": "batch 2"})


def test_tables_of_toml_are_rows(tmp_path: Path, predictor: Predictor) -> None:
    path = tmp_path / "pairs.toml"
    path.write_text(
        "[[pairs]]\noptimisation = 'tf32'\nas_written = 'TF32'\nmodel = 'gpt2'\nmode = 'inference'\ngpu = 'l4'\n"
        "metric = 'time'\ngain = 1.4\ntold = { apply = ['tf32'], batch = 4, seq_len = 256 }\n"
    )
    answer = evaluate_what_if(path, predictor)
    assert [one["applied"] for one in answer["rows"]] == ["tf32"]
    assert 1.0 < answer["rows"][0]["predicted_gain"] < 4.0
    path.write_text("[[pairs]\n")
    with pytest.raises(DataError, match="cannot be read as TOML"):
        read_rows(path, NEEDED, "pairs")


def test_published_effects_say_where_they_come_from() -> None:
    rows = read_rows(PUBLISHED, (*NEEDED, "source"), "published effects")
    assert all(one["gain"] > 0 and one["source"] and one["told"]["apply"] for one in rows)
