"""Charts of training on clusters: plans by time and memory, and what each rank does when."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from neusight.estimates.figures import GIB, memory
from neusight.figures import Bar, Chart, Dot, Line, Scale
from neusight.figures.palette import PHASE

if TYPE_CHECKING:
    from neusight.distributed.estimate import TrainingEstimate
    from neusight.distributed.search import Found

_MOST_BARS = 3000
"""Of a timeline: what is longest is shown."""


def pareto(found: Found) -> Chart:
    """Plans that no other beats in both time and memory, and the fastest."""
    front = {e.plan: e for e in found.frontier}
    others = {e.plan: e for e in found.best if e.plan not in front}
    dots = [_dot("no other is better in both", e) for e in front.values()]
    dots += [_dot("also fast", e) for e in others.values()]
    xs, ys = zip(*((e.fit.needed_bytes / GIB, e.latency_s) for e in front.values()), strict=True)
    rows = [
        {"plan": e.plan.short, "latency_s": e.latency_s, "low_s": e.low_s, "high_s": e.high_s, "mfu": e.mfu,
         "needed_bytes": e.fit.needed_bytes}
        for e in (*front.values(), *others.values())
    ]  # fmt: skip
    return Chart(
        name="pareto", title="Plans by time and memory", x=Scale(name="memory of the fullest rank in GiB"),
        y=Scale(name="time of a step", unit="s"), dots=tuple(dots), rows=tuple(rows),
        lines=(Line(series="no other is better in both", xs=xs, ys=ys, dashed=True),),
    )  # fmt: skip


def _dot(series: str, e: TrainingEstimate) -> Dot:
    low, high = e.fit.interval
    return Dot(
        x=e.fit.needed_bytes / GIB, y=e.latency_s, series=series, label=e.plan.short,
        x_interval=(low / GIB, high / GIB), y_interval=e.interval,
    )  # fmt: skip


def timeline(estimate: TrainingEstimate) -> Chart:
    """What the streams of each rank of the pipeline do when."""
    from neusight.schedule.tasks import STREAMS
    from neusight.schedule.trace import events_of

    events = events_of(estimate.schedule)
    places = sorted(set(zip(events["rank"].tolist(), events["stream"].tolist(), strict=True)))
    lane = {place: number for number, place in enumerate(places)}
    longest = events.assign(time_s=events["end_s"] - events["start_s"]).nlargest(_MOST_BARS, "time_s")
    bars = (
        Bar(
            lane=lane[event["rank"], event["stream"]], start=event["start_s"], end=event["end_s"],
            series=event["what"].replace("_", " "),
            note=f"{event['what']}, micro-batch {event['micro_batch']}, {event['phase']}",
        )
        for event in longest.to_dict("records")
    )  # fmt: skip
    return Chart(
        name="timeline", title="What each rank does when", x=Scale(name="time", unit="s"), zoom=True,
        lanes=tuple(f"rank {rank}, {STREAMS[stream]}" for rank, stream in places), bars=tuple(bars),
        rows=tuple(events.to_dict("records")), palette=PHASE,
    )  # fmt: skip


CHARTS: dict[str, Callable[[TrainingEstimate], Chart]] = {
    "memory": lambda estimate: memory([estimate]),
    "timeline": timeline,
}
"""What ``TrainingEstimate.figure`` draws."""
