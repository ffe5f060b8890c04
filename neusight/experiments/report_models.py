"""The report's words and tables on whole models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from neusight.experiments.canvas import gpus_in, titles
from neusight.experiments.markdown import figure, table, wrapped
from neusight.experiments.model_rows import errors_of
from neusight.units import milliseconds

Results = Mapping[str, Any]
Rows = Sequence[Mapping[str, Any]]
GROUPS = {"all": "all", "held_out": "held-out GPUs", "training": "training GPUs", "other_vendor": "other vendor"}


def models(results: Results) -> list[str]:
    """Errors of every predictor by group and GPU."""
    found, names = results["models"], titles(results)
    groups = {GROUPS[name]: group for name, group in found["groups"].items()}
    gpus = {gpu: found["by_gpu"][gpu] for gpu in gpus_in(results, found["rows"])}
    covered = ", those that published predictions cover" if results["data"]["published"] else ""
    text = (
        f'Steps on one GPU{covered}; "all" leaves another vendor\'s out. Mean error in percent, in brackets the '
        "worst step's. Of several seeds: over all of them."
    )
    parts = ["## Whole models", wrapped(text), _by_predictor(groups, names), "Mean by GPU:", _by_gpu(gpus, names)]
    if any(_spread(group, name) for group in groups.values() for name in names):
        parts += ["From the seed with the least mean error to the one with the largest:", _seeds(groups, names)]
    if all(group["inside"] is not None for group in groups.values()):
        rows = [(name, *(f"{g[k]:.0f}" for k in ("count", "inside", "width"))) for name, g in (groups | gpus).items()]
        text = "Percent of steps within the 90 % interval, and the median of its width in percent of the prediction:"
        parts += [wrapped(text), table(("steps of", "steps", "inside", "width"), rows)]
    return parts


def _by_predictor(groups: Mapping[str, Results], names: Mapping[str, str]) -> str:
    """A row a predictor, a column a group: predictors are many, and their names long."""
    rows = [("steps", *(str(group["count"]) for group in groups.values()))]
    for name, title in names.items():
        rows.append((title, *(_mean_worst(group["predictors"].get(name)) for group in groups.values())))
    return table(("", *groups), rows)


def _by_gpu(gpus: Mapping[str, Results], names: Mapping[str, str]) -> str:
    """A row a GPU; the worst steps stand row by row."""
    rows = [
        (gpu, str(said["count"]), *(figure((said["predictors"].get(name) or {}).get("mean")) for name in names))
        for gpu, said in gpus.items()
    ]
    return table(("gpu", "steps", *_short(names)), rows)


def _mean_worst(error: Results | None) -> str:
    return f"{error['mean']:.1f} ({error['worst']:.0f})" if error else ""


def _spread(group: Results, name: str) -> str:
    error = group["predictors"].get(name)
    if not error or error["spread"][0] == error["spread"][1]:
        return ""
    return "{:.1f}–{:.1f}".format(*error["spread"])


def _seeds(groups: Mapping[str, Results], names: Mapping[str, str]) -> str:
    rows = [(title, *(_spread(group, name) for group in groups.values())) for name, title in names.items()]
    return table(("", *groups), [row for row in rows if any(row[1:])])


def oracle(results: Results) -> list[str]:
    """How the error of whole models comes about: operators, and their sum."""
    text = (
        "Each operator of these steps was also measured alone, on the same GPU. Their sum is what a predictor of "
        "kernels without any error would say (the one measured layer times the layers, less the time of a call). "
        "operators: our prediction over that sum; composition: that sum over the measured step; both multiply to ours. "
        "Mean error in percent, in brackets the mean signed error."
    )
    rows = [
        (GROUPS.get(row["name"], row["name"]) if row["by"] == "group" else row["name"], *_oracle_cells(row))
        for row in results["models"]["oracle"]
    ]
    return ["### Sums of measured operators", wrapped(text), table(("steps of", "steps", *_PARTS.values()), rows)]


def _oracle_cells(row: Results) -> tuple[str, ...]:
    return str(row["count"]), *(f"{row[part]['mean']:.1f} ({row[part]['bias']:+.1f})" for part in _PARTS)


_PARTS = {"total": "ours", "operators": "operators", "composition": "composition"}


def rows(results: Results) -> list[str]:
    """Every step: a table a GPU with our prediction, and one with the errors of all predictors."""
    found, names = results["models"]["rows"], titles(results)
    parts = [
        "## Row by row",
        wrapped(
            "Our prediction with its 90 % interval, whether the measured latency lies inside, and signed errors in "
            "percent: ours, and its parts where the operators were measured."
        ),
    ]
    for gpu in gpus_in(results, found):
        part = [row for row in found if row["gpu"] == gpu]
        parts += [f"### {gpu}", table(_HEAD, map(_own, part), 2)]
        if len(names) > 1:
            parts.append(table(("model", "step", *_short(names)), (_others(row, names) for row in part), 2))
    return parts


_HEAD = ("model", "step", "ours", "90 % interval", "", "error", "operators", "comp.")


def _own(row: Results) -> tuple[str, ...]:
    ours, low, high = (_ms(row[f"{key}_ms"]) for key in ("predicted", "low", "high"))
    inside = {True: "in", False: "out", None: ""}[row["inside"]]
    parts = row.get("parts") or {}
    first = next(iter(row["errors"].values()))
    errors = (first, parts.get("operators"), parts.get("composition"))
    return (
        row["model"],
        _step(row),
        ours,
        f"{low} – {high}" if low else "",
        inside,
        *(figure(e, "+.1f") for e in errors),
    )


def _ms(value: float | None) -> str:
    return "" if value is None else milliseconds(value / 1e3)


def _step(row: Results) -> str:
    return f"{row['mode'][:5]}. {row['batch']} × {row['seq_len']}"


def _others(row: Results, names: Mapping[str, str]) -> tuple[str, ...]:
    means = (float(np.mean(errors)) if (errors := errors_of(row, name)) else None for name in names)
    return row["model"], _step(row), *(figure(mean, "+.1f") for mean in means)


def _short(names: Mapping[str, str]) -> list[str]:
    return [title.replace(" (published)", " ᵖ") for title in names.values()]
