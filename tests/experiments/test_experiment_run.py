"""Whole runs: on a small data set made here, and what ships against the measured one."""

import json
import os
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner

from neusight import Predictor
from neusight.cli.app import app
from neusight.errors import DataError
from neusight.experiments import accuracy_block, evaluated, find_experiment, load_results, run, write_results
from neusight.experiments.declare import Data, Declaration, Experiment, Split, Targets, TileModels
from neusight.experiments.model_step import PREDICTORS
from neusight.experiments.run import rounded
from neusight.paths import checkout_dir

needs_data = pytest.mark.skipif("NEUSIGHT_DATA" not in os.environ, reason="NEUSIGHT_DATA is not set")
GPT2 = {"model_type": "gpt2", "n_layer": 12, "n_head": 12, "n_embd": 768, "n_positions": 1024, "vocab_size": 50257}
SHIPPED = find_experiment("held-out-fp32")
TRAINED = SHIPPED.declared.split.training
FAMILY_FILES = ("gemm", "elementwise", "row_reduction", "conv2d")


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Measurements that are half as fast as predicted, on a held-out and a training GPU."""
    predictor = Predictor.load()
    folder = tmp_path / "mine"
    (folder / "configs").mkdir(parents=True)
    (folder / "configs" / "mine.json").write_text(json.dumps(GPT2))
    shape = {"m": 512, "n": 128, "k": 256}
    ms = 2e3 * predictor.kernel("gemm", "l4", bias=True, **shape).latency_s
    kernel = {"gpu": "l4", "op": "linear", "dtype": "float32", "batch": 1, **shape, "latency_ms": ms}
    pd.DataFrame([kernel]).to_parquet(folder / "gemm.parquet")
    step = {"model": "mine", "mode": "inference", "batch": 2, "seq_len": 128, "option": ""}
    steps = [{"gpu": gpu, **step} for gpu in ("l4", "t4")]
    took = [2e3 * predictor.estimate("gpt2", gpu, batch=2, seq_len=128).latency_s for gpu in ("l4", "t4")]
    pd.DataFrame([{**s, "e2e_ms": ms} for s, ms in zip(steps, took, strict=True)]).to_parquet(
        folder / "latency.parquet"
    )
    said = [{**s, "neusight_ms": ms, "habitat_ms": None} for s, ms in zip(steps, took, strict=True)]
    published = pd.DataFrame(said).assign(li_ms=1.5 * pd.Series(took), roofline_ms=0.5 * pd.Series(took))
    published.astype({"habitat_ms": float}).to_parquet(folder / "published.parquet")
    # One layer of a twelfth of the step and a head of nothing: twelve layers make the step.
    nodes = [("placeholder", "input_ids", 0.0), ("call_module", "h.0.mlp", took[0] / 12), ("call_module", "ln_f", 0.0)]
    timed = [{**steps[0], "index": i, "kind": k, "target": t, "forward_ms": ms} for i, (k, t, ms) in enumerate(nodes)]
    pd.DataFrame(timed).assign(backward_ms=0.0, accumulate_ms=0.0).to_parquet(folder / "operators.parquet")
    monkeypatch.setenv("NEUSIGHT_DATA", str(tmp_path))
    return tmp_path


def keys(value: Any) -> set[str]:
    """Every key in nested lists and tables."""
    entries = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return set(value if isinstance(value, dict) else ()).union(*map(keys, entries))


def experiment(folder: Path, **changes: object) -> Experiment:
    declared = Declaration(
        title="Mine",
        question="How wrong?",
        steps=("kernels", "models", "operators"),
        data=Data(
            name="mine",
            kernels="gemm.parquet",
            latency="latency.parquet",
            configs="configs",
            published="published.parquet",
            operators="operators.parquet",
        ),
        split=Split(training=TRAINED, held_out=("l4",)),
        targets=Targets(model_mean_percent=10, model_worst_percent=40, kernel_share_of_roofline=0.5),
    )
    folder.mkdir(exist_ok=True)
    return Experiment("mine", folder, declared.model_copy(update=changes))


def test_a_run_finds_what_was_put_in_and_writes_the_same_files_again(data: Path, tmp_path: Path) -> None:
    mine = experiment(tmp_path / "out")
    results = run(mine)
    (only,) = results["runs"]
    assert only["tile_models"] == "shipped"
    predictors = only["models"]["groups"]["all"]["predictors"]
    assert predictors["ours"]["mean"] == pytest.approx(50, abs=0.01)
    assert (predictors["neusight"]["mean"], predictors["li"]["mean"]) == (0, pytest.approx(50))
    assert predictors["habitat"] is None
    # The step took twice our prediction.
    inside = [row["low_ms"] <= 2 * row["ours_ms"] <= row["high_ms"] for row in only["models"]["rows"]]
    assert [row["inside"] for row in only["models"]["rows"]] == inside
    assert only["kernels"]["held_out"][0]["mape"] == pytest.approx(50, abs=0.01)
    sums = results["operators"]["groups"]["all"]
    assert (sums["count"], sums["operators"]["mean"]) == (1, pytest.approx(0, abs=0.01))
    assert sums["ours"]["mean"] == pytest.approx(50, abs=0.01)
    tables = {f"{part}.parquet" for part in ("gemm", "latency", "published", "operators")}
    assert set(results["sha256"]) == tables | {"configs/mine.json"}
    first = {path.name: path.read_bytes() for path in write_results(mine, results)}
    assert set(first) == {"results.json", "report.md", "models.png", "gpus.png", "kernels.png"}
    assert load_results(mine) == results
    assert first == {path.name: path.read_bytes() for path in write_results(mine, run(mine))}
    report = first["report.md"].decode()
    assert "l4 mine inference 2 × 128: -50.0 %" in report
    assert "| mean error of 2 whole models, %" in report
    assert "## Sums of measured operators" in report
    (row,) = (line for line in report.splitlines() if line.startswith("| l4 ") and "| inference |" in line)
    errors = [cell.strip() for cell in row.split("|")[-7:-1]]
    assert errors == ["-50.0", "+0.0", "", "+50.0", "-50.0", "+0.0"]
    assert all(f"({name})" in report for name in first if name.endswith(".png"))


def test_tile_models_that_learned_from_a_held_out_gpu_are_refused(data: Path, tmp_path: Path) -> None:
    mine = experiment(tmp_path / "out", split=Split(training=("p4",), held_out=("l4", "t4")))
    with pytest.raises(DataError, match=r"learned from .*t4.*the experiment declares p4"):
        run(mine)


def test_published_predictions_of_other_measurements_are_refused(data: Path, tmp_path: Path) -> None:
    path = data / "mine" / "published.parquet"
    pd.read_parquet(path).assign(seq_len=7).to_parquet(path)
    with pytest.raises(DataError, match="covers no row"):
        run(experiment(tmp_path / "out"))
    path.write_bytes(b"PAR1")
    with pytest.raises(DataError, match="cannot read published predictions"):
        run(experiment(tmp_path / "out"))


def test_results_that_are_not_there_or_damaged_say_how_to_get_them(tmp_path: Path) -> None:
    mine = experiment(tmp_path / "out")
    with pytest.raises(DataError, match="not there: neusight experiments run mine"):
        load_results(mine)
    (mine.folder / "results.json").write_text("{")
    with pytest.raises(DataError, match="damaged"):
        load_results(mine)


def test_neither_measurements_nor_published_predictions_are_stored(data: Path, tmp_path: Path) -> None:
    mine = experiment(tmp_path / "out")
    write_results(mine, run(mine))
    theirs = {f"{name}_ms" for name in PREDICTORS if name != "ours"}
    for stored in (load_results(mine), load_results(SHIPPED)):
        found = keys(stored)
        assert {"ours_ms", "low_ms", "high_ms", "inside", "errors"} <= found
        assert not found & (theirs | {"e2e_ms", "operators_ms"})
        assert not [key for key in found if "measured" in key]
    # The published roofline is left out: it was made half of what was measured, which is our prediction.
    said = pd.read_parquet(data / "mine" / "published.parquet")
    secret = {f"{ms:.5g}" for ms in [*said["neusight_ms"], *said["li_ms"]]}
    written = (mine.folder / "results.json").read_text()
    assert not [ms for ms in secret if ms in written]


@needs_data
def test_training_makes_one_run_a_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a small sample of the measured rows, with the backend that learns nothing: the path, not the accuracy."""
    declared = SHIPPED.declared
    source = declared.data.path("kernels")
    (tmp_path / "sample" / "kernels").mkdir(parents=True)
    for name in FAMILY_FILES:
        rows = pd.read_parquet(source / f"{name}.parquet")
        keys = ["gpu", "op", "split"]
        rows.groupby(keys).sample(frac=0.02, random_state=0).to_parquet(tmp_path / "sample/kernels" / f"{name}.parquet")
    monkeypatch.setenv("NEUSIGHT_DATA", str(tmp_path))
    models = TileModels(train=True, backend="roofline", seeds=(0, 1))
    data = Data(name="sample", kernels="kernels")
    mine = experiment(tmp_path / "out", data=data, steps=("kernels",), tile_models=models, split=declared.split)
    results = run(mine)
    assert [found["tile_models"] for found in results["runs"]] == ["roofline, seed 0", "roofline, seed 1"]
    assert set(results["runs"][0]["provenance"]["training_gpus"]) == set(TRAINED)
    write_results(mine, results)
    assert "## Sets of tile models" in (mine.folder / "report.md").read_text()


