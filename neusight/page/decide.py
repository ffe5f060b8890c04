"""Decide: two devices part by part, gains of optimisations, the cheapest deployment, plans on a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from functools import partial
from shlex import join, split
from typing import Any

from nicegui import ui

from neusight.api import Predictor
from neusight.design.report import BestDesign
from neusight.distributed import figures as distributed
from neusight.distributed.search import Found
from neusight.errors import ModelError
from neusight.estimates import Estimate, figures
from neusight.page.answers import DeviceAnswer, answer_form, charts
from neusight.page.form import Form
from neusight.page.html import table
from neusight.page.tab import Shown, Tab, View, show_copyable
from neusight.questions import Serving, Step, Training
from neusight.questions.parts import PLAN
from neusight.questions.serving import LOADS
from neusight.serving import Choice, Demand, Setup, Slo
from neusight.serving import figures as served
from neusight.steps import StepQuestion
from neusight.units import chance, decimal, gib, milliseconds
from neusight.what_if import Gain, Rung, WhatIf, known
from neusight.what_if.figures import ladder
from neusight.what_if.gain import ranking

EVERY = "all"
"""Word in place of names of optimisations: all that apply, ranked."""
_COMMON = ("compile", "amp-bf16", "bf16", "flash", "fused-optimizer", "checkpointing", "cuda-graphs")
"""Optimisations with a switch; all others are in a list."""
_SEARCHED = ("replicas", "num_prompts", "batch", "stages", "burstiness", "trace", "prefill")
"""Fields that a search for a service level decides."""
_LIMITS, _MINUTES, _ENGINE = 3, 1.0, "maxtext"
"""Options of a search for a device to build: limits of area and of power, minutes, and engine."""


def ask(predictor: Predictor, form: Form) -> Shown:
    """Answer a form by its subject: a deployment, a device to build, a cluster or a step."""
    if form.serving:
        shown = _cheapest(predictor, form) if form.page.slo else _frontiers(predictor, form)
    elif form.page.space:
        shown = _show_designs(form)
    else:
        shown = _show_plans(predictor, form) if form.cluster else _show_step(predictor, form)

    def texts(tab: Tab) -> None:
        shown.texts(tab)
        show_copyable("Command line", command(form))

    return replace(shown, texts=texts)


def is_slow(form: Form) -> bool:
    """True if the answer needs a search or a trace."""
    return bool(form.page.slo if form.serving else form.page.space or form.page.apply)


def unused(form: Form) -> list[str]:
    """Fields that are given and have no effect on the search."""
    words, apply = form.question.words(), ["apply"] if form.page.apply else []
    if form.serving:
        return [] if form.page.slo else [name for name in LOADS if name in words]
    if form.page.space:
        return [*apply, *(name for name in words if name not in ("model", "mode", "batch", "seq_len", "nodes"))]
    planned = [name for name in words if Step.fields()[name].field.panel == PLAN]
    return [*apply, *planned] if form.cluster else []


def _show_step(predictor: Predictor, form: Form) -> Shown:
    answers = answer_form(predictor, form)
    estimates = [answer.estimate for answer in answers if isinstance(answer.estimate, Estimate)]
    gains = _apply(predictor, form) if form.page.apply else None
    drawn = [*charts(form, estimates), *([ladder(gains)] if gains else [])]
    drawn += [figures.difference(*estimates[:2])] if len(estimates) > 1 else []
    return Shown(charts=tuple(drawn), texts=partial(_step, answers, estimates, gains))


def step_question(form: Form) -> StepQuestion:
    """The step on the first device.

    Raises:
        ModelError: a deployment.
    """
    step = form.questions[0]
    if not isinstance(step, Step):
        raise ModelError("optimisations are applied to steps: choose another mode")
    return step.resolve(step.device())


def _apply(predictor: Predictor, form: Form) -> WhatIf:
    question, apply = step_question(form), form.page.apply
    return predictor.what_ifs(question) if apply == (EVERY,) else predictor.what_if(question, apply)


def _deployment(form: Form) -> Serving:
    """The deployment without the searched fields: devices and clients that are not given, or the load."""
    question = form.complete
    assert isinstance(question, Serving)
    assert isinstance(form.question, Serving)
    if form.page.slo:
        gpu = ",".join(form.gpus) if form.question.gpu else ""
        return question.changed(gpu=gpu, concurrency=form.question.concurrency)
    return question.changed(gpu=",".join(form.gpus), **dict.fromkeys(LOADS))


def _cheapest(predictor: Predictor, form: Form) -> Shown:
    form.question.refuse(_SEARCHED, "is looked for under a service level: leave it out")
    question = _deployment(form)
    isl, osl = question.lengths()
    demand = Demand(
        slo=Slo.named(form.page.slo), isl=isl, osl=osl, request_rate=question.request_rate,
        concurrency=question.concurrency, seed=question.seed,
    )  # fmt: skip
    setup = {f.name: getattr(question, f.name) for f in fields(Setup) if f.name in form.given}
    devices = [q.device() for q in form.questions] if question.gpu else None
    choices = predictor.cheapest(question.model_or_name(), devices, demand, **setup)
    shown = [served.costs(choices)] if choices[0].holds else []
    return Shown(charts=tuple(shown), texts=partial(_choices, choices))


def _frontiers(predictor: Predictor, form: Form) -> Shown:
    question = _deployment(form)
    points = {q.gpu: predictor.frontier(question.changed(gpu=q.gpu), q.device()) for q in form.questions}
    return Shown(charts=(served.frontier(points),))


def _plan_question(form: Form) -> Training:
    """The training step on a cluster without its plan, which is searched for."""
    step = form.training
    return step.changed(**dict.fromkeys(name for name, f in step.fields().items() if f.field.panel == PLAN))


def _show_plans(predictor: Predictor, form: Form) -> Shown:
    plans = predictor.plans(_plan_question(form).unplanned())
    return Shown(charts=(distributed.pareto(plans), distributed.timeline(plans.best[0])), texts=partial(_plans, plans))


def _show_designs(form: Form) -> Shown:
    """Show the Pareto front of a space's designs, for training of the model."""
    from neusight.design.front import chart
    from neusight.design.report import answers
    from neusight.design.space import load_space
    from neusight.design.workloads import DesignTraining
    from neusight.devices.cluster import default_per_node

    step = form.question
    if not isinstance(step, Step) or step.mode != "training":
        raise ModelError("designs are judged by training: choose mode training")
    space = load_space(form.page.space)
    training = DesignTraining(
        model=step.model, global_batch_size=step.batch, seq_len=step.seq_len, nodes=step.nodes or 1,
        per_node=default_per_node(space.base_device), engine=_ENGINE,
    )  # fmt: skip
    designs = answers(space, [training], front=_LIMITS, limit_s=60.0 * _MINUTES)
    return Shown(charts=(chart(designs, "the baseline"),), texts=partial(_designs, designs))


