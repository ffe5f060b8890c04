"""Results of a run: what they hold, what of them is committed, and how both lie on disk.

``results.json`` has everything, row by row, and is rebuilt by running the experiment again. ``summary.json`` is small
and committed: the same without rows, enough for the report and docs/accuracy.md. Where the declaration, or what it
means, changed after the run, ``outdated`` says in which way figures are of another than ``declared``; the next run has
none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from math import isfinite
from pathlib import Path
from typing import Any

from neusight.errors import DataError
from neusight.experiments.declare import Experiment
from neusight.paths import read_json

RESULTS, SUMMARY = "results.json", "summary.json"
DIGITS = 5
"""Significant digits in results: more would differ between machines."""
ROW_DECIMALS = 1
"""Decimals of a single row's errors in percent: a report on measurements, not a copy of them."""
PLANNED = "plan"
"""The few-shot design that is judged: kernels chosen before anything of the GPU is measured."""
_PACKAGES = ("neusight", "numpy", "torch", "lightgbm", "scikit-learn")
Results = Mapping[str, Any]


def versions() -> dict[str, str]:
    """Versions of the libraries that figures depend on."""
    known = {}
    for package in _PACKAGES:
        try:
            known[package] = version(package)
        except PackageNotFoundError:
            known[package] = "unknown"
    return known


def rounded(value: Any, key: str = "") -> Any:
    """Floats to ``DIGITS`` significant digits, and None for what is no number, all through lists and tables; ``error``
    of rows to ``ROW_DECIMALS``.
    """
    if isinstance(value, float):
        short = round(value, ROW_DECIMALS) if key == "error" else float(f"{value:.{DIGITS}g}")
        return short if isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): rounded(entry, name) for name, entry in value.items()}
    return [rounded(entry) for entry in value] if isinstance(value, list | tuple) else value


def summary_of(results: Results) -> dict[str, Any]:
    """What is committed of results: no rows, of single kernels' errors by GPU those of the judged predictor alone, and
    of few-shot curves by GPU the planned ones. A summary's summary is itself.
    """
    summary = {name: part for name, part in results.items() if name not in ("trained", "rows")}
    if kernels := results.get("kernels"):
        cells = [cell for cell in kernels["cells"] if cell["predictor"] == judged(results)]
        summary["kernels"] = {**_without(kernels, "sample"), "cells": cells}
    if models := results.get("models"):
        summary["models"] = _without(models, "rows")
    if curve := results.get("few_shot_curve"):
        cells = [_without(cell, "inside", "width") for cell in curve["cells"] if cell["design"] == PLANNED]
        summary["few_shot_curve"] = {**curve, "cells": cells}
    return summary


def _without(table: Results, *keys: str) -> dict[str, Any]:
    return {key: entry for key, entry in table.items() if key not in keys}


def has_rows(results: Results) -> bool:
    """Whether they are a run's own, with single predictions, and no summary."""
    kernels, models = results.get("kernels", {}), results.get("models", {})
    return "rows" in results or "sample" in kernels or "rows" in models


def load_results(experiment: Experiment) -> dict[str, Any]:
    """What the last run left: all of it where it ran here, else its summary.

    Raises:
        DataError: it never ran, or the file is damaged.
    """
    return read_results(experiment.folder, f"neusight experiments run {experiment.id}")


def read_results(path: Path, remedy: str = "give results.json, summary.json or their folder") -> dict[str, Any]:
    """Results from a file, or from the folder that holds it: ``results.json``, else ``summary.json``.

    Raises:
        DataError: not there, damaged, or something else.
    """
    file = path
    if path.is_dir() or not path.suffix:
        file = path / (RESULTS if (path / RESULTS).is_file() else SUMMARY)
    try:
        content = read_json(file)
    except OSError:
        raise DataError(f"{file} is not there: {remedy}") from None
    except ValueError as error:
        raise DataError(f"{file} is damaged ({error}): {remedy}") from None
    if not _are_results(content):
        raise DataError(f"{file} holds no results of an experiment: {remedy}")
    return content


def _are_results(content: Any) -> bool:
    if not isinstance(content, dict) or not {"experiment", "declared", "quick", "verdicts"} <= set(content):
        return False
    return isinstance(content["declared"], dict) and "kind" in content["declared"]


def as_text(results: Results) -> str:
    """JSON with a line for each row of its lists: short to scroll, and easy to compare."""
    return f"{_lines(results, 0)}\n"


def _lines(value: Any, depth: int) -> str:
    inner, outer = " " * (depth + 1), " " * depth
    if isinstance(value, Mapping) and any(isinstance(entry, Mapping | list) for entry in value.values()) and depth < 3:
        entries = (f"{inner}{json.dumps(key)}: {_lines(entry, depth + 1)}" for key, entry in value.items())
        return "{\n" + ",\n".join(entries) + f"\n{outer}}}"
    if isinstance(value, list) and any(isinstance(entry, Mapping) for entry in value):
        entries = (f"{inner}{json.dumps(entry, ensure_ascii=False)}" for entry in value)
        return "[\n" + ",\n".join(entries) + f"\n{outer}]"
    return json.dumps(value, ensure_ascii=False)


def judged(results: Results) -> str:
    """The predictor that the targets judge: the first."""
    return str(results["declared"]["predictors"][0]["name"])
