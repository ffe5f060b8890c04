"""``FITS``: constants that are fitted to measured rows, and what a person reads of a fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from neusight.learn.arrays import ARRAYS
from neusight.learn.boards import BOARDS
from neusight.learn.engines import ENGINES
from neusight.learn.evidence import ConstantsFit, Report
from neusight.learn.evidence import FitOptions as FitOptions
from neusight.learn.gains import GAINS
from neusight.learn.hosts import HOSTS
from neusight.learn.links import LINKS
from neusight.learn.memory import MEMORY
from neusight.learn.microcontrollers import MICROCONTROLLERS
from neusight.learn.physics.fit import PHYSICS
from neusight.learn.sources import SOURCES
from neusight.learn.training_steps import TRAINING

MANY = 10
"""Devices from which their number is told, not their names."""
REASONS = 3
"""Reasons why rows were left out that are told, the commonest first."""
FITS: Mapping[str, ConstantsFit] = {
    "physics": PHYSICS,
    "links": LINKS,
    "arrays": ARRAYS,
    "engines": ENGINES,
    "boards": BOARDS,
    "hosts": HOSTS,
    "memory": MEMORY,
    "gains": GAINS,
    "microcontrollers": MICROCONTROLLERS,
    "training": TRAINING,
    "sources": SOURCES,
}
"""By the name of their constants."""
Described = tuple[Any, list[dict[str, Any]], list[str]]
"""What a fit prints: as JSON, as rows of a table, and in lines."""


def fit_constants(target: str, options: FitOptions, out: Path, report: Report) -> Described:
    """Fit the constants of a name to measured rows in a folder, and save them in a file.

    Raises:
        DataError: no rows to learn from there.
    """
    fitted = FITS[target].fitted(options, report)
    fitted.save(out)
    return describe(fitted, out)


def describe(fitted: Any, file: Path) -> Described:
    """What a fit prints of constants that one of ``FITS`` found and that a file has."""
    errors = getattr(fitted, "errors", [])
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
    if counted := Counter(left_out).most_common():
        reasons = [f"{reason} ({count:,})" for reason, count in counted[:REASONS]] + ["…"] * (len(counted) > REASONS)
        lines.append(f"{sum(left_out.values()):,} rows were left out: {'; '.join(reasons)}")
    return lines
