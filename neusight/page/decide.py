"""Decide: two devices part by part, what optimisations bring, the cheapest deployment, plans on a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from shlex import join
from typing import Any

from nicegui import ui

from neusight.api import Predictor
from neusight.design.report import BestDesign
from neusight.distributed import figures as distributed
from neusight.distributed.search import Found
from neusight.errors import ModelError
from neusight.estimates import Estimate, figures
from neusight.page.answers import DeviceAnswer, answered, planned
from neusight.page.form import Form
from neusight.page.tab import Shown, Tab, View, copied
from neusight.page.tables import table
from neusight.serving import Choice, Demand, Slo
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
_LIMITS, _MINUTES, _ENGINE = 3, 1.0, "maxtext"
"""Of a search for a device to build: limits of area and of power, how long, and what else its command takes."""


def ask(predictor: Predictor, form: Form) -> Shown:
    """By what the form is about: a deployment, a cluster, a step."""
    if form.serving:
        return _served(predictor, form)
    if form.space:
        return _designed(form)
    return _planned(predictor, form) if form.cluster else _stepped(predictor, form)


def is_slow(form: Form) -> bool:
    """Whether anything is searched or traced for it."""
    return bool(form.slo if form.serving else form.space or form.cluster or form.apply)


def _stepped(predictor: Predictor, form: Form) -> Shown:
    answers = answered(predictor, form)
    estimates = [answer.estimate for answer in answers if isinstance(answer.estimate, Estimate)]
    charts = [figures.time(estimates), figures.memory(estimates)] if estimates else []
    gains = _optimised(predictor, form) if form.apply else None
    charts += [ladder(gains)] if gains else []
    charts += [figures.difference(*estimates[:2])] if len(estimates) > 1 else []
    return Shown(charts=tuple(charts), rest=(answers, gains))


def _optimised(predictor: Predictor, form: Form) -> WhatIf:
    question = form.question(form.gpus[0])
    return predictor.what_ifs(question) if form.apply == (EVERY,) else predictor.what_if(question, form.apply)


def _served(predictor: Predictor, form: Form) -> Shown:
    if form.slo:
        if form.replicas > 1:
            raise ModelError("a service level looks for the replicas itself: leave replicas empty")
        isl, osl = form.lengths
        demand = Demand(slo=Slo.named(form.slo), isl=isl, osl=osl, request_rate=form.rate, concurrency=form.concurrency)
        choices = predictor.cheapest(form.model, form.devices if form.gpu else None, demand, **form.setup)
        return Shown(charts=(served.costs(choices),) if choices[0].holds else (), rest=choices)
    points = {one.id: predictor.frontier(form.model, one, form.lengths, **form.setup) for one in form.devices}
    return Shown(charts=(served.frontier(points),), rest=None)


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

    if form.mode != "training":
        raise ModelError("designs are judged by training: choose mode training")
    space = load_space(form.space)
    training = DesignTraining(
        model=form.model, global_batch_size=form.batch, seq_len=form.seq_len, nodes=form.nodes,
        per_node=default_per_node(space.base_device), engine=_ENGINE,
    )  # fmt: skip
    found = answers(space, [training], front=_LIMITS, limit_s=60.0 * _MINUTES)
    return Shown(charts=(chart(found, "the baseline"),), rest=tuple(found))


def controls(tab: Tab) -> None:
    """What is decided between, beside the question itself."""
    with ui.element("div").classes("question"):
        if tab.form.serving:
            tab.field("slo", "service level, such as ttft=200ms,tpot=30ms", wide=True)
            tab.field("rate", "requests/s")
        else:
            _switches(tab)
            tab.field("cluster", "plans on a cluster, such as dgx-h100")
            tab.field("nodes", "nodes")
            tab.field("space", "a device to build, such as gpu or phaze")


def _switches(tab: Tab) -> None:
    names = sorted(name for name, one in known().items() if StepQuestion in one.functions)

    async def switched(names: tuple[str, ...]) -> None:
        await tab.ask(replace(tab.form, apply=names))

    async def one(event: Any, name: str) -> None:
        rest = tuple(each for each in tab.form.apply if each not in (name, EVERY))
        await switched((*rest, name) if event.value else rest)

    for name in _COMMON:
        box = ui.checkbox(name, value=name in tab.form.apply, on_change=lambda event, name=name: one(event, name))
        box.props("dense").style("flex: 0 0 auto; min-width: 0").mark(name)
    others = [name for name in names if name not in _COMMON]
    chosen = ui.select(others, multiple=True, label="other what-ifs", with_input=True)
    chosen.value = [name for name in tab.form.apply if name in others]
    common = [name for name in tab.form.apply if name in _COMMON]
    chosen.on_value_change(lambda event: switched((*common, *event.value))).props("dense use-chips").classes("wide")
    button = ui.button("rank all that apply", on_click=lambda: switched((EVERY,))).props("flat dense no-caps")
    button.style("flex: 0 0 auto")


def unused(form: Form) -> list[str]:
    """Fields that are given and do not count for what is looked for."""
    of_step = ("gpu", "changes", "tp", "dp", "launch", "apply")
    if form.serving:
        names: tuple[str, ...] = () if form.slo else ("concurrency", "rate")
    elif form.space:
        names = (*of_step, "dtype", "optimizer", "cluster")
    else:
        names = of_step if form.cluster else ()
    return [name for name in names if getattr(form, name) != getattr(Form, name)]


def note_unused(form: Form) -> None:
    """Say which fields do not count."""
    if names := unused(form):
        ui.label(f"left out, since they do not count here: {', '.join(names)}").classes("quiet")


def texts(tab: Tab, shown: Shown) -> None:
    """What came of it, and the command that gives the same."""
    note_unused(tab.form)
    if isinstance(shown.rest, Found):
        _plans(shown.rest)
    elif tab.form.space and not tab.form.serving:
        _designs(shown.rest)
    elif isinstance(shown.rest, list):
        _choices(shown.rest, tab.form.slo)
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
    where = served.choice_name(best, e.devices)
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
    yield "neusight"
    if form.serving:
        yield from ("serving", form.model)
        yield from () if form.slo and not form.gpu else ("--gpu", ",".join(form.gpus))
        yield from ("--isl", str(form.lengths[0]), "--osl", str(form.lengths[1]), *form.setup_options)
        yield from form.options("slo", "rate", "concurrency") if form.slo else ("--frontier",)
    elif form.space:
        yield from ("design", form.space, "--model", form.model, "--global-batch-size", str(form.batch))
        yield from (*form.options("seq_len", "nodes"), "--front", str(_LIMITS), "--minutes", f"{_MINUTES:g}")
    elif form.cluster:
        yield from ("plan", form.model, "--cluster", form.cluster, "--nodes", str(form.nodes))
        yield from ("--global-batch-size", str(form.batch), *form.options("seq_len", "dtype", "optimizer"))
    elif form.apply:
        yield from ("what-if", form.model, "--gpu", form.gpus[0], *form.step_options)
        yield from ("--all",) if form.apply == (EVERY,) else ("--apply", ",".join(form.apply))
    else:
        yield from ("predict", form.model, "--gpu", ",".join(form.gpus), *form.step_options)


VIEW = View(path="/decide", title="Decide", ask=ask, texts=texts, controls=controls, is_slow=is_slow)
