"""Memory of training on a screen: ranks part by part, and predictions against what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from neusight.cli.output import Column, line, table
from neusight.plans.memory import PARTS, RankMemory
from neusight.units import gib

_DEGREES = ("tp", "pp", "cp", "ep")
_MOMENTS = {"loss": "the loss", "backward": "the backward pass", "step": "the optimizer's step"}


def show_ranks(ranks: Sequence[RankMemory]) -> None:
    """Parts in rows, kinds of ranks in columns."""
    columns = [Column("part"), *(Column(f"{rank.rank} rank", right=True) for rank in ranks)]
    rows = [(part, *(gib(rank.parts[part]) for rank in ranks)) for part in PARTS]
    rows.append(("total", *(gib(rank.total) for rank in ranks)))
    rows.append(("at its peak in", *(_MOMENTS[rank.moment] for rank in ranks)))
    table(columns, rows)


def show_peaks(found: Mapping[str, Any]) -> None:
    """Means, then the rows that err most."""
    line("Errors of the allocator's peak on the last rank, in percent.")
    line("within: share of rows within 10 %.\n")
    figures = ("rows", "mean", "median", "max", "bias", "within")
    columns = [Column("by"), *(Column(name, right=True) for name in figures)]
    table(columns, ((_group(row), *_figures(row)) for row in found["means"]))
    line("\nrows that err most\n")
    columns = [Column("case"), Column("gpu"), *(Column(n, right=True) for n in ("predicted", "measured", "error"))]
    table(columns, map(_worst, found["worst"]))


def _worst(row: Mapping[str, Any]) -> tuple[str, ...]:
    figures = (gib(row["predicted_bytes"]), gib(row["measured_bytes"]), f"{row['bias']:+.1f}")
    return str(row["case"]), str(row["gpu"]).split("-")[0], *figures


def show_verdicts(found: Mapping[str, Any]) -> None:
    """How many verdicts are right, then those that are not."""
    columns = [Column("runs"), Column("count", right=True), Column("right %", right=True)]
    table(columns, ((row["by"], str(row["count"]), f"{row['right']:.1f}") for row in found["means"]))
    wrong = [row for row in found["rows"] if not row["right"]]
    if wrong:
        line("\nwrong\n")
        columns = [Column("model"), Column("framework"), Column("needed", right=True), Column("usable", right=True)]
        table(columns, ((r["model"], r["framework"], gib(r["needed_bytes"]), gib(r["usable_bytes"])) for r in wrong))


def _group(row: Mapping[str, Any]) -> str:
    """Degrees with their names, others by themselves."""
    keys = [] if row["by"] == "all" else str(row["by"]).split()
    return " ".join(f"{key} {row[key]}" if key in _DEGREES else str(row[key]) for key in keys) or "all"


def _figures(row: Mapping[str, Any]) -> tuple[str, ...]:
    errors = (f"{row['mean']:.1f}", f"{row['median']:.1f}", f"{row['max']:.1f}", f"{row['bias']:+.1f}")
    return str(row["count"]), *errors, f"{row['within']:.0f}"
