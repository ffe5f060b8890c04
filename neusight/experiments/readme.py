"""README's accuracy table, between its two marks, from the results of the experiment that declares ``readme``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from neusight.errors import DataError
from neusight.experiments.model_step import PREDICTORS
from neusight.experiments.report import table

BEGIN, END = "<!-- accuracy:begin -->", "<!-- accuracy:end -->"
Results = Mapping[str, Any]


def accuracy_block(results: Results) -> str:
    """The text between the marks."""
    run, split = results["runs"][0], results["split"]
    trained, held = ", ".join(run["provenance"]["training_gpus"]), " and ".join(split["held_out"])
    parts = [
        f"Trained on single kernels measured on {trained}.\n"
        f"Nothing was trained on {held}, nor on any whole model.\n"
        f"Details: `experiments/{results['experiment']}/report.md`."
    ]
    if "models" in run:
        parts.append(_models(run["models"]))
    if "kernels" in run:
        parts.append(_kernels(run["kernels"]))
    return "\n\n".join(parts)


def _models(models: Results) -> str:
    names = {"all": "all GPUs", "held_out": "held-out GPUs", "training": "training GPUs"}
    names["other_vendor"] = "another vendor's GPU"
    groups = models["groups"]
    rows = [(names[name], str(group["count"]), *_cells(group)) for name, group in groups.items()]
    inside = f'{groups["all"]["inside"]:.0f} % of the rows of "all GPUs" lie within the 90 % interval.'
    shown = table(("whole models", "rows", *PREDICTORS.values()), rows)
    return f"{shown}\n\nMean error in percent, in brackets the worst; the other predictors as published.\n{inside}"


def _cells(group: Results) -> list[str]:
    errors = (group["predictors"][name] for name in PREDICTORS)
    return [f"{error['mean']:.1f} ({error['worst']:.0f})" if error else "" for error in errors]


def _kernels(kernels: Results) -> str:
    rows = [
        (row["family"], f"{row['count']:,}", f"{row['mape']:.1f}", f"{row['median_ape']:.1f}", *_floors(row))
        for row in kernels["held_out"]
    ]
    shown = table(("kernels, held-out GPUs", "rows", "mean", "median", "roofline", "ours/roofline"), rows)
    return f"{shown}\n\nErrors in percent; the roofline is max(flops / peak, bytes / DRAM bandwidth)."


def _floors(row: Results) -> tuple[str, str]:
    return f"{row['roofline_mape']:.1f}", f"{row['share_of_roofline']:.2f}"


def update_readme(path: Path, results: Results) -> bool:
    """Put the block in its place; whether the file changed.

    Raises:
        DataError: a mark is missing.
    """
    before = path.read_text(encoding="utf-8")
    head, begin, rest = before.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise DataError(f"{path} lacks {BEGIN} … {END}: add both lines where the accuracy table belongs")
    after = f"{head}{BEGIN}\n{accuracy_block(results)}\n{END}{tail}"
    if after != before:
        path.write_text(after, encoding="utf-8")
    return after != before
