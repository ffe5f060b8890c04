"""Whole runs on small data sets made here: measured ones against formulas, simulated ones against the scheduler."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import Any

import pandas as pd
import pytest
from conftest import DECLARED
from experiment_sets import FLOOR_MS, SHARE, STEP_MS

from neusight.devices import load_device
from neusight.errors import DataError
from neusight.experiments import Experiment, load_results, run, write_results
from neusight.experiments.declare import Contestant
from neusight.experiments.figures import FIGURES
from neusight.experiments.report import render
from neusight.experiments.sparse_networks import CHANGES
from neusight.kernels.sparsity import LayerSparsity, OperandSparsity
from neusight.transforms.sparsity import SparsityProfile

PARTS = ("A·W", "G·W", "G·A", "attention", "all")


def changed(experiment: Experiment, **changes: Any) -> Experiment:
    return replace(experiment, declared=experiment.declared.model_copy(update=changes))


def test_models_are_as_wrong_as_was_put_in(results: dict[str, Any]) -> None:
    groups = results["models"]["groups"]
    counts = {row["group"]: row["count"] for row in groups if row["predictor"] == "ours"}
    assert counts == {"all": 3, "held_out": 1, "training": 2, "other_vendor": 1}
    means = {row["predictor"]: row["mean"] for row in groups if row["group"] == "all"}
    assert (means["published:neusight"], means["published:li"]) == (0, pytest.approx(50))
    assert "published:habitat" not in means
    own = [row for row in results["models"]["rows"] if row["predictor"] == "ours"]
    for row in own:
        measured = STEP_MS[row["gpu"]]
        assert row["predicted_ms"] == pytest.approx(measured * (1 + row["error"] / 100), rel=2e-3)
        assert row["inside"] == (row["low_ms"] <= measured <= row["high_ms"])
    # The operators of the step add up to it: all of the error is theirs.
    (error,) = (row["error"] for row in own if row["gpu"] == "l4")
    for entry in results["models"]["oracle"]:
        assert entry["operators"]["bias"] == pytest.approx(error, abs=0.06)
        assert entry["composition"]["worst"] == pytest.approx(0)


def test_kernels_are_as_wrong_as_was_put_in(results: dict[str, Any]) -> None:
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


def test_kernels_are_told_by_what_is_known_of_their_gpu(results: dict[str, Any]) -> None:
    by = {(row["predictor"], row["kind"], row["kinship"]): row for row in results["kernels"]["by_kinship"]}
    assert {kinship for *_, kinship in by} == {"stranger"}
    assert by["ours", "bmm", "stranger"]["crps"] > 0
    assert "crps" not in by["bound", "bmm", "stranger"]
    assert "### By kinship" in render(results, [])


def test_what_was_held_out_taught_nothing_and_verdicts_name_what_falls_short(results: dict[str, Any]) -> None:
    trained = results["trained"]["mine"]
    assert {"ours", "bound"} == set(trained)
    assert trained["ours"]["training_gpus"] == ["t4", "v100-pcie-32gb"]
    by_target = {row["target"]: row for row in results["verdicts"]}
    row = by_target["linear, mean over 1 held-out GPUs"]
    assert (row["aim"], row["met"], row["short"]) == ("at most 0.001", False, [f"l4 {row['value']:.1f}"])
    mean = by_target["mean of 1 whole models, held-out GPUs"]
    assert mean["met"] == (mean["value"] <= 10)


def test_a_law_that_is_left_out_changes_what_is_predicted_and_nothing_that_is_trained(experiment: Experiment) -> None:
    first = DECLARED.predictors[0]
    without = first.model_copy(update={"name": "without", "physics": {"memory.gddr_share": 0.38}})
    found = run(changed(experiment, predictors=(first, without), report=("kernels",)))
    trained = found["trained"]["mine"]
    assert trained["without"] == trained[first.name]
    bias = {(c["predictor"], c["kind"]): c["bias"] for c in found["kernels"]["cells"] if c["gpu"] == "l4"}
    # Half of the sustained DRAM bandwidth: pointwise kernels take twice as long.
    assert bias["without", "elementwise"] > bias[first.name, "elementwise"] + 50


def test_the_same_run_writes_the_same_files_again_and_trains_nothing_twice(
    experiment: Experiment, results: dict[str, Any], written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr("neusight.experiments.folds.train", refuse)
    again = run(experiment)
    assert again["seconds"]["training"] == pytest.approx(results["seconds"]["training"], rel=0.9)
    again["seconds"] = results["seconds"]
    assert again == results
    first = {path.name: path.read_bytes() for path in written.iterdir()}
    assert {path.name: path.read_bytes() for path in write_results(experiment.folder, again)} == first
    assert load_results(experiment) == results
    figures = {name for name in first if name.endswith(".png")}
    assert figures == set(FIGURES) - {"few-shot.png"}
    assert all(f"({name})" in first["report.md"].decode() for name in figures)
    assert all(len(content) <= 100_000 for content in first.values())


def test_other_rows_or_data_are_trained_anew(experiment: Experiment, results: dict[str, Any]) -> None:
    data = DECLARED.data.model_copy(update={"training_split": "train"})
    other = run(changed(experiment, data=data, report=("kernels",)))
    ours, theirs = (r["trained"]["mine"]["ours"]["tile_models"] for r in (results, other))
    assert ours != theirs


def test_a_quick_run_says_so_wherever_its_figures_stand(experiment: Experiment) -> None:
    predictors = (Contestant(name="ours", options={"backend": "linear"}),)
    found = run(changed(experiment, predictors=predictors), quick=True)
    assert "no results" in found["quick"]
    assert f"**{found['quick']}**" in render(found, []).replace("\n> ", " ")


def test_what_cannot_be_tested_is_one_line(experiment: Experiment, data_set: Path) -> None:
    """Tile models that learned from a held-out GPU, rows that are not there, foreign or damaged predictions."""
    shipped = (Contestant(name="ours", kind="shipped"),)
    folds = tuple(fold.model_copy(update={"held_out": ("t4",)}) for fold in DECLARED.folds)
    with pytest.raises(DataError, match=r"'ours' learned from t4, which fold 'mine' holds out"):
        run(changed(experiment, predictors=shipped, folds=folds))
    data = DECLARED.data.model_copy(update={"tested_split": "tset"})
    with pytest.raises(DataError, match="no row of l4 in split 'tset'"):
        run(changed(experiment, data=data, report=("kernels",)))
    foreign = data_set / "mine" / "foreign.parquet"
    pd.read_parquet(data_set / "mine" / "published.parquet").assign(seq_len=7).to_parquet(foreign)
    data = DECLARED.data.model_copy(update={"published": foreign.name})
    with pytest.raises(DataError, match=r"no step on .* to compare"):
        run(changed(experiment, data=data, report=("models",)))
    foreign.write_bytes(b"PAR1")
    with pytest.raises(DataError, match="cannot read published predictions"):
        run(changed(experiment, data=data, report=("models",)))
    foreign.unlink()


def test_a_simulated_run_finds_what_the_scheduler_does(sparse_results: dict[str, Any]) -> None:
    random = {(row["rows"], row["sparsity"]): row["speedup"] for row in sparse_results["random"]}
    assert random[1, 0.0] == random[4, 0.0] == 1.0
    assert 1.0 < random[4, 0.5] < random[1, 0.5] < 2.0
    clustered = {(row["cluster"], row["clustering"]): row["speedup"] for row in sparse_results["clustering"]}
    assert clustered["stream", 0.8] < clustered["stream", 0.0]
    products = sparse_results["products"]
    assert {row["product"] for row in products} == {"A·W", "G·W", "G·A"}
    assert all(1.0 <= row["dense"] / row["cycles"] <= 3.0 for row in products)
    designs = {(row["axis"], row["value"]): row["speedup"] for row in sparse_results["designs"]}
    assert designs["depth", 1] == 1.0
    assert designs["rows", 1] > designs["rows", 4] > 1.5


def test_simulated_networks_are_sums_of_their_products(sparse_results: dict[str, Any]) -> None:
    network, mean = sparse_results["networks"]
    products = sparse_results["products"]
    assert mean == {**network, "network": "geometric mean"}
    dense, cycles = (sum(row[key] for row in products) for key in ("dense", "cycles"))
    assert network["all"] == pytest.approx(dense / cycles, rel=1e-4)
    assert network["compute_energy"] == pytest.approx(network["all"] / 1.02, rel=0.01)
    assert 1.0 < network["energy"] < network["compute_energy"]
    (tile_model,) = sparse_results["tile_model"]
    assert tile_model["worst"] == pytest.approx(max(abs(row["model_error"]) for row in products))


def test_zeros_grow_with_updates_and_their_changes_are_told_apart(sparse_results: dict[str, Any]) -> None:
    network = sparse_results["networks"][0]
    course = {row["updates"]: row for row in sparse_results["course"]}
    assert course[9] == {"network": "mine", "updates": 9} | {part: network[part] for part in PARTS}
    assert 1.0 <= course[4]["all"] < course[9]["all"]
    changed = {row["zeros"]: row["speedup"] for row in sparse_results["changed"] if row["network"] == "mine"}
    means = {row["zeros"]: row["speedup"] for row in sparse_results["changed"] if row["network"] == "geometric mean"}
    assert means == pytest.approx(changed)
    # Zeros that are independent, in no weights, and as many in gradients: nothing is left to change.
    assert {changed[name] for name in CHANGES} == {changed["as measured"]} == {network["all"]}
    assert changed["few zeros"] == course[4]["all"]


def test_without_zeros_the_machine_is_its_dense_twin(sparse_results: dict[str, Any]) -> None:
    uniform = {row["share"]: row["speedup"] for row in sparse_results["uniform"]}
    # The second layer's ten classes leave six of sixteen lanes empty, which are skipped like zeros.
    assert 1.0 <= uniform[0.0] < 1.1 < uniform[0.5] <= 3.0
    assert {row["product"]: row["zeros"] for row in sparse_results["zeros"]} == {
        "A·W": 0.6,
        "G·W": 0.6,
        "G·A": 0.6,
        "all": 0.6,
    }


def test_a_profile_that_is_not_there_or_of_other_layers_is_one_line(sparse: Experiment, tmp_path: Path) -> None:
    experiment = replace(sparse, folder=Path(copytree(sparse.folder, tmp_path / "mine")))
    layers = {"third": LayerSparsity(*[OperandSparsity(0.1)] * 3)}
    SparsityProfile(model="x", layers=layers).save(experiment.folder / "zeros.json")
    with pytest.raises(DataError, match="unknown third"):
        run(experiment)
    (experiment.folder / "zeros.json").unlink()
    with pytest.raises(DataError, match="cannot read the sparsity profile"):
        run(experiment)
