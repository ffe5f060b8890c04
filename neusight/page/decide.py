"""Decide: two devices part by part, what optimisations bring, the cheapest deployment, plans on a cluster."""

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
from neusight.page.answers import DeviceAnswer, answered, charts
from neusight.page.form import Form
from neusight.page.html import table
from neusight.page.tab import Shown, Tab, View, copied
from neusight.questions import Serving, Step, Training
from neusight.questions.parts import PLAN
from neusight.questions.serving import LOADS
from neusight.serving import Choice, Demand, Setup, Slo
from neusight.serving import figures as served
from neusight.steps import StepQuestion
from neusight.units import decimal, gib, milliseconds
from neusight.what_if import Gain, Rung, WhatIf, known
from neusight.what_if.figures import ladder

EVERY = "all"
"""In place of names of optimisations: all that apply, ranked."""
_COMMON = ("compile", "amp-bf16", "bf16", "flash", "fused-optimizer", "checkpointing", "cuda-graphs")
"""Switches; all others are in a list."""
_SEARCHED = ("replicas", "num_prompts", "batch", "stages", "burstiness", "trace", "prefill")
"""Fields that a service level leaves no room for."""
_LIMITS, _MINUTES, _ENGINE = 3, 1.0, "maxtext"
"""Of a search for a device to build: limits of area and of power, how long, and what else its command takes."""


def ask(predictor: Predictor, form: Form) -> Shown:
    """By what the form is about: a deployment, a device to build, a cluster, a step."""
    if form.serving:
        shown = _cheapest(predictor, form) if form.page.slo else _frontiers(predictor, form)
    elif form.page.space:
        shown = _designed(form)
    else:
        shown = _planned(predictor, form) if form.cluster else _stepped(predictor, form)

    def texts(tab: Tab) -> None:
        shown.texts(tab)
        copied("Command line", command(form))

    return replace(shown, texts=texts)


def is_slow(form: Form) -> bool:
    """Whether anything is searched or traced for it."""
    return bool(form.page.slo if form.serving else form.page.space or form.page.apply)


def unused(form: Form) -> list[str]:
    """Fields that are given and do not count for what is looked for."""
    given, apply = form.question.words(), ["apply"] if form.page.apply else []
    if form.serving:
        return [] if form.page.slo else [name for name in LOADS if name in given]
    if form.page.space:
        return [*apply, *(name for name in given if name not in ("model", "mode", "batch", "seq_len", "nodes"))]
    planned = [name for name in given if Step.fields()[name].field.panel == PLAN]
    return [*apply, *planned] if form.cluster else []


def _stepped(predictor: Predictor, form: Form) -> Shown:
    answers = answered(predictor, form)
    estimates = [answer.estimate for answer in answers if isinstance(answer.estimate, Estimate)]
    gains = _optimised(predictor, form) if form.page.apply else None
    ladders = [ladder(gains)] if gains else []
    differences = [figures.difference(*estimates[:2])] if len(estimates) > 1 else []
    return Shown(charts=(*charts(form, estimates), *ladders, *differences), texts=partial(_step, answers, gains))


def step_question(form: Form) -> StepQuestion:
    """The step on the first device.

    Raises:
        ModelError: a deployment.
    """
    step = form.questions[0]
    if not isinstance(step, Step):
        raise ModelError("optimisations are applied to steps: choose another mode")
    return step.resolve(step.device())


def _optimised(predictor: Predictor, form: Form) -> WhatIf:
    question, apply = step_question(form), form.page.apply
    return predictor.what_ifs(question) if apply == (EVERY,) else predictor.what_if(question, apply)


def _deployed(form: Form) -> Serving:
    """The deployment without what is searched for: devices and clients that nobody names, or the load."""
    question = form.complete
    assert isinstance(question, Serving)
    assert isinstance(form.question, Serving)
    if form.page.slo:
        gpu = ",".join(form.gpus) if form.question.gpu else ""
        return question.changed(gpu=gpu, concurrency=form.question.concurrency)
    return question.changed(gpu=",".join(form.gpus), **dict.fromkeys(LOADS))


