"""Results of a run: what they hold, what of them is committed, and how both lie on disk.

``results.json`` has everything, row by row, and is rebuilt by running the experiment again. ``summary.json`` is small
and committed: the same without rows, enough for the report and docs/accuracy.md. Where the declaration, or what it
means, changed after the run, ``outdated`` says in which way figures are of another than ``declared``; the next run has
none.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from math import isfinite
from os.path import relpath
from pathlib import Path
from typing import Any

from neusight.errors import DataError
from neusight.executors.gpu.tile_models.artifact import file_sha256
from neusight.experiments.baselines.lines import FAMILIES
from neusight.experiments.declare import Declaration, Experiment
from neusight.experiments.models import PUBLISHED
from neusight.paths import read_json

RESULTS, SUMMARY = "results.json", "summary.json"
DIGITS = 5
"""Significant digits in results: more would differ between machines."""
ROW_DECIMALS = 1
"""Decimals of a single row's errors in percent: a report on measurements, not a copy of them."""
PLANNED = "plan"
"""The few-shot design that is judged: kernels chosen before anything of the GPU is measured."""
KINDS = ("linear", "bmm", "conv2d", "elementwise", "softmax", "layer_norm", *FAMILIES)
"""Kinds of kernels in the order of tables and figures."""
_PACKAGES = ("neusight", "numpy", "torch", "lightgbm", "scikit-learn")
Results = Mapping[str, Any]


def data_sha256(declared: Declaration) -> dict[str, str]:
    """SHA-256 of every data file that may be read, by its path from the data set's folder."""
    data = declared.data
    parts = ("kernels", "latency", "configs", "published", "operators")
    paths = [one.path(part) for one in data.together() for part in parts if getattr(data, part)]
    files = [file for path in paths for file in (sorted(path.glob("*")) if path.is_dir() else [path])]
    return {Path(relpath(file, data.folder)).as_posix(): file_sha256(file) for file in files if file.is_file()}


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


def titles(results: Results) -> dict[str, str]:
    """Names of the predictors as people read them, in order: those that took part, then those that published any."""
    own = {entry["name"]: entry["title"] or entry["name"] for entry in results["declared"]["predictors"]}
    named = {row["predictor"] for row in results.get("models", {}).get("groups", ())}
    return own | {name: title for name, title in PUBLISHED.items() if name in named}


def judged(results: Results) -> str:
    """The predictor that the targets judge: the first."""
    return str(results["declared"]["predictors"][0]["name"])


def kinds_in(rows: Iterable[Results]) -> list[str]:
    """Kinds of kernels that rows name, in order."""
    return _in_order((row["kind"] for row in rows), KINDS)


def gpus_in(results: Results, named: Iterable[str]) -> list[str]:
    """Distinct GPUs: in the order of the declaration, then those of the folds."""
    declared = results["declared"]
    return _in_order(named, [*declared["gpus"], *(gpu for fold in declared["folds"] for gpu in fold["held_out"])])


def _in_order(values: Iterable[str], first: Sequence[str]) -> list[str]:
    distinct = list(dict.fromkeys(values))
    return [v for v in dict.fromkeys(first) if v in distinct] + [v for v in distinct if v not in first]
