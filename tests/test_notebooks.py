"""Every notebook runs from top to bottom on the public interface alone."""

import ast
import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = sorted((Path(__file__).resolve().parent.parent / "notebooks").glob("*.ipynb"))
PUBLIC = {
    "neusight",
    "neusight.collect.sparsity",
    "neusight.datasets",
    "neusight.evaluation",
    "neusight.experiments",
    "neusight.learn.training",
}
"""Modules whose docstrings say what they offer; everything else may change without notice."""


def code_of(path: Path) -> list[str]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


@pytest.fixture(params=NOTEBOOKS, ids=lambda p: p.name)
def notebook(request: pytest.FixtureRequest) -> Path:
    return request.param


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


def test_uses_the_public_interface_only(notebook: Path) -> None:
    tree = ast.parse("\n".join(code_of(notebook)))
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {m for m in modules if m and m.startswith("neusight")} <= PUBLIC


def test_is_stored_without_output(notebook: Path) -> None:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    assert all(not cell["outputs"] for cell in cells if cell["cell_type"] == "code")


def test_runs_and_ends_in_predicted_against_measured(notebook: Path) -> None:
    names: dict[str, Any] = {"__name__": "notebook"}
    for cell in code_of(notebook):
        exec(compile(cell, str(notebook), "exec"), names)
    assert "comparison" in names
    if names["data"]:
        assert (names["comparison"]["measured_ms"] > 0).all()
        assert len(names["comparison"]) > 0
