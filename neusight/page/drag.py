"""Drag: batch, length, devices, bandwidth or clients on the chart itself, redrawn at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import groupby, pairwise
from math import exp, log, log2
from typing import Any

from nicegui import background_tasks, ui

from neusight.api import Predictor
from neusight.distributed.estimate import TrainingEstimate
from neusight.errors import NeusightError
from neusight.figures import Chart, Dot, Line, Scale
from neusight.page.answers import DeviceAnswer, answer_form, charts
from neusight.page.fields import term
from neusight.page.form import Form
from neusight.page.tab import Shown, Tab, View, link_predictions
from neusight.questions import Step
from neusight.serving import figures as served
from neusight.serving.estimate import ServingEstimate
from neusight.units import decimal, exact, milliseconds, scaled

_POINTS = 9
"""Number of points of a curve."""
_THROTTLE_S = 0.03
"""Time between two values of a dragged slider [s]."""
_WAIT_S = 0.2
"""Time after which computing ahead checks again for dragging [s]."""
_STEP = 0.05
"""Step of the slider, whose scale is logarithmic: a twentieth more."""
_HERE = 0.1
"""Share of the largest dot's area, for the dot of the question."""


def _quarters(least: float, most: float) -> tuple[float, ...]:
    """Quarters of a doubling."""
    doublings = range(int(log2(most / least)) + 1)
    steps = (least * 2.0**whole * (1 + part / 4) for whole in doublings for part in range(4))
    return (*(step for step in steps if step < most), most)


def _whole(least: int, most: int) -> tuple[float, ...]:
    """Whole numbers that are nearest to quarters of a doubling."""
    return tuple(sorted({float(round(step)) for step in _quarters(least, most)}))


_BANDWIDTH = "dram_bandwidth"
_COUNTS = (1.0, 2.0, 4.0, 8.0)
STEP = {
    "batch": _whole(1, 256), "seq_len": _whole(16, 2048), "tp": _COUNTS, "dp": _COUNTS,
    _BANDWIDTH: _quarters(1e11, 2e13),
}  # fmt: skip
LOAD = {"concurrency": _whole(1, 256), "isl": _whole(64, 16384), "osl": _whole(16, 4096), "tp": _COUNTS}
"""Values to which fields of a step and of a load are dragged."""


@dataclass(frozen=True, kw_only=True)
class Dragged:
    """A field that is dragged over ``steps``."""

    name: str
    title: str
    steps: tuple[float, ...]

    @property
    def unit(self) -> str:
        """Unit of the values; "" for counts."""
        return "B/s" if self.name == _BANDWIDTH else ""

    def near(self, value: float) -> float:
        """The nearest possible value."""
        inside = min(max(value, self.steps[0]), self.steps[-1])
        return min(self.steps, key=lambda step: abs(log(step / inside)))

    @property
    def curve(self) -> list[float]:
        """Values at which a curve is computed, evenly on a logarithmic scale."""
        least, most = self.steps[0], self.steps[-1]
        return sorted({self.near(least * (most / least) ** (at / (_POINTS - 1))) for at in range(_POINTS)})

    def words(self, value: float) -> str:
        """A value with its unit."""
        return scaled(value, self.unit) if self.unit else decimal(value, 6)


def title(form: Form, name: str) -> str:
    """Name of the dragged field in words."""
    field = form.declared(name)
    return term(field) if field else "memory bandwidth"


def dragged_field(form: Form) -> Dragged:
    """The dragged field: that of the form, else the first."""
    axes = LOAD if form.serving else STEP
    name = form.page.axis if form.page.axis in axes else next(iter(axes))
    return Dragged(name=name, title=title(form, name), steps=axes[name])


