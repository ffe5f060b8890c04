"""Notebooks are committed as they ran, with what they show, and run on the public interface alone."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib
import pytest

NOTEBOOKS = sorted((Path(__file__).resolve().parent.parent / "notebooks").glob("*.ipynb"))
PUBLIC = {
    "neusight",
    "neusight.collect.sparsity",
    "neusight.lab",
    "neusight.learn.training",
    "neusight.measured",
    "neusight.questions",
    "neusight.serving",
}
"""Modules whose docstrings say what they offer; everything else may change without notice."""
PRIVATE = re.compile(r"measured_ms|e2e_ms|latency_ms.*measured|(^|[\s'\"(])/(home|root|tmp|work|Users)/")
"""Columns of measured rows, which are nobody's to publish, and paths of the machine that ran it."""


def cells(path: Path) -> list[dict[str, Any]]:
    found = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [{**cell, "source": "".join(cell["source"])} for cell in found if cell["cell_type"] == "code"]


def shown(cell: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Kind and text of everything that a cell left."""
    for output in cell["outputs"]:
        for kind, text in (
            output.get("data") or {output.get("name", output["output_type"]): output.get("text", "")}
        ).items():
            yield kind, "".join(text)


def faults(path: Path) -> Iterator[str]:
    code, outputs = cells(path), [kind_text for cell in cells(path) for kind_text in shown(cell)]
    if [cell["execution_count"] for cell in code] != list(range(1, len(code) + 1)):
        yield "not run from top to bottom: make notebooks"
    if bad := {kind for kind, _ in outputs} & {"error", "stderr"}:
        yield f"left {bad}"
    yield from (f"has no {kind}" for kind in ("stdout", "text/html", "image/png") if kind not in dict(outputs))
    yield from (f"shows {text[:80]}" for kind, text in outputs if kind != "image/png" and PRIVATE.search(text))
    if any("is not set" in text for _, text in outputs):
        yield "ran without the measured data"
    tree = ast.parse("\n".join(cell["source"] for cell in code))
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    yield from (f"imports {m}" for m in modules if m.startswith("neusight") and m not in PUBLIC)


def test_notebooks_are_committed_as_they_ran() -> None:
    assert len(NOTEBOOKS) >= 5
    assert [f"{path.name} {fault}" for path in NOTEBOOKS for fault in faults(path)] == []


def test_what_needs_neither_data_nor_minutes_runs_here_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them run by ``make notebooks``."""
    matplotlib.use("agg")
    monkeypatch.delenv("NEUSIGHT_DATA", raising=False)
    for path in NOTEBOOKS:
        if path.name in ("01_predict.ipynb", "03_unseen_gpus.ipynb"):
            names: dict[str, Any] = {"__name__": "notebook"}
            for cell in cells(path):
                exec(compile(cell["source"], str(path), "exec"), names)
            assert "comparison" in names
    matplotlib.pyplot.close("all")
