"""The best plans of a training step on a cluster, exactly: every plan is bounded, and simulated where its bound allows.

Plans are taken in the order of their bounds. One is simulated where it may be among the fastest, or, while bounds are
within reach of the fastest, where nothing that was simulated beats its bound in less memory: what is left out can be
neither. A bound is of the kernels of a plan's busiest rank, between the pipeline's fill and drain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np

from neusight.distributed.estimate import TrainingEstimate, estimated
from neusight.distributed.exchanges import contention
from neusight.distributed.factors import factors_of
from neusight.distributed.priced import Pricer, SegmentSeconds, price_parts
from neusight.distributed.sources import memory, source_of
from neusight.distributed.space import Space, plans_in
from neusight.distributed.step import priced_segments, programs_by_share, timed
from neusight.distributed.training_run import TrainingRun
from neusight.errors import ModelError
from neusight.plans.fits import verdict
from neusight.plans.stages import Stage
from neusight.requests import Plan
from neusight.schedule.run import step_s
from neusight.workers import Worker, shared
from neusight.workloads.decoders.shares import Local

TOGETHER = 64
"""Plans that are looked at together, unless asked otherwise."""
REACH = 1.25
"""How many times as long as the fastest step those of a frontier may be, unless asked otherwise."""
Look = Callable[["SearchedStep", Sequence[Plan]], list[float]]
"""A figure of each of some plans."""
Split = tuple[Local, str, int, int]
"""What decides what a stage takes of one micro-batch: a rank's share of it, what is computed again, pp and vp."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a search found.

    Attributes:
        best: estimates of the fastest plans that fit, fastest first.
        frontier: of plans that fit and are within reach of the fastest, those that no other beats in both time and
            memory, fastest first.
        plans: in the space.
        simulated: of which the bound did not decide.
        too_large: for the devices' memory, of those whose bounds are within reach.
    """

    best: tuple[TrainingEstimate, ...]
    frontier: tuple[TrainingEstimate, ...]
    plans: int
    simulated: int
    too_large: int


class Tried(NamedTuple):
    """A plan that was simulated."""

    step_s: float
    bytes: float
    run: TrainingRun


def search(
    request: TrainingRun,
    pricer: Pricer,
    space: Space | None = None,
    count: int = 5,
    *,
    reach: float = REACH,
    within_s: float = np.inf,
    together: int = TOGETHER,
    plans: Sequence[Plan] = (),
    workers: Sequence[Worker] = (),
    progress: Callable[[int, int], None] | None = None,
) -> Found:
    """The fastest plans of a step, and what less memory costs.

    Args:
        request: the step; of its plan the global batch counts.
        pricer: answers for kernels and collectives.
        space: which plans there are.
        count: how many of the best.
        reach: how many times as long as the fastest step those of the frontier may be.
        within_s: a step that is known; plans whose bounds are no shorter are left out, be they all.
        together: how many plans are looked at together.
        plans: the only ones to look at; default all of the space.
        workers: who look at them, each begun with ``begin``; default this process.
        progress: called with (decided, of) plans.

    Raises:
        ModelError: no plan divides model and batch, or none fits.
    """
    plans = plans or plans_of(request, space or Space())
    bounds = bounds_s(request, plans, pricer)
    order = np.argsort(bounds, kind="stable")
    usable = request.cluster.device.usable_bytes
    tried: list[Tried] = []
    too_large = 0
    looked = partial(_shared, workers) if workers else partial(_looked, SearchedStep(request, pricer))
    for start in range(0, len(order), together):
        some = order[start : start + together]
        if bounds[some[0]] > _last_s(tried, count, reach) or bounds[some[0]] >= within_s:
            break
        needs = np.array(looked(_needs_bytes, [plans[at] for at in some]))
        too_large += int((needs > usable).sum())
        is_open = _open(bounds[some], needs, tried, count) & (needs <= usable) & (bounds[some] < within_s)
        chosen = [plans[at] for at in some[is_open]]
        steps = looked(_steps_s, chosen)
        tried += [
            Tried(step_s, need, replace(request, plan=plan))
            for step_s, need, plan in zip(steps, needs[is_open].tolist(), chosen, strict=True)
        ]
        if progress:
            progress(start + len(some), len(order))
    if not tried and within_s == np.inf:
        raise ModelError(
            f"{request.decoder.name} fits on {request.cluster.devices} x {request.cluster.device.id} under none of "
            f"{len(plans)} plans: take more devices or a shorter sequence"
        )
    tried.sort(key=lambda one: one[:2])
    best, frontier = tried[:count], _frontier(tried, reach)
    answers = {id(one.run): estimated(timed([one.run], pricer)[0]) for one in (*best, *frontier)}
    return Found(
        best=tuple(answers[id(one.run)] for one in best),
        frontier=tuple(answers[id(one.run)] for one in frontier),
        plans=len(plans),
        simulated=len(tried),
        too_large=too_large,
    )


def plans_of(request: TrainingRun, space: Space) -> list[Plan]:
    """All plans of a space for a step.

    Raises:
        ModelError: none divides model and batch.
    """
    plans = list(plans_in(space, source_of(request), request.cluster, request.seq_len, request.plan.global_batch_size))
    if not plans:
        raise ModelError(
            f"no plan shares {request.decoder.name} and {request.plan.global_batch_size} sequences among "
            f"{request.cluster.size_words}: choose a global batch that more of their divisors divide"
        )
    return plans


def _last_s(tried: Sequence[Tried], count: int, reach: float) -> float:
    """The largest bound [s] of a plan that may still count."""
    if len(tried) < count:
        return np.inf
    steps = sorted(one.step_s for one in tried)
    return max(steps[count - 1], reach * steps[0])


def _open(bounds: np.ndarray, needs: np.ndarray, tried: Sequence[Tried], count: int) -> np.ndarray:
    """Which plans of these bounds [s] and needs [B] may be among the fastest, or on the frontier."""
    steps, sizes = np.array([one[:2] for one in tried]).reshape(-1, 2).T
    slowest = np.sort(steps)[count - 1] if len(steps) >= count else np.inf
    beaten = ((steps <= bounds[:, None]) & (sizes <= needs[:, None])).any(axis=1)
    return (bounds < slowest) | ~beaten


class SearchedStep(NamedTuple):
    """What is searched for, and who prices it."""

    request: TrainingRun
    pricer: Pricer


_STEP: list[SearchedStep] = []
"""Of this process, where it is a worker."""


def begin(request: TrainingRun, pricer_of: Callable[[], Pricer]) -> None:
    """Make this process one that looks at plans for a search elsewhere; ``pricer_of`` comes from there."""
    _STEP[:] = [SearchedStep(request, pricer_of())]


def _looked(step: SearchedStep, look: Look, plans: Sequence[Plan]) -> list[float]:
    return look(step, plans)


def _shared(workers: Sequence[Worker], look: Look, plans: Sequence[Plan]) -> list[float]:
    """In their order, neighbours by the same worker: they share most kernels."""
    cuts = np.linspace(0, len(plans), len(workers) + 1).astype(int)
    parts = [(look, plans[start:stop]) for start, stop in pairwise(cuts) if stop > start]
    return list(chain.from_iterable(shared(workers, _looked_here, parts)))


def _looked_here(task: tuple[Look, Sequence[Plan]]) -> list[float]:
    look, plans = task
    return look(_STEP[0], plans)


def _needs_bytes(step: SearchedStep, plans: Sequence[Plan]) -> list[float]:
    """What the device of each plan's fullest rank must have, with context and allocator [B]."""
    device = step.request.cluster.device
    return [verdict(memory(replace(step.request, plan=plan)), device).needed_bytes for plan in plans]


def _steps_s(step: SearchedStep, plans: Sequence[Plan]) -> list[float]:
    """What a step takes under each plan [s], simulated."""
    runs = [replace(step.request, plan=plan) for plan in plans]
    made = timed(runs, step.pricer) if runs else []
    return [step_s(one.pipeline, one.times, contention(run)) for run, one in zip(runs, made, strict=True)]


def _frontier(tried: Sequence[Tried], reach: float) -> list[Tried]:
    """Of plans sorted by time those within reach of the first that need less memory than all before them."""
    frontier: list[Tried] = []
    for one in tried:
        if one.step_s <= reach * tried[0].step_s and (not frontier or one.bytes < frontier[-1].bytes):
            frontier.append(one)
    return frontier


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
    line, run beside those (see ``schedule.pipeline.order_of``).

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
