"""The report of a measured experiment in words: single kernels and whole models, by GPU, kind and predictor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from neusight.experiments.figures import FIGURES
from neusight.experiments.kernels import main_group
from neusight.experiments.results import gpus_in, judged, kinds_in, titles
from neusight.lab.page import ReportForm, filled, listing, matrix, table, wrapped

GROUPS = {"all": "all", "held_out": "held-out GPUs", "training": "training GPUs", "other_vendor": "other vendor"}
DESIGNS = {
    "plan": "Kernels chosen by `neusight calibrate plan`, before any was measured:",
    "random": "Kernels drawn at random:",
}
OTHER_GROUPS = {"other_vendor": "Another vendor's:", "sibling": "One board of a die left out, its siblings known:"}
_SIGNED = "{mean:.1f} ({bias:+.1f})"
AS_MEASURED = "Attention\nas measured: kernels of steps that the table of measured operators names are added."
Results = Mapping[str, Any]
Rows = Sequence[Mapping[str, Any]]


def setup(results: Results) -> list[str]:
    """How it was done, an item each."""
    declared, seconds = results["declared"], results["seconds"]
    named = titles(results)
    return [
        *_folds(declared),
        *(_of_sets(results) if declared["data"]["sets"] else _of_set(declared["data"])),
        *_as_measured(results),
        f"Predictors: {', '.join(named.values())}. Targets judge {named[judged(results)]}.",
        f"Took {sum(seconds.values()) / 60:.0f} min on one core, {seconds['training'] / 60:.0f} of them training. "
        f"Again with `neusight experiments run {results['experiment']}`, which also writes every prediction to "
        "`results.json`; hashes of data and code, and versions, are in `summary.json`.",
    ]


def _of_set(data: Results) -> list[str]:
    split = f', rows of split "{data["training_split"]}" alone' if data["training_split"] else ""
    tested = f'rows of split "{data["tested_split"]}"' if data["tested_split"] else "all rows"
    return [
        f"Trained on kernels of `{data['name']}`{split}; tested on {tested} of the held-out GPUs. "
        "Nothing is trained on whole models."
    ]


def _of_sets(results: Results) -> list[str]:
    rows = ", ".join(f"{name} {count:,}" for name, count in results["data"].items())
    return [
        f"Rows: {rows}; of each GPU, table, operator, dtype, engine and kernel at most 2,500, drawn by a fixed "
        "seed. What no datasheet allows is left out.",
        "In each fold constants of physics are fitted again and tile models trained again without what is left out, "
        "with rates of square products on any board of a die; what is learned counts as far as leaving out one more "
        "kind of SM bears it. Siblings: one board left out while others of its die stay.",
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
    folds = declared["folds"]
    if len(folds) == 1:
        held = folds[0]["held_out"]
        trained = ", ".join(gpu for gpu in declared["gpus"] if gpu not in held)
        return [f"Trained on: {trained}.", f"Held out: {', '.join(held)}."]
    if all(len(fold["held_out"]) == 1 for fold in folds):
        turns = ", ".join(fold["held_out"][0] for fold in folds)
    else:
        turns = "; ".join(f"{fold['name']} ({', '.join(fold['held_out'])})" for fold in folds)
    gpus = f"GPUs: {', '.join(declared['gpus'])}. " if declared["gpus"] else ""
    return [f"{gpus}Held out in turn, training on all the others: {turns}."]


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
    if results.get("rates"):
        parts["rates"] = ["## Rates of square products", *_rates(results["rates"])]
    if results.get("assumptions"):
        parts["assumptions"] = ["## What is not fitted", *_assumed(results["assumptions"])]
    return parts


def _rates(rates: Rows) -> list[str]:
    text = (
        "Best rates of large square products on GPUs that have no kernels in the data, by constants that were fitted "
        "without the rates of their architecture; mean error in percent, in brackets signed:"
    )
    rows = [{**row, "kind": row["kind"].removeprefix("rates/")} for row in rates]
    kinds = sorted({row["kind"] for row in rows})
    return [wrapped(text), matrix(rows, "architecture", ("kind", kinds), _SIGNED)]


def _assumed(numbers: Rows) -> list[str]:
    """Numbers in the path of a prediction that are neither fitted nor of a datasheet or paper."""
    text = (
        "Constants of laws are fitted, figures of devices are their datasheets'. These numbers are neither, nor cited; "
        "as the code has them:"
    )
    columns = (("number", "`{name}`"), ("module", "{module}"), ("value", "{value}"), ("what the code says", "{why}"))
    return [wrapped(text), listing(numbers, columns, words=4)]


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
    for group, title in OTHER_GROUPS.items():
        if group != main and any(cell["group"] == group for cell in cells):
            parts += [title, _errors_of_group(results, group)]
    if by_fold := results["kernels"].get("by_fold"):
        own = [row for row in by_fold if row["predictor"] == judged(results)]
        text = "Mean error by what is left out, each of its GPUs counted once, and, in brackets, mean signed error:"
        parts += [wrapped(text), matrix(own, "fold", ("kind", kinds_in(own)), _SIGNED, "left out")]
    text = "Median error and, in brackets, mean signed error (below zero: predicted too fast), percent:"
    parts += [wrapped(text), by_gpu_and_kind(results, cells, "{median:.1f} ({bias:+.1f})")]
    if all(cell.get("inside") is not None for cell in cells):
        text = (
            "Percent of rows within the 90 % interval and, in brackets, the median of its width (high less low, in "
            "percent of the prediction):"
        )
        inside = by_gpu_and_kind(results, cells, "{inside:.0f} ({width:.0f})")
        parts += ["### Intervals", wrapped(text), inside]
    if len(results["declared"]["predictors"]) > 1:
        parts += _predictors(results, main)
    return parts + _by_kinship(results)


def _by_kinship(results: Results) -> list[str]:
    """Every predictor by kind of kernel and by what it knows of the GPU, and how well intervals of the judged one fit;
    nothing of results that are older than this table.
    """
    rows, names = results["kernels"].get("by_kinship", ()), titles(results)
    if not rows:
        return []
    named = [{**row, "who": f"{names[row['predictor']]}, {row['kinship']}"} for row in rows]
    text = (
        "Mean error in percent over all rows, by what a predictor knows of the GPU. own: it learned from it; sibling: "
        "from another board of its die; kin: from SMs of its kind; stranger: from none."
    )
    parts = ["### By kinship", wrapped(text), matrix(named, "who", ("kind", kinds_in(rows)), "{mean:.1f}", "predictor")]
    stated = [row for row in rows if row["predictor"] == judged(results) and "crps" in row]
    text = (
        "Its 90 % intervals: percent of rows inside, the median of their width in percent of the prediction, by how "
        "much they would have to reach further to hold 90 %, and the CRPS of log times in percent."
    )
    columns = (
        *(("kind", "{kind}"), ("kinship", "{kinship}"), ("rows", "{count:,}"), ("inside", "{inside:.0f}")),
        *(("width", "{width:.0f}"), ("stretch", "{stretch:.2f}"), ("CRPS", "{crps:.1f}")),
    )
    return parts + ([wrapped(text), listing(stated, columns, words=2)] if stated else [])


def judged_cells(results: Results) -> Rows:
    """Errors of the predictor that targets judge."""
    return [cell for cell in results["kernels"]["cells"] if cell["predictor"] == judged(results)]


def _with_grown_launches(cells: Rows) -> list[str]:
    """Errors of kernels whose launches grew while a GPU was measured, these being known; nothing where none did."""
    by_kind: dict[str, dict[str, float]] = {}
    for cell in cells:
        if (error := cell.get("grown")) is not None:
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
    more = [
        {"gpu": name, "kind": row["kind"], "mean": row[key]}
        for name, key in lines.items()
        for row in rows
        if key in row
    ]
    return by_gpu_and_kind(results, cells, "{mean:.1f}", more)


def by_gpu_and_kind(results: Results, cells: Rows, form: str, more: Rows = (), corner: str = "gpu") -> str:
    """A row a GPU, a column a kind (of several folds the last), then rows of summaries."""
    order = gpus_in(results, (cell["gpu"] for cell in cells))
    ordered = sorted(cells, key=lambda cell: order.index(cell["gpu"]))
    # A board may be left out twice: with its die, and alone.
    named = [{**c, "gpu": f"{c['gpu']}, alone"} if c["group"] == "sibling" else c for c in ordered]
    return matrix([*named, *more], "gpu", ("kind", kinds_in(cells)), form, corner)


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
    groups = _titled(models["groups"], names, "group", GROUPS)
    gpus = gpus_in(results, (row["gpu"] for row in models["by_gpu"]))
    by_gpu = sorted(_titled(models["by_gpu"], names, "gpu"), key=lambda row: gpus.index(row["gpu"]))
    covered = ", those that published predictions cover" if results["declared"]["data"]["published"] else ""
    text = (
        f'Steps on one GPU{covered}; "all" leaves another vendor\'s out. Mean error in percent, in brackets the '
        "worst step's. Of several seeds: over all of them."
    )
    parts = ["## Whole models", wrapped(text), by_predictor(results, GROUPS, "")]
    parts += ["Mean by GPU:", _counted(results, by_gpu, "gpu")]
    if seeded := [row for row in groups if row["seeds"]]:
        parts += ["From the seed with the least mean error to the one with the largest:"]
        parts += [matrix(seeded, "title", ("place", _places(groups)), "{seeds}", "")]
    judged_rows = [row for row in (*groups, *by_gpu) if row["predictor"] == judged(results)]
    if all(row.get("inside") is not None for row in judged_rows):
        text = "Percent of steps within the 90 % interval, and the median of its width in percent of the prediction:"
        columns = (
            *(("steps of", "{place}"), ("steps", "{count:.0f}"), ("inside", "{inside:.0f}")),
            ("width", "{width:.0f}"),
        )
        parts += [wrapped(text), listing(judged_rows, columns)]
    return parts


def _titled(
    rows: Rows, names: Mapping[str, str], key: str, places: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """Rows of predictors in their order, with title, seeds (from the least to the largest mean) and place."""
    order = list(names)
    titled = [
        {**row, "title": names[row["predictor"]], "seeds": _seed_range(row["spread"])}
        | {"place": places[row[key]] if places else row[key]}
        for row in rows
    ]
    return sorted(titled, key=lambda row: order.index(row["predictor"]))


def _places(rows: Rows) -> list[str]:
    return list(dict.fromkeys(row["place"] for row in rows))


def by_predictor(results: Results, places: Mapping[str, str], corner: str) -> str:
    """A row a predictor, a column a group: predictors are many, and their names long; above them how many steps."""
    groups = _titled(results["models"]["groups"], titles(results), "group", places)
    counts = [{**r, "title": "steps", "shown": str(r["count"])} for r in groups if r["predictor"] == judged(results)]
    shown = [{**row, "shown": filled("{mean:.1f} ({worst:.0f})", row)} for row in groups]
    return matrix([*counts, *shown], "title", ("place", _places(groups)), "{shown}", corner)


def _counted(results: Results, rows: Rows, *keys: str, bias: bool = False) -> str:
    """A row for what shares the values of keys, with its steps, the judged predictor's bias and the mean of each."""
    names, first = titles(results), judged(results)
    lines: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in rows:
        line = lines.setdefault(tuple(row[key] for key in keys), {})
        line[row["predictor"]] = f"{row['mean']:.1f}"
        if row["predictor"] == first:
            line |= {"count": str(row["count"]), "bias": f"{row['bias']:+.1f}"}
    columns = ["count", *(["bias"] if bias else []), *names]
    shown = [(" ".join(key), *(line.get(name, "") for name in columns)) for key, line in lines.items()]
    head = ("model" if bias else keys[0], "steps", *(["bias"] if bias else []), *_short(names))
    return table(head, shown)


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
    rows = sorted(results["models"]["by_model"], key=lambda row: (row["model"], row["mode"]))
    text = (
        f"Mean error by model and mode over those GPUs; bias: mean signed error of {titles(results)[judged(results)]}."
    )
    return ["### By model", wrapped(text), _counted(results, rows, "model", "mode", bias=True)]


