"""Reports of whole runs, served and trained, words and figures: every figure in them is computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from neusight.figures.palette import COLOURS, GREY
from neusight.lab.page import (
    SMALL,
    Drawing,
    ReportForm,
    canvas,
    filled,
    legend,
    listing,
    matrix,
    style,
    table,
    wrapped,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Results = Mapping[str, Any]
Rows = Sequence[Mapping[str, Any]]
NARROWEST, WIDEST = 0.2, 5.0
"""Predicted over measured at the ends of the figure of served models: what lies beyond is drawn at the end."""
_ERRORS = (("figures", "{count:,}"), ("mean", "{mean:.1f}"), ("median", "{median:.1f}"), ("bias", "{bias:+.1f}"))
_STEPS = (
    *(("steps", "{count:,}"), ("mean", "{mean:.1f}"), ("median", "{median:.1f}"), ("worst", "{worst:.1f}")),
    *(("bias", "{bias:+.1f}"), ("inside", "{inside:.0f}")),
)
_DEFAULTS = (("", "{what}"), ("value", "{value}"))


def rerun(results: Results) -> str:
    """How long a run took, and how to do it again."""
    minutes = sum(results["seconds"].values()) / 60
    return f"Took {minutes:.0f} min on one core. Again with `neusight experiments run {results['experiment']}`."


def serving_setup(results: Results) -> list[str]:
    """How served models were compared, an item each."""
    every = results["means_all"][0]
    clean = results["means"][0]["count"] if results["means"] else 0
    skipped = sum(row["count"] for row in results["skipped"])
    return [
        f"Figures of cells: {every['count']:,}, of which {clean:,} are of cells without fault: those that tell "
        f"everything and hold no known mistake. Skipped: {skipped} cells.",
        "Predictions are of the constants that ship. Constants of engines were fitted to cells of these sources, so "
        "that errors of engines that were fitted say how well they are explained, not how an unknown engine would be.",
        "A cell is asked as it was run: model, precision, sharding, engine and its version, limits and load; what it "
        "leaves empty takes a stated default (below). The engine is simulated pass by pass.",
        rerun(results),
    ]


def serving_sections(results: Results) -> dict[str, list[str]]:
    """Words and tables, by the part of the report whose figures follow them."""
    parts = {"cells": ["## Errors", *_serving_errors(results)]}
    if results["peers"]:
        parts["peers"] = ["## Other predictors", *_serving_peers(results["peers"]), *_published(results["published"])]
    if results["dies"]:
        parts["dies"] = ["## Dies left out", *_serving_dies(results["dies"])]
    parts["intervals"] = ["## Intervals", *_intervals(results)]
    parts["worst"] = ["## Most wrong", *_serving_worst(results["worst"])]
    parts["untold"] = ["## What cells do not tell", *_unknown_of_cells(results)]
    return parts


def _serving_errors(results: Results) -> list[str]:
    text = (
        "Errors in percent by what is compared, of cells without fault and of all. bias: mean signed error, below zero "
        "predicted too low."
    )
    parts = [wrapped(text)]
    for by in ("source", "engine", "gpu", "mode", "quantity"):
        parts.append(_means(results, by, (by,)))
    parts += [wrapped("By source and quantity:"), _means(results, "source quantity", ("source", "quantity"))]
    names = ("source", "quantity", "engine", "gpu")
    clean = {tuple(row[name] for name in names) for row in results["groups"] if not row["fault"]}
    shown = [row for row in results["groups"] if not row["fault"] or tuple(row[n] for n in names) not in clean]
    columns = (*((name, f"{{{name}}}") for name in names), ("", "{fault}"), *_ERRORS)
    text = "By source, quantity, engine and GPU, cells without fault where there are any:"
    return [*parts, wrapped(text), listing(shown, columns, words=len(names) + 1)]


def _means(results: Results, by: str, keys: Sequence[str]) -> str:
    """Errors of cells without fault, and beside them of all."""
    clean = {tuple(row[key] for key in keys): row for row in results["means"] if row["by"] == by}
    rows = []
    for row in (row for row in results["means_all"] if row["by"] == by):
        names = tuple(row[key] for key in keys)
        cells = (filled(form, part) for part in (clean.get(names, {}), row) for _, form in _ERRORS)
        rows.append((*names, *cells))
    heads = [head for head, _ in _ERRORS]
    return table((*keys, *heads, "all figures", *heads[1:]), rows, words=len(keys))


def _serving_peers(peers: Rows) -> list[str]:
    text = (
        "What other predictors said of the same figures, as they were published, and this project beside them: mean "
        "and median error in percent on figures that both predict, whether or not the cell has a fault."
    )
    columns = (
        *(("source", "{source}"), ("quantity", "{quantity}"), ("predictor", "{peer}"), ("figures", "{count:,}")),
        *(("their mean", "{mean:.1f}"), ("median", "{median:.1f}")),
        *(("this project's mean", "{ours_mean:.1f}"), ("median", "{ours_median:.1f}")),
    )
    ordered = sorted(peers, key=lambda row: (row["source"], row["quantity"], row["mean"]))
    return [wrapped(text), listing(ordered, columns, words=3)]


def _published(published: Rows) -> list[str]:
    """What others publish of their errors on runs, without what they predicted for each."""
    if not published:
        return []
    text = (
        "What others publish of their own median error, percent, on runs that they measured, and this project's on the "
        "same runs. Theirs replays each request with its lengths; here a cell says mean lengths and documented rates."
    )
    columns = (
        *(("predictor", "{peer}"), ("quantity", "{quantity}"), ("runs", "{count:,}"), ("their median", "{median:.1f}")),
        *(("this project's", "{ours:.1f}"), ("inside", "{ours_inside:.0f}")),
    )
    return [wrapped(text), listing(published, columns, words=2)]


def _serving_dies(dies: Rows) -> list[str]:
    text = (
        "Cells of a die of which nothing was known: constants of physics, links and engines were fitted without its "
        "kernels, collectives and cells, tile models forgot it. Beside it the same figures with the die in the fit. "
        "Cells without fault; percent."
    )
    names = ("die", "source", "engine", "quantity")
    columns = (
        *((name, f"{{{name}}}") for name in names),
        *(("figures", "{count:,}"), ("median", "{median:.1f}"), ("mean", "{mean:.1f}"), ("bias", "{bias:+.1f}")),
        *(("inside", "{inside:.0f}"), ("median in the fit", "{known_median:.1f}")),
        ("mean in the fit", "{known_mean:.1f}"),
    )
    return [wrapped(text), listing(dies, columns, words=len(names))]


def _intervals(results: Results) -> list[str]:
    clean = {_name(row): row for row in results["means"]}
    every = [row for row in results["means_all"] if row["by"] in ("all", "source", "quantity")]
    rows = [(_name(r), filled("{inside:.0f}", clean.get(_name(r), {})), filled("{inside:.0f}", r)) for r in every]
    text = "Percent of figures within this project's 90 % interval:"
    return [wrapped(text), table(("", "without fault", "all"), rows)]


def _name(row: Results) -> str:
    return "all" if row["by"] == "all" else " ".join(str(row[key]) for key in row["by"].split())


def _serving_worst(worst: Rows) -> list[str]:
    text = "Of cells without fault, by the ratio of predicted to measured, and what passes spend their time on:"
    columns = (
        *(("cell", "{cell}"), ("figure", "{quantity}"), ("error", "{error:+.0f} %")),
        *(("predicted to be", "{limited_by}"), ("thought to be", "{reason}")),
    )
    return [wrapped(text), listing(worst, columns, words=2)]


def _unknown_of_cells(results: Results) -> list[str]:
    defaults = [{**row, "value": str(row["value"]) or "-"} for row in results["assumed"]]
    columns = (*_DEFAULTS, ("cells", "{count:,}"), ("why", "{reason}"))
    parts = [wrapped("Defaults that cells take, each with its reason:"), listing(defaults, columns)]
    if results["skipped"]:
        skipped = listing(results["skipped"], (("reason", "{reason}"), ("cells", "{count:,}")))
        parts += [wrapped("Cells that are not compared:"), skipped]
    return parts + unread_section(results)


def unread_section(results: Results) -> list[str]:
    """Columns of tables that nothing reads, and rows that fits leave out."""
    parts = []
    if names := results.get("unread"):
        columns = listing(names, (("column", "{column}"), ("rows", "{rows:,}")))
        parts += [wrapped("Columns of the tables that nothing reads, and the rows that fill them:"), columns]
    if unfitted := results.get("unfitted"):
        reasons = listing(unfitted, (("reason", "{reason}"), ("rows", "{count:,}")))
        parts += [wrapped("Rows that the fits without a die leave out, and why:"), reasons]
    return parts


def serving_ratios(results: Results) -> Figure:
    """Predicted over measured by source, a panel a quantity: of each engine and GPU the middle and most cells."""
    known = ("prefill_ms", "ttft_ms", "tpot_ms", "e2e_ms", "tokens_per_s")
    kinds = ("cells without fault", "cells with a fault")
    return ratio_panels(results["groups"], ("quantity", known), "source", lambda row: kinds[bool(row["fault"])], kinds)


def ratio_panels(
    groups: Rows, across: tuple[str, Sequence[str]], line: str, kind: Callable[[Results], str], kinds: Sequence[str]
) -> Figure:
    """Predicted over measured of groups: the median and the 10th to 90th percentile.

    Args:
        groups: with ``ratio``, those percentiles.
        across: a key and its values, with a panel each.
        line: the key with a line for each value.
        kind: of which of two ``kinds`` a group is: that in colour, or that in grey.
    """
    key, known = across
    names = [name for name in known if any(row[key] == name for row in groups)]
    lines = sorted({row[line] for row in groups})
    figure, panels = canvas(len(names), 3, 10, 0.35 * len(lines) + 1.4, sharey=True)
    for axes, name in zip(panels, names, strict=True):
        for row in (row for row in groups if row[key] == name):
            low, middle, high = (min(max(ratio, NARROWEST), WIDEST) for ratio in row["ratio"])
            alike = [g for g in groups if (g[line], g[key]) == (row[line], name)]
            # Groups of a line lie side by side in it.
            at = lines.index(row[line]) + 0.7 * ((alike.index(row) + 0.5) / len(alike) - 0.5)
            colour = (COLOURS[0], GREY)[kinds.index(kind(row))]
            axes.plot([low, high], [at, at], color=colour, linewidth=1.2)
            axes.plot([middle], [at], "o", color=colour, markersize=3, label=kind(row))
        axes.axvline(1.0, color="#b5423c", linewidth=0.8)
        axes.set(title=name, xscale="log", xlim=(NARROWEST, WIDEST))
        ticks = (0.2, 0.5, 1.0, 2.0, 5.0)
        axes.set_xticks(ticks, labels=[f"{tick:g}" for tick in ticks], fontsize=SMALL)
        axes.set_xticks([], minor=True)
        axes.set_yticks(range(len(lines)), labels=lines, fontsize=SMALL)
    figure.supxlabel("predicted / measured", fontsize=10)
    legend(figure, panels, scale=2)
    return figure


def training_setup(results: Results) -> list[str]:
    """How training steps were compared, an item each."""
    every = results["totals"][0]
    return [
        f"Steps: {every['count']}, on 8 to 2,304 GPUs. Skipped: {len(results['skipped'])}.",
        "A step is asked as it was run: model, plan, precision, framework, network; what a row leaves empty takes a "
        "stated default (below). One rank of each stage is simulated, kernel by kernel and collective by collective.",
        "What kernels take in a step over what they take by themselves is nine factors, fitted to these steps. Where "
        "steps of a die are left out, they are fitted to the steps of the other die alone.",
        rerun(results),
    ]


def training_sections(results: Results) -> dict[str, list[str]]:
    """Words and tables, by the part of the report whose figures follow them."""
    parts = {"steps": ["## Errors", *_training_errors(results["totals"])]}
    if results["left_out"]:
        parts["left out"] = ["## Dies left out", *_training_dies(results["left_out"])]
    if results["scaling"]:
        parts["scaling"] = ["## Scaling", *_scaling(results["scaling"])]
    if results["peers"]:
        parts["peers"] = ["## Another predictor", *_training_peers(results["peers"])]
    if results["memory"]:
        parts["memory"] = ["## Memory", *_memory(results)]
    parts["worst"] = ["## Most wrong", _training_worst(results["worst"])]
    columns = (*_DEFAULTS, ("rows", "{rows:,}"), ("why", "{why}"))
    defaults = [wrapped("Defaults that rows take, each with its reason:"), listing(results["assumed"], columns)]
    parts["untold"] = ["## What rows do not tell", *defaults, *unread_section(results)]
    return parts


def _training_errors(totals: Rows) -> list[str]:
    text = (
        "Errors in percent, with what ships. bias: mean signed error, below zero predicted too fast; inside: of 90 % "
        "intervals."
    )
    parts = [wrapped(text)]
    for by, head in (("", "of"), ("source", "source"), ("model", "model"), ("dtype", "dtype"), ("num_gpus", "GPUs")):
        shown = [row for row in totals if (row["by"] == by if by else row["by"] in ("all", "many"))]
        ordered = sorted(({**row, "name": row["name"] or "all"} for row in shown), key=lambda row: _order(row["name"]))
        parts.append(listing(ordered, ((head, "{name}"), *_STEPS)))
    return parts


def _order(name: str) -> tuple[int, str]:
    return (int(name), "") if name.isdigit() else (0, "" if name == "all" else name)


def _training_dies(rows: Rows) -> list[str]:
    text = (
        "Mean errors and bias on a die: with its steps in the fit, with its steps left out, and with its kernels and "
        "collectives left out as well, so that nothing of it was known but its datasheet. inside: of 90 % intervals."
    )
    columns = (
        *(("die", "{die}"), ("source", "{source}"), ("steps", "{known[count]:,}"), ("in the fit", "{known[mean]:.1f}")),
        *(("bias", "{known[bias]:+.1f}"), ("steps left out", "{steps[mean]:.1f}"), ("bias", "{steps[bias]:+.1f}")),
        *(("inside", "{steps[inside]:.0f}"), ("all left out", "{all[mean]:.1f}"), ("bias", "{all[bias]:+.1f}")),
    )
    return [wrapped(text), listing(rows, columns, words=2)]


def _scaling(rows: Rows) -> list[str]:
    text = (
        "The time of a step on the fewest GPUs in percent of that on the most, with as many sequences on each, as "
        "predicted, and by how many points that is off."
    )
    columns = (
        *(("model", "{model}"), ("dtype", "{dtype}"), ("plan", "{plan}"), ("from", "{from:,}"), ("to", "{to:,}")),
        *(("predicted", "{predicted:.1f}"), ("off", "{off:+.1f}")),
    )
    return [wrapped(text), listing(rows, columns, words=3)]


def _training_peers(rows: Rows) -> list[str]:
    text = (
        "Errors in percent that Calculon's authors publish (Isaev et al. 2023, table 2) of steps that Korthikanti et "
        "al. 2022 measured, and this project's. Of Calculon's eight steps, whose mean error is 3.65, four are here."
    )
    columns = (
        *(("model", "{model}"), ("recomputation", "{recompute}"), ("Calculon", "{error:.1f}")),
        ("this project", "{ours:.1f}"),
    )
    return [wrapped(text), listing(rows, columns, words=2)]


def _memory(results: Results) -> list[str]:
    text = "Peak memory of the last rank of Megatron-LM's functional tests: errors in percent, and the share within 10."
    columns = (
        *(("", "{name}"), ("rows", "{count}"), ("mean", "{mean:.1f}"), ("median", "{median:.1f}")),
        *(("worst", "{max:.1f}"), ("within", "{within:.0f}")),
    )
    fits = (
        *(("table", "{table}"), ("ran", "{ran_and_fits} of {ran}")),
        ("ran out of memory", "{out_of_memory_and_does_not_fit} of {out_of_memory}"),
    )
    return [
        wrapped(text),
        listing([{**row, "name": _with_keys(row)} for row in results["memory"]], columns),
        wrapped("Runs that ran and are predicted to fit, and runs out of memory that are predicted not to:"),
        listing(results["fits"], fits),
    ]


def _with_keys(row: Results) -> str:
    """What rows have in common, with the names of numbers: ``gpt``, ``tp 2``."""
    keys = () if row["by"] == "all" else row["by"].split()
    return " ".join(f"{key} {row[key]}" for key in keys) or "all"


def _training_worst(rows: Rows) -> str:
    columns = (
        *(("model", "{model}"), ("GPUs", "{num_gpus:,}"), ("plan", "{plan}"), ("tokens", "{seq_len:,}")),
        *(("error", "{error:+.0f} %"), ("source", "{source}")),
    )
    return listing(rows, columns)


def training_ratios(results: Results) -> Figure:
    """Predicted over measured against the number of GPUs, a panel a source, with a colour for each dtype."""
    rows = [row for row in results["rows"] if row["error"] is not None]
    sources, dtypes = sorted({row["source"] for row in rows}), sorted({row["dtype"] for row in rows})
    figure, panels = canvas(len(sources), 4, 10, 2.0, sharex=True, sharey=True)
    ticks = (8, 64, 512, 2048)
    for axes, source in zip(panels, sources, strict=True):
        for dtype in dtypes:
            part = [row for row in rows if row["source"] == source and row["dtype"] == dtype]
            look = {**style(dtypes.index(dtype)), "linestyle": "", "markersize": 4, "label": dtype}
            axes.plot([row["num_gpus"] for row in part], [1 + row["error"] / 100 for row in part], **look)
        axes.axhline(1.0, color=GREY, linewidth=0.8)
        axes.set(xscale="log", ylim=(0.7, 1.3), xlim=(5, 4000))
        axes.set_xticks(ticks, labels=[f"{gpus:,}" for gpus in ticks])
        axes.set_xticks([], minor=True)
        axes.set_title(_short(source), fontsize=SMALL)
        axes.tick_params(labelsize=SMALL, labelbottom=True)
    figure.supxlabel("GPUs", fontsize=10)
    figure.supylabel("predicted / measured", fontsize=10)
    legend(figure, panels)
    return figure


_TITLE = 34


def _short(source: str) -> str:
    """The end of a source's name, which tells more."""
    named = source.replace("NVIDIA/dgxc-benchmarking ", "dgxc ").replace("foundation-model-stack/", "")
    return named if len(named) <= _TITLE else f"{named[: _TITLE - 1]}…"


