"""Reports of what optimisations gain, words and figures: every figure in them is computed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neusight.experiments.runs_report import Results, Rows, ratio_panels, rerun
from neusight.lab.page import Drawing, ReportForm, listing, wrapped
from neusight.questions.what_if import METRICS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ERRORS = (("median", "{median:.1f}"), ("mean", "{mean:.1f}"), ("inside", "{inside:.0f}"))
CLEAR = 0.05
"""Share that a gain differs from 1 by, from which its sign counts."""
_FEW = 10
"""Pairs of an optimisation, below which they are grey in the figure."""


def setup(results: Results) -> list[str]:
    """How pairs were compared, an item each."""
    total = _total(results)
    return [
        f"Pairs: {total['pairs']:,}; of {total['named']:,} the source names model and GPU, {total['count']:,} of those "
        "are answered. Nothing is fitted to them but the width of intervals (`neusight.what_if.gain`).",
        "The gain is the ratio of two predictions by the same pipeline, before and after; above 1 is better.",
        rerun(results),
    ]


def sections(results: Results) -> dict[str, list[str]]:
    """Words and tables, by the part of the report whose figures follow them."""
    sets = (("set", "{set}"), ("optimisation", "{optimisation}"), ("metric", "{metric}"), ("pairs", "{count:,}"))
    parts = {
        "pairs": ["## Errors of gains", optimisations(results)],
        "sets": ["## By source", listing(results["by_set"], (*sets, *_ERRORS), words=3)],
    }
    if results.get("published"):
        parts["published"] = ["## Effects that papers state", *_published(results)]
    reasons = listing(results["skipped"], (("pairs", "{count:,}"), ("reason", "{reason}")))
    if results["skipped"]:
        parts["skipped"] = ["## What is not compared", reasons]
    return parts


def optimisations(results: Results) -> str:
    """A table by optimisation: how many pairs are answered, and how far their gains are off."""
    shares = (
        ("optimisation", "{optimisation}"),
        ("pairs", "{named:,}"),
        ("answered, %", "{answered:.0f}"),
        ("sign, %", "{sign:.0f}"),
    )
    text = (
        "Errors of the ratio in percent; pairs whose model and GPU are named, and how many of those are answered; "
        f"sign: of gains and losses over {100 * CLEAR:.0f} % those that are predicted as such; inside: of 90 % "
        "intervals."
    )
    return f"{listing(results['optimisations'], (*shares, *_ERRORS))}\n\n{wrapped(text)}"


def _total(results: Results) -> Results:
    found: Results = next(row for row in results["optimisations"] if row["optimisation"] == "all")
    return found


def _published(results: Results) -> list[str]:
    columns = (
        ("effect", "{as_written}"),
        ("GPU", "{gpu}"),
        ("stated", "{stated_gain:.2f}"),
        ("predicted", "{predicted_gain:.2f}"),
        ("90 % interval", "{low_gain:.2f} - {high_gain:.2f}"),
    )
    parts = [listing(results["published"], columns, words=2)]
    if results["unanswered"]:
        parts += [
            "Not answered:",
            listing(results["unanswered"], (("effect", "{as_written}"), ("why", "{reason}")), words=2),
        ]
    return parts


def ratios(results: Results) -> Figure:
    """Predicted over measured gain by optimisation, a panel a metric."""
    kinds = (f"{_FEW} pairs or more", "fewer")
    groups: Rows = results["groups"]
    return ratio_panels(groups, ("metric", METRICS), "optimisation", lambda row: kinds[row["count"] < _FEW], kinds)


def accuracy(results: Results) -> list[str]:
    """Tables of docs/accuracy.md: the table by optimisation."""
    return [optimisations(results)]


PAIRS = ReportForm(
    setup=setup,
    sections=sections,
    accuracy=accuracy,
    remark="Of optimisations with ten answered pairs or more.",
    figures={
        "gains.png": Drawing(
            ratios,
            "Predicted over measured gain by optimisation and metric: the median, and 80 % of the pairs. What lies "
            "beyond a fifth or the fivefold is drawn there.",
            "pairs",
            "groups",
        )
    },
)
