"""Predicted against measured training steps on a screen: means by source, worst rows, memory, what was assumed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from neusight.cli.output import Column, line, table
from neusight.cli.show_training import seconds

_WORST = 8
_NUMBERS = ("count", "mean", "median", "worst", "bias", "inside")
_FORMS = {"count": ",", "mean": ".1f", "median": ".1f", "worst": ".1f", "bias": "+.1f", "inside": ".0f"}


def show_training_errors(found: Mapping[str, Any]) -> None:
    """Means, then the rows that err most, then memory and defaults."""
    line("Errors in percent. bias above 0: too slow; inside: within the 90 % interval.\n")
    groups = [(f"{by} {row[by]}", row) for by in ("source", "gpu", "dtype") for row in found["means"][by]]
    columns = [Column("runs"), *(Column(name, right=True) for name in _NUMBERS)]
    table(columns, ((name, *_figures(row)) for name, row in (*groups, ("all", found["total"])) if row["count"]))
    line("\nrows that err most\n")
    titles = ("GPUs", "predicted", "measured", "error")
    columns = [Column("model"), Column("plan", wrap=True), *(Column(title, right=True) for title in titles)]
    measured = [row for row in found["rows"] if row["ape"] is not None]
    table(columns, map(_cells, sorted(measured, key=lambda row: -row["ape"])[:_WORST]))
    line(f"\n{_memory(found['memory'])}")
    if found["assumed"]:
        line("\nWhat rows do not tell:\n")
        columns = [Column("what"), Column("value"), Column("rows", right=True), Column("why", wrap=True)]
        table(columns, ((r["what"], r["value"], f"{r['rows']:,}", r["why"]) for r in found["assumed"]))


def _figures(row: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(format(row[name], _FORMS[name]) for name in _NUMBERS)


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    times = (seconds(row[f"{what}_ms"] / 1e3) for what in ("predicted", "measured"))
    return row["model"], row["plan"], str(row["num_gpus"]), *times, f"{row['bias']:+.1f} %"


def _memory(counts: Mapping[str, int]) -> str:
    ran = f"{counts['ran_and_fits']:,} of {counts['ran']:,} runs are said to fit"
    if not counts["out_of_memory"]:
        return f"memory: {ran}"
    return (
        f"memory: {ran}; of {counts['out_of_memory']:,} that ran out, {counts['out_of_memory_and_does_not_fit']:,} not"
    )
