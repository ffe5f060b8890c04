"""A step of several pipeline stages, from the timelines of each: the slowest one's, and what it waits for.

With m micro-batches every stage runs m forward and backward passes. The first micro-batch passes all stages one after
the other and the slowest then finishes one at a time (Huang et al. 2019, section 2.3; Narayanan et al. 2021, section
2.2): t = sum of stages + (m - 1) x slowest stage. What comes after the passes, sums over replicas and the update, ends
with the slowest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from neusight.schedule.timeline import Timeline, Wait

_SHARED = ("device", "launch", "composition")
"""Sources of error that stages have in common."""


@dataclass(frozen=True)
class _Stage:
    """Seconds of a stage's passes, all micro-batches together, and of what comes after them."""

    passes: float
    after: float


def staged(timelines: Sequence[Timeline], micro_batches: int) -> Timeline:
    """The timeline of the stage that takes longest, with its wait for the others; one stage is as it was."""
    if len(timelines) == 1:
        return timelines[0]
    slowest = max(timelines, key=lambda one: _of(one, "latency_s").passes)
    kinds = ("latency_s", "low_s", "high_s", "bound_s")
    waits = {kind: _wait_s([_of(one, kind) for one in timelines], _of(slowest, kind), micro_batches) for kind in kinds}
    wait = Wait(
        what=f"pipeline of {len(timelines)} stages",
        limiter="pipeline",
        latency_s=waits["latency_s"],
        low_s=min(waits["low_s"], waits["latency_s"]),
        high_s=max(waits["high_s"], waits["latency_s"]),
        bound_s=min(waits["bound_s"], waits["latency_s"]),
        errors_s=_errors_s(slowest, waits["latency_s"]),
    )
    return replace(slowest, waits=(*slowest.waits, wait))


def _wait_s(stages: Sequence[_Stage], mine: _Stage, micro_batches: int) -> float:
    """What a step takes beyond one stage's own work."""
    each = [stage.passes / micro_batches for stage in stages]
    step_s = sum(each) + (micro_batches - 1) * max(each) + max(stage.after for stage in stages)
    return max(0.0, step_s - mine.passes - mine.after)


def _of(timeline: Timeline, kind: str) -> _Stage:
    """Passes take as long as their kernels, or as the host that dispatches them; what is left comes after them."""
    after = np.array([launch.phase == "optimizer" for launch in timeline.program.launches])
    kernels = np.zeros(len(after))
    for (_, at), costs in zip(timeline.program.batches, timeline.costs, strict=True):
        kernels[at] = timeline.program.counts[at] * getattr(costs, kind)
    waits = {wait.limiter: float(getattr(wait, kind)) for wait in timeline.waits}
    total = float(kernels.sum()) + sum(waits.values())
    passes = float(kernels[~after].sum()) + waits.get("dram", 0.0)
    if "host" in waits and kind != "bound_s":
        passes = min(max(passes, _dispatch_s(timeline)), total)
    return _Stage(passes=passes, after=total - passes)


def _dispatch_s(timeline: Timeline) -> float:
    """What the host needs for the operators of all passes."""
    workload = timeline.program.workload
    once = sum(node.copies for node in workload.nodes if node.phase == "optimizer")
    return max(0, timeline.program.host_operators - once) * workload.request.engine.host_s_per_operator


def _errors_s(timeline: Timeline, wait_s: float) -> dict[str, float]:
    """Errors of a wait for other stages, which are wrong by as much as this one is."""
    latency_s = 0.0
    sums = dict.fromkeys(_SHARED, 0.0)
    for (_, at), costs, errors in zip(timeline.program.batches, timeline.costs, timeline.errors_s, strict=True):
        counts = timeline.program.counts[at]
        latency_s += float((counts * costs.latency_s).sum())
        for source in _SHARED:
            sums[source] += float((counts * errors[source]).sum())
    return {source: wait_s * size / latency_s for source, size in sums.items()} if latency_s else {}
