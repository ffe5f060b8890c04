"""The report of a measured experiment in words: single kernels and whole models, by GPU, kind and predictor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from neusight.experiments.figures import FIGURES
from neusight.experiments.kernels import main_group
from neusight.experiments.page import ReportForm, listing, matrix, number, table, wrapped
from neusight.experiments.results import gpus_in, judged, kinds_in, titles

GROUPS = {"all": "all", "held_out": "held-out GPUs", "training": "training GPUs", "other_vendor": "other vendor"}
DESIGNS = {
    "plan": "Kernels chosen by `neusight calibrate plan`, before any was measured:",
    "random": "Kernels drawn at random:",
}
AS_MEASURED = "Attention\nas measured: kernels of steps that the table of measured operators names are added."
Results = Mapping[str, Any]
Rows = Sequence[Mapping[str, Any]]


def setup(results: Results) -> list[str]:
    """How it was done, an item each."""
    declared, seconds = results["declared"], results["seconds"]
    data, named = declared["data"], titles(results)
    split = f', rows of split "{data["training_split"]}" alone' if data["training_split"] else ""
    tested = f'rows of split "{data["tested_split"]}"' if data["tested_split"] else "all rows"
    return [
        *_folds(declared),
        f"Trained on kernels of `{data['name']}`{split}; tested on {tested} of the held-out GPUs. "
        "Nothing is trained on whole models.",
        *_as_measured(results),
        f"Predictors: {', '.join(named.values())}. Targets judge {named[judged(results)]}.",
        f"Took {sum(seconds.values()) / 60:.0f} min on one core, {seconds['training'] / 60:.0f} of them training. "
        f"Again with `neusight experiments run {results['experiment']}`, which also writes every prediction to "
        "`results.json`; hashes of data and code, and versions, are in `summary.json`.",
    ]


def _as_measured(results: Results) -> list[str]:
    """What predictions of whole models take from measurements: which steps of attention ran, never how long."""
    if not results["declared"]["data"]["operators"] or "models" not in results:
        return []
    changed = results["models"].get("adapted")
    count = (
        f" That concerns {changed['rows']} of the steps, by {changed['share']:.1f} % of their prediction."
        if changed
        else ""
    )
    return [
        "Whole models are those that were measured: libraries have rewritten attention since then, and the table of "
        "measured operators says which steps over the scores (scale, mask, floor) ran. Kernels that a model lacks "
        "today are added to every prediction made here, those that only today's has are taken from it, each with its "
        f"predicted time; published predictions stay as they were published.{count}"
    ]


def _folds(declared: Results) -> list[str]:
    """What is held out: in a line a fold, or all in one where each holds out one GPU."""
    folds, gpus = declared["folds"], ", ".join(declared["gpus"])
    if len(folds) == 1:
        held = folds[0]["held_out"]
        trained = ", ".join(gpu for gpu in declared["gpus"] if gpu not in held)
        return [f"Trained on: {trained}.", f"Held out: {', '.join(held)}."]
    if all(len(fold["held_out"]) == 1 for fold in folds):
        turns = ", ".join(fold["held_out"][0] for fold in folds)
    else:
        turns = "; ".join(f"{fold['name']} ({', '.join(fold['held_out'])})" for fold in folds)
    return [f"GPUs: {gpus}. Held out in turn, training on all the others: {turns}."]


def sections(results: Results) -> dict[str, list[str]]:
    """Words and tables, by the part of the report whose figures follow them."""
    parts = {}
    if "kernels" in results:
        parts["kernels"] = _kernels(results)
    if "few_shot_curve" in results:
        parts["few_shot_curve"] = _few_shot(results)
    if "models" in results:
        parts["models"] = _models(results)
        parts["by_model"] = _by_model(results)
        parts |= {"oracle": _oracle(results)} if "oracle" in results["models"] else {}
    return parts


def _kernels(results: Results) -> list[str]:
    """Error, coverage and width by GPU and kind; beyond that every predictor by kind."""
    cells, main = judged_cells(results), main_group(results["kernels"]["by_kind"])
    text = (
        f"Mean error of {titles(results)[judged(results)]} in percent, on rows of GPUs that were held out. "
        "mean: over those GPUs, each counted once; roofline: max(FLOP / peak, compulsory bytes / DRAM bandwidth) "
        "as prediction."
    )
    parts = ["## Single kernels", wrapped(text), _errors_of_group(results, main)]
    parts += _with_grown_launches(cells)
    if main == "held_out" and any(cell["group"] == "other_vendor" for cell in cells):
        parts += ["Another vendor's:", _errors_of_group(results, "other_vendor")]
    text = "Median error and, in brackets, mean signed error (below zero: predicted too fast), percent:"
    parts += [wrapped(text), by_gpu_and_kind(results, cells, "{median_ape:.1f} ({bias:+.1f})")]
    if all(cell["inside"] is not None for cell in cells):
        text = (
            "Percent of rows within the 90 % interval and, in brackets, the median of its width (high less low, in "
            "percent of the prediction):"
        )
        inside = by_gpu_and_kind(results, cells, "{inside:.0f} ({width:.0f})")
        parts += ["### Intervals", wrapped(text), inside]
    return parts + (_predictors(results, main) if len(results["declared"]["predictors"]) > 1 else [])


def judged_cells(results: Results) -> Rows:
    """Errors of the predictor that targets judge."""
    return [cell for cell in results["kernels"]["cells"] if cell["predictor"] == judged(results)]


def _with_grown_launches(cells: Rows) -> list[str]:
    """Errors of kernels whose launches grew while a GPU was measured, these being known; nothing where none did."""
    by_kind: dict[str, dict[str, float]] = {}
    for cell in cells:
        if (error := cell.get("grown_mape")) is not None:
            by_kind.setdefault(cell["kind"], {})[cell["gpu"]] = error
    return [
        wrapped(
            f"Launches of {kind} grew severalfold while GPUs were measured, on all of them alike, with every new "
            f"shape. With the launch that each row had the mean error is {np.mean([*errors.values()]):.1f} %: "
            f"{', '.join(f'{gpu} {error:.1f}' for gpu, error in errors.items())}."
        )
        for kind, errors in by_kind.items()
    ]


def _errors_of_group(results: Results, group: str) -> str:
    """Mean errors, then over GPUs their mean and worst, and the roofline's, of a group by kind."""
    cells = [cell for cell in judged_cells(results) if cell["group"] == group]
    rows = [
        row for row in results["kernels"]["by_kind"] if (row["predictor"], row["group"]) == (judged(results), group)
    ]
    lines = {"**mean**": "mean", "**worst GPU**": "worst", "roofline": "roofline"}
    if all(row["gpus"] == 1 for row in rows):
        lines = {"roofline": "roofline"}
    more = [{"gpu": name, "kind": row["kind"], "mape": row[key]} for name, key in lines.items() for row in rows]
    return by_gpu_and_kind(results, cells, "{mape:.1f}", more)


