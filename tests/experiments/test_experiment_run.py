"""Whole runs on small data sets made here: measured ones against formulas, simulated ones against the scheduler."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from neusight.errors import DataError
from neusight.experiments import Experiment, run
from neusight.experiments.sparse_networks import CHANGES
from neusight.kernels.sparsity import LayerSparsity, OperandSparsity
from neusight.transforms.sparsity import SparsityProfile

PARTS = ("A·W", "G·W", "G·A", "attention", "all")


def changed(experiment: Experiment, **changes: Any) -> Experiment:
    return replace(experiment, declared=experiment.declared.model_copy(update=changes))


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
