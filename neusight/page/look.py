"""Look: time and memory of one step, kernel by kernel, module by module, from its start to its end."""

from __future__ import annotations

from functools import partial

from nicegui import ui

from neusight.api import Predictor
from neusight.distributed.estimate import TrainingEstimate
from neusight.estimates import Estimate, figures
from neusight.figures import Chart
from neusight.page.answers import Answer, answer_question
from neusight.page.decide import step_question
from neusight.page.form import Form
from neusight.page.tab import Shown, Tab, View
from neusight.serving.estimate import ServingEstimate
from neusight.units import milliseconds

_PARTS = 3
"""Number of operators that are named as the slowest."""
_CHARTS = {
    ServingEstimate: ("passes", "memory"),
    TrainingEstimate: ("timeline", "memory"),
    Estimate: ("operators", "roofline", "memory"),
}
"""Charts of answers of each kind; of a step on one device there are more."""


def ask(predictor: Predictor, form: Form) -> Shown:
    """Charts of the first device, or of the ranks of a cluster."""
    e = answer_question(predictor, form.questions[0])
    if isinstance(e, Estimate) and e.devices == 1:
        charts = _of_step(predictor, form, e)
    else:
        charts = tuple(e.figure(name) for name in _CHARTS[type(e)])
    return Shown(charts=charts, texts=partial(_texts, e))


def _of_step(predictor: Predictor, form: Form, estimate: Estimate) -> tuple[Chart, ...]:
    from neusight.workloads.functions import module_sources
    from neusight.workloads.resolve import resolve

    question = step_question(form)
    workload = predictor.workload(question)
    function = resolve(form.question.model).function
    return (
        figures.roofline(estimate, question.device),
        figures.modules(estimate, module_sources(function) if function else {}),
        figures.operators(estimate),
        figures.timeline(workload, estimate),
        figures.memory_over_time(workload, question.device.usable_bytes),
    )


def _texts(e: Answer, _: Tab) -> None:
    """Show the causes of the latency, in a line."""
    slow = f"mostly limited by {e.limiter}"
    if isinstance(e, Estimate):
        parts = ", ".join(f"{figures.short(r.operator)} ({r.phase}, {r.share:.0%})" for r in e.by_operator[:_PARTS])
        text = f"{milliseconds(e.latency_s)} on {e.gpu}, {slow}: {parts}"
    elif isinstance(e, TrainingEstimate):
        waits = f"{e.bubble:.0%} of all ranks' time in bubbles, {milliseconds(e.exposed_s)} waiting for others"
        text = f"{milliseconds(e.latency_s)} a step as {e.plan.short}, {slow}: {waits}"
    else:
        text = f"{milliseconds(e.latency_s)} for an answer on {e.gpu}, {slow}"
    ui.label(text).classes("answer")


VIEW = View(path="/look", title="Look", ask=ask)
