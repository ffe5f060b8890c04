"""Sums of gradients over replicas that run beside the backward pass, bucket by bucket as gradients become ready."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from neusight.executors.costs import Costs
from neusight.kernels.families import Collective, KernelBatch
from neusight.plans.plan import Plan
from neusight.plans.program import gradient_bytes
from neusight.schedule.timeline import Timeline, Wait
from neusight.workloads.workload import Workload

BUCKET_BYTES = 25 * 2**20
"""Of ``DistributedDataParallel`` by default (``bucket_cap_mb``; Li et al. 2020, section 3.2.3)."""


def exposed_s(ready_s: np.ndarray, transfer_s: np.ndarray, end_s: float) -> float:
    """How much later than ``end_s`` the last of several transfers ends, which go one after another.

    Args:
        ready_s: when each may begin, ascending [s].
        transfer_s: how long each takes [s].
        end_s: when what they run beside ends [s].
    """
    now = 0.0
    for ready, transfer in zip(ready_s.tolist(), transfer_s.tolist(), strict=True):
        now = max(now, ready) + transfer
    return max(0.0, now - end_s)


def gradient_wait(timeline: Timeline, plan: Plan, price: Callable[[KernelBatch], Costs]) -> Wait | None:
    """The wait for sums of gradients that the last backward pass does not hide; None where nothing is left to see."""
    if plan.dp == 1 or not plan.overlap_gradients:
        return None
    program = timeline.program
    ready, sizes, end_s = _ready(program.workload, _seconds(timeline))
    total = gradient_bytes(program.workload, plan)
    if not len(sizes):
        return None
    op = "all_reduce" if plan.shard == "none" else "reduce_scatter"
    at, filled = _buckets(sizes * (total / sizes.sum()))
    buckets = [Collective(op=op, ranks=plan.dp, bytes=round(b), dtype=plan.gradient_dtype) for b in filled]
    costs = price(KernelBatch.of(buckets))
    ends = {kind: exposed_s(ready[at], getattr(costs, kind), end_s) for kind in ("latency_s", "low_s", "high_s")}
    return Wait(
        what=f"{op} of {total / 1e9:.3g} GB of gradients beside the backward pass",
        limiter="link",
        bound_s=0.0,
        errors_s={"device": ends["latency_s"] * float(costs.spread.mean())},
        **ends,
    )


def _seconds(timeline: Timeline) -> dict[tuple[object, str], float]:
    """What each kernel takes in the stream, by kernel and operator."""
    found: dict[tuple[object, str], float] = {}
    for (_, at), costs in zip(timeline.program.batches, timeline.costs, strict=True):
        for place, seconds in zip(at.tolist(), costs.latency_s.tolist(), strict=True):
            found[timeline.program.launches[place].kernel, timeline.program.launches[place].phase] = seconds
    return found


def _ready(workload: Workload, seconds: dict[tuple[object, str], float]) -> tuple[np.ndarray, np.ndarray, float]:
    """When gradients of how many bytes are there in a backward pass, and when it ends [s]."""
    now, ready, sizes = 0.0, [], []
    for node, copy in workload.expanded():
        if node.phase != "backward":
            continue
        now += sum(seconds[kernel, node.phase] for kernel in node.kernels)
        for reference in node.writes:
            tensor = workload.tensors[reference.at(copy, node.copies).tensor]
            if tensor.kind == "gradient":
                ready.append(now)
                sizes.append(float(tensor.nbytes))
    return np.array(ready), np.array(sizes), now


def _buckets(sizes: np.ndarray) -> tuple[list[int], Sequence[float]]:
    """For each bucket the place of its last gradient, and its bytes."""
    at: list[int] = []
    filled: list[float] = []
    held = 0.0
    for place, size in enumerate(sizes.tolist()):
        held += size
        if held >= BUCKET_BYTES or place == len(sizes) - 1:
            at.append(place)
            filled.append(held)
            held = 0.0
    return at, filled
