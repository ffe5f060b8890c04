"""Ask: a model, devices, and the answer in one line each, with the same as command and Python."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from html import escape
from typing import Any

from nicegui import ui

from neusight.api import Predictor
from neusight.defaults import words_of
from neusight.devices import DeviceSpec
from neusight.distributed.estimate import TrainingEstimate
from neusight.errors import NeusightError
from neusight.estimates import Estimate
from neusight.page.answers import Answer, DeviceAnswer, answer_form, charts
from neusight.page.form import Form
from neusight.page.tab import Shown, Tab, View, link_predictions, show_copyable
from neusight.serving import figures as served
from neusight.serving.estimate import ServingEstimate
from neusight.units import decimal, exact, milliseconds, scaled
from neusight.what_if.gain import ranking

_ASSUMED = (
    ("price", "price_usd_per_hour", "usd_per_hour", "price"),
    ("dram_bandwidth", "dram_bandwidth_bytes_per_s", "bytes_per_s", "memory bandwidth"),
    ("dram_capacity", "dram_capacity_bytes", "bytes", "memory"),
    ("tdp", "tdp_w", "w", "power limit"),
    ("launch_overhead", "launch_overhead_s", "s", "launch of a kernel"),
)
"""Figures of a device that are edited where they are printed: key of ``--set``, field, kind, name."""


def ask(predictor: Predictor, form: Form) -> Shown:
    """Answers of all devices, and their charts."""
    answers = answer_form(predictor, form)
    estimates: list[Any] = [answer.estimate for answer in answers if answer.estimate]
    passes = [served.passes(e) for e in estimates if form.serving and len(estimates) == 1]
    device = form.device if len(answers) == 1 else None
    return Shown(charts=(*passes, *charts(form, estimates)), answers=answers, texts=partial(_texts, answers, device))


def _texts(answers: Sequence[DeviceAnswer], device: DeviceSpec | None, tab: Tab) -> None:
    """Show answers, assumptions, and lines to copy."""
    with ui.element("div").classes("beside"):
        with ui.element("div"):
            for answer in answers:
                _line(answer, tab.form.page.mode)
            warnings = (text for answer in answers for text in _warnings(answer, len(answers)))
            steps = (answer.estimate for answer in answers if isinstance(answer.estimate, Estimate))
            for text in filter(None, dict.fromkeys([ranking({e.gpu: e for e in steps if e.fits}), *warnings])):
                ui.label(text).classes("quiet")
            if device is not None:
                _assumptions(tab, device)
        with ui.element("div").style("min-width: 0"):
            show_copyable("Command line", tab.form.command)
            show_copyable("Python", tab.form.python)
            link_predictions("/")


def _line(answer: DeviceAnswer, mode: str) -> None:
    if (e := answer.estimate) is None:
        ui.label(f"{answer.gpu}: {answer.error}").classes("wrong").props('role="alert"')
        return
    where = e.gpu if e.devices == 1 else f"{e.devices} x {e.gpu}"
    low_s, high_s = e.interval
    what = "an answer takes" if isinstance(e, ServingEstimate) else f"a step of {mode} takes"
    time = f'<strong class="whole">{milliseconds(e.latency_s)}</strong>'
    interval = f'<span class="whole">(90 %: {milliseconds(low_s)} to {milliseconds(high_s)})</span>'
    assumed = [f"assumed: {words_of(e.assumed)}"] if e.assumed else []
    facts = "".join(f"<span>{escape(fact)}</span>" for fact in (*_facts(e), *assumed))
    ui.html(
        f'<p class="answer" data-latency="{e.latency_s!r}"><strong>{escape(e.model)}</strong>'
        f' on <strong>{escape(where)}</strong>: {what} {time} {interval}</p><p class="facts">{facts}</p>',
        sanitize=False,
    ).classes("device")


def _warnings(answer: DeviceAnswer, of: int) -> list[str]:
    """Warnings other than the line on memory, with the device where there are several."""
    e = answer.estimate
    texts = [text for text in e.warnings if not text.startswith(str(e.fit))] if e else []
    return [f"{answer.gpu}: {text}" for text in texts] if of > 1 else texts


def _facts(e: Answer) -> Iterator[str]:
    """Memory, limiter, throughput, cost and energy, each in a few words."""
    memory = e.memory_lines if isinstance(e, ServingEstimate) else (str(e.fit),)
    yield f"memory {memory[0]}"
    yield from (*memory[1:], f"limited by {e.limiter}")
    if isinstance(e, ServingEstimate):
        yield f"first token after {milliseconds(e.ttft_s.mean)}, then one every {milliseconds(e.tpot_s.mean)}"
        yield f"{e.output_tokens_per_s.mean:,.0f} tokens/s"
        yield from _cost(e.usd_per_million_output_tokens, "tokens", e)
        yield f"{decimal(e.joule_per_output_token)} J for a token"
    elif isinstance(e, TrainingEstimate):
        yield f"{e.run.precision} as {e.plan.short}, {e.run.seq_len:,} tokens of a sample"
        yield f"{e.tokens_per_s:,.0f} tokens/s, MFU {e.mfu:.0%}"
        yield from _cost(e.cost_usd(1e6), "tokens", e)
    else:
        yield f"{e.dtype}, batch {e.batch}{f' of {e.seq_len:,} tokens' if e.seq_len else ''}"
        yield from (f"{decimal(e.samples_per_s)} samples/s", *filter(None, [e.unit]))
        yield from _cost(None if e.usd_per_hour is None else e.cost_usd(1e6), "samples", e)
    if e.board_energy_j is not None and not isinstance(e, ServingEstimate):
        yield f"{scaled(e.board_energy_j, 'J')} for a step"


def _cost(usd: float | None, what: str, e: Answer) -> list[str]:
    """Cost of a million of something, where a price is known."""
    return [] if usd is None else [f"{decimal(usd)} USD for a million {what}; price: {e.price_source}"]


def _assumptions(tab: Tab, device: DeviceSpec) -> None:
    """Show figures of the device, edited in place; an empty one is reset to that of the catalogue."""
    with ui.element("div").classes("question"):
        for key, name, kind, title in _ASSUMED:

            async def change_figure(event: Any, key: str = key) -> None:
                form = tab.form.with_change(key, event.sender.value or "")
                event.sender.error = None
                try:
                    _ = form.device
                except NeusightError as mistake:
                    event.sender.error = str(mistake)
                    await tab.fail()
                else:
                    await tab.ask(form)
                    tab.reflect()

            field = ui.input(title, value="" if (value := getattr(device, name)) is None else exact(value, kind))
            field.props("dense hide-bottom-space").classes(f"field-{key}").on("change", change_figure)


VIEW = View(path="/", title="Ask", ask=ask)
