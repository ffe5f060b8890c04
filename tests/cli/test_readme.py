"""What README shows of a command is what the command prints."""

from __future__ import annotations

import json
import re
import shlex

import pytest
from cli_runs import run

from neusight.laws.fitted import UNMOVED
from neusight.paths import checkout_dir

README = checkout_dir("README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```console\n\$ neusight (.+?[^\\])\n(.+?)^```", README, re.M | re.S)


def test_readme_shows_a_step_a_served_model_training_and_what_ifs() -> None:
    assert [command.partition(" ")[0] for command, _ in EXAMPLES] == ["predict", "serving", "training", "what-if"]


@pytest.mark.parametrize(("command", "shown"), EXAMPLES, ids=[command.split()[0] for command, _ in EXAMPLES])
def test_an_example_prints_what_readme_shows(command: str, shown: str) -> None:
    """All of it, or its beginning where an ellipsis stands below."""
    printed = run(*shlex.split(command.replace("\\\n", " "))).stdout
    assert printed.startswith(shown.removesuffix("…\n"))
    assert shown.endswith("…\n") or printed == shown


FIGURES = {"inside": 1, "width": 2, "crps": 3}
"""Of coverage, and their digits."""
MODELS = {
    "products on matrix units": "matrix",
    "attention": "attention",
    "layers of experts": "moe",
    "streams": "stream",
    "products in float32": "gemm",
    "convolutions in float32": "conv2d",
}


def test_errors_of_gpus_left_out_are_those_of_the_models_that_ship() -> None:
    rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in README.splitlines() if line[:1] == "|"]
    shown = {row[0]: row[1:] for row in rows if row[0] in MODELS and len(row) > 2}
    assert shown.keys() == MODELS.keys()
    listed = {row["name"]: row["left_out"] for row in json.loads(run("models", "list", "--format", "json").stdout)}
    figures = ("physics", "learned", "as_shipped", "sibling_physics", "sibling", "own_physics", "own")
    for name, cells in shown.items():
        errors = [listed[MODELS[name]].get(figure) for figure in figures]
        assert cells == ["" if error is None else f"{error:.1f}" for error in errors], name


def test_intervals_and_constants_are_those_that_ship() -> None:
    models = {row["name"]: row for row in json.loads(run("models", "list", "--format", "json").stdout)}
    lines = README.splitlines()
    for title, name in MODELS.items():
        for row in (row for row in models[name]["coverage"] if row["rows"] >= 200):
            cells = [f"{row['gpus']}", f"{row['rows']:,}", *(f"{row[k]:.{d}f}" for k, d in FIGURES.items())]
            expected = [f"{title}: {row['family']}", row["kinship"], *cells]
            assert any([cell.strip() for cell in line[1:-1].split("|")] == expected for line in lines), expected
    constants = json.loads(run("models", "show", "physics", "--format", "json").stdout)
    unmoved = sum(row["kept"] >= UNMOVED for row in constants)
    assert f"{len(constants)}, fitted to" in README
    assert f"no data move {unmoved} of them" in README
