"""Traces as Perfetto reads them: complete events in named threads, in order, without overlap."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from steps import IDS, ORDERS, drawn

from neusight.schedule.pipeline import Pipeline
from neusight.schedule.run import simulate
from neusight.schedule.tasks import STREAMS
from neusight.schedule.times import StepTimes
from neusight.schedule.trace import events_of, trace_of

Event = dict[str, Any]
MICROSECOND_S = 1e-6


def threads(trace: dict[str, Any]) -> dict[tuple[int, int], list[Event]]:
    """Complete events by process and thread, once all events are what the format says."""
    trace = json.loads(json.dumps(trace))
    found, named = defaultdict(list), set()
    for event in trace["traceEvents"]:
        place = event["pid"], event["tid"]
        assert event["ph"] in ("X", "M")
        if event["ph"] == "M":
            named |= {(event["name"], *place[: 2 if event["name"].startswith("thread") else 1])}
            assert set(event["args"]) == {"sort_index" if event["name"].endswith("sort_index") else "name"}
            continue
        assert event["name"]
        assert event["ts"] >= 0.0
        assert event["dur"] > 0.0
        found[place].append(event)
    for pid, tid in found:
        assert {("process_name", pid), ("thread_name", pid, tid)} <= named
    return found


def in_order(events: list[Event]) -> bool:
    """Whether each event starts no earlier than the one before it ends, in whole nanoseconds."""
    spans = [(round(event["ts"] * 1e3), round((event["ts"] + event["dur"]) * 1e3)) for event in events]
    return all(before[1] <= after[0] for before, after in pairwise(spans))


@pytest.mark.parametrize("order", ORDERS, ids=IDS)
def test_streams_are_in_order_and_end_with_the_step(order: Pipeline) -> None:
    step = simulate(order, drawn(order, 5), contention=0.1)
    found = threads(trace_of(events_of(step)))
    assert {pid for pid, _ in found} == set(range(order.pp))
    assert all(in_order(events) for events in found.values())
    last = max(event["ts"] + event["dur"] for events in found.values() for event in events)
    assert last * MICROSECOND_S == pytest.approx(step.step_s)


@pytest.mark.parametrize("order", ORDERS, ids=IDS)
def test_kernels_sends_and_bubbles_fill_the_stream_of_kernels(order: Pipeline) -> None:
    step = simulate(order, drawn(order, 6))
    found = threads(trace_of(events_of(step)))
    for rank in range(order.pp):
        events = found[rank, STREAMS.index("compute")]
        assert sum(event["dur"] for event in events) * MICROSECOND_S == pytest.approx(step.step_s)
        idle = sum(event["dur"] for event in events if event["name"] == "bubble") * MICROSECOND_S
        assert idle <= (step.bubble_s + step.exposed_s)[rank] * (1 + 1e-9)


def test_events_say_what_runs_when() -> None:
    times = StepTimes(forward=1.0, backward=2.0, send_forward=0.5, send_backward=0.5, optimizer=0.25)
    events = events_of(simulate(Pipeline(pp=2, micro_batches=2, sends="overlapped"), times))
    first = (events["rank"] == 0) & (events["stream"] == 0)
    rows = zip(events["what"][first], events["micro_batch"][first], events["phase"][first], strict=True)
    assert [(str(what), int(i), str(phase)) for what, i, phase in rows] == [
        ("forward", 0, "warm-up"),
        ("forward", 1, "warm-up"),
        ("bubble", -1, "warm-up"),
        ("backward", 0, "cool-down"),
        ("bubble", -1, "cool-down"),
        ("backward", 1, "cool-down"),
        ("optimizer", -1, "update"),
    ]
    names = {event["name"] for events in threads(trace_of(events)).values() for event in events}
    assert {"forward 1", "send forward 1", "send backward 0", "bubble", "optimizer"} <= names


def test_the_critical_path_reaches_from_the_first_event_to_the_last() -> None:
    events = events_of(simulate(ORDERS[0], drawn(ORDERS[0], 1)))
    starts, ends = events["start_s"][events["critical"]], events["end_s"][events["critical"]]
    assert starts.min() == 0.0
    assert ends.max() == events["end_s"].max()
    assert np.sum(ends - starts) == pytest.approx(events["end_s"].max())