def with_value(form: Form, name: str, value: float) -> Form:
    """The form with another value of the dragged field; a batch is for all replicas."""
    if name == _BANDWIDTH:
        return form.with_change(name, exact(float(f"{value:.3g}"), "bytes_per_s"))
    form = form.changed(**{name: f"{value:.0f}"})
    step = form.question
    if isinstance(step, Step) and step.dp and step.batch % step.dp:
        return form.changed(batch=str(-(-step.batch // step.dp) * step.dp))
    return form


def ask(predictor: Predictor, form: Form) -> Shown:
    """Answers now, and along the dragged field."""
    axis = dragged_field(form)
    answers = answer_form(predictor, form)
    estimates: list[Any] = [answer.estimate for answer in answers if answer.estimate]
    if not estimates:
        raise NeusightError("; ".join(f"{answer.gpu}: {answer.error}" for answer in answers))
    now = _now(form, axis.name, estimates[0])
    along = curve(predictor, with_value(form, axis.name, axis.curve[0]), axis)
    curves: dict[str, list[tuple[float, Any]]] = {}
    for value, answer in along:
        e: Any = answer.estimate
        curves.setdefault(e.gpu, []).append((value, e))
    drawn = [_along(curves, axis, estimates, now)]
    drawn += [_scaling(curves, axis, estimates, now)] if axis.steps == _COUNTS else []
    drawn += [_frontier(curves, estimates)] if axis.name == "concurrency" else []
    spoken = "\n".join(f"{axis.title} {axis.words(now)}, {_line(e)}" for e in estimates)
    return Shown(
        charts=(*drawn, *charts(form, estimates)), answers=[answer for _, answer in along], said=spoken,
        texts=partial(_follow, form, axis, now),
    )  # fmt: skip


def _now(form: Form, name: str, e: Any) -> float:
    """The dragged field's value in the question, or in its answer."""
    if name == _BANDWIDTH:
        return float(form.device.dram_bandwidth_bytes_per_s)
    choose_axis = (getattr(of, name, None) for of in (form.complete, e, getattr(e, "run", e), getattr(e, "plan", e)))
    return float(next(filter(None, choose_axis), 1))


Points = Sequence[tuple[float, Any]]
Curves = Mapping[str, Points]
Figure = Callable[[Any], tuple[float, float, float]]
"""A figure of an estimate, with the ends of its interval."""


def _time(e: Any) -> tuple[float, float, float]:
    return (e.latency_s, *e.interval)


def _rate(e: Any) -> tuple[float, float, float]:
    """Samples or output tokens a second."""
    if isinstance(e, TrainingEstimate):
        rate = e.plan.global_batch_size / e.latency_s
    else:
        rate = e.output_tokens_per_s.mean if isinstance(e, ServingEstimate) else e.samples_per_s
    low_s, high_s = e.interval
    return rate, rate * e.latency_s / high_s, rate * e.latency_s / low_s


def _outside(e: Any) -> bool:
    """True if most of an estimate is unlike measured kernels."""
    return bool(getattr(e, "in_domain", 1.0) < 0.5)


def _pieces(points: Points) -> Iterator[tuple[bool, bool, Points]]:
    """Pieces of a curve: whether outside of measured kernels, whether all fits, and the points."""
    pairs = list(pairwise(points)) or [(points[0], points[0])]

    def kind(pair: tuple[tuple[float, Any], tuple[float, Any]]) -> tuple[bool, bool]:
        return any(_outside(e) for _, e in pair), all(e.fits for _, e in pair)

    for (outside, fits), group in groupby(pairs, kind):
        piece = list(group)
        yield outside, fits, [piece[0][0], *(end for _, end in piece)]


def _lines(curves: Curves, figure: Figure) -> Iterator[Line]:
    """A curve a device with its intervals: dashed where it does not fit, grey outside of measured kernels."""
    for gpu, whole in curves.items():
        for outside, fits, points in _pieces(whole):
            values, lows, highs = zip(*(figure(e) for _, e in points), strict=True)
            xs = tuple(x for x, _ in points)
            yield Line(series=gpu, xs=xs, ys=values, band=(lows, highs), outside=outside, dashed=not fits)


def _dots(estimates: Sequence[Any], figure: Figure, now: float) -> list[Dot]:
    """Dots of the question."""
    figures = [(e, *figure(e)) for e in estimates]
    return [Dot(x=now, y=y, series=e.gpu, y_interval=(low, high), outside=_outside(e)) for e, y, low, high in figures]


def _along(curves: Curves, axis: Dragged, estimates: Sequence[Any], now: float) -> Chart:
    """Chart of time along the dragged field, with the question."""
    lines, dots = list(_lines(curves, _time)), _dots(estimates, _time, now)
    if len(dots) == 1:
        dots = [replace(dots[0], label=milliseconds(dots[0].y))]
    everything = [*estimates, *(e for points in curves.values() for _, e in points)]
    heights = [end for e in everything for end in e.interval]
    marker = Line(xs=(now, now), ys=(min(heights), max(heights)), dashed=True, label=axis.words(now))
    rows = [
        {"gpu": gpu, axis.name: x, "latency_s": e.latency_s, "low_s": e.interval[0], "high_s": e.interval[1],
         "needed_bytes": e.fit.needed_bytes, "fits": e.fits}
        for gpu, points in curves.items()
        for x, e in points
    ]  # fmt: skip
    dashes = ", dashed where it does not fit" if any(line.dashed for line in lines) else ""
    return Chart(
        name="along", title=f"Time by {axis.title}: drag on the chart{dashes}",
        x=Scale(name=axis.title, unit=axis.unit, log=axis.steps != _COUNTS), y=Scale(name="time", unit="s", log=True),
        lines=(*lines, marker), dots=tuple(dots), rows=tuple(rows),
    )  # fmt: skip


def _scaling(curves: Curves, axis: Dragged, estimates: Sequence[Any], now: float) -> Chart:
    """Chart of throughput by devices, next to the throughput without any loss between them."""
    ideal: list[Line] = []
    rows = []
    for gpu, points in curves.items():
        xs, ys = tuple(x for x, _ in points), tuple(_rate(e)[0] for _, e in points)
        lost = "" if ideal else "if nothing were lost"
        ideal.append(Line(xs=xs, ys=tuple(ys[0] * x / xs[0] for x in xs), dashed=True, label=lost))
        rows += [{"gpu": gpu, "devices": x, "per_s": y} for x, y in zip(xs, ys, strict=True)]
    what = "output tokens/s" if isinstance(estimates[0], ServingEstimate) else "samples/s"
    return Chart(
        name="scaling", title=f"Throughput by {axis.title}", x=Scale(name=axis.title), y=Scale(name=what),
        lines=(*_lines(curves, _rate), *ideal), dots=tuple(_dots(estimates, _rate, now)), rows=tuple(rows),
    )  # fmt: skip


def _frontier(curves: Curves, estimates: Sequence[Any]) -> Chart:
    """Chart of throughput against speed under growing loads, with the question."""
    chart = served.frontier({gpu: [e for _, e in points] for gpu, points in curves.items()})
    here = served.frontier({e.gpu: [e] for e in estimates})
    return replace(chart, dots=(*chart.dots, *(replace(dot, size=_HERE, label="") for dot in here.dots)))


@lru_cache(maxsize=128)
def curve(predictor: Predictor, form: Form, axis: Dragged) -> list[tuple[float, DeviceAnswer]]:
    """Values along the dragged field with the answer of each device, where there is one; kept, since dragging does not
    change them.
    """
    points: list[tuple[float, DeviceAnswer]] = []
    for value in axis.curve:
        with suppress(NeusightError):
            answers = answer_form(predictor, with_value(form, axis.name, value))
            points += [(value, answer) for answer in answers if answer.estimate]
    return points


class _Slider(ui.slider):
    """A slider that stays where it was moved to: a value sent back by a slow server would undo the next movement."""

    LOOPBACK = None


def controls(tab: Tab) -> None:
    """Show the choice of the dragged field, a slider for keyboards and fingers, and the chart itself."""
    axis = dragged_field(tab.form)

    async def choose_axis(event: Any) -> None:
        await tab.change(axis=event.value)
        tab.rebuild()

    async def slid(event: Any) -> None:
        position, gesture = event.args
        tab.slid = axis.near(exp(position))
        await _move(tab, tab.slid, gesture)

    with ui.element("div").classes("question"):
        axes = {name: title(tab.form, name) for name in (LOAD if tab.form.serving else STEP)}
        ui.select(axes, value=axis.name, label="drag", on_change=choose_axis).props("dense").mark("axis")
        low, high = log(axis.steps[0]), log(axis.steps[-1])
        slider = _Slider(min=low, max=high, step=log(2) if axis.steps == _COUNTS else _STEP, value=low)
        slider.props('aria-label="what one drags"').classes("wide").mark("slider")
        handler = "(value) => { element.props['model-value'] = value; emit([value, asking.gesture()]); }"
        slider.on("update:model-value", slid, throttle=_THROTTLE_S, js_handler=handler)
        link_predictions("/drag")
    if tab.slider is None:
        ui.on("dragged", lambda event: _move(tab, *event.args))
    tab.slider, tab.slid = slider, axis.steps[0]


async def _move(tab: Tab, value: float, gesture: int) -> None:
    """Ask for another value of the dragged field; all of a gesture are one entry of the history."""
    axis = dragged_field(tab.form)
    form = with_value(tab.form, axis.name, axis.near(value))
    await tab.ask(form, gesture)
    # All else follows once the answer and its charts are on the screen.
    await asyncio.sleep(_THROTTLE_S)
    tab.reflect()
    _slide(tab, form, axis.near(value))


async def _prepare(tab: Tab, base: Form, axis: Dragged) -> None:
    """Compute answers at all steps ahead of dragging: one after the other, so that dragging waits for one at most."""
    for value in axis.steps:
        while tab.busy:
            await asyncio.sleep(_WAIT_S)
        if tab.prepared != base:
            return
        with suppress(NeusightError):
            await tab.answers.of(ask, with_value(base, axis.name, value))


def _follow(form: Form, axis: Dragged, now: float, tab: Tab) -> None:
    """Compute ahead the values that may be dragged to; the slider follows changes made elsewhere."""
    base = with_value(form, axis.name, axis.steps[0])
    if tab.prepared != base:
        tab.prepared = base
        background_tasks.create(_prepare(tab, base, axis))
    if not tab.entry:
        _slide(tab, form, now)


def _slide(tab: Tab, form: Form, value: float) -> None:
    """Move the slider, but never back to a question older than its value."""
    if tab.asked == form and tab.slid != value:
        tab.slid, tab.slider.value = value, log(value)


def _line(e: Any) -> str:
    low, high = map(milliseconds, e.interval)
    return f"{e.gpu}: {milliseconds(e.latency_s)} (90 %: {low} to {high}); {e.fit.words}"


VIEW = View(path="/drag", title="Drag", ask=ask, controls=controls, is_dragged=True)
