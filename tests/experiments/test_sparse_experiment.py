"""Simulated experiments: declared, run, reported; and what the checkout's left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from neusight.collect.sparsity import LayerSparsity, OperandSparsity, SparsityProfile
from neusight.errors import DataError
from neusight.experiments import find_experiment, list_experiments, load_results, read_results, run, write_results
from neusight.experiments.declare import SparseExperiment
from neusight.experiments.sparse_figures import DRAWINGS
from neusight.experiments.sparse_report import render
from neusight.experiments.sparse_run import summarised, verdicts

MODEL = "neusight.experiments.networks:graph_convolution"
GOOD = f"""
kind = "sparse"
title = "Mine"
question = "How fast?"

[random]
length = 64
rows = [1, 4]
sparsities = [0.0, 0.5]
seeds = [0]
clusterings = [0.0, 0.8]

[[networks]]
name = "mine"
model = "{MODEL}"
batch = 1
profile = "zeros.json"
measured = "by hand"

[designs]
rows = [1, 4]
depth = [1, 3]

[targets]
speedup = 1.9
compute_energy = 1.9
energy = 1.6
layer_error = 3.0
"""
DONE = [e for e in list_experiments() if isinstance(e, SparseExperiment) and (e.folder / "results.json").is_file()]


def declare(root: Path, text: str = GOOD, sparsity: float = 0.6) -> SparseExperiment:
    folder = root / "mine"
    folder.mkdir(parents=True)
    (folder / "experiment.toml").write_text(text)
    half = OperandSparsity(sparsity)
    layer = LayerSparsity(half, half, OperandSparsity(0.0))
    SparsityProfile(model="mine", layers=dict.fromkeys(("first", "second"), layer)).save(folder / "zeros.json")
    found = find_experiment("mine", root)
    assert isinstance(found, SparseExperiment)
    return found


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run(declare(tmp_path_factory.mktemp("sparse")))


def test_a_run_finds_what_the_scheduler_does(results: dict[str, Any]) -> None:
    random = {(row["rows"], row["sparsity"]): row["speedup"] for row in results["random"]}
    assert random[1, 0.0] == random[4, 0.0] == 1.0
    assert 1.0 < random[4, 0.5] < random[1, 0.5] < 2.0
    clustered = {(row["cluster"], row["clustering"]): row["speedup"] for row in results["clustering"]}
    assert clustered["stream", 0.8] < clustered["stream", 0.0]
    assert {row["product"] for row in results["products"]} == {"A·W", "G·W", "G·A"}
    assert all(1.0 <= row["dense"] / row["cycles"] <= 3.0 for row in results["products"])
    designs = {(row["axis"], row["value"]): row["speedup"] for row in results["designs"]}
    assert designs["depth", 1] == 1.0
    assert designs["rows", 1] > designs["rows", 4] > 1.5


def test_networks_are_sums_of_their_products(results: dict[str, Any]) -> None:
    network, mean = results["networks"]
    assert mean == {**network, "network": "geometric mean"}
    dense, cycles = (sum(row[key] for row in results["products"]) for key in ("dense", "cycles"))
    assert network["all"] == pytest.approx(dense / cycles, rel=1e-4)
    assert network["compute_energy"] == pytest.approx(network["all"] / 1.02, rel=0.01)
    assert 1.0 < network["energy"] < network["compute_energy"]


def test_geometric_means_and_verdicts_by_hand() -> None:
    def row(network: str, dense: float, cycles: float, error: float) -> dict[str, Any]:
        energy = {"compute_j": cycles, "dense_compute_j": dense, "memory_j": 0.0}
        known = {"network": network, "layer": "l", "product": "A·W", "model_error": error}
        return {**known, "dense": dense, "cycles": cycles, **energy}

    products = [row("a", 4.0, 1.0, -2.0), row("b", 1.0, 1.0, 5.0)]
    networks = summarised(products)
    assert [n["all"] for n in networks] == [4.0, 1.0, pytest.approx(2.0)]
    assert networks[-1]["G·W"] is None
    targets = {"speedup": 1.9, "compute_energy": 3.0, "energy": 2.0, "layer_error": 3.0}
    found = verdicts({"networks": networks, "products": products}, targets)
    assert [v["met"] for v in found] == [True, False, True, False]
    assert (found[-1]["value"], found[-1]["short"]) == (5.0, ["b l A·W"])


def test_results_report_and_figures_are_written_alike(results: dict[str, Any], tmp_path: Path) -> None:
    written = {path.name for path in write_results(tmp_path, results)}
    assert written == {"results.json", "report.md", *DRAWINGS}
    again = read_results(tmp_path)
    assert again == results
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert text == render(again, list(DRAWINGS))
    assert all(f"({name})" in text for name in DRAWINGS)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("length = 64", "lenght = 64", "unknown key 'random.lenght'; did you mean length?"),
        ("speedup = 1.9\n", "", "targets.speedup is missing"),
        ("batch = 1", "batch = 0", "networks.0.batch = 0"),
    ],
)
def test_a_mistake_is_one_line_with_file_and_key(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in GOOD
    with pytest.raises(DataError, match=r"experiment\.toml") as caught:
        declare(tmp_path, GOOD.replace(old, new))
    assert said in str(caught.value)


def test_a_profile_that_is_not_there_or_of_other_layers_is_one_line(tmp_path: Path) -> None:
    experiment = declare(tmp_path)
    SparsityProfile(model="x", layers={"third": LayerSparsity(*[OperandSparsity(0.1)] * 3)}).save(
        experiment.folder / "zeros.json"
    )
    with pytest.raises(DataError, match="unknown third"):
        run(experiment)
    (experiment.folder / "zeros.json").unlink()
    with pytest.raises(DataError, match="cannot read the sparsity profile"):
        run(experiment)


@pytest.mark.parametrize("experiment", DONE, ids=lambda e: e.id)
def test_reports_of_the_checkout_are_rendered_from_their_results(experiment: SparseExperiment) -> None:
    results = load_results(experiment)
    assert results["quick"] is None
    assert results["targets"] == experiment.declared.targets.model_dump()
    assert [n["name"] for n in results["networks_declared"]] == [n.name for n in experiment.declared.networks]
    text = (experiment.folder / "report.md").read_text(encoding="utf-8")
    assert text == render(results, list(DRAWINGS))