def _short(names: Mapping[str, str]) -> list[str]:
    return [title.replace(" (published)", " ᵖ") for title in names.values()]


def accuracy(results: Results) -> list[str]:
    """Tables of docs/accuracy.md: whole models by predictor, single kernels of held-out GPUs."""
    parts = []
    if "models" in results:
        own = [row for row in results["models"]["groups"] if row["predictor"] == judged(results)]
        places = {row["group"]: f"{GROUPS[row['group']]} ({row['count']})" for row in own}
        rows = [{**row, "place": places[row["group"]]} for row in results["models"]["groups"]]
        shown = matrix(
            _titled(rows, titles(results), "place"), "title", ("place", [*places.values()]),
            "{mean:.1f} ({worst:.0f})", "whole models",
        )  # fmt: skip
        source = "" if not results["declared"]["data"]["operators"] else " " + AS_MEASURED
        parts.append(f"{shown}\n\nMean error of whole models in percent, in brackets the worst.{source}")
    if "kernels" in results:
        shown = by_gpu_and_kind(results, judged_cells(results), "{mean:.1f}", corner="kernels of held-out GPUs")
        parts.append(f"{shown}\n\nMean error of single kernels in percent, nothing of the GPU being known.")
    return parts


MEASURED = ReportForm(setup=setup, sections=sections, figures=FIGURES, accuracy=accuracy)
