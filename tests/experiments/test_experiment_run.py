"""Whole runs on a small data set made here, and what the experiments of the checkout left."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from experiment_sets import FLOOR_MS, SHARE, STEP_MS
from typer.testing import CliRunner

from neusight.cli.app import app
from neusight.devices import load_device
from neusight.errors import DataError
from neusight.experiments import (
    Experiment,
    accuracy_block,
    list_experiments,
    load_results,
    run,
    write_results,
)
from neusight.experiments.declare import Contestant, Declaration
from neusight.experiments.figures import FIGURES, save
from neusight.experiments.report import render
from neusight.experiments.results import as_text, rounded
from neusight.paths import checkout_dir

DONE = [e for e in list_experiments() if isinstance(e, Experiment) and (e.folder / "results.json").is_file()]


def changed(experiment: Experiment, **changes: Any) -> Experiment:
    return replace(experiment, declared=experiment.declared.model_copy(update=changes))


def keys(value: Any) -> set[str]:
    """Every key in nested lists and tables."""
    entries = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return set(value if isinstance(value, dict) else ()).union(*map(keys, entries))


def timeless(results: dict[str, Any]) -> dict[str, Any]:
    return {**results, "seconds": None}


@pytest.fixture
def results(experiment: Experiment) -> dict[str, Any]:
    return run(experiment)


def test_a_run_finds_what_was_put_in(results: dict[str, Any]) -> None:
    groups = results["models"]["groups"]
    assert {name: group["count"] for name, group in groups.items()} == {
        "all": 3,
        "held_out": 1,
        "training": 2,
        "other_vendor": 1,
    }
    errors = groups["all"]["predictors"]
    assert (errors["published:neusight"]["mean"], errors["published:li"]["mean"]) == (0, pytest.approx(50))
    assert errors["published:habitat"] is None
    for row in results["models"]["rows"]:
        measured = STEP_MS[row["gpu"]]
        assert row["predicted_ms"] == pytest.approx(measured * (1 + row["errors"]["ours"] / 100), rel=2e-3)
        assert row["inside"] == (row["low_ms"] <= measured <= row["high_ms"])
        assert (row["parts"] is None) == (row["gpu"] != "l4")
    # The operators of the step add up to it: all of the error is theirs.
    (l4,) = (row for row in results["models"]["rows"] if row["gpu"] == "l4")
    assert l4["parts"] == {"operators": l4["errors"]["ours"], "composition": 0.0}
    cells = {(c["predictor"], c["gpu"], c["kind"]): c for c in results["kernels"]["cells"]}
    assert {gpu for _, gpu, _ in cells} == {"l4", "mi100"}
    assert {kind for _, _, kind in cells} == {"linear", "bmm", "elementwise", "softmax"}
    assert {c["group"] for (_, gpu, _), c in cells.items() if gpu == "mi100"} == {"other_vendor"}
    # Half of the 60 rows are of the tested split.
    assert {c["count"] for c in cells.values()} == {30}
    for row in results["kernels"]["sample"]:
        device = load_device(row["gpu"])
        peak, bandwidth = device.gemm_flops_per_s("float32"), device.dram_bandwidth_bytes_per_s
        measured = FLOOR_MS + 1e3 * max(row["flops"] / peak, row["bytes"] / bandwidth) / SHARE
        assert row["predicted_ms"] == pytest.approx(measured * (1 + row["error"] / 100), rel=0.02)


def test_a_law_that_is_left_out_changes_what_is_predicted_and_nothing_that_is_trained(experiment: Experiment) -> None:
    first = experiment.declared.predictors[0]
    without = first.model_copy(update={"name": "without", "physics": {"gddr_share": 0.38}})
    found = run(changed(experiment, predictors=(first, without), report=("kernels",)))
    trained = found["trained"]["mine"]
    assert trained["without"] == trained[first.name]
    bias = {(c["predictor"], c["kind"]): c["bias"] for c in found["kernels"]["cells"] if c["gpu"] == "l4"}
    # Half of the sustained DRAM bandwidth: pointwise kernels take twice as long.
    assert bias["without", "elementwise"] > bias[first.name, "elementwise"] + 50


def test_what_was_held_out_taught_nothing(results: dict[str, Any]) -> None:
    trained = results["trained"]["mine"]
    assert {"ours", "bound"} == set(trained)
    assert trained["ours"]["training_gpus"] == ["t4", "v100-pcie-32gb"]


def test_the_same_run_writes_the_same_files_again_and_trains_nothing_twice(
    experiment: Experiment, results: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("trained again")

    first = {path.name: path.read_bytes() for path in write_results(experiment.folder, timeless(results) | FAST)}
    assert load_results(experiment) == timeless(results) | FAST
    monkeypatch.setattr("neusight.experiments.trained.train", refuse)
    again = run(experiment)
    assert timeless(again) == timeless(results)
    assert again["seconds"]["training"] == pytest.approx(results["seconds"]["training"], rel=0.9)
    errors = experiment.folder / "errors.png"
    save(FIGURES["errors.png"].draw(again), errors)
    assert errors.read_bytes() == first["errors.png"]
    report = first["report.md"].decode()
    assert all(f"({name})" in report for name in first if name.endswith(".png"))
    assert {name for name in first if name.endswith(".png")} == set(FIGURES) - {"few-shot.png"}
    assert all(len(content) <= 100_000 for content in first.values())


FAST = {"seconds": {"training": 1.0}}


def test_verdicts_name_what_falls_short(results: dict[str, Any]) -> None:
    by_target = {row["target"]: row for row in results["verdicts"]}
    row = by_target["linear, mean over 1 held-out GPUs"]
    assert (row["aim"], row["met"]) == ("at most 0.001", False)
    assert row["short"] == [f"l4 {row['value']:.1f}"]
    mean = by_target["mean of 1 whole models, held-out GPUs"]
    assert mean["met"] == (mean["value"] <= 10)


def test_other_rows_or_data_are_trained_anew(experiment: Experiment, results: dict[str, Any]) -> None:
    data = experiment.declared.data.model_copy(update={"training_split": "train"})
    other = run(changed(experiment, data=data, report=("kernels",)))
    ours, theirs = (r["trained"]["mine"]["ours"]["tile_models"] for r in (results, other))
    assert ours != theirs


def test_a_quick_run_says_so_wherever_its_figures_stand(experiment: Experiment) -> None:
    predictors = (Contestant(name="ours", options={"backend": "roofline"}),)
    results = run(changed(experiment, predictors=predictors), quick=True)
    assert "no results" in results["quick"]
    shown = render(results, []).replace("\n> ", " ")
    assert f"**{results['quick']}**" in shown


def test_tile_models_that_learned_from_a_held_out_gpu_are_refused(experiment: Experiment) -> None:
    shipped = (Contestant(name="ours", kind="shipped"),)
    folds = tuple(fold.model_copy(update={"held_out": ("t4",)}) for fold in experiment.declared.folds)
    with pytest.raises(DataError, match=r"'ours' learned from t4, which fold 'mine' holds out"):
        run(changed(experiment, predictors=shipped, folds=folds))


def test_rows_that_are_not_there_are_one_line(experiment: Experiment) -> None:
    data = experiment.declared.data.model_copy(update={"tested_split": "tset"})
    with pytest.raises(DataError, match="no row of l4 in split 'tset'"):
        run(changed(experiment, data=data, report=("kernels",)))


def test_published_predictions_of_other_measurements_are_refused(
    experiment: Experiment, data_set: Path, tmp_path: Path
) -> None:
    foreign = data_set / "mine" / "foreign.parquet"
    pd.read_parquet(data_set / "mine" / "published.parquet").assign(seq_len=7).to_parquet(foreign)
    data = experiment.declared.data.model_copy(update={"published": foreign.name})
    mine = changed(experiment, data=data, report=("models",))
    with pytest.raises(DataError, match=r"no step on .* to compare"):
        run(mine)
    foreign.write_bytes(b"PAR1")
    with pytest.raises(DataError, match="cannot read published predictions"):
        run(mine)
    foreign.unlink()


def test_results_that_are_not_there_or_damaged_say_how_to_get_them(experiment: Experiment) -> None:
    with pytest.raises(DataError, match="not there: neusight experiments run mine"):
        load_results(experiment)
    experiment.folder.mkdir()
    for content, said in (("{", "damaged"), ("[]", "holds no results")):
        (experiment.folder / "results.json").write_text(content)
        with pytest.raises(DataError, match=said):
            load_results(experiment)


def test_neither_measurements_nor_published_predictions_are_stored(results: dict[str, Any], data_set: Path) -> None:
    for stored in [results, *(load_results(e) for e in DONE)]:
        found = keys(stored)
        assert {"predicted_ms", "low_ms", "high_ms", "inside", "errors", "error"} <= found | {"inside", "errors"}
        assert not [key for key in found if "measured" in key]
        assert {key for key in found if key.endswith("_ms")} <= {"predicted_ms", "low_ms", "high_ms", "long_ms"}
    text = as_text({"rows": results["models"]["rows"]})
    assert not [ms for ms in STEP_MS.values() if f": {ms}," in text or f": {1.5 * ms}," in text]


def test_text_of_results_reads_back_with_a_line_a_row(results: dict[str, Any]) -> None:
    text = as_text(results)
    assert json.loads(text) == results
    row = json.dumps(results["kernels"]["sample"][0], ensure_ascii=False)
    assert any(line.strip().rstrip(",") == row for line in text.splitlines())


def test_declared_experiments_come_with_their_command(experiment: Experiment, declared: Declaration) -> None:
    listed = CliRunner().invoke(app, ["experiments", "list", "--format", "json"])
    assert listed.exit_code == 0
    assert "asplos25" in {row["id"] for row in json.loads(listed.stdout)}
    refused = CliRunner().invoke(app, ["experiments", "run", "asplos"])
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "did you mean asplos25" in refused.stderr
    quick = CliRunner().invoke(app, ["experiments", "run", "asplos25", "--quick"])
    assert quick.exit_code == 2
    assert "--out" in quick.stderr


@pytest.mark.parametrize("experiment", DONE, ids=lambda e: e.id)
def test_results_of_the_checkout_are_of_what_is_declared(experiment: Experiment) -> None:
    results = load_results(experiment)
    declared = rounded(experiment.declared.model_dump(mode="json"))
    assert {key: results[key] for key in declared} == declared
    assert results["quick"] is None
    assert (experiment.folder / "results.json").stat().st_size <= 3_000_000


@pytest.mark.parametrize("experiment", DONE, ids=lambda e: e.id)
def test_reports_of_the_checkout_are_rendered_from_their_results(experiment: Experiment) -> None:
    figures = [name for name in FIGURES if (experiment.folder / name).is_file()]
    assert all((experiment.folder / name).stat().st_size <= 150_000 for name in figures)
    assert (experiment.folder / "report.md").read_text(encoding="utf-8") == render(load_results(experiment), figures)


def test_readme_shows_what_the_results_say() -> None:
    readme = checkout_dir("README.md").read_text(encoding="utf-8")
    block = readme.split("<!-- accuracy:begin -->\n")[1].split("\n<!-- accuracy:end -->")[0]
    assert block == accuracy_block([load_results(e) for e in list_experiments() if e.declared.readme])
