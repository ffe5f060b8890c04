"""``FITS``: constants that are fitted to measured rows, and what a person reads of a fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neusight.api import Predictor
from neusight.learn import Report
from neusight.learn.arrays import fit_arrays
from neusight.learn.boards import fit_boards
from neusight.learn.engines import EngineFit, fit_engines
from neusight.learn.gains import fit_gains
from neusight.learn.hosts import fit_hosts
from neusight.learn.links import fit_links
from neusight.learn.memory import fit_memory
from neusight.learn.microcontrollers import fit_microcontrollers
from neusight.learn.physics.fit import FitOptions, fit_physics
from neusight.learn.sums import most_common
from neusight.learn.training_steps import fit_training

MANY = 10
"""Devices from which their number is told, not their names."""


@dataclass(frozen=True, kw_only=True)
class FitChoice:
    """Rows that a fit reads: ids of devices to leave out, most rows of a device and kind of kernel, and a seed."""

    hold_out: tuple[str, ...] = ()
    rows: int = 100
    seed: int = 0


def _fit_physics(data: Path, choice: FitChoice, report: Report) -> Any:
    options = FitOptions(data=data, hold_out=choice.hold_out, each=choice.rows, seed=choice.seed)
    return fit_physics(options, report=report)


FITS: Mapping[str, Callable[[Path, FitChoice, Report], Any]] = {
    "physics": _fit_physics,
    "links": lambda data, choice, report: fit_links(data, seed=choice.seed, report=report),
    "arrays": lambda data, choice, report: fit_arrays(data, seed=choice.seed, report=report),
    "engines": lambda data, choice, report: fit_engines(data, Predictor.load(), report=report),
    "boards": lambda data, choice, report: fit_boards(data, Predictor.load()),
    "hosts": lambda data, choice, report: fit_hosts(data, Predictor.load(), report),
    "memory": lambda data, choice, report: fit_memory(data),
    "gains": lambda data, choice, report: fit_gains(data, Predictor.load(), report),
    "microcontrollers": lambda data, choice, report: fit_microcontrollers(data),
    "training": lambda data, choice, report: fit_training(data, Predictor.load().timed, report),
}
"""By the name of their constants; each takes the folder of measured rows."""
Described = tuple[Any, list[dict[str, Any]], list[str]]
"""What a fit prints: as JSON, as rows of a table, and in lines."""


def fit_constants(target: str, data: Path, out: Path, choice: FitChoice, report: Report) -> Described:
    """Fit the constants of a name to measured rows in a folder, and save them in a file.

    Raises:
        DataError: no rows to learn from there.
    """
    fitted = FITS[target](data, choice, report)
    fitted.save(out)
    return describe(fitted, out)


def describe(fitted: Any, file: Path) -> Described:
    """What a fit prints of constants that one of ``FITS`` found and that a file has."""
    if isinstance(fitted, EngineFit):
        found = fitted.engines.items()
        errors = [{"engine": era, "rows": one.cells, "mean": round(100.0 * one.error, 1)} for era, one in found]
        content: Any = [{"engine": era, **one.values} for era, one in found]
        return content, content, [f"{file}: constants of {len(errors)} engines", *_lines(errors, fitted.left_out)]
    errors = getattr(fitted, "errors", []) or [
        {"without": gpu} | {name: value if name == "rows" else round(100.0 * value, 1) for name, value in one.items()}
        for gpu, one in getattr(fitted, "left_out", {}).items()
    ]
    devices = ", ".join(fitted.gpus) if len(fitted.gpus) < MANY else f"{len(fitted.gpus)} devices"
    head = f"{file}: {len(fitted.values)} constants from {fitted.rows:,} rows of {devices}"
    constants = [{"constant": name, "value": value} for name, value in fitted.values.items()]
    lines = [f"{head}, mean error {fitted.error:.1%}", *_lines(errors, fitted.skipped)]
    return fitted.values, errors or constants, lines


def _lines(errors: list[dict[str, Any]], left_out: Mapping[str, int]) -> list[str]:
    """A line for each row of errors, its words first, and one of what was left out."""
    lines = []
    for row in errors:
        words = " ".join(value for value in row.values() if isinstance(value, str))
        figures = ", ".join(f"{name} {value}" for name, value in row.items() if not isinstance(value, str))
        lines.append(f"{words}: {figures}")
    counted = Counter(left_out)
    return [*lines, *([f"{counted.total():,} rows were left out: {most_common(counted)}"] if counted else [])]
