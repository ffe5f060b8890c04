"""How ``neusight evaluate steps`` shows what it found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from neusight.cli.output import Column, line, table

_FIGURES = {"count": ",", "mean": ".1f", "median": ".1f", "worst": ".1f", "bias": "+.1f", "inside": ".0f"}


def show_steps(found: Mapping[str, Any]) -> None:
    """Errors by GPU, workload, precision, layout and family of models, then by what rows spend their time in."""
    line("Errors in percent. inside: rows within the 90 % interval.\n")
    columns = [Column("by"), Column(""), *(Column(name, right=True) for name in _FIGURES)]
    rows = [(by, row[by], *_cells(row)) for by, means in found["means"].items() for row in means]
    table(columns, (*rows, ("all", "", *_cells(found["total"]))))
    line("\nBias of rows by the kernels that they spend their time in; share of the predicted time.\n")
    columns = [Column("kernels"), Column("share", right=True), Column("bias", right=True)]
    table(columns, ((row["kind"], f"{row['share']:.1f}", f"{row['bias']:+.1f}") for row in found["by_kind"]))
    for name, memory in found["memory"].items():
        line(f"Memory, {name.replace('_', ' ')}: {memory['right']:.0f} % of {memory['count']:,}.")


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(format(row[key], form) for key, form in _FIGURES.items())