def controls(tab: Tab) -> None:
    """Show the fields of the decision, in addition to the question itself."""
    with ui.element("div").classes("question"):
        if tab.form.serving:
            tab.field("slo")
        else:
            _switches(tab)
            tab.field("space")


def _switches(tab: Tab) -> None:
    applied = [name for name in tab.form.page.apply if name != EVERY]
    others = sorted(name for name, t in known().items() if StepQuestion in t.functions and name not in _COMMON)

    async def switch(names: Sequence[str]) -> None:
        await tab.change(apply="\n".join(names))

    async def switch_one(event: Any) -> None:
        rest = [name for name in tab.form.page.apply if name not in (event.sender.text, EVERY)]
        await switch([*rest, event.sender.text] if event.value else rest)

    for name in _COMMON:
        box = ui.checkbox(name, value=name in applied, on_change=switch_one)
        box.props("dense").style("flex: 0 0 auto; min-width: 0").mark(name)
    chosen = ui.select(others, multiple=True, label="other what-ifs", with_input=True)
    chosen.value = [name for name in applied if name in others]
    common = [name for name in applied if name in _COMMON]
    chosen.on_value_change(lambda event: switch([*common, *event.value])).props("dense use-chips").classes("wide")
    button = ui.button("rank all that apply", on_click=lambda: switch([EVERY])).props("flat dense no-caps")
    button.style("flex: 0 0 auto")


def _step(answers: tuple[DeviceAnswer, ...], estimates: Sequence[Estimate], gains: WhatIf | None, tab: Tab) -> None:
    for answer in answers:
        if answer.error:
            ui.label(f"{answer.gpu}: {answer.error}").classes("wrong").props('role="alert"')
    for other in estimates[1:]:
        ui.label(_compare(estimates[0], other)).classes("answer")
    if gains:
        _gains(gains)


def _compare(first: Estimate, second: Estimate) -> str:
    gain = Gain.of(first, second)
    faster = f"{gain.ratio:.2f}x as fast as" if gain.ratio >= 1 else f"{1 / gain.ratio:.2f}x as slow as"
    ends = (gain.low, gain.high) if gain.ratio >= 1 else (1 / gain.high, 1 / gain.low)
    cost = ""
    if first.usd_per_hour and second.usd_per_hour:
        prices = " and ".join(dict.fromkeys(e.price_source.partition(": ")[0] for e in (first, second)))
        cost = f"; a million samples cost {decimal(second.cost_usd(1e6))} USD instead of {decimal(first.cost_usd(1e6))}"
        cost += f" (prices: {prices})"
    probable = ranking({first.gpu: first, second.gpu: second})
    return f"{second.gpu} is {faster} {first.gpu} (90 %: {ends[0]:.2f} to {ends[1]:.2f}); {probable}{cost}"


