"""The report of dies that were left out, words and figures: every figure in it is computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from neusight.experiments.dies import FAMILIES, means
from neusight.experiments.page import SMALL, Drawing, ReportForm, canvas, listing, matrix, table, wrapped

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
CUT = 60.0
"""Bars of errors beyond this many percent are cut off, and written out."""
_KINDS = {"die": "Dies left out", "sibling": "One board of a die left out"}
_ERROR = "{mape:.1f} ({bias:+.1f})"


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
    parts = {kind: _kind(results, kind, title) for kind, title in _KINDS.items()}
    parts["intervals"] = ["## Intervals", *_intervals(results)]
    parts["boards"] = ["## By board", *_boards(results)]
    if results.get("rates"):
        parts["rates"] = ["## Rates of square products", *_rates(results)]
    if results.get("assumptions"):
        parts["assumptions"] = ["## What is not fitted", *_assumed(results["assumptions"])]
    return parts


def _assumed(numbers: Rows) -> list[str]:
    """Numbers in the path of a prediction that are neither fitted nor of a datasheet or paper."""
    text = (
        "Constants of laws are fitted, figures of devices are their datasheets'. These numbers are neither, nor cited; "
        "as the code has them:"
    )
    columns = (("number", "`{name}`"), ("module", "{module}"), ("value", "{value}"), ("what the code says", "{why}"))
    return [wrapped(text), listing(numbers, columns, words=4)]


def _kind(results: Results, kind: str, title: str) -> list[str]:
    """Every contestant by family, then what this project says fold by fold."""
    rows = [row for row in results["by_fold"] if row["kind"] == kind]
    by_title = [
        {**row, "title": title}
        for name, title in TITLES.items()
        for row in means(rows, ("family", "contestant"))
        if row["contestant"] == name
    ]
    bias = "Mean error of this project and, in brackets, mean signed error (below zero: predicted too fast), percent:"
    return [
        f"## {title}",
        wrapped("Mean error in percent: over the rows of a board, then over boards, then over folds."),
        matrix(by_title, "title", ("family", _families(rows)), "{mape:.1f}", ""),
        wrapped(bias),
        _by_fold(rows, _ERROR),
    ]


def _by_fold(rows: Rows, form: str) -> str:
    ours = [row for row in rows if row["contestant"] == "ours"]
    return matrix(ours, "fold", ("family", _families(rows)), form, "left out")


def _intervals(results: Results) -> list[str]:
    text = (
        "Percent of rows within this project's 90 % interval and, in brackets, the median of its width (high less low, "
        "in percent of the prediction):"
    )
    return [wrapped(text), _by_fold(results["by_fold"], "{inside:.0f} ({width:.0f})")]


def _boards(results: Results) -> list[str]:
    cells = [{**c, "board": f"{c['gpu']}, {c['kind']}"} for c in results["cells"] if c["contestant"] == "ours"]
    text = "Mean and, in brackets, signed error of this project; a board left out with its die, or alone:"
    return [wrapped(text), matrix(cells, "board", ("family", _families(cells)), _ERROR)]


def _rates(results: Results) -> list[str]:
    text = (
        "Best rates of large square products on GPUs that have no kernels in the data, by constants that were fitted "
        "without the rates of their architecture; mean error in percent, in brackets signed:"
    )
    kinds = sorted({row["kind"] for row in results["rates"]})
    by_name: dict[str, dict[str, Any]] = {}
    for row in results["rates"]:
        by_name.setdefault(row["architecture"], {})[row["kind"]] = row
    rows = []
    for name, by_kind in by_name.items():
        devices = {gpu for row in by_kind.values() for gpu in row["devices"]}
        cells = (_ERROR.format_map(by_kind[kind]) if kind in by_kind else "" for kind in kinds)
        rows.append((name, str(len(devices)), *cells))
    head = ("architecture", "GPUs", *(kind.removeprefix("rates/") for kind in kinds))
    return [wrapped(text), table(head, rows)]


def _families(rows: Rows) -> list[str]:
    named = {row["family"] for row in rows}
    return [family for family in FAMILIES if family in named]


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


DIES = ReportForm(
    setup=setup,
    sections=sections,
    figures={
        "dies.png": Drawing(
            errors,
            "Mean error by contestant and family of kernels, over boards and folds. Bars end at 60 %, figures do not.",
            "sibling",
            "by_fold",
        )
    },
)