def by_gpu_and_kind(results: Results, cells: Rows, form: str, more: Rows = (), corner: str = "gpu") -> str:
    """A row a GPU, a column a kind (of several folds the last), then rows of summaries."""
    order = gpus_in(results, (cell["gpu"] for cell in cells))
    ordered = sorted(cells, key=lambda cell: order.index(cell["gpu"]))
    return matrix([*ordered, *more], "gpu", ("kind", kinds_in(cells)), form, corner)


def _predictors(results: Results, group: str) -> list[str]:
    """Every predictor by kind: mean over GPUs, its spread over seeds, and the worst GPU."""
    rows = [row for row in results["kernels"]["by_kind"] if row["group"] == group]
    names = titles(results)
    titled = [{**row, "title": names[row["predictor"]], "seeds": _seed_range(row["spread"])} for row in rows]
    titled = [{**row, "seeds": f", {row['seeds']}" if row["seeds"] else ""} for row in titled]
    text = (
        "Mean error over held-out GPUs in percent, in brackets the worst GPU's. Of several seeds: the mean of all, and "
        "from the least to the largest."
    )
    shown = matrix(titled, "title", ("kind", kinds_in(rows)), "{mean:.1f} ({worst:.1f}{seeds})", "predictor")
    return ["### Every predictor", wrapped(text), shown]


def _seed_range(spread: Sequence[float]) -> str:
    """From the seed with the least mean error to the one with the largest; nothing of one seed."""
    return f"{spread[0]:.1f}–{spread[1]:.1f}" if spread[1] > spread[0] else ""


def _few_shot(results: Results) -> list[str]:
    """Mean error by kind against measured kernels, over GPUs, with the worst GPU: a table a design."""
    curve = results["few_shot_curve"]["by_kind"]
    text = (
        "Mean error in percent after so many kernels of the held-out GPU, of all kinds together, were measured and "
        "made known, on its other rows; over GPUs, in brackets the worst."
    )
    parts = ["## With some kernels of the GPU measured", wrapped(text)]
    for design, words in DESIGNS.items():
        rows = sorted((row for row in curve if row["design"] == design), key=lambda row: int(row["points"]))
        if rows:
            points = [{**row, "points": str(row["points"])} for row in rows]
            shown = matrix(points, "points", ("kind", kinds_in(rows)), "{mean:.1f} ({worst:.1f})", "kernels")
            parts += [words, shown]
    return parts


