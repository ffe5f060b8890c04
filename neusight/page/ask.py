"""Ask: a model, devices, and the answer in one line each, with what gives the same elsewhere."""

from __future__ import annotations

from html import escape
from typing import Any

from nicegui import ui

from neusight.api import Predictor, as_device
from neusight.defaults import words_of
from neusight.errors import NeusightError
from neusight.estimates import figures
from neusight.page.answers import DeviceAnswer, answered, memory
from neusight.page.form import Form
from neusight.page.tab import Shown, Tab, View, copied
from neusight.serving import figures as served
from neusight.serving.estimate import ServingEstimate
from neusight.units import decimal, exact, milliseconds, scaled

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
    answers = answered(predictor, form)
    estimates: list[Any] = [answer.estimate for answer in answers if answer.estimate]
    charts = [figures.time(estimates)] if estimates and not form.serving else []
    charts += [served.passes(estimates[0])] if form.serving and len(estimates) == 1 else []
    charts += [memory(form, estimates)] if estimates else []
    device = form.questions[0].device() if len(form.gpus) == 1 else None
    return Shown(charts=tuple(charts), rest=(answers, device))


def texts(tab: Tab, shown: Shown) -> None:
    """Answers, what is assumed, and lines to copy."""
    answers, device = shown.rest
    with ui.element("div").classes("beside"):
        with ui.element("div"):
            for answer in answers:
                _line(answer)
            for warning in dict.fromkeys(text for answer in answers for text in _warnings(answer, len(answers))):
                ui.label(warning).classes("quiet")
            if device is not None:
                _assumptions(tab, device)
        with ui.element("div").style("min-width: 0"):
            copied("Command line", tab.form.command)
            copied("Python", tab.form.python)


def _line(answer: DeviceAnswer) -> None:
    e = answer.estimate
    if e is None:
        ui.label(f"{answer.gpu}: {answer.error}").classes("wrong").props('role="alert"')
        return
    where = e.gpu if e.devices == 1 else f"{e.devices} x {e.gpu}"
    low_s, high_s = e.interval
    what = "an answer takes" if isinstance(e, ServingEstimate) else f"a step of {e.mode} takes"
    time = f'<strong class="whole">{milliseconds(e.latency_s)}</strong>'
    interval = f'<span class="whole">(90 %: {milliseconds(low_s)} to {milliseconds(high_s)})</span>'
    ui.html(
        f'<p class="answer" data-latency="{e.latency_s!r}"><strong>{escape(e.model)}</strong>'
        f" on <strong>{escape(where)}</strong>: {what} {time} {interval}</p>"
        f'<p class="facts">{"".join(f"<span>{escape(fact)}</span>" for fact in _facts(e))}</p>',
        sanitize=False,
    ).classes("device")


def _warnings(answer: DeviceAnswer, of: int) -> list[str]:
    """What the line on memory does not say, with the device where there are several."""
    e = answer.estimate
    texts = [text for text in e.warnings if not text.startswith(str(e.fit))] if e else []
    return [f"{answer.gpu}: {text}" for text in texts] if of > 1 else texts


def _facts(e: Any) -> list[str]:
    """Memory, throughput, cost, energy, limiter, and values of fields that were left open, in a line."""
    return [*_figures(e), *([f"assumed: {words_of(e.assumed)}"] if e.assumed else [])]


def _figures(e: Any) -> list[str]:
    memory = e.memory_lines if isinstance(e, ServingEstimate) else (str(e.fit),)
    facts = [f"memory {memory[0]}", *memory[1:], f"limited by {e.limiter}"]
    if isinstance(e, ServingEstimate):
        facts += [f"first token after {milliseconds(e.ttft_s.mean)}, then one every {milliseconds(e.tpot_s.mean)}"]
        facts += [f"{e.output_tokens_per_s.mean:,.0f} tokens/s"]
        usd = e.usd_per_million_output_tokens
        facts += [] if usd is None else [f"{decimal(usd)} USD for a million tokens; price: {e.price_source}"]
        joules = e.joule_per_output_token
        return facts + ([] if joules is None else [f"{decimal(joules)} J for a token"])
    facts += [f"{e.dtype}, batch {e.batch}{f' of {e.seq_len:,} tokens' if e.seq_len else ''}"]
    facts += [f"{decimal(e.samples_per_s)} samples/s", *filter(None, [getattr(e, "unit", "")])]
    facts += (
        []
        if e.usd_per_hour is None
        else [f"{decimal(e.cost_usd(1e6))} USD for a million samples; price: {e.price_source}"]
    )
    return facts + ([] if e.board_energy_j is None else [f"{scaled(e.board_energy_j, 'J')} for a step"])


def _assumptions(tab: Tab, device: Any) -> None:
    """Figures of the device, edited in place; an empty one is again that of the catalogue."""
    with ui.element("div").classes("question"):
        for key, name, kind, title in _ASSUMED:
            value = getattr(device, name)
            shown = "" if value is None else exact(value, kind)

            async def changed(event: Any, key: str = key) -> None:
                form = tab.form.with_change(key, event.sender.value or "")
                try:
                    as_device(form.gpus[0], form.question.overrides)
                except NeusightError as mistake:
                    event.sender.error = str(mistake)
                    await tab.fail()
                else:
                    event.sender.error = None
                    await tab.ask(form)
                    tab.reflect()

            field = ui.input(title, value=shown).props("dense hide-bottom-space").classes(f"field-{key}")
            field.on("change", changed)


VIEW = View(path="/", title="Ask", ask=ask, texts=texts)
