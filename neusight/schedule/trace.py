"""Steps as traces that Perfetto and ``chrome://tracing`` open.

The format is Chrome's trace events ("Trace Event Format", Chromium project): complete events (``ph`` X) with
``ts`` and ``dur`` in microseconds, ranks as processes and streams as threads, which metadata events (``ph`` M) name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from neusight.schedule.events import BUBBLE, Events
from neusight.schedule.graph import NOTHING
from neusight.schedule.tasks import STREAMS
from neusight.schedule.timeline import Timeline

Trace = dict[str, Any]
_COMPUTE = STREAMS.index("compute")


def trace_of(events: Events) -> Trace:
    """A simulated step: a process for each rank of the pipeline, a thread for each of its streams."""
    places = sorted(set(zip(events.rank.tolist(), events.stream.tolist(), strict=True)))
    return _trace([*_names(places), *_slices(events)])


def timeline_trace(timeline: Timeline) -> Trace:
    """A step on one device: its kernels in one stream, and what the stream waits for behind them.

    Kernels that are alike stand together, all their runs as one event.
    """
    spans = list(_runs(timeline))
    ends = np.cumsum([seconds for _, seconds, _ in spans])
    starts = np.append(0.0, ends)[:-1]
    rank = timeline.program.rank
    events = [
        _complete(what, start, end, rank, _COMPUTE) | arguments
        for (what, _, arguments), start, end in zip(spans, starts.tolist(), ends.tolist(), strict=True)
    ]
    return _trace([*_names([(rank, _COMPUTE)]), *events])


def _trace(events: list[dict[str, Any]]) -> Trace:
    return {"displayTimeUnit": "ms", "traceEvents": events}


def _names(places: Iterable[tuple[int, int]]) -> Iterator[dict[str, Any]]:
    """Metadata of ranks and streams; Perfetto orders both by their ``sort_index``."""
    seen = set()
    for rank, stream in places:
        if rank not in seen:
            seen.add(rank)
            yield _metadata("process_name", rank, stream, name=f"rank {rank}")
            yield _metadata("process_sort_index", rank, stream, sort_index=rank)
        yield _metadata("thread_name", rank, stream, name=STREAMS[stream])
        yield _metadata("thread_sort_index", rank, stream, sort_index=stream)


def _metadata(what: str, rank: int, stream: int, **arguments: Any) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": rank, "tid": stream, "args": arguments}


def _slices(events: Events) -> Iterator[dict[str, Any]]:
    columns = zip(*(column.tolist() for column in vars(events).values()), strict=True)
    for values in columns:
        event = dict(zip(vars(events), values, strict=True))
        where = {name: event[name] for name in ("stage", "chunk", "micro_batch", "piece") if event[name] != NOTHING}
        slice_ = _complete(_title(event), event["start_s"], event["end_s"], event["rank"], event["stream"])
        yield slice_ | {"cat": event["phase"], "args": where | {"critical": event["critical"]}}


def _title(event: dict[str, Any]) -> str:
    """What a reader sees on a bar: the micro-batch is what tells passes apart."""
    what = event["what"].replace("_", " ")
    if event["what"] == BUBBLE or event["micro_batch"] == NOTHING:
        return what
    return f"{what} {event['micro_batch']}"


def _runs(timeline: Timeline) -> Iterator[tuple[str, float, dict[str, Any]]]:
    """Name, seconds of all runs, and details of each kernel in the order of the program, then of waits."""
    program, each_s = timeline.program, np.zeros(len(timeline.program.launches))
    limiters = np.full(len(each_s), "", dtype=object)
    for (_, positions), costs in zip(program.batches, timeline.costs, strict=True):
        each_s[positions], limiters[positions] = costs.latency_s, costs.limiter
    columns = (program.launches, program.descriptions, each_s.tolist(), limiters.tolist())
    for launch, description, seconds, limiter in zip(*columns, strict=True):
        arguments = {"operator": launch.operator, "runs": launch.count, "limiter": limiter}
        yield description, launch.count * seconds, {"cat": launch.phase, "args": arguments}
    for wait in timeline.waits:
        yield wait.what, wait.latency_s, {"cat": "wait", "args": {"limiter": wait.limiter}}


def _complete(name: str, start_s: float, end_s: float, rank: int, stream: int) -> dict[str, Any]:
    """Rounded to nanoseconds, so that what follows at once does not overlap."""
    start_ns, end_ns = round(start_s * 1e9), round(end_s * 1e9)
    place = {"pid": rank, "tid": stream}
    return {"ph": "X", "name": name, "ts": start_ns / 1e3, "dur": (end_ns - start_ns) / 1e3, **place}
