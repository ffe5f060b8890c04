"""Gains of optimisations as a chart."""

from __future__ import annotations

from neusight.estimates.figures import waterfall
from neusight.figures import Chart
from neusight.what_if.answers import WhatIf


def ladder(answer: WhatIf) -> Chart:
    """Waterfall of the time before, the reduction by each rung with its interval, and the time left; without cumulative
    rungs, the individual ones, each from the time before.
    """
    before, rungs = answer.before, answer.rungs or answer.alone
    steps = {rung.transform.name: rung.time.after - rung.time.before for rung in rungs}
    intervals = {r.transform.name: (r.time.before / r.time.high, r.time.before / r.time.low) for r in rungs}
    last = ("after", answer.after if answer.rungs else before)
    gains = {rung.transform.name: f"{rung.time.ratio:.2f}x" for rung in rungs}
    title = f"{before.model} on {before.gpu}"
    return waterfall("ladder", ("before", before), last, steps, intervals, labels=gains, title=title)
