"""Results on disk: ``results.json`` with everything that the report and the figures are made of."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from math import isfinite
from pathlib import Path
from typing import Any

from neusight.errors import DataError
from neusight.executors.gpu.tile_models.artifact import file_sha256
from neusight.experiments.declare import Data, Declaration, Experiment, SparseExperiment
from neusight.paths import read_json

RESULTS = "results.json"
REPORT = "report.md"
DIGITS = 5
"""Significant digits in results: more would differ between machines."""
ROW_DECIMALS = 1
"""Decimals of a single row's errors in percent: a report on measurements, not a copy of them."""
_OF_ROWS = ("errors", "parts", "error")
_PACKAGES = ("neusight", "numpy", "torch", "lightgbm", "scikit-learn")


def data_sha256(declared: Declaration) -> dict[str, str]:
    """SHA-256 of every data file that may be read, by path below the data set's folder."""
    data = declared.data
    parts = ("kernels", "latency", "configs", "published", "operators")
    paths = [data.path(part) for part in parts if getattr(data, part)]
    files = [file for path in paths for file in (sorted(path.glob("*")) if path.is_dir() else [path])]
    return {_below(data, file): file_sha256(file) for file in files if file.is_file()}


def _below(data: Data, file: Path) -> str:
    return file.relative_to(data.folder).as_posix()


def versions() -> dict[str, str]:
    """Versions of the libraries that figures depend on."""
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "unknown"
    return found


def rounded(value: Any) -> Any:
    """Floats to ``DIGITS`` significant digits, and None for what is no number, all through lists and tables; errors of
    rows to ``ROW_DECIMALS``.
    """
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _of_row(entry) if key in _OF_ROWS else rounded(entry) for key, entry in value.items()}
    return [rounded(entry) for entry in value] if isinstance(value, list | tuple) else value


def _of_row(errors: Any) -> Any:
    if isinstance(errors, Mapping):
        return {name: _of_row(error) for name, error in errors.items()}
    return None if errors is None or not isfinite(errors) else round(float(errors), ROW_DECIMALS)


def load_results(experiment: Experiment | SparseExperiment) -> dict[str, Any]:
    """What the last run left.

    Raises:
        DataError: it never ran, or the file is damaged.
    """
    return read_results(experiment.folder, f"neusight experiments run {experiment.id}")


def read_results(path: Path, remedy: str = "give results.json or the folder that holds it") -> dict[str, Any]:
    """Results from a file, or from the folder that holds it.

    Raises:
        DataError: not there, damaged, or something else.
    """
    file = path / RESULTS if path.is_dir() or not path.suffix else path
    try:
        found = read_json(file)
    except OSError:
        raise DataError(f"{file} is not there: {remedy}") from None
    except ValueError as error:
        raise DataError(f"{file} is damaged ({error}): {remedy}") from None
    if not isinstance(found, dict) or not ({"experiment", "folds", "predictors"} <= set(found) or is_sparse(found)):
        raise DataError(f"{file} holds no results of an experiment: {remedy}")
    return found


def is_sparse(results: Mapping[str, Any]) -> bool:
    """Whether they are those of a simulated experiment."""
    return results.get("kind") == "sparse"


def as_text(results: Mapping[str, Any]) -> str:
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


def write_results(folder: Path, results: dict[str, Any]) -> list[Path]:
    """Write results, figures and report into a folder; the same results give the same files."""
    from neusight.experiments import figures as of_measured
    from neusight.experiments import report, sparse_report

    folder.mkdir(parents=True, exist_ok=True)
    figures = of_measured.draw(results, folder)
    text = sparse_report.render(results, figures) if is_sparse(results) else report.render(results, figures)
    texts = {RESULTS: as_text(results), REPORT: text}
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in (*texts, *figures)]
