"""Whole runs on small data sets made here: measured ones against formulas, simulated ones against the scheduler."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import Any

import pandas as pd
import pytest

from neusight.errors import DataError
from neusight.experiments import Experiment, run
from neusight.experiments.declare import RowGroup
from neusight.experiments.simulated import CHANGES
from neusight.experiments.sparse import group_rows
from neusight.kernels.sparsity import LayerSparsity, OperandSparsity
from neusight.transforms.sparsity import SparsityProfile


def changed(experiment: Experiment, **changes: Any) -> Experiment:
    return replace(experiment, declared=experiment.declared.model_copy(update=changes))


def ratios(results: dict[str, Any], group: str, *keys: str) -> dict[Any, float]:
    return {tuple(row[key] for key in keys): row["ratio"] for row in results["by_group"][group]}


def test_a_simulated_run_finds_what_the_scheduler_does(sparse_results: dict[str, Any]) -> None:
    random = ratios(sparse_results, "random", "machine", "sparsity")
    assert random["1 PE rows", 0.0] == random["4 PE rows", 0.0] == 1.0
    assert 1.0 < random["4 PE rows", 0.5] < random["1 PE rows", 0.5] < random["law", 0.5] == 2.0
    clustered = ratios(sparse_results, "clustering", "cluster", "clustering")
    assert clustered["stream", 0.8] < clustered["stream", 0.0]
    products = sparse_results["products"]
    assert {row["product"] for row in products} == {"A·W", "G·W", "G·A"}
    assert all(1.0 <= row["ratio"] <= 3.0 for row in products)
    cases = ratios(sparse_results, "cases", "network", "product", "axis", "value")
    assert cases["mine", "all", "depth", "1"] == 1.0
    assert cases["mine", "all", "rows", "1"] > cases["mine", "all", "rows", "4"] > 1.5


def test_simulated_networks_are_sums_of_their_products(sparse_results: dict[str, Any]) -> None:
    products = sparse_results["products"]
    dense, cycles = (sum(row[key] for row in products) for key in ("dense", "measured"))
    whole = ratios(sparse_results, "cases", "network", "product", "axis", "value")
    assert whole["mine", "all", "zeros", "as measured"] == pytest.approx(dense / cycles, rel=1e-4)
    energy = ratios(sparse_results, "energy", "network", "quantity")
    assert energy["mine", "energy of compute"] == pytest.approx(energy["mine", "cycles"] / 1.02, rel=0.01)
    assert 1.0 < energy["mine", "with memories"] < energy["mine", "energy of compute"]
    (tile_model,) = sparse_results["by_group"]["tile_model"]
    assert tile_model["worst"] == pytest.approx(max(abs(row["model_error"]) for row in products))
    assert tile_model["count"] == len(products)


def test_zeros_grow_with_updates_and_their_changes_are_told_apart(sparse_results: dict[str, Any]) -> None:
    cases = ratios(sparse_results, "cases", "network", "product", "axis", "value")
    ours, means = (
        {keys[2:]: ratio for keys, ratio in cases.items() if keys[:2] == (network, "all")}
        for network in ("mine", "geometric mean")
    )
    assert ours == means
    assert 1.0 <= ours["updates", "4"] < ours["updates", "end"] == ours["zeros", "as measured"]
    # Zeros that are independent, in no weights, and as many in gradients: nothing is left to change.
    assert {ours["zeros", name] for name in CHANGES} == {ours["zeros", "as measured"]}
    assert ours["zeros", "few zeros"] == ours["updates", "4"]


def test_without_zeros_the_machine_is_its_dense_twin(sparse_results: dict[str, Any]) -> None:
    cases = ratios(sparse_results, "cases", "network", "product", "axis", "value")
    # The second layer's ten classes leave six of sixteen lanes empty, which are skipped like zeros.
    assert 1.0 <= cases["mine", "all", "share", "0%"] < 1.1 < cases["mine", "all", "share", "50%"] <= 3.0
    shares = {row["product"]: row["zeros"] for row in sparse_results["by_group"]["zeros"]}
    assert shares == dict.fromkeys(("A·W", "G·W", "G·A", "all"), 0.6)


def test_a_common_row_is_the_geometric_mean_of_networks_that_have_all() -> None:
    labels = {"axis": "zeros", "product": "all", "quantity": "cycles", "layer": "all", "zeros": 0.5}
    lines = [("a", "x", 4.0), ("b", "x", 1.0), ("c", "x", 9.0), ("a", "y", 2.0)]
    rows = pd.DataFrame([{**labels, "network": n, "value": v, "dense": d, "measured": 1.0} for n, v, d in lines])
    group = RowGroup(name="g", title="g", by=("network",), across=("value",))
    found = {(row["network"], row["value"]): row["ratio"] for row in group_rows(group, rows, ["a", "b"])}
    assert found["geometric mean", "x"] == pytest.approx(2.0)
    assert ("geometric mean", "y") not in found and found["c", "x"] == pytest.approx(9.0)


def test_a_profile_that_is_not_there_or_of_other_layers_is_one_line(sparse: Experiment, tmp_path: Path) -> None:
    experiment = replace(sparse, folder=Path(copytree(sparse.folder, tmp_path / "mine")))
    layers = {"third": LayerSparsity(*[OperandSparsity(0.1)] * 3)}
    SparsityProfile(model="x", layers=layers).save(experiment.folder / "zeros.json")
    with pytest.raises(DataError, match="unknown third"):
        run(experiment)
    (experiment.folder / "zeros.json").unlink()
    with pytest.raises(DataError, match="cannot read the sparsity profile"):
        run(experiment)
