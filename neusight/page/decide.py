"""Decide: two devices part by part, what optimisations bring, the cheapest deployment, plans on a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from shlex import join, split
from typing import Any

from nicegui import ui

from neusight.api import Predictor
from neusight.design.report import BestDesign
from neusight.distributed import figures as distributed
from neusight.distributed.search import Found
from neusight.errors import ModelError
from neusight.estimates import Estimate, figures
from neusight.page.answers import OF_PLANS, DeviceAnswer, answered, plan_question, planned
from neusight.page.form import Form
from neusight.page.tab import Shown, Tab, View, copied
from neusight.page.tables import table
from neusight.questions import Serving, Step
from neusight.questions.serving import LOADS
from neusight.serving import Choice, Demand, ServingEstimate, Setup, Slo
from neusight.serving import figures as served
from neusight.steps import StepQuestion
from neusight.units import decimal, gib, milliseconds
from neusight.what_if import Gain, Rung, WhatIf, known
from neusight.what_if.figures import ladder

EVERY = "all"
"""In place of names of optimisations: all that apply, ranked."""
_COMMON = ("compile", "amp-bf16", "bf16", "flash", "fused-optimizer", "checkpointing", "cuda-graphs")
"""Switches; all others are in a list."""
_CLIENTS = "holds the level for"
_SEARCHED = ("replicas", "num_prompts", "batch", "trace", "prefill")
"""Fields that a service level leaves no room for."""
_LIMITS, _MINUTES, _ENGINE = 3, 1.0, "maxtext"
"""Of a search for a device to build: limits of area and of power, how long, and what else its command takes."""


def ask(predictor: Predictor, form: Form) -> Shown:
    """By what the form is about: a deployment, a cluster, a step."""
    if form.serving:
        return _served(predictor, form)
    if form.page.space:
        return _designed(form)
    return _planned(predictor, form) if form.cluster else _stepped(predictor, form)


def is_slow(form: Form) -> bool:
    """Whether anything is searched or traced for it."""
    return bool(form.page.slo if form.serving else form.page.space or form.cluster or form.page.apply)


def _stepped(predictor: Predictor, form: Form) -> Shown:
    answers = answered(predictor, form)
    estimates = [answer.estimate for answer in answers if isinstance(answer.estimate, Estimate)]
    charts = [figures.time(estimates), figures.memory(estimates)] if estimates else []
    gains = _optimised(predictor, form) if form.page.apply else None
    charts += [ladder(gains)] if gains else []
    charts += [figures.difference(*estimates[:2])] if len(estimates) > 1 else []
    return Shown(charts=tuple(charts), rest=(answers, gains))


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


def _served(predictor: Predictor, form: Form) -> Shown:
    question = form.complete
    assert isinstance(question, Serving)
    if not form.page.slo:
        points = {one.gpu: _frontier(predictor, one) for one in form.questions if isinstance(one, Serving)}
        return Shown(charts=(served.frontier(points),), rest=None)
    form.question.refuse(_SEARCHED, "is looked for under a service level: leave it out")
    isl, osl = question.lengths()
    demand = Demand(
        slo=Slo.named(form.page.slo), isl=isl, osl=osl, request_rate=question.request_rate,
        concurrency=getattr(form.question, "concurrency", None), seed=question.seed,
    )  # fmt: skip
    given = {*form.question.words(), *form.restated}
    setup = {one.name: getattr(question, one.name) for one in fields(Setup) if one.name in given}
    devices = [one.device() for one in form.questions] if form.question.gpu else None
    choices = predictor.cheapest(question.served_model(), devices, demand, **setup)
    return Shown(charts=(served.costs(choices),) if choices[0].holds else (), rest=choices)


def _frontier(predictor: Predictor, question: Serving) -> list[ServingEstimate]:
    return predictor.frontier(
        question.served_model(), question.device(), question.lengths(), question.setup(), seed=question.seed,
        prices=question.prices,
    )  # fmt: skip


def _planned(predictor: Predictor, form: Form) -> Shown:
    found = planned(predictor, form)
    return Shown(charts=(distributed.pareto(found), distributed.timeline(found.best[0])), rest=found)


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
    return Shown(charts=(chart(found, "the baseline"),), rest=tuple(found))


def controls(tab: Tab) -> None:
    """What is decided between, beside the question itself."""
    with ui.element("div").classes("question"):
        if tab.form.serving:
            tab.field("slo", wide=True)
        else:
            _switches(tab)
            tab.field("space")


def _switches(tab: Tab) -> None:
    names = sorted(name for name, one in known().items() if StepQuestion in one.functions)

    async def switched(names: tuple[str, ...]) -> None:
        await tab.change(apply="\n".join(names))

    async def one(event: Any, name: str) -> None:
        rest = tuple(each for each in tab.form.page.apply if each not in (name, EVERY))
        await switched((*rest, name) if event.value else rest)

    for name in _COMMON:
        box = ui.checkbox(name, value=name in tab.form.page.apply, on_change=lambda event, name=name: one(event, name))
        box.props("dense").style("flex: 0 0 auto; min-width: 0").mark(name)
    others = [name for name in names if name not in _COMMON]
    chosen = ui.select(others, multiple=True, label="other what-ifs", with_input=True)
    chosen.value = [name for name in tab.form.page.apply if name in others]
    common = [name for name in tab.form.page.apply if name in _COMMON]
    chosen.on_value_change(lambda event: switched((*common, *event.value))).props("dense use-chips").classes("wide")
    button = ui.button("rank all that apply", on_click=lambda: switched((EVERY,))).props("flat dense no-caps")
    button.style("flex: 0 0 auto")


def unused_of_plans(form: Form) -> list[str]:
    """Fields that are given and do not count where plans are searched."""
    names = [name for name in form.question.words() if name not in (*OF_PLANS, "mode")]
    return names if is_planned(form) else form.of_cluster


def is_planned(form: Form) -> bool:
    """Whether plans on a cluster are searched."""
    return bool(form.cluster) and form.mode == "training"


def unused(form: Form) -> list[str]:
    """Fields that are given and do not count for what is looked for."""
    if form.serving:
        return [] if form.page.slo else [name for name in LOADS if name in form.question.words()]
    if form.page.space:
        counts = {"model", "mode", "batch", "seq_len", "nodes"}
        return [*(["apply"] if form.page.apply else []), *(n for n in form.question.words() if n not in counts)]
    return [*(["apply"] if form.page.apply and is_planned(form) else []), *unused_of_plans(form)]


def texts(tab: Tab, shown: Shown) -> None:
    """What came of it, and the command that gives the same."""
    if isinstance(shown.rest, Found):
        _plans(shown.rest)
    elif tab.form.page.space and not tab.form.serving:
        _designs(shown.rest)
    elif isinstance(shown.rest, list):
        _choices(shown.rest, tab.form.page.slo)
    elif shown.rest is not None:
        _step(*shown.rest)
    copied("Command line", command(tab.form))


def _step(answers: tuple[DeviceAnswer, ...], gains: WhatIf | None) -> None:
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


def _choices(choices: list[Choice], slo: str) -> None:
    best = choices[0]
    e = best.estimate
    if e is None:
        ui.label(f"nothing holds {slo}").classes("answer")
        ui.html(table(("device", "why not"), ((c.gpu, c.reason) for c in choices)), sanitize=False)
        return
    cost = "" if best.usd_per_hour is None else f" at {decimal(best.usd_per_hour)} USD an hour"
    load = f"{served.load_size(e)} {'requests/s' if 'request_rate' in e.load else 'clients'}"
    where = best.described
    ui.label(f"{where}{cost} {_CLIENTS} {load}, with a probability of {best.probability:.0%}").classes("answer")
    copied("Launch one replica", e.launch)


def _plans(found: Found) -> None:
    best = found.best[0]
    low_s, high_s = best.interval
    time = f"{milliseconds(best.latency_s)} (90 %: {milliseconds(low_s)} to {milliseconds(high_s)})"
    ui.label(f"{best.plan.short}: {time} a step, MFU {best.mfu:.0%}").classes("answer")
    ui.label(f"{found.plans:,} plans divide model and batch; {found.simulated:,} were simulated").classes("quiet")


def _designs(found: Sequence[BestDesign]) -> None:
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
    return join(_words(form))


def _words(form: Form) -> Iterator[str]:
    question, model = form.question, form.question.model
    yield "neusight"
    if isinstance(question, Serving):
        yield from ("serving", model)
        yield from () if form.page.slo and not question.gpu else ("--gpu", ",".join(form.gpus))
        left_out = ("gpu", *(() if form.page.slo else LOADS))
        lengths = dict(zip(("isl", "osl"), form.lengths, strict=True))
        words = question.changed(**{name: Serving.fields()[name].default for name in left_out}, **lengths)
        yield from (*words.options(), *form.options(*form.restated))
        yield from ("--slo", form.page.slo) if form.page.slo else ("--frontier",)
    elif form.page.space:
        yield from ("design", form.page.space, "--model", model, "--global-batch-size", str(question.batch))
        yield from (*form.options("seq_len", "nodes"), "--front", str(_LIMITS), "--minutes", f"{_MINUTES:g}")
    elif is_planned(form):
        yield from ("plan", *plan_question(form).command_line())
    elif form.page.apply:
        step = form.questions[0]
        yield from ("what-if", model, "--gpu", step.gpu, *step.changed(gpu="").options())
        yield from ("--all",) if form.page.apply == (EVERY,) else ("--apply", ",".join(form.page.apply))
    else:
        yield from split(form.command)[1:]


VIEW = View(path="/decide", title="Decide", ask=ask, texts=texts, controls=controls, unused=unused, is_slow=is_slow)
