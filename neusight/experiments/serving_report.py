"""The report of served language models, words and figures: every figure in it is computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from neusight.experiments.page import SMALL, Drawing, canvas, table, wrapped

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Results = Mapping[str, Any]
Rows = Sequence[Mapping[str, Any]]
TARGETS_SAID = "Of cells without fault; other predictors on all cells that both predict."
NARROWEST, WIDEST = 0.2, 5.0
"""Predicted over measured at the ends of the figure: what lies beyond is drawn at the end."""


def setup(results: Results) -> list[str]:
    """How it was done, an item each."""
    seconds, every = results["seconds"], results["means_all"][0]
    clean = results["means"][0]["count"] if results["means"] else 0
    skipped = sum(row["count"] for row in results["skipped"])
    return [
        f"Figures of cells: {every['count']:,}, of which {clean:,} are of cells without fault: those that tell "
        f"everything and hold no known mistake. Skipped: {skipped} cells.",
        "Predictions are of the constants that ship. Constants of engines were fitted to cells of these sources, so "
        "that errors of engines that were fitted say how well they are explained, not how an unknown engine would be.",
        "A cell is asked as it was run: model, precision, sharding, engine and its version, limits and load; what it "
        "leaves empty takes a stated default (below). The engine is simulated pass by pass.",
        f"Took {sum(seconds.values()) / 60:.0f} min on one core. "
        f"Again with `neusight experiments run {results['experiment']}`.",
    ]


def sections(results: Results) -> dict[str, list[str]]:
    """Words and tables, by the part of the report whose figures follow them."""
    found = {"cells": ["## Errors", *_errors(results)]}
    if results["peers"]:
        found["peers"] = ["## Other predictors", *_peers(results["peers"])]
    if results["dies"]:
        found["dies"] = ["## Dies left out", *_dies(results["dies"])]
    found["intervals"] = ["## Intervals", *_intervals(results)]
    found["worst"] = ["## Most wrong", *_worst(results["worst"])]
    found["untold"] = ["## What cells do not tell", *_untold(results)]
    return found


def _errors(results: Results) -> list[str]:
    text = (
        "Errors in percent by what is compared, of cells without fault and of all. bias: mean signed error, below zero "
        "predicted too low."
    )
    parts = [wrapped(text)]
    for by in ("source", "engine", "gpu", "mode", "quantity"):
        parts.append(_means(results, by, (by,)))
    parts.append(wrapped("By source and quantity:"))
    parts.append(_means(results, "source quantity", ("source", "quantity")))
    parts.append(wrapped("By source, quantity, engine and GPU, cells without fault where there are any:"))
    parts.append(_groups(results["groups"]))
    return parts


def _means(results: Results, by: str, keys: Sequence[str]) -> str:
    clean = {tuple(row[key] for key in keys): row for row in results["means"] if row["by"] == by}
    head = (*keys, "figures", "mean", "median", "bias", "all figures", "mean", "median", "bias")
    rows = []
    for row in (row for row in results["means_all"] if row["by"] == by):
        names = tuple(row[key] for key in keys)
        rows.append((*names, *_cells(clean.get(names)), *_cells(row)))
    return table(head, rows, words=len(keys))


def _cells(row: Results | None) -> tuple[str, ...]:
    if row is None:
        return ("", "", "", "")
    return (f"{row['count']:,}", f"{row['mean']:.1f}", f"{row['median']:.1f}", f"{row['bias']:+.1f}")


def _groups(groups: Rows) -> str:
    names = ("source", "quantity", "engine", "gpu")
    clean = {tuple(row[name] for name in names) for row in groups if not row["fault"]}
    shown = [row for row in groups if not row["fault"] or tuple(row[name] for name in names) not in clean]
    rows = [(*(row[name] for name in names), row["fault"], *_cells(row)) for row in shown]
    return table((*names, "", "figures", "mean", "median", "bias"), rows, words=len(names) + 1)


def _peers(peers: Rows) -> list[str]:
    text = (
        "What other predictors said of the same figures, as they were published, and this project beside them: mean "
        "and median error in percent on figures that both predict, whether or not the cell has a fault."
    )
    head = ("source", "quantity", "predictor", "figures", "their mean", "median", "this project's mean", "median")
    rows = [
        (*(row[name] for name in ("source", "quantity", "peer")), f"{row['count']:,}", *map(_percent(row), _BESIDE))
        for row in sorted(peers, key=lambda row: (row["source"], row["quantity"], row["mean"]))
    ]
    return [wrapped(text), table(head, rows, words=3)]


_BESIDE = ("mean", "median", "ours_mean", "ours_median")


def _percent(row: Results) -> Callable[[str], str]:
    return lambda name: f"{row[name]:.1f}"


def _dies(dies: Rows) -> list[str]:
    text = (
        "Cells of a die of which nothing was known: constants of physics, links and engines were fitted without its "
        "kernels, collectives and cells, tile models forgot it. Beside it the same figures with the die in the fit. "
        "Cells without fault; percent."
    )
    names = ("die", "source", "engine", "quantity")
    head = (*names, "figures", "median", "mean", "bias", "inside", "median in the fit", "mean in the fit")
    columns = (*("median", "mean"), "bias", "inside", "known_median", "known_mean")
    forms = {"bias": "+.1f", "inside": ".0f"}
    rows = [
        (*(r[n] for n in names), f"{r['count']:,}", *(format(r[c], forms.get(c, ".1f")) for c in columns)) for r in dies
    ]
    return [wrapped(text), table(head, rows, words=len(names))]


def _intervals(results: Results) -> list[str]:
    every = {_name(row): row for row in results["means_all"]}
    clean = {_name(row): row for row in results["means"]}
    kinds = ("all", "source", "quantity")
    names = [name for name, row in every.items() if row["by"] in kinds]
    rows = [(n, f"{clean[n]['inside']:.0f}" if n in clean else "", f"{every[n]['inside']:.0f}") for n in names]
    text = "Percent of figures within this project's 90 % interval:"
    return [wrapped(text), table(("", "without fault", "all"), rows)]


def _name(row: Results) -> str:
    return "all" if row["by"] == "all" else " ".join(str(row[key]) for key in row["by"].split())


def _worst(worst: Rows) -> list[str]:
    text = "Of cells without fault, by the ratio of predicted to measured, and what passes spend their time on:"
    rows = [(row["cell"], row["quantity"], f"{row['error']:+.0f} %", row["limited_by"]) for row in worst]
    return [wrapped(text), table(("cell", "figure", "error", "predicted to be"), rows, words=2)]


def _untold(results: Results) -> list[str]:
    rows = [(row["what"], str(row["value"]) or "-", f"{row['count']:,}", row["reason"]) for row in results["assumed"]]
    parts = [wrapped("Defaults that cells take, each with its reason:"), table(("", "value", "cells", "why"), rows)]
    if results["skipped"]:
        reasons = [(row["reason"], f"{row['count']:,}") for row in results["skipped"]]
        parts += [wrapped("Cells that are not compared:"), table(("reason", "cells"), reasons)]
    return parts


def ratios(results: Results) -> Figure:
    """Predicted over measured by source, a panel a quantity: of each engine and GPU the middle and most cells."""
    groups = results["groups"]
    quantities = [q for q in ("prefill_ms", "ttft_ms", "tpot_ms", "e2e_ms", "tokens_per_s") if _of(groups, q)]
    sources = sorted({row["source"] for row in groups})
    figure, panels = canvas(len(quantities), 3, 10, 0.35 * len(sources) + 1.4, sharey=True)
    for axes, quantity in zip(panels, quantities, strict=True):
        for row in _of(groups, quantity):
            low, middle, high = (min(max(ratio, NARROWEST), WIDEST) for ratio in row["ratio"])
            at = sources.index(row["source"]) + _shift(row, groups)
            colour = "#0b5fa5" if not row["fault"] else "#9a9a9a"
            axes.plot([low, high], [at, at], color=colour, linewidth=1.2)
            axes.plot([middle], [at], "o", color=colour, markersize=3)
        axes.axvline(1.0, color="#b5423c", linewidth=0.8)
        axes.set(title=quantity, xscale="log", xlim=(NARROWEST, WIDEST))
        ticks = (0.2, 0.5, 1.0, 2.0, 5.0)
        axes.set_xticks(ticks, labels=[f"{tick:g}" for tick in ticks], fontsize=SMALL)
        axes.set_xticks([], minor=True)
        axes.set_yticks(range(len(sources)), labels=sources, fontsize=SMALL)
    figure.supxlabel("predicted / measured", fontsize=10)
    return figure


def _of(groups: Rows, quantity: str) -> list[Results]:
    return [row for row in groups if row["quantity"] == quantity]


def _shift(row: Results, groups: Rows) -> float:
    """Where in the line of its source a group stands: engines and GPUs side by side."""
    alike = [g for g in groups if (g["source"], g["quantity"]) == (row["source"], row["quantity"])]
    return 0.7 * ((alike.index(row) + 0.5) / len(alike) - 0.5)


FIGURES = {
    "serving.png": Drawing(
        ratios,
        "Predicted over measured by source, engine and GPU: the median, and 80 % of the figures. Grey: cells with a "
        "fault. What lies beyond a fifth or the fivefold is drawn there.",
        "cells",
        "groups",
    )
}
