"""Simulated experiments: rows against the scheduler and formulas, groups of them, and profiles that do not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from neusight.errors import DataError
from neusight.kernels.sparsity import LayerSparsity, OperandSparsity
from neusight.lab import find_experiment, run, summary_of, write_results
from neusight.lab.declare import ErrorGroup
from neusight.lab.groups import grouped
from neusight.lab.simulated import CHANGES
from neusight.transforms.sparsity import SparsityProfile

DECLARED = """
title = "Mine"
question = "How fast?"

[simulation]
uniform = [0.0, 0.5]
random = { length = 64, rows = [1, 4], sparsities = [0.0, 0.5], seeds = [0], clusterings = [0.0, 0.8] }
designs = { rows = [1, 4], depth = [1, 3] }

[[simulation.networks]]
name = "mine"
model = "neusight.lab.networks:graph_convolution"
batch = 1
profile = "zeros.json"
updates = 9
measured = "by hand"
course = { 4 = "zeros-after-4.json" }
others = { "few zeros" = "zeros-after-4.json" }

[[contestants]]
name = "tile model"
kind = "column"
options = { column = "model" }

[[contestants]]
name = "dense twin"
kind = "column"
options = { column = "dense" }

[[groups]]
name = "random"
where = { contestant = "dense twin", axis = ["random", "clustering"] }
by = ["axis", "machine", "sparsity", "cluster", "clustering"]
figure = "factor"

[[groups]]
name = "cases"
where = { contestant = "dense twin", layer = "all" }
by = ["quantity", "product", "axis", "value"]
across = "value"
figure = "factor"

[[groups]]
name = "zeros"
where = { contestant = "dense twin", layer = "all", value = "as measured", quantity = "cycles" }
by = ["network", "product"]
across = "product"
figure = "zeros"

[[groups]]
name = "layers"
where = { contestant = "dense twin", layer = { not = "all" }, value = "as measured", quantity = "cycles" }
by = ["network", "number", "product"]
figure = "factor"
detail = true

[[groups]]
name = "tile model"
where = { contestant = "tile model", layer = { not = "all" }, value = "as measured", quantity = "cycles" }
by = ["network"]

[[figures]]
file = "layers"
kind = "curve"
group = "layers"
x = "number"
lines = ["product"]
figure = "factor"
caption = "Layers."

[[targets]]
target = "tile model, worst product"
table = "tile model"
figure = "worst"
at_most = 3
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("experiments") / "mine"
    folder.mkdir()
    (folder / "experiment.toml").write_text(DECLARED)
    for file, share in (("zeros.json", 0.6), ("zeros-after-4.json", 0.1)):
        layer = LayerSparsity(OperandSparsity(share), OperandSparsity(share), OperandSparsity(0.0))
        SparsityProfile(model="mine", layers=dict.fromkeys(("first", "second"), layer)).save(folder / file)
    return folder


@pytest.fixture(scope="module")
def results(folder: Path) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("NEUSIGHT_DATA", raising=False)
        return run(find_experiment("mine", folder.parent))


@pytest.fixture(scope="module")
def cases(results: dict[str, Any]) -> dict[Any, float]:
    keys = ("quantity", "product", "axis", "value")
    return {tuple(row[key] for key in keys): row["factor"] for row in results["groups"]["cases"]}


def test_random_zeros_gain_as_the_scheduler_says(results: dict[str, Any]) -> None:
    keys = ("axis", "machine", "sparsity", "cluster", "clustering")
    found = {tuple(row[key] for key in keys): row["factor"] for row in results["groups"]["random"]}
    one, four = (found["random", f"{rows} PE rows", 0.5, "stream", 0.0] for rows in (1, 4))
    assert 1.0 < four < one < found["random", "law", 0.5, "", 0.0] == 2.0
    assert found["random", "1 PE rows", 0.0, "stream", 0.0] == 1.0
    together, apart = (found["clustering", "4 PE rows", 0.5, "stream", share] for share in (0.8, 0.0))
    assert together < apart


def test_machines_and_zeros_change_the_gain_as_they_must(cases: dict[Any, float]) -> None:
    ours = {keys[2:]: factor for keys, factor in cases.items() if keys[:2] == ("cycles", "all")}
    assert ours["depth", "1"] == 1.0
    assert ours["rows", "1"] > ours["rows", "4"] > 1.5
    assert 1.0 <= ours["updates", "4"] < ours["updates", "end"] == ours["zeros", "as measured"]
    assert ours["zeros", "few zeros"] == ours["updates", "4"]
    # Zeros that are independent, in no weights, and as many in gradients: nothing is left to change.
    assert {ours["zeros", name] for name in CHANGES} == {ours["zeros", "as measured"]}
    # The second layer's ten classes leave six of sixteen lanes empty, which are skipped like zeros.
    assert 1.0 <= ours["share", "0%"] < 1.1 < ours["share", "50%"] <= 3.0


def test_energy_follows_cycles_and_memories_save_nothing(cases: dict[Any, float]) -> None:
    cycles, compute, energy = (
        cases[name, "all", "zeros", "as measured"] for name in ("cycles", "compute_j", "energy_j")
    )
    assert compute == pytest.approx(cycles / 1.02, rel=0.01)
    assert 1.0 < energy < compute


def test_products_lie_between_dense_and_the_depth_and_the_tile_model_knows_them(results: dict[str, Any]) -> None:
    layers = results["groups"]["layers"]
    assert {row["product"] for row in layers} == {"A·W", "G·W", "G·A"}
    assert all(1.0 <= row["factor"] <= 3.0 for row in layers)
    assert {row["product"]: row["zeros"] for row in results["groups"]["zeros"]} == pytest.approx(
        dict.fromkeys(("A·W", "G·W", "G·A", "all"), 0.6)
    )
    (verdict,) = results["verdicts"]
    assert verdict["met"] and verdict["value"] > 0


def test_a_group_of_details_is_drawn_and_not_kept(results: dict[str, Any], tmp_path: Path) -> None:
    assert (tmp_path / "layers.png") in write_results(tmp_path, results)
    assert "layers" not in summary_of(results)["groups"]
    report = (tmp_path / "report.md").read_text()
    assert "| network |  A·W |" in report and "![layers](layers.png)" in report


def test_a_factor_is_a_geometric_mean() -> None:
    lines = pd.DataFrame({"predicted": [4.0, 1.0], "measured": [1.0, 1.0], "low": None, "high": None})
    rows = lines.assign(quantity="cycles", pairs=None, name="a")
    (found,) = grouped(rows, ErrorGroup(name="g", by=("name",), figure="factor"))
    assert found["factor"] == pytest.approx(2.0)


def test_a_profile_that_is_not_there_or_of_other_layers_is_one_line(folder: Path) -> None:
    experiment, file = find_experiment("mine", folder.parent), folder / "zeros.json"
    before = file.read_text()
    SparsityProfile(model="x", layers={"third": LayerSparsity(*[OperandSparsity(0.1)] * 3)}).save(file)
    with pytest.raises(DataError, match="unknown third"):
        run(experiment)
    file.unlink()
    with pytest.raises(DataError, match="cannot read the sparsity profile"):
        run(experiment)
    file.write_text(before)
