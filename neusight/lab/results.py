"""Results of a run on disk: ``results.json`` has everything, ``summary.json`` the same without rows, and is committed.

Where the declaration, or what it means, changed after the run, ``outdated`` says in which way figures are of another;
the next run has none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any

from neusight.errors import DataError
from neusight.learn.card import versions_of
from neusight.paths import read_json

RESULTS, SUMMARY = "results.json", "summary.json"
DIGITS = 5
"""Significant digits in results: more would differ between machines."""
ROW_DECIMALS = 1
"""Decimals of a single row's errors in percent: a report on measurements, not a copy of them."""
Results = Mapping[str, Any]


def versions() -> dict[str, str]:
    """Versions of the libraries that figures depend on."""
    return versions_of("neusight", "numpy", "torch", "lightgbm", "scikit-learn")


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
    """What is committed of results: no rows, and no group of details."""
    detail = [group["name"] for group in results["declared"]["groups"] if group.get("detail")]
    groups = {name: rows for name, rows in results["groups"].items() if name not in detail}
    return {name: part for name, part in results.items() if name != "rows"} | {"groups": groups}


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
    known = isinstance(content, dict) and {"experiment", "declared", "quick", "verdicts"} <= set(content)
    if not known or not isinstance(content["declared"], dict):
        raise DataError(f"{file} holds no results of an experiment: {remedy}")
    return content


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


def is_current(results: Results) -> bool:
    """Whether figures are of what is declared now: not of an earlier run, nor in the form of earlier summaries."""
    return isinstance(results.get("groups"), Mapping) and not results.get("outdated")
