"""Drag: batch, length, devices, bandwidth or clients on the chart itself, redrawn at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import groupby, pairwise
from math import exp, log, log2
from typing import Any

from nicegui import background_tasks, ui

from neusight.api import Predictor, as_device
from neusight.errors import NeusightError
from neusight.estimates import figures
from neusight.figures import Chart, Dot, Line, Scale
from neusight.page.answers import answered, memory
from neusight.page.fields import term
from neusight.page.form import Form
from neusight.page.tab import Shown, Tab, View
from neusight.questions import Step
from neusight.serving import figures as served
from neusight.serving.estimate import ServingEstimate
from neusight.units import decimal, exact, milliseconds, scaled

_POINTS = 9
"""Of a curve."""
_THROTTLE_S = 0.03
"""Between two values of a slider that is dragged [s]."""
_WAIT_S = 0.2
"""After which what is computed ahead looks again whether somebody drags."""
_STEP = 0.05
"""Of the slider, whose scale is logarithmic: a twentieth more."""
_BANDWIDTH = "dram_bandwidth"
_HERE = 0.1
"""Of the largest dot's area, where the question stands."""


@dataclass(frozen=True, kw_only=True)
class Dragged:
    """A field that one drags from ``least`` to ``most``, in ``steps``: the ``values`` where only those can be."""

    least: float
    most: float
    title: str = ""
    values: tuple[int, ...] = ()
    unit: str = ""

    @cached_property
    def steps(self) -> tuple[float, ...]:
        """All that can be: quarters of a doubling, whole numbers unless there is a unit."""
        if self.values:
            return tuple(map(float, self.values))
        doublings = log2(self.most / self.least)
        each = [self.least * 2.0**whole * (1 + part / 4) for whole in range(int(doublings) + 1) for part in range(4)]
        inside = [step if self.unit else float(round(step)) for step in each if step <= self.most]
        return tuple(sorted({*inside, self.most}))

    def near(self, value: float) -> float:
        """The nearest that can be."""
        inside = min(max(value, self.least), self.most)
        return min(self.steps, key=lambda step: abs(log(step / inside)))

    @property
    def curve(self) -> list[float]:
        """Where a curve is known, evenly on a logarithmic scale."""
        steps = [self.least * (self.most / self.least) ** (at / (_POINTS - 1)) for at in range(_POINTS)]
        return sorted({self.near(step) for step in steps})


_COUNTS = (1, 2, 4, 8)
STEP = {
    "batch": Dragged(least=1, most=256),
    "seq_len": Dragged(least=16, most=2048),
    "tp": Dragged(least=1, most=8, values=_COUNTS),
    "dp": Dragged(least=1, most=8, values=_COUNTS),
    _BANDWIDTH: Dragged(least=1e11, most=2e13, unit="B/s"),
}
LOAD = {
    "concurrency": Dragged(least=1, most=256),
    "isl": Dragged(least=64, most=16384),
    "osl": Dragged(least=16, most=4096),
    "tp": Dragged(least=1, most=8, values=_COUNTS),
}


def title(form: Form, name: str) -> str:
    """What is dragged, in words."""
    one = form.declared(name)
    return term(one) if one else "memory bandwidth"


def dragged(form: Form) -> tuple[str, Dragged]:
    """What one drags, the first that there is unless the form says it."""
    axes = LOAD if form.serving else STEP
    name = form.page.axis if form.page.axis in axes else next(iter(axes))
    return name, replace(axes[name], title=title(form, name))