def _cheapest(predictor: Predictor, form: Form) -> Shown:
    form.question.refuse(_SEARCHED, "is looked for under a service level: leave it out")
    question = _deployed(form)
    isl, osl = question.lengths()
    demand = Demand(
        slo=Slo.named(form.page.slo), isl=isl, osl=osl, request_rate=question.request_rate,
        concurrency=question.concurrency, seed=question.seed,
    )  # fmt: skip
    setup = {one.name: getattr(question, one.name) for one in fields(Setup) if one.name in form.given}
    devices = [one.device() for one in form.questions] if question.gpu else None
    choices = predictor.cheapest(question.model_or_name(), devices, demand, **setup)
    shown = [served.costs(choices)] if choices[0].holds else []
    return Shown(charts=tuple(shown), texts=partial(_choices, choices))


def _frontiers(predictor: Predictor, form: Form) -> Shown:
    question = _deployed(form)
    points = {one.gpu: predictor.frontier(question.changed(gpu=one.gpu), one.device()) for one in form.questions}
    return Shown(charts=(served.frontier(points),))


def _plan_question(form: Form) -> Training:
    """The training step on a cluster without its plan, which is searched for."""
    step = form.training
    return step.changed(**dict.fromkeys(name for name, one in step.fields().items() if one.field.panel == PLAN))


def _planned(predictor: Predictor, form: Form) -> Shown:
    found = predictor.plans(_plan_question(form).unplanned())
    return Shown(charts=(distributed.pareto(found), distributed.timeline(found.best[0])), texts=partial(_plans, found))


def _designed(form: Form) -> Shown:
    """Designs of a space that no other beats, for training of the model."""
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
    found = answers(space, [training], front=_LIMITS, limit_s=60.0 * _MINUTES)
    return Shown(charts=(chart(found, "the baseline"),), texts=partial(_designs, found))


def controls(tab: Tab) -> None:
    """What is decided between, beside the question itself."""
    with ui.element("div").classes("question"):
        if tab.form.serving:
            tab.field("slo")
        else:
            _switches(tab)
            tab.field("space")


def _switches(tab: Tab) -> None:
    given = [name for name in tab.form.page.apply if name != EVERY]
    others = sorted(name for name, one in known().items() if StepQuestion in one.functions and name not in _COMMON)

    async def switched(names: Sequence[str]) -> None:
        await tab.change(apply="\n".join(names))

    async def one(event: Any) -> None:
        rest = [name for name in tab.form.page.apply if name not in (event.sender.text, EVERY)]
        await switched([*rest, event.sender.text] if event.value else rest)

    for name in _COMMON:
        box = ui.checkbox(name, value=name in given, on_change=one)
        box.props("dense").style("flex: 0 0 auto; min-width: 0").mark(name)
    chosen = ui.select(others, multiple=True, label="other what-ifs", with_input=True)
    chosen.value = [name for name in given if name in others]
    common = [name for name in given if name in _COMMON]
    chosen.on_value_change(lambda event: switched([*common, *event.value])).props("dense use-chips").classes("wide")
    button = ui.button("rank all that apply", on_click=lambda: switched([EVERY])).props("flat dense no-caps")
    button.style("flex: 0 0 auto")


def _step(answers: tuple[DeviceAnswer, ...], gains: WhatIf | None, tab: Tab) -> None:
    for answer in answers:
        if answer.error:
            ui.label(f"{answer.gpu}: {answer.error}").classes("wrong").props('role="alert"')
    estimates = [answer.estimate for answer in answers if isinstance(answer.estimate, Estimate)]
    for other in estimates[1:]:
        ui.label(_compared(estimates[0], other)).classes("answer")
    if gains:
        _gains(gains)


def _compared(first: Estimate, second: Estimate) -> str:
    gain = Gain.of(first, second)
    faster = f"{gain.ratio:.2f}x as fast as" if gain.ratio >= 1 else f"{1 / gain.ratio:.2f}x as slow as"
    ends = (gain.low, gain.high) if gain.ratio >= 1 else (1 / gain.high, 1 / gain.low)
    cost = ""
    if first.usd_per_hour and second.usd_per_hour:
        prices = " and ".join(dict.fromkeys(e.price_source.partition(": ")[0] for e in (first, second)))
        cost = f"; a million samples cost {decimal(second.cost_usd(1e6))} USD instead of {decimal(first.cost_usd(1e6))}"
        cost += f" (prices: {prices})"
    return f"{second.gpu} is {faster} {first.gpu} (90 %: {ends[0]:.2f} to {ends[1]:.2f}){cost}"


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
        where = f"{best.described}{cost}"
        ui.label(f"{where} holds the level for {load}, with a probability of {best.probability:.0%}").classes("answer")
        copied("Launch one replica", e.launch)


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
        yield from ("serving", *_deployed(form).command_line(), *restated)
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