def _models(results: Results) -> list[str]:
    """Errors of every predictor by group and GPU."""
    models, names = results["models"], titles(results)
    groups = {GROUPS[name]: group for name, group in models["groups"].items()}
    gpus = {gpu: models["by_gpu"][gpu] for gpu in gpus_in(results, models["by_gpu"])}
    covered = ", those that published predictions cover" if results["declared"]["data"]["published"] else ""
    text = (
        f'Steps on one GPU{covered}; "all" leaves another vendor\'s out. Mean error in percent, in brackets the '
        "worst step's. Of several seeds: over all of them."
    )
    parts = ["## Whole models", wrapped(text), by_predictor(groups, names, "", _mean_worst, counts=True)]
    parts += ["Mean by GPU:", _by_gpu(gpus, names)]
    if any(_seeds(group["predictors"].get(name)) for group in groups.values() for name in names):
        seeded = {
            name: title
            for name, title in names.items()
            if any(_seeds(g["predictors"].get(name)) for g in groups.values())
        }
        parts += ["From the seed with the least mean error to the one with the largest:"]
        parts += [by_predictor(groups, seeded, "", _seeds)]
    if all(group["inside"] is not None for group in groups.values()):
        rows = [{**group, "name": name} for name, group in (groups | gpus).items()]
        text = "Percent of steps within the 90 % interval, and the median of its width in percent of the prediction:"
        columns = (
            ("steps of", "{name}"),
            ("steps", "{count:.0f}"),
            ("inside", "{inside:.0f}"),
            ("width", "{width:.0f}"),
        )
        parts += [wrapped(text), listing(rows, columns)]
    return parts


def by_predictor(
    groups: Mapping[str, Results], names: Mapping[str, str], corner: str, cell: Any, counts: bool = False
) -> str:
    """A row a predictor, a column a group: predictors are many, and their names long."""
    rows = [("steps", *(str(group["count"]) for group in groups.values()))] if counts else []
    for name, title in names.items():
        rows.append((title, *(cell(group["predictors"].get(name)) for group in groups.values())))
    return table((corner, *groups), rows)


def _mean_worst(error: Results | None) -> str:
    return f"{error['mean']:.1f} ({error['worst']:.0f})" if error else ""


def _seeds(error: Results | None) -> str:
    return _seed_range(error["spread"]) if error else ""


def _by_gpu(gpus: Mapping[str, Results], names: Mapping[str, str]) -> str:
    """A row a GPU."""
    rows = [
        (gpu, str(group["count"]), *(number((group["predictors"].get(name) or {}).get("mean")) for name in names))
        for gpu, group in gpus.items()
    ]
    return table(("gpu", "steps", *_short(names)), rows)


def _oracle(results: Results) -> list[str]:
    """How the error of whole models comes about: operators, and their sum."""
    text = (
        "Each operator of these steps was also measured alone, on the same GPU. Their sum is what a predictor of "
        "kernels without any error would say (the one measured layer times the layers, less the time of a call). "
        "operators: our prediction over that sum; composition: that sum over the measured step; both multiply to ours. "
        "Mean error in percent, in brackets the mean signed error."
    )
    parts = {"ours": "total", "operators": "operators", "composition": "composition"}
    columns = (
        ("steps of", "{title}"),
        ("steps", "{count}"),
        *((t, f"{{{p}[mean]:.1f}} ({{{p}[bias]:+.1f}})") for t, p in parts.items()),
    )
    rows = [
        {**row, "title": GROUPS[row["name"]] if row["by"] == "group" else row["name"]}
        for row in results["models"]["oracle"]
    ]
    return ["### Sums of measured operators", wrapped(text), listing(rows, columns)]


def _by_model(results: Results) -> list[str]:
    """Mean error and, of the judged predictor, bias of every model and mode."""
    names, first = titles(results), judged(results)
    shown = [
        (
            f"{row['model']} {row['mode']}",
            str(row["count"]),
            f"{row['predictors'][first]['bias']:+.1f}",
            *(number((row["predictors"].get(name) or {}).get("mean")) for name in names),
        )
        for row in results["models"]["by_model"]
    ]
    text = f"Mean error by model and mode over those GPUs; bias: mean signed error of {names[first]}."
    return ["### By model", wrapped(text), table(("model", "steps", "bias", *_short(names)), shown)]


def _short(names: Mapping[str, str]) -> list[str]:
    return [title.replace(" (published)", " ᵖ") for title in names.values()]


def accuracy(results: Results) -> list[str]:
    """What README shows: whole models by predictor, single kernels of held-out GPUs."""
    parts = []
    if "models" in results:
        groups = {f"{GROUPS[name]} ({g['count']})": g for name, g in results["models"]["groups"].items()}
        shown = by_predictor(groups, titles(results), "whole models", _mean_worst)
        source = "" if not results["declared"]["data"]["operators"] else " " + AS_MEASURED
        parts.append(f"{shown}\n\nMean error of whole models in percent, in brackets the worst.{source}")
    if "kernels" in results:
        shown = by_gpu_and_kind(results, judged_cells(results), "{mape:.1f}", corner="kernels of held-out GPUs")
        parts.append(f"{shown}\n\nMean error of single kernels in percent, nothing of the GPU being known.")
    return parts


MEASURED = ReportForm(setup=setup, sections=sections, figures=FIGURES)