def test_readme_shows_what_the_shipped_results_say() -> None:
    assert SHIPPED.declared.readme
    readme = checkout_dir("README.md").read_text(encoding="utf-8")
    block = readme.split("<!-- accuracy:begin -->\n")[1].split("\n<!-- accuracy:end -->")[0]
    assert block == accuracy_block(load_results(SHIPPED))


def test_the_shipped_report_is_rendered_from_the_shipped_results() -> None:
    from neusight.experiments.report import render

    figures = ["models.png", "gpus.png", "kernels.png"]
    assert all((SHIPPED.folder / name).is_file() for name in figures)
    assert (SHIPPED.folder / "report.md").read_text(encoding="utf-8") == render(load_results(SHIPPED), figures)


def test_shipped_results_are_of_the_declared_experiment() -> None:
    results = load_results(SHIPPED)
    declared = rounded(SHIPPED.declared.model_dump(mode="json"))
    assert {key: results[key] for key in declared} == declared


def test_shipped_results_are_of_the_tile_models_that_ship() -> None:
    said = load_results(SHIPPED)["runs"][0]["provenance"]
    assert said == Predictor.load().kernel_predictor.provenance, "run the experiment again"


@needs_data
def test_shipped_headline_figures_are_what_a_fresh_run_finds() -> None:
    declared = SHIPPED.declared.model_copy(update={"steps": ("models",)})
    fresh = evaluated(declared, Predictor.load())["models"]["groups"]
    shipped = load_results(SHIPPED)["runs"][0]["models"]["groups"]
    assert (fresh["all"]["count"], fresh["held_out"]["count"]) == (58, 20)
    for name, group in fresh.items():
        for predictor, error in group["predictors"].items():
            said = shipped[name]["predictors"][predictor]
            assert (error is None) == (said is None)
            if error:
                assert error["mean"] == pytest.approx(said["mean"], abs=0.2), f"{name}, {predictor}: run it again"


def test_commands_list_and_refuse() -> None:
    listed = CliRunner().invoke(app, ["experiments", "list", "--format", "json"])
    assert listed.exit_code == 0
    assert {"id": "held-out-fp32", "data": "neusight-fp32"}.items() <= json.loads(listed.stdout)[0].items()
    refused = CliRunner().invoke(app, ["experiments", "run", "held-out-fp31"])
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "did you mean held-out-fp32" in refused.stderr
