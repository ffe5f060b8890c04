"""Charts of served models: throughput against speed, what deployments that hold a service level cost, passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from neusight.estimates.figures import CAPACITY, GIB, ROOM, device_names
from neusight.figures import Bar, Chart, Dot, Line, Scale, stacked
from neusight.figures.palette import MEMORY, PART
from neusight.units import chance, gib

if TYPE_CHECKING:
    from neusight.serving.estimate import Metric, ServingEstimate
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
    sizes = [e.load[name] for name in ("concurrency", "batch", "request_rate", "num_prompts") if name in e.load]
    return f"{sizes[0]:g}"


def costs(choices: Sequence[Choice]) -> Chart:
    """What each deployment that holds costs an hour, the cheapest first; without prices how many devices it has."""
    held = [(choice, choice.estimate) for choice in choices if choice.estimate][:_CHOICES]
    priced = bool(held) and all(choice.usd_per_hour is not None for choice, _ in held)
    amounts = [choice.usd_per_hour or 0.0 if priced else float(e.devices) for choice, e in held]
    bars = (
        Bar(lane=lane, start=0.0, end=amount, series="holds", label=chance(choice.probability))
        for lane, ((choice, _), amount) in enumerate(zip(held, amounts, strict=True))
    )
    return Chart(
        name="costs", title="Cheapest deployments that hold; with which probability",
        x=Scale(name="cost an hour", unit="USD") if priced else Scale(name="devices"),
        lanes=tuple(choice.described for choice, _ in held), bars=tuple(bars),
        rows=tuple(choice.row() for choice in choices),
    )  # fmt: skip


def memory(estimates: Sequence[ServingEstimate]) -> Chart:
    """All memory of each device, term by term; the interval is of what stands beside the cache."""
    bars: list[Bar] = []
    for lane, e in enumerate(estimates):
        low, high = e.fit.interval
        sizes = {name: size / GIB for name, size in e.memory.shares.items()}
        rest = [("KV cache", sizes.pop("KV cache"))]
        beside = stacked(lane, sizes.items(), (low / GIB, high / GIB))
        moved = beside[-1].end
        bars += [*beside, *(replace(bar, start=moved + bar.start, end=moved + bar.end) for bar in stacked(lane, rest))]
        has = e.memory.capacity / GIB
        bars.append(Bar(lane=lane, start=has, end=has, series=CAPACITY, note=f"{e.gpu} has {gib(e.memory.capacity)}"))
    rows = ({"gpu": e.gpu, **e.memory.shares, "capacity": e.memory.capacity, "fits": e.fits} for e in estimates)
    return Chart(
        name="memory", title="Memory by term", x=ROOM, lanes=device_names(estimates), bars=tuple(bars),
        rows=tuple(rows), palette=MEMORY,
    )  # fmt: skip


def passes(estimate: ServingEstimate) -> Chart:
    """What passes with prompts, and passes that only generate, spend their time on."""
    kinds = {"prompts": estimate.prefill, "generating": estimate.decode}
    known = {name: limiter for name, limiter in kinds.items() if limiter is not None}
    largest = sorted(PART, key=lambda part: -max((one.parts.get(part, 0.0) for one in known.values()), default=0.0))
    bars: list[Bar] = []
    for lane, one in enumerate(known.values()):
        named = [(part, one.parts.get(part, 0.0)) for part in largest[:_PARTS]]
        bars += stacked(lane, [*named, ("", sum(one.parts.values()) - sum(share for _, share in named))])
    rows = [{"passes": name, "limiter": one.resource, **one.parts} for name, one in known.items()]
    return Chart(
        name="passes", title="What passes spend their time on", x=Scale(name="share of the time"),
        lanes=tuple(known), bars=tuple(bars), rows=tuple(rows), palette=PART,
    )  # fmt: skip


CHARTS: dict[str, Callable[[ServingEstimate], Chart]] = {
    "memory": lambda estimate: memory([estimate]),
    "passes": passes,
}
"""What ``ServingEstimate.figure`` draws."""
