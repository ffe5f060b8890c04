"""Reports of exported programs, words and figures: every figure in them is computed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from neusight.evaluation.programs import LAUNCHES
from neusight.experiments.programs import LEFT_OUT
from neusight.experiments.runs_report import Results, Rows, ratio_panels, rerun, unread_section
from neusight.lab.page import Drawing, ReportForm, listing, matrix, wrapped

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHOWN = ("eager", "compile")
_FORMS = {"count": ",", "mean": ".1f", "median": ".1f", "bias": "+.1f", "inside": ".0f"}


def setup(results: Results) -> list[str]:
    """How programs were compared, an item each."""
    count = sum(row["count"] for row in results["errors"] if row["left_out"] == LEFT_OUT[0])
    return [
        f"Timings: {count:,}. Skipped: {sum(row['count'] for row in results['skipped']):,}, with their reasons below.",
        "A program is predicted as it was timed: mode, precision of products and convolutions, operands warm or not. "
        "Nothing left out: all that ships, and what the host takes for a call and an operator is fitted to half of the "
        "programs that it ran, for the other half.",
        "Host left out: the same times are fitted to other hosts. How operators of several kinds compare, on any "
        "host, is a constant that ships.",
        "Die left out: constants of physics are fitted without all boards of a die, tile models forget them, and what "
        "they take on the host is fitted to half of the programs.",
        rerun(results),
    ]


def sections(results: Results) -> dict[str, list[str]]:
    """Words and tables, by the part of the report whose figures follow them."""
    text = "Errors in percent; bias: mean signed error, below zero predicted too fast; inside: of 90 % intervals."
    modes = ("mode", "{mode}"), ("size", "{size}")
    left = ("left out", "{left_out}")
    errors = listing(results["errors"], (left, *modes, *_columns(*_FORMS)), words=3)
    by_gpu = listing(
        _side_by_side(results["by_gpu"], "gpu", "mode", "size"), (("GPU", "{gpu}"), *modes, *_medians()), words=3
    )
    parts = {"programs": ["## Errors", wrapped(text), errors, wrapped("Medians by GPU:"), by_gpu]}
    if results["gains"]:
        parts["gains"] = ["## Gains over eager", *_gains(results["gains"], (left, *modes))]
    reasons = listing(results["skipped"], (("reason", "{reason}"), ("timings", "{count:,}")))
    parts["untold"] = ["## What is not compared", *([reasons] if results["skipped"] else []), *unread_section(results)]
    return parts


def _columns(*names: str) -> Iterable[tuple[str, str]]:
    return ((name, f"{{{name}:{_FORMS[name]}}}") for name in names)


def _medians() -> Iterable[tuple[str, str]]:
    yield "timings", "{count:,}"
    for left_out in LEFT_OUT:
        yield f"{left_out} left out", f"{{{left_out}[median]:.1f}}"
        yield "inside", f"{{{left_out}[inside]:.0f}}"


def _side_by_side(rows: Rows, *keys: str) -> list[dict[str, Any]]:
    """A row for each value of keys, with the count of the first, and figures by what was left out."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        same = {name: row[name] for name in (*keys, "count")}
        found.setdefault(tuple(row[name] for name in keys), same)[row["left_out"]] = row
    return list(found.values())


def _gains(rows: Rows, names: tuple[tuple[str, str], ...]) -> list[str]:
    text = (
        "Time of eager over time of a mode on the same GPU, host and day: errors of that ratio in percent, and of "
        "gains and losses of over 5 % (clear) the percentage whose direction is right."
    )
    direction = ("clear", "{clear:,}"), ("right", "{direction_right:.0f}")
    return [wrapped(text), listing(rows, (*names, *_columns("count", "mean", "median", "bias"), *direction), words=3)]


def ratios(results: Results) -> Figure:
    """Predicted over measured by GPU, a panel a mode."""
    as_shipped = [row for row in results["by_gpu"] if row["left_out"] == LEFT_OUT[0]]
    return ratio_panels(
        as_shipped, ("mode", list(LAUNCHES)), "gpu", lambda row: row["size"], ("above 1 ms", "below 1 ms")
    )


def accuracy(results: Results) -> list[str]:
    """Tables of docs/accuracy.md: programs as eager PyTorch and as ``torch.compile`` runs them, by what is left out."""
    rows = [row | {"what": "{mode}, {size}".format_map(row)} for row in results["errors"] if row["mode"] in _SHOWN]
    shown = matrix(rows, "what", ("left_out", LEFT_OUT), "{median:.1f} ({mean:.1f})", "programs, left out:")
    return [f"{shown}\n\nMedian error in percent, in brackets the mean."]


PROGRAMS = ReportForm(
    setup=setup,
    sections=sections,
    accuracy=accuracy,
    remark="Of timings whose standard deviation is at most 10 % of their mean.",
    figures={
        "programs.png": Drawing(
            ratios,
            "Predicted over measured by mode and GPU with nothing left out: the median, and 80 % of the programs. "
            "What lies beyond a fifth or the fivefold is drawn there.",
            "programs",
            "by_gpu",
        )
    },
)