def moved(form: Form, name: str, value: float) -> Form:
    """With another value of what one drags; a batch is for all replicas."""
    if name == _BANDWIDTH:
        return form.with_change(name, exact(float(f"{value:.3g}"), "bytes_per_s"))
    form = form.changed(**{name: f"{value:.0f}"})
    step = form.question
    if isinstance(step, Step) and step.dp and step.batch % step.dp:
        return form.changed(batch=str(-(-step.batch // step.dp) * step.dp))
    return form


def ask(predictor: Predictor, form: Form) -> Shown:
    """Now, and along what one drags."""
    name, axis = dragged(form)
    answers = answered(predictor, form)
    estimates: list[Any] = [answer.estimate for answer in answers if answer.estimate]
    if not estimates:
        raise NeusightError("; ".join(f"{answer.gpu}: {answer.error}" for answer in answers))
    now = _now(form, name, estimates)
    curves = curve(predictor, moved(form, name, axis.curve[0]), name, axis)
    charts = [_along(curves, name, axis, estimates, now)]
    charts += [_scaling(curves, axis, estimates, now)] if axis.values else []
    charts += [_frontier(curves, estimates)] if name == "concurrency" else []
    charts += [] if form.serving else [figures.time(estimates)]
    return Shown(charts=(*charts, memory(form, estimates)), rest=(estimates, now))


def _now(form: Form, name: str, estimates: Sequence[Any]) -> float:
    if name == _BANDWIDTH:
        return float(as_device(form.gpus[0], form.question.overrides).dram_bandwidth_bytes_per_s)
    return float(getattr(form.complete, name) or getattr(estimates[0], name, 0) or 1)


Points = Sequence[tuple[float, Any]]
Curves = Mapping[str, Points]


def _outside(e: Any) -> bool:
    """Whether most of it is unlike what was measured."""
    return bool(getattr(e, "in_domain", 1.0) < 0.5)


def _pieces(points: Points) -> Iterator[tuple[bool, bool, Points]]:
    """Of a curve: whether it lies outside of what was measured, whether all of it fits, and its points."""
    pairs = list(pairwise(points)) or [(points[0], points[0])]

    def kind(pair: tuple[tuple[float, Any], tuple[float, Any]]) -> tuple[bool, bool]:
        return any(_outside(e) for _, e in pair), all(e.fits for _, e in pair)

    for (outside, fits), each in groupby(pairs, kind):
        piece = list(each)
        yield outside, fits, [piece[0][0], *(end for _, end in piece)]


def _along(curves: Curves, name: str, axis: Dragged, estimates: Sequence[Any], now: float) -> Chart:
    """Time along what one drags, a curve a device, dashed where it does not fit, and where the question stands."""
    lines = [
        Line(
            series=gpu, xs=tuple(x for x, _ in points), ys=tuple(e.latency_s for _, e in points),
            band=(tuple(e.interval[0] for _, e in points), tuple(e.interval[1] for _, e in points)),
            outside=outside, dashed=not fits,
        )
        for gpu, whole in curves.items()
        for outside, fits, points in _pieces(whole)
    ]  # fmt: skip
    dots = [
        Dot(x=now, y=e.latency_s, series=e.gpu, label=milliseconds(e.latency_s) if len(estimates) == 1 else "",
            y_interval=e.interval, outside=_outside(e))
        for e in estimates
    ]  # fmt: skip
    heights = [y for line in lines for y in (line.band or ((), ()))[0] + (line.band or ((), ()))[1]]
    ends = [*heights, *(y for e in estimates for y in e.interval)]
    marker = Line(xs=(now, now), ys=(min(ends), max(ends)), dashed=True, label=_shown(axis, now))
    rows = [
        {"gpu": gpu, name: x, "latency_s": e.latency_s, "low_s": e.interval[0], "high_s": e.interval[1],
         "needed_bytes": e.fit.needed_bytes, "fits": e.fits}
        for gpu, points in curves.items()
        for x, e in points
    ]  # fmt: skip
    dashes = ", dashed where it does not fit" if any(line.dashed for line in lines) else ""
    title = f"Time by {axis.title}: drag on the chart{dashes}"
    return Chart(
        name="along", title=title, x=Scale(name=axis.title, unit=axis.unit, log=not axis.values),
        y=Scale(name="time", unit="s", log=True), lines=(*lines, marker), dots=tuple(dots), rows=tuple(rows),
    )  # fmt: skip


def _scaling(curves: Curves, axis: Dragged, estimates: Sequence[Any], now: float) -> Chart:
    """What more devices bring, beside what they would bring if nothing were lost between them."""
    lines, rows = [], []
    for gpu, points in curves.items():
        xs, ys = tuple(x for x, _ in points), tuple(_rate(e) for _, e in points)
        ends = [tuple(_rate(e) * e.latency_s / e.interval[end] for _, e in points) for end in (1, 0)]
        lines.append(Line(series=gpu, xs=xs, ys=ys, band=(ends[0], ends[1])))
        lost = "" if lines[1:] else "if nothing were lost"
        lines.append(Line(xs=xs, ys=tuple(ys[0] * x / xs[0] for x in xs), dashed=True, label=lost))
        rows += [{"gpu": gpu, "devices": x, "per_s": y} for x, y in zip(xs, ys, strict=True)]
    dots = [
        Dot(x=now, y=_rate(e), series=e.gpu, outside=_outside(e),
            y_interval=(_rate(e) * e.latency_s / e.interval[1], _rate(e) * e.latency_s / e.interval[0]))
        for e in estimates
    ]  # fmt: skip
    what = "output tokens/s" if isinstance(estimates[0], ServingEstimate) else "samples/s"
    return Chart(
        name="scaling", title=f"Throughput by {axis.title}", x=Scale(name=axis.title), y=Scale(name=what),
        lines=tuple(lines), dots=tuple(dots), rows=tuple(rows),
    )  # fmt: skip


def _rate(e: Any) -> float:
    return float(e.output_tokens_per_s.mean if isinstance(e, ServingEstimate) else e.samples_per_s)


def _frontier(curves: Curves, estimates: Sequence[Any]) -> Chart:
    """Throughput against speed under growing loads, and where the question stands."""
    chart = served.frontier({gpu: [e for _, e in points] for gpu, points in curves.items()})
    here = served.frontier({e.gpu: [e] for e in estimates})
    return replace(chart, dots=(*chart.dots, *(replace(dot, size=_HERE, label="") for dot in here.dots)))


def _shown(axis: Dragged, value: float) -> str:
    return scaled(value, axis.unit) if axis.unit else decimal(value, 6)


@lru_cache(maxsize=128)
def curve(predictor: Predictor, form: Form, name: str, axis: Dragged) -> dict[str, list[tuple[float, Any]]]:
    """Answers along what one drags, device by device, where there are any; kept, since dragging leaves them."""
    points: dict[str, list[tuple[float, Any]]] = {}
    for value in axis.curve:
        with suppress(NeusightError):
            for answer in answered(predictor, moved(form, name, value)):
                if answer.estimate:
                    points.setdefault(answer.estimate.gpu, []).append((value, answer.estimate))
    return points


def controls(tab: Tab) -> None:
    """Which field one drags, a slider for keyboards and fingers, and the chart itself."""
    with ui.element("div").classes("question"):
        axes = {name: title(tab.form, name) for name in (LOAD if tab.form.serving else STEP)}
        name, axis = dragged(tab.form)

        async def chosen(event: Any) -> None:
            await tab.change(axis=event.value)
            tab.rebuild()

        ui.select(axes, value=name, label="drag", on_change=chosen).props("dense").mark("axis")

        async def released(_: Any) -> None:
            # The last value of a throttled slider may come after its release.
            await asyncio.sleep(5 * _THROTTLE_S)
            tab.moving = False

        async def slid(event: Any) -> None:
            await _move(tab, exp(float(event.args)))

        slider = ui.slider(
            min=log(axis.least), max=log(axis.most), step=log(2) if axis.values else _STEP, value=log(axis.least)
        )
        slider.props('aria-label="what one drags"').classes("wide").mark("slider")
        slider.on("update:model-value", slid, throttle=_THROTTLE_S).on("change", released)
    if tab.slider is None:
        ui.on("dragged", lambda event: _move(tab, float(event.args)))
        ui.on("released", released)
    tab.slider = slider


async def _move(tab: Tab, value: float) -> None:
    """Ask for another value of what one drags; one entry of the history until one lets go."""
    name, axis = dragged(tab.form)
    begins, tab.moving = not tab.moving, True
    await tab.ask(moved(tab.form, name, axis.near(value)), entry=begins)
    tab.reflect()


async def _prepare(tab: Tab, base: Form, name: str, axis: Dragged) -> None:
    """Answers at all steps, ahead of who drags there: one after the other, so that nobody waits for more than one."""
    for value in axis.steps:
        while tab.busy:
            await asyncio.sleep(_WAIT_S)
        if tab.prepared != base:
            return
        with suppress(NeusightError):
            await tab.answers.of(ask, moved(base, name, value))


def texts(tab: Tab, shown: Shown) -> None:
    """The answer of each device, in a line."""
    estimates, now = shown.rest
    name, axis = dragged(tab.form)
    base = moved(tab.form, name, axis.steps[0])
    if tab.prepared != base:
        tab.prepared = base
        background_tasks.create(_prepare(tab, base, name, axis))
    # What a step of the slider does not change yet must not hold it back.
    if axis.near(exp(tab.slider.value)) != now:
        tab.slider.value = log(now)
    tab.say([f"{axis.title} {_shown(axis, now)}, {_line(e)}" for e in estimates])


def _line(e: Any) -> str:
    low_s, high_s = e.interval
    return (
        f"{e.gpu}: {milliseconds(e.latency_s)} (90 %: {milliseconds(low_s)} to {milliseconds(high_s)}); {e.fit.words}"
    )


def placed(tab: Tab) -> None:
    """Once the chart is there, it listens."""
    if "along" in tab.plots:
        ui.run_javascript(f"asking.drag({tab.plots['along'].id})")


VIEW = View(path="/drag", title="Drag", ask=ask, texts=texts, controls=controls, placed=placed, steady=True)
