"""Charts of served models: throughput against speed, what deployments that hold a service level cost, passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from neusight.estimates.figures import memory
from neusight.figures import Bar, Chart, Dot, Line, Scale, stacked

if TYPE_CHECKING:
    from neusight.serving.estimate import Limiter, Metric, ServingEstimate
    from neusight.serving.planning import Choice

_CHOICES, _PARTS = 12, 8
"""Deployments that are shown, the cheapest, and parts of passes, the largest."""


def frontier(series: Mapping[str, Sequence[ServingEstimate]], title: str = "Throughput against speed") -> Chart:
    """Output tokens a second of each device against those of each user, a line a deployment, with its clients.

    Args:
        series: answers under growing loads, by the name of their deployment.
        title: of the chart.
    """
    shown = {name: [e for e in each if e.output_tokens_per_s_per_user] for name, each in series.items()}
    lines = [
        Line(
            series=name,
            xs=tuple(e.output_tokens_per_s_per_user or 0.0 for e in each),
            ys=tuple(e.output_tokens_per_s_per_device for e in each),
        )
        for name, each in shown.items()
    ]
    dots = [_dot(name, e) for name, each in shown.items() for e in each]
    rows = [{"deployment": name, **e.row()} for name, each in shown.items() for e in each]
    return Chart(
        name="frontier", title=title, x=Scale(name="output tokens/s of each user"),
        y=Scale(name="output tokens/s of each GPU"), lines=tuple(lines), dots=tuple(dots), rows=tuple(rows),
    )  # fmt: skip


def _dot(name: str, e: ServingEstimate) -> Dot:
    tpot, rate = e.tpot_s, e.output_tokens_per_s
    return Dot(
        x=1.0 / tpot.mean, y=rate.mean / e.devices, series=name, label=load_size(e), x_interval=_inverse(tpot),
        y_interval=(rate.low / e.devices, rate.high / e.devices),
    )  # fmt: skip


def _inverse(tpot: Metric) -> tuple[float, float] | None:
    return (1.0 / tpot.high, 1.0 / tpot.low) if tpot.low > 0 else None


def load_size(e: ServingEstimate) -> str:
    """Clients, requests of a batch, or requests a second."""
    sizes = [e.load[name] for name in ("concurrency", "batch", "rate_per_s", "number") if name in e.load]
    return f"{sizes[0]:g}"


def costs(choices: Sequence[Choice]) -> Chart:
    """What each deployment that holds costs an hour, the cheapest first; without prices how many devices it has."""
    held = [(choice, choice.estimate) for choice in choices if choice.estimate][:_CHOICES]
    priced = bool(held) and all(choice.usd_per_hour is not None for choice, _ in held)
    amounts = [choice.usd_per_hour or 0.0 if priced else float(e.devices) for choice, e in held]
    bars = (
        Bar(lane=lane, start=0.0, end=amount, series="holds", label=f"{choice.probability:.0%}")
        for lane, ((choice, _), amount) in enumerate(zip(held, amounts, strict=True))
    )
    return Chart(
        name="costs", title="Cheapest deployments that hold; with which probability",
        x=Scale(name="cost an hour", unit="USD") if priced else Scale(name="devices"),
        lanes=tuple(choice_name(choice, e.devices) for choice, e in held), bars=tuple(bars),
        rows=tuple(choice.row() for choice in choices),
    )  # fmt: skip


def choice_name(choice: Choice, devices: int) -> str:
    """``4 x l4, fp8 tp2``."""
    return ", ".join(filter(None, (f"{devices} x {choice.gpu}", choice.words)))


def passes(estimate: ServingEstimate) -> Chart:
    """What passes with prompts, and passes that only generate, spend their time on."""
    kinds = {"prompts": estimate.prefill, "generating": estimate.decode}
    known = {name: limiter for name, limiter in kinds.items() if limiter is not None}
    largest = sorted({part for one in known.values() for part in one.parts}, key=lambda part: -_most(known, part))
    shown = [(part, part) for part in largest[:_PARTS]]
    bars = [
        bar
        for lane, one in enumerate(known.values())
        for bar in stacked(
            lane, [*((name, one.parts.get(part, 0.0)) for name, part in shown), ("", _rest(one, largest))]
        )
    ]
    rows = [{"passes": name, "limiter": one.resource, **one.parts} for name, one in known.items()]
    return Chart(
        name="passes", title="What passes spend their time on", x=Scale(name="share of the time"),
        lanes=tuple(known), bars=tuple(bars), rows=tuple(rows),
    )  # fmt: skip


CHARTS: dict[str, Callable[[ServingEstimate], Chart]] = {
    "memory": lambda estimate: memory([estimate]),
    "passes": passes,
}
"""What ``ServingEstimate.figure`` draws."""


def _most(passes: Mapping[str, Limiter], part: str) -> float:
    return max(one.parts.get(part, 0.0) for one in passes.values())


def _rest(one: Limiter, largest: Sequence[str]) -> float:
    """Of all parts that are not shown by name."""
    return sum(one.parts.get(part, 0.0) for part in largest[_PARTS:])
