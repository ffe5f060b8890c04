"""The report of dies that were left out, words and figures: every figure in it is computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from neusight.experiments.assumptions import assumptions
from neusight.experiments.dies import FAMILIES, means
from neusight.experiments.page import SMALL, Drawing, canvas, number, table, wrapped

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Results = Mapping[str, Any]
Rows = Sequence[Mapping[str, Any]]
TITLES = {
    "ours": "this project",
    "physics": "physics alone",
    "learned": "all that was learned",
    "flexible": "trees without physics",
    "nearest": "nearest shape",
    "roofline": "roofline / 0.8 + 3 µs",
    "floor": "with the board in training",
}
"""Contestants as people read them, in order."""
TARGETS_SAID = ""
LONGEST_VALUE = 48
"""Letters of what is a number, or a few."""
CUT = 60.0
"""Bars of errors beyond this many percent are cut off, and written out."""


def setup(results: Results) -> list[str]:
    """How it was done, an item each."""
    declared, seconds = results["declared"], results["seconds"]
    rows = ", ".join(f"{name} {count:,}" for name, count in results["data"].items())
    boards = {die["name"]: ", ".join(_measured(results, die)) for die in declared["dies"]}
    dies = "; ".join(f"{name} ({measured})" for name, measured in boards.items() if measured)
    return [
        f"Rows: {rows}; of each GPU, table, operator, dtype, engine and kernel at most 2,500, drawn by a fixed "
        "seed. What no datasheet allows is left out.",
        f"Dies that were left out, with their measured boards: {dies}. Rates of square products on any board of "
        "the die are left out as well. Siblings: one board left out while others of its die stay.",
        "In each fold constants of physics are fitted again and tile models trained again without what is left out; "
        "what is learned counts as far as leaving out one more kind of SM bears it.",
        "Others: gradient-boosted trees on the logarithm of time over shapes, engines and datasheets; the nearest "
        "measured shape on the most similar GPU in training, scaled by the ratio of rooflines; this project with the "
        "board in training, which no prediction of an unknown GPU will beat by much.",
        f"Took {sum(seconds.values()) / 60:.0f} min on one core. "
        f"Again with `neusight experiments run {results['experiment']}`.",
    ]


def _measured(results: Results, die: Results) -> list[str]:
    held = {cell["gpu"] for cell in results["cells"] if cell["fold"] == die["name"]}
    return [board for board in die["boards"] if board in held]


def sections(results: Results) -> dict[str, list[str]]:
    """Words and tables, by the part of the report whose figures follow them."""
    found = {kind: _kind(results, kind, title) for kind, title in _KINDS.items()}
    found["intervals"] = ["## Intervals", *_intervals(results)]
    found["boards"] = ["## By board", *_boards(results)]
    if results.get("rates"):
        found["rates"] = ["## Rates of square products", *_rates(results)]
    return found | {"assumptions": ["## What is not fitted", *_assumed()]}


def _assumed() -> list[str]:
    """Numbers in the path of a prediction that are neither fitted nor of a datasheet or paper."""
    text = (
        "Constants of laws are fitted, figures of devices are their datasheets'. These numbers are neither, nor cited; "
        "as the code has them:"
    )
    rows = [(f"`{a.name}`", a.module, a.value, a.why) for a in assumptions() if len(a.value) <= LONGEST_VALUE]
    return [wrapped(text), table(("number", "module", "value", "what the code says"), rows, words=4)]


_KINDS = {"die": "Dies left out", "sibling": "One board of a die left out"}


def _kind(results: Results, kind: str, title: str) -> list[str]:
    """Every contestant by family, then what this project says fold by fold."""
    rows = [row for row in results["by_fold"] if row["kind"] == kind]
    families = _families(rows)
    mean = {(r["family"], r["contestant"]): r for r in means(rows, ("family", "contestant"))}
    shown = [
        (said, *(number(mean[f, name]["mape"]) if (f, name) in mean else "" for f in families))
        for name, said in TITLES.items()
    ]
    bias = "Mean error of this project and, in brackets, mean signed error (below zero: predicted too fast), percent:"
    return [
        f"## {title}",
        wrapped("Mean error in percent: over the rows of a board, then over boards, then over folds."),
        table(("", *families), shown),
        wrapped(bias),
        _by_fold(rows, families, lambda r: f"{r['mape']:.1f} ({r['bias']:+.1f})"),
    ]


def _by_fold(rows: Rows, families: Sequence[str], shown: Callable[[Results], str], name: str = "ours") -> str:
    found = {(r["fold"], r["family"]): shown(r) for r in rows if r["contestant"] == name}
    folds = list(dict.fromkeys(r["fold"] for r in rows))
    return table(("left out", *families), [(fold, *(found.get((fold, f), "") for f in families)) for fold in folds])


def _intervals(results: Results) -> list[str]:
    text = (
        "Percent of rows within this project's 90 % interval and, in brackets, the median of its width (high less low, "
        "in percent of the prediction):"
    )
    rows = results["by_fold"]
    return [wrapped(text), _by_fold(rows, _families(rows), lambda r: f"{r['inside']:.0f} ({r['width']:.0f})")]


def _boards(results: Results) -> list[str]:
    cells = [cell for cell in results["cells"] if cell["contestant"] == "ours"]
    families = _families(cells)
    found = {(c["kind"], c["gpu"], c["family"]): f"{c['mape']:.1f} ({c['bias']:+.1f})" for c in cells}
    names = list(dict.fromkeys((c["kind"], c["gpu"]) for c in cells))
    rows = [(f"{gpu}, {kind}", *(found.get((kind, gpu, f), "") for f in families)) for kind, gpu in names]
    return [
        wrapped("Mean and, in brackets, signed error of this project; a board left out with its die, or alone:"),
        table(("board", *families), rows),
    ]


def _rates(results: Results) -> list[str]:
    text = (
        "Best rates of large square products on GPUs that have no kernels in the data, by constants that were fitted "
        "without the rates of their architecture; mean error in percent, in brackets signed:"
    )
    kinds = sorted({row["kind"] for row in results["rates"]})
    found = {(row["architecture"], row["kind"]): row for row in results["rates"]}
    rows = []
    for name in dict.fromkeys(row["architecture"] for row in results["rates"]):
        told = [found.get((name, kind)) for kind in kinds]
        devices = {gpu for row in told if row for gpu in row["devices"]}
        rows.append((name, str(len(devices)), *(f"{r['mape']:.1f} ({r['bias']:+.1f})" if r else "" for r in told)))
    head = ("architecture", "GPUs", *(kind.removeprefix("rates/") for kind in kinds))
    return [wrapped(text), table(head, rows)]


def _families(rows: Rows) -> list[str]:
    told = {row["family"] for row in rows}
    return [family for family in FAMILIES if family in told]


def errors(results: Results) -> Figure:
    """Mean error by contestant: a panel a family, bars of dies and of siblings that were left out."""
    rows = means(results["by_fold"], ("kind", "family", "contestant"))
    families, names = _families(rows), list(TITLES)
    figure, panels = canvas(len(families), 4, 11, 2.6, sharey=True)
    for axes, family in zip(panels, families, strict=True):
        for shift, (kind, colour) in enumerate((("die", "#7fb0d8"), ("sibling", "#c9c9c9"))):
            part = [row for row in rows if (row["family"], row["kind"]) == (family, kind)]
            at = [names.index(row["contestant"]) + 0.4 * (shift - 0.5) for row in part]
            axes.barh(at, [min(row["mape"], CUT) for row in part], 0.38, color=colour, label=_KINDS[kind])
            for y, row in zip(at, part, strict=True):
                axes.text(min(row["mape"], CUT) + 1, y, f"{row['mape']:.1f}", va="center", fontsize=SMALL - 1)
        axes.set(title=family, xlim=(0, 1.2 * CUT))
        axes.set_yticks(range(len(names)), labels=list(TITLES.values()), fontsize=SMALL)
    panels[0].invert_yaxis()
    panels[0].legend(fontsize=SMALL - 1, frameon=False, loc="lower right")
    figure.supxlabel("mean error, %", fontsize=10)
    return figure


FIGURES = {
    "dies.png": Drawing(
        errors,
        "Mean error by contestant and family of kernels, over boards and folds. Bars end at 60 %, figures do not.",
        "sibling",
        "by_fold",
    )
}
