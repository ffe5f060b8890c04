"""Tasks and bubbles in each stream of each rank of a simulated step, and as a trace that Perfetto and
``chrome://tracing`` open.

The format is Chrome's trace events ("Trace Event Format", Chromium project): complete events (``ph`` X) with
``ts`` and ``dur`` in microseconds, ranks as processes and streams as threads, which metadata events (``ph`` M) name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.schedule.graph import NOTHING
from neusight.schedule.run import Run
from neusight.schedule.tasks import KINDS, STREAMS

if TYPE_CHECKING:
    import pandas as pd

BUBBLE = "bubble"
_SHORTEST_S = 1e-9
"""Gaps that are shorter come from rounding."""
_COMPUTE = STREAMS.index("compute")


def events_of(run: Run) -> pd.DataFrame:
    """Tasks that take time, and the bubbles between them, sorted by ``rank``, ``stream`` (place in ``STREAMS``) and
    ``start_s``, from the beginning of the step, until ``end_s``.

    ``what`` is one of ``KINDS``, or ``BUBBLE`` where a stream of kernels waits. ``stage`` is of the model, ``piece`` of
    the stage, ``micro_batch`` and ``chunk`` of the rank: -1 of bubbles, of what is of all pieces, or happens once in a
    step. ``phase``: ``warm-up`` before a rank's first backward pass, ``steady``, ``cool-down`` after its last forward
    pass, and ``update`` from its optimizer on. ``critical``: whether the step would be shorter were the event.
    """
    import pandas as pd

    parts = [pd.DataFrame(_tasks(run)), pd.DataFrame(_bubbles(run))]
    events = pd.concat(parts, ignore_index=True).sort_values(["rank", "stream", "start_s"], kind="stable")
    return events.assign(phase=_phases(run, {name: events[name].to_numpy() for name in events}))


def _tasks(run: Run) -> dict[str, np.ndarray]:
    labels = run.graph.labels
    shown = np.flatnonzero((labels["stream"] != NOTHING) & (run.ends_s > run.starts_s))
    of = {name: column[shown] for name, column in labels.items()}
    return {
        "rank": of["rank"],
        "stream": of["stream"],
        "start_s": run.starts_s[shown],
        "end_s": run.ends_s[shown],
        "what": np.array(KINDS)[of["kind"]],
        "stage": of["stage"],
        "piece": np.where(of["piece"] == run.pipeline.pieces, NOTHING, of["piece"]),
        "micro_batch": of["micro_batch"],
        "chunk": of["stage"] // run.pipeline.pp,
        "critical": run.critical[shown] > 0.0,
    }


def _bubbles(run: Run) -> dict[str, Any]:
    """Time between the tasks of streams of kernels, and after the last of them."""
    gaps = [_gaps(run, rank) for rank in range(run.pipeline.pp)]
    starts, ends = (np.concatenate(column) for column in zip(*gaps, strict=True))
    rank = np.repeat(np.arange(run.pipeline.pp), [len(starts) for starts, _ in gaps])
    nowhere = dict.fromkeys(("stage", "piece", "micro_batch", "chunk"), NOTHING)
    spans = {"rank": rank, "stream": _COMPUTE, "start_s": starts, "end_s": ends}
    return {**spans, "what": BUBBLE, **nowhere, "critical": False}


def _gaps(run: Run, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Starts and ends of the gaps in a rank's stream of kernels."""
    labels = run.graph.labels
    kernels = np.flatnonzero((labels["stream"] == _COMPUTE) & (labels["rank"] == rank))
    starts = np.append(0.0, run.ends_s[kernels])
    ends = np.append(run.starts_s[kernels], run.step_s)
    is_gap = ends - starts > _SHORTEST_S
    return starts[is_gap], ends[is_gap]


def _phases(run: Run, columns: dict[str, np.ndarray]) -> np.ndarray:
    """Phase of each event, by the first and last passes of its rank."""
    is_of = {kind: columns["what"] == kind for kind in ("forward", "backward", "optimizer")}
    first, last, update = np.full((3, run.pipeline.pp), run.step_s)
    last[:] = 0.0
    rank, start_s = columns["rank"], columns["start_s"]
    np.minimum.at(first, rank[is_of["backward"]], start_s[is_of["backward"]])
    np.maximum.at(last, rank[is_of["forward"]], columns["end_s"][is_of["forward"]])
    np.minimum.at(update, rank[is_of["optimizer"]], start_s[is_of["optimizer"]])
    reached = [start_s >= update[rank], start_s < first[rank], start_s >= last[rank]]
    return np.select(reached, ["update", "warm-up", "cool-down"], "steady")


def trace_of(events: pd.DataFrame) -> dict[str, Any]:
    """A simulated step: a process for each rank of the pipeline, a thread for each of its streams."""
    places = sorted(set(zip(events["rank"].tolist(), events["stream"].tolist(), strict=True)))
    return {"displayTimeUnit": "ms", "traceEvents": [*_names(places), *_slices(events)]}


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


def _slices(events: pd.DataFrame) -> Iterator[dict[str, Any]]:
    for event in events.to_dict("records"):
        where = {name: event[name] for name in ("stage", "chunk", "micro_batch", "piece") if event[name] != NOTHING}
        slice_ = _complete(_title(event), event["start_s"], event["end_s"], event["rank"], event["stream"])
        yield slice_ | {"cat": event["phase"], "args": where | {"critical": event["critical"]}}


def _title(event: dict[str, Any]) -> str:
    """Label of an event's bar: its kind and micro-batch, which distinguishes passes."""
    what = event["what"].replace("_", " ")
    if event["what"] == BUBBLE or event["micro_batch"] == NOTHING:
        return what
    return f"{what} {event['micro_batch']}"


def _complete(name: str, start_s: float, end_s: float, rank: int, stream: int) -> dict[str, Any]:
    """Rounded to nanoseconds, so that what follows at once does not overlap."""
    start_ns, end_ns = round(start_s * 1e9), round(end_s * 1e9)
    place = {"pid": rank, "tid": stream}
    return {"ph": "X", "name": name, "ts": start_ns / 1e3, "dur": (end_ns - start_ns) / 1e3, **place}
