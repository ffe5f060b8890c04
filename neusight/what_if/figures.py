"""What optimisations gain, as a chart."""

from __future__ import annotations

from neusight.estimates.figures import waterfall
from neusight.figures import Chart
from neusight.what_if.answers import WhatIf


def ladder(answer: WhatIf) -> Chart:
    """The time before, what each rung takes from it with its interval, and what is left; where there is no ladder, the
    rungs that stand alone, each from the time before.
    """
    before, rungs = answer.before, answer.rungs or answer.alone
    steps = {rung.transform.name: rung.time.after - rung.time.before for rung in rungs}
    intervals = {r.transform.name: (r.time.before / r.time.high, r.time.before / r.time.low) for r in rungs}
    last = ("after", answer.after if answer.rungs else before)
    gains = {rung.transform.name: f"{rung.time.ratio:.2f}x" for rung in rungs}
    title = f"{before.model} on {before.gpu}"
    return waterfall("ladder", ("before", before), last, steps, intervals, labels=gains, title=title)