def _gains(answer: WhatIf) -> None:
    if answer.rungs:
        gain = answer.gain()
        text = f"together {gain.ratio:.2f}x as fast (90 %: {gain.low:.2f} to {gain.high:.2f})"
        ui.label(f"{', '.join(r.transform.name for r in answer.rungs)}: {text}").classes("answer")
    head = ("optimisation", "time", "gain", "90 %", "memory", "what it changes")
    for title, rungs in (("one upon the other", answer.rungs), ("each by itself", answer.alone)):
        if rungs:
            ui.label(title).classes("quiet")
            ui.html(table(head, map(_cells, rungs)), sanitize=False)


def _cells(rung: Rung) -> tuple[str, ...]:
    time, memory = rung.time, gib(rung.memory.after)
    interval = f"{time.low:.2f} to {time.high:.2f}"
    return rung.transform.name, milliseconds(time.after), f"{time.ratio:.2f}x", interval, memory, rung.transform.summary


def _choices(choices: list[Choice], tab: Tab) -> None:
    best = choices[0]
    if (e := best.estimate) is None:
        ui.label(f"nothing holds {tab.form.page.slo}").classes("answer")
        ui.html(table(("device", "why not"), ((c.gpu, c.reason) for c in choices)), sanitize=False)
    else:
        cost = "" if best.usd_per_hour is None else f" at {decimal(best.usd_per_hour)} USD an hour"
        load = f"{served.load_size(e)} {'requests/s' if 'request_rate' in e.load else 'clients'}"
        holds = f"holds the level for {load}, with a probability of {chance(best.probability)}"
        ui.label(f"{best.described}{cost} {holds}").classes("answer")
        show_copyable("Launch one replica", e.launch)


def _plans(found: Found, tab: Tab) -> None:
    best = found.best[0]
    low_s, high_s = best.interval
    time = f"{milliseconds(best.latency_s)} (90 %: {milliseconds(low_s)} to {milliseconds(high_s)})"
    ui.label(f"{best.plan.short}: {time} a step, MFU {best.mfu:.0%}").classes("answer")
    ui.label(f"{found.plans:,} plans divide model and batch; {found.simulated:,} were simulated").classes("quiet")


def _designs(found: Sequence[BestDesign], tab: Tab) -> None:
    best = max(found, key=lambda design: design.gain.ratio)
    gain = f"{best.gain.ratio:.2f}x the baseline's throughput (90 %: {best.gain.low:.2f} to {best.gain.high:.2f})"
    ui.label(f"{best.design_words}: {gain}, {best.area_mm2:.0f} mm2, {best.power_w:.0f} W").classes("answer")
    gap = max(1.0 / design.optimum.least_share - 1.0 for design in found)
    searched = f"{best.optimum.designs:,} designs, {best.optimum.simulated:,} simulated"
    ui.label(f"{searched}; what was not found is at most {gap:.1%} faster").classes("quiet")


def command(form: Form) -> str:
    """The command line that gives the same.

    Raises:
        DeviceError: an unknown device.
    """
    return join(["neusight", *_words(form)])


def _words(form: Form) -> Iterator[str]:
    question, page = form.question, form.page
    if not isinstance(question, Step):
        restated = [word for name in form.restated for word in question.fields()[name].command_words(form.text(name))]
        yield from ("serving", *_deployment(form).command_line(), *restated)
        yield from ("--slo", page.slo) if page.slo else ("--frontier",)
    elif page.space:
        yield from ("design", page.space, "--model", question.model, "--global-batch-size", str(question.batch))
        yield from Step(model=question.model, seq_len=question.seq_len, nodes=question.nodes).options()
        yield from ("--front", str(_LIMITS), "--minutes", f"{_MINUTES:g}")
    elif form.cluster:
        yield from ("plan", *_plan_question(form).command_line())
    elif page.apply:
        step = form.questions[0]
        yield from ("what-if", *step.command_line())
        yield from ("--all",) if page.apply == (EVERY,) else ("--apply", ",".join(page.apply))
    else:
        yield from split(form.command)[1:]


VIEW = View(path="/decide", title="Decide", ask=ask, controls=controls, unused=unused, is_slow=is_slow)
