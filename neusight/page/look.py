"""Look: where the time and the memory of one step go, kernel by kernel, module by module, from its start to its end."""

from __future__ import annotations

from nicegui import ui

from neusight.api import Predictor
from neusight.distributed import figures as distributed
from neusight.distributed.estimate import TrainingEstimate
from neusight.estimates import Estimate, figures
from neusight.figures import Chart
from neusight.page.answers import estimated, planned
from neusight.page.decide import is_planned, step_question, unused_of_plans
from neusight.page.form import Form
from neusight.page.tab import Shown, Tab, View
from neusight.serving import figures as served
from neusight.units import milliseconds

_PARTS = 3
"""Operators that are named as what makes a step slow."""


def ask(predictor: Predictor, form: Form) -> Shown:
    """Of the first device, or of the fastest plan on a cluster."""
    if is_planned(form):
        best = planned(predictor, form).best[0]
        return Shown(charts=(distributed.timeline(best), figures.memory([best])), rest=best)
    estimate = estimated(predictor, form.questions[0])
    if not isinstance(estimate, Estimate):
        charts: tuple[Chart, ...] = (served.passes(estimate), served.memory([estimate]))
    elif estimate.devices > 1:
        charts = (figures.operators(estimate), figures.roofline(estimate), figures.memory([estimate]))
    else:
        charts = _of_step(predictor, form, estimate)
    return Shown(charts=charts, rest=estimate)


def _of_step(predictor: Predictor, form: Form, estimate: Estimate) -> tuple[Chart, ...]:
    question = step_question(form)
    workload = predictor.workload(question)
    return (
        figures.roofline(estimate, question.device),
        figures.modules(estimate, _sources(form.question.model)),
        figures.operators(estimate),
        figures.timeline(workload, estimate),
        figures.memory_over_time(workload, question.device.usable_bytes),
    )


def _sources(model: str) -> dict[str, str]:
    """Of modules of a function in Python."""
    from neusight.workloads.functions import module_sources
    from neusight.workloads.resolve import resolve

    function = resolve(model).function
    return module_sources(function) if function else {}


def texts(tab: Tab, shown: Shown) -> None:
    """What makes it slow, in a line."""
    e = shown.rest
    if isinstance(e, Estimate):
        parts = ", ".join(f"{figures.short(r.operator)} ({r.phase}, {r.share:.0%})" for r in e.by_operator[:_PARTS])
        text = f"{milliseconds(e.latency_s)} on {e.gpu}, mostly limited by {e.limiter}: {parts}"
    elif isinstance(e, TrainingEstimate):
        waits = f"{e.bubble:.0%} of all ranks' time in bubbles, {milliseconds(e.exposed_s)} waiting for others"
        text = f"{milliseconds(e.latency_s)} a step as {e.plan.short}, mostly limited by {e.limiter}: {waits}"
    else:
        text = f"{milliseconds(e.latency_s)} for an answer on {e.gpu}, mostly limited by {e.limiter}"
    ui.label(text).classes("answer")


VIEW = View(path="/look", title="Look", ask=ask, texts=texts, unused=unused_of_plans, is_slow=is_planned)