def serving_accuracy(results: Results) -> list[str]:
    """Tables of docs/accuracy.md: of cells of dies that were left out, the median errors."""
    rows = [row for row in results["dies"] if row["source"] == "all"]
    quantities = sorted({row["quantity"] for row in rows})
    shown = matrix(
        rows, "die", ("quantity", quantities), "{median:.1f} ({known_median:.1f})", "cells of a die left out"
    )
    return [f"{shown}\n\nMedian error in percent, in brackets with the die in the fits."]


def training_accuracy(results: Results) -> list[str]:
    """Tables of docs/accuracy.md: steps of a die that was left out, all of them."""
    columns = (
        *(("steps of a die left out", "{die}"), ("steps", "{known[count]:,}"), ("in the fit", "{known[mean]:.1f}")),
        *(("steps left out", "{steps[mean]:.1f}"), ("all left out", "{all[mean]:.1f}")),
    )
    shown = listing([row for row in results["left_out"] if row["source"] == "all"], columns)
    return [f"{shown}\n\nMean error in percent."]


SERVING = ReportForm(
    setup=serving_setup,
    sections=serving_sections,
    accuracy=serving_accuracy,
    remark="Of cells without fault; other predictors on all cells that both predict.",
    figures={
        "serving.png": Drawing(
            serving_ratios,
            "Predicted over measured by source, engine and GPU: the median, and 80 % of the figures. What lies "
            "beyond a fifth or the fivefold is drawn there.",
            "cells",
            "groups",
        )
    },
)
TRAINING = ReportForm(
    setup=training_setup,
    sections=training_sections,
    accuracy=training_accuracy,
    remark="Of steps, with those of a die left out of the fit of what kernels take in steps.",
    figures={
        "training.png": Drawing(
            training_ratios,
            "Predicted over measured steps by source, number of GPUs and dtype of products.",
            "steps",
            "rows",
        )
    },
)
