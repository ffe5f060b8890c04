"""Below which no step of a plan can be: kernels of its busiest rank, between the pipeline's fill and drain."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from neusight.distributed.factors import factors_of
from neusight.distributed.priced import Pricer, SegmentSeconds, price_parts
from neusight.distributed.sources import source_of
from neusight.distributed.step import priced_segments, programs_by_share
from neusight.distributed.training_run import TrainingRun
from neusight.plans.stages import Stage
from neusight.requests import Plan
from neusight.workloads.decoders.shares import Local

Split = tuple[Local, str, int, int]
"""What decides what a stage takes of one micro-batch: a rank's share of it, what is computed again, pp and vp."""


def bounds_s(request: TrainingRun, plans: Sequence[Plan], pricer: Pricer) -> np.ndarray:
    """Below which no step of each plan can be, shape (plans,).

    Args:
        request: the step; its own plan does not count.
        plans: for its cluster.
        pricer: answers for kernels and collectives.
    """
    splits = [_split(request, plan) for plan in plans]
    first = dict(zip(reversed(splits), reversed(plans), strict=True))
    seconds = _segment_seconds(request, first, pricer)
    sums = {}
    for split, plan in first.items():
        run, segments = replace(request, plan=plan), seconds[split[:2]]
        layer_s = [segment.kernels for segment in segments]
        sums[split] = _stage_sums(source_of(run).stages(run, layer_s), segments)
    known: dict[tuple[Split, str, int], float] = {}
    for split, plan in zip(splits, plans, strict=True):
        key = split, plan.schedule, plan.micro_batches
        if key not in known:
            known[key] = _bound_s(*sums[split], plan.schedule, plan.micro_batches)
    return np.array([known[s, p.schedule, p.micro_batches] for s, p in zip(splits, plans, strict=True)])


def _split(request: TrainingRun, plan: Plan) -> Split:
    return replace(request, plan=plan).local, plan.recompute, plan.pp, plan.vp


def _segment_seconds(
    request: TrainingRun, first: dict[Split, Plan], pricer: Pricer
) -> dict[tuple[Local, str], list[SegmentSeconds]]:
    """Seconds of all segments for each share of a micro-batch and way of recomputing, priced together."""
    programs = programs_by_share([replace(request, plan=plan) for plan in first.values()])
    parts = [part for program in programs.values() for part in program.parts]
    times = iter(price_parts(parts, request.cluster.device, pricer, request.engine, factors_of(request.engine)))
    priced = {local: priced_segments(program, times) for local, program in programs.items()}
    seconds: dict[tuple[Local, str], list[SegmentSeconds]] = {}
    for (local, recompute, _, _), plan in first.items():
        if (local, recompute) not in seconds:
            seconds[local, recompute] = [segment.seconds(plan, request.engine) for segment in priced[local]]
    return seconds


def _stage_sums(stages: Sequence[Stage], segments: Sequence[SegmentSeconds]) -> tuple[np.ndarray, np.ndarray]:
    """Seconds of one micro-batch on each stage, arrays of shape (3, pp): passes of all its chunks, and of its first."""
    whole = [_sum(segments, s.kinds, before=s.first, after=s.last) for s in stages]
    first = [_sum(segments, s.chunks[0], before=s.first, after=s.last and len(s.chunks) == 1) for s in stages]
    return np.array(whole).T, np.array(first).T


def _bound_s(whole: np.ndarray, first: np.ndarray, schedule: str, micro_batches: int) -> float:
    """Of a step.

    A rank starts after the forward passes of the first micro-batch on the ranks before it, and ends before the backward
    passes of the last one on them. Under ``zero-bubble`` its last gradients of weights, as many as its place in the
    line, run beside those (see ``plans.order.order_of``).

    Args:
        whole, first: of ``_stage_sums``.
        schedule: of the passes.
        micro_batches: of a step.
    """
    (forward, backward, weights), (first_forward, first_backward, first_weights) = whole, first
    fill, busy = _before(first_forward), micro_batches * (forward + backward + weights)
    if schedule != "zero-bubble":
        return float((fill + busy + _before(first_backward + first_weights)).max())
    late = np.minimum(np.arange(len(busy)), micro_batches) * weights
    return float((fill + busy + np.maximum(0.0, _before(first_backward) - late)).max())


def _sum(
    segments: Sequence[SegmentSeconds], kinds: Iterable[int], *, before: bool, after: bool
) -> tuple[float, float, float]:
    """(forward, backward with what is computed again, weights) of some layers and of what stands around them."""
    layers = [segments[1 + kind] for kind in kinds]
    around = [unit for there, unit in ((before, segments[0]), (after, segments[-1])) if there]
    every = layers + around
    backward = sum(u.backward for u in every) + sum(u.recompute for u in layers)
    return sum(u.forward for u in every), backward, sum(u.weights for u in every)


def _before(seconds: np.ndarray) -> np.ndarray:
    """Of each stage, the sum over those before it."""
    return np.cumsum(seconds) - seconds
