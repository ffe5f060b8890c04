"""The report of distributed training, words and figures: every figure in it is computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from neusight.experiments.page import GREY, SMALL, Drawing, canvas, legend, style, table, wrapped

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Results = Mapping[str, Any]
Rows = Sequence[Mapping[str, Any]]
TARGETS_SAID = "Of steps, with those of a die left out of the fit of what kernels take in steps."


def setup(results: Results) -> list[str]:
    """How it was done, an item each."""
    every = results["totals"][0]
    return [
        f"Steps: {every['count']}, on 8 to 2,304 GPUs. Skipped: {len(results['skipped'])}.",
        "A step is asked as it was run: model, plan, precision, framework, network; what a row leaves empty takes a "
        "stated default (below). One rank of each stage is simulated, kernel by kernel and collective by collective.",
        "What kernels take in a step over what they take by themselves is nine factors, fitted to these steps. Where "
        "steps of a die are left out, they are fitted to the steps of the other die alone.",
        f"Took {sum(results['seconds'].values()) / 60:.0f} min on one core. "
        f"Again with `neusight experiments run {results['experiment']}`.",
    ]


def sections(results: Results) -> dict[str, list[str]]:
    """Words and tables, by the part of the report whose figures follow them."""
    found = {"steps": ["## Errors", *_errors(results["totals"])]}
    if results["left_out"]:
        found["left out"] = ["## Dies left out", *_left_out(results["left_out"])]
    if results["scaling"]:
        found["scaling"] = ["## Scaling", *_scaling(results["scaling"])]
    if results["peers"]:
        found["peers"] = ["## Another predictor", *_peers(results["peers"])]
    if results["memory"]:
        found["memory"] = ["## Memory", *_memory(results)]
    found["worst"] = ["## Most wrong", *_worst(results["worst"])]
    found["untold"] = ["## What rows do not tell", *_untold(results)]
    return found


def _numbers(row: Results) -> tuple[str, ...]:
    if not row["count"]:
        return ("0", "", "", "", "", "")
    forms = {"mean": ".1f", "median": ".1f", "worst": ".1f", "bias": "+.1f", "inside": ".0f"}
    return (f"{row['count']:,}", *(format(row[name], form) for name, form in forms.items()))


_HEAD = ("steps", "mean", "median", "worst", "bias", "inside")


def _errors(totals: Rows) -> list[str]:
    text = (
        "Errors in percent, with what ships. bias: mean signed error, below zero predicted too fast; inside: of 90 % "
        "intervals."
    )
    parts = [wrapped(text)]
    for by, named in (("", "of"), ("source", "source"), ("model", "model"), ("dtype", "dtype"), ("num_gpus", "GPUs")):
        shown = [row for row in totals if (row["by"] == by if by else row["by"] in ("all", "many"))]
        rows = [(row["name"] or "all", *_numbers(row)) for row in sorted(shown, key=lambda r: _order(r["name"]))]
        parts.append(table((named, *_HEAD), rows))
    return parts


def _order(name: str) -> tuple[int, str]:
    return (int(name), "") if name.isdigit() else (0, name)


def _left_out(rows: Rows) -> list[str]:
    text = (
        "Mean errors and bias on a die: with its steps in the fit, with its steps left out, and with its kernels and "
        "collectives left out as well, so that nothing of it was known but its datasheet. inside: of 90 % intervals."
    )
    head = ("die", "source", "steps", "in the fit", "bias", "steps left out", "bias", "inside", "all left out", "bias")
    shown = []
    for row in rows:
        cells = [f"{row['known']['count']:,}"]
        for name in ("known", "steps", "all"):
            cells += [f"{row[name]['mean']:.1f}", f"{row[name]['bias']:+.1f}"]
            cells += [f"{row[name]['inside']:.0f}"] if name == "steps" else []
        shown.append((row["die"], row["source"], *cells))
    return [wrapped(text), table(head, shown, words=2)]


def _scaling(rows: Rows) -> list[str]:
    text = (
        "The time of a step on the fewest GPUs in percent of that on the most, with as many sequences on each, as "
        "predicted, and by how many points that is off."
    )
    head = ("model", "dtype", "plan", "from", "to", "predicted", "off")
    shown = [
        (
            r["model"],
            r["dtype"],
            r["plan"],
            f"{r['from']:,}",
            f"{r['to']:,}",
            f"{r['predicted']:.1f}",
            f"{r['off']:+.1f}",
        )
        for r in rows
    ]
    return [wrapped(text), table(head, shown, words=3)]


def _peers(rows: Rows) -> list[str]:
    text = (
        "Errors in percent that Calculon's authors publish (Isaev et al. 2023, table 2) of steps that Korthikanti et "
        "al. 2022 measured, and this project's. Of Calculon's eight steps, whose mean error is 3.65, four are here."
    )
    shown = [(r["model"], r["recompute"], f"{r['error']:.1f}", f"{r['ours']:.1f}") for r in rows]
    return [wrapped(text), table(("model", "recomputation", "Calculon", "this project"), shown, words=2)]


def _memory(results: Results) -> list[str]:
    text = "Peak memory of the last rank of Megatron-LM's functional tests: errors in percent, and the share within 10."
    kept = [row for row in results["memory"] if not row["by"].startswith(("dev", "lts"))]
    rows = [
        (r["by"], f"{r['count']}", f"{r['mean']:.1f}", f"{r['median']:.1f}", f"{r['max']:.1f}", f"{r['within']:.0f}")
        for r in kept
    ]
    fits = [
        (
            r["table"],
            f"{r['ran_and_fits']} of {r['ran']}",
            f"{r['out_of_memory_and_does_not_fit']} of {r['out_of_memory']}",
        )
        for r in results["fits"]
    ]
    return [
        wrapped(text),
        table(("", "rows", "mean", "median", "worst", "within"), rows),
        wrapped("Runs that ran and are said to fit, and runs out of memory that are said not to:"),
        table(("table", "ran", "ran out of memory"), fits),
    ]


def _worst(rows: Rows) -> list[str]:
    shown = [
        (r["model"], f"{r['num_gpus']:,}", r["plan"], f"{r['seq_len']:,}", f"{r['error']:+.0f} %", r["source"])
        for r in rows
    ]
    return [table(("model", "GPUs", "plan", "tokens", "error", "source"), shown, words=1)]


def _untold(results: Results) -> list[str]:
    rows = [(row["what"], row["value"], f"{row['rows']:,}", row["why"]) for row in results["assumed"]]
    return [wrapped("Defaults that rows take, each with its reason:"), table(("", "value", "rows", "why"), rows)]


def ratios(results: Results) -> Figure:
    """Predicted over measured against the number of GPUs, a panel a source, with a colour for each dtype."""
    rows = [row for row in results["rows"] if row["error"] is not None]
    sources, dtypes = sorted({row["source"] for row in rows}), sorted({row["dtype"] for row in rows})
    figure, panels = canvas(len(sources), 4, 10, 2.0, sharex=True, sharey=True)
    for axes, source in zip(panels, sources, strict=True):
        for dtype in dtypes:
            part = [row for row in rows if row["source"] == source and row["dtype"] == dtype]
            look = {**style(dtypes.index(dtype)), "linestyle": "", "markersize": 4, "label": dtype}
            axes.plot([row["num_gpus"] for row in part], [1 + row["error"] / 100 for row in part], **look)
        axes.axhline(1.0, color=GREY, linewidth=0.8)
        axes.set(xscale="log", ylim=(0.7, 1.3), xlim=(5, 4000))
        axes.set_xticks(_GPUS, labels=[f"{gpus:,}" for gpus in _GPUS])
        axes.set_xticks([], minor=True)
        axes.set_title(_short(source), fontsize=SMALL)
        axes.tick_params(labelsize=SMALL, labelbottom=True)
    figure.supxlabel("GPUs", fontsize=10)
    figure.supylabel("predicted / measured", fontsize=10)
    legend(figure, panels)
    return figure


_GPUS = (8, 64, 512, 2048)
_TITLE = 34


def _short(source: str) -> str:
    """The end of a source's name, which tells more."""
    named = source.replace("NVIDIA/dgxc-benchmarking ", "dgxc ").replace("foundation-model-stack/", "")
    return named if len(named) <= _TITLE else f"{named[: _TITLE - 1]}…"


FIGURES = {
    "training.png": Drawing(
        ratios, "Predicted over measured steps by source, number of GPUs and dtype of products.", "steps", "rows"
    )
}
