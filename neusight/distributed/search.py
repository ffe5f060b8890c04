"""The best plans of a training step on a cluster, exactly: every plan is bounded, and simulated where its bound allows.

Plans are taken in the order of their bounds. One is simulated where it may be among the fastest, or, while bounds are
within reach of the fastest, where nothing that was simulated beats its bound in less memory: what is left out can be
neither. A bound is of the kernels of a plan's busiest rank, between the pipeline's fill and drain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np

from neusight.distributed.estimate import TrainingEstimate, estimated
from neusight.distributed.exchanges import contention
from neusight.distributed.factors import factors_of
from neusight.distributed.passes import RankPasses
from neusight.distributed.priced import Pricer, price_lists
from neusight.distributed.sources import memory, source_of
from neusight.distributed.space import Space, plans_in
from neusight.distributed.step import programs_by_share, timed
from neusight.distributed.training_run import TrainingRun
from neusight.errors import ModelError
from neusight.plans.fits import verdict
from neusight.plans.stages import Stage
from neusight.requests import Plan
from neusight.schedule.run import step_s
from neusight.workers import Worker, shared
from neusight.workloads.decoders.shares import Local
from neusight.workloads.program import PHASES

TOGETHER = 64
"""Plans that are looked at together, unless asked otherwise."""
REACH = 1.25
"""How many times as long as the fastest step those of a frontier may be, unless asked otherwise."""
Figure = Callable[["SearchedStep", Sequence[Plan]], list[float]]
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


class SimulatedPlan(NamedTuple):
    """A plan that was simulated."""

    step_s: float
    bytes: float
    plan: Plan


def search(
    request: TrainingRun,
    pricer: Pricer,
    space: Space | None = None,
    count: int = 5,
    *,
    reach: float = REACH,
    must_fit: float = 0.5,
    together: int = TOGETHER,
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
        must_fit: least probability that a plan's memory is enough.
        together: how many plans are looked at together.
        workers: who look at them, each begun with ``begin``; default this process.
        progress: called with (decided, of) plans.

    Raises:
        ModelError: no plan divides model and batch, or none fits.
    """
    plans = plans_of(request, space or Space())
    bounds = bounds_s(request, plans, pricer)
    order = np.argsort(bounds, kind="stable")
    usable = request.cluster.device.usable_bytes
    tried: list[SimulatedPlan] = []
    too_large = 0
    look = partial(_look, workers or SearchedStep(request, pricer))
    needs_bytes = partial(SearchedStep.needs_bytes, must_fit=must_fit)
    for start in range(0, len(order), together):
        some = order[start : start + together]
        if bounds[some[0]] > _last_s(tried, count, reach):
            break
        needs = np.array(look(needs_bytes, [plans[at] for at in some]))
        too_large += int((needs > usable).sum())
        is_open = _open(bounds[some], needs, tried, count) & (needs <= usable)
        chosen = [plans[at] for at in some[is_open]]
        steps = look(SearchedStep.steps_s, chosen)
        tried += map(SimulatedPlan, steps, needs[is_open].tolist(), chosen)
        if progress:
            progress(start + len(some), len(order))
    if not tried:
        raise ModelError(
            f"{request.decoder.name} fits on {request.cluster.devices} x {request.cluster.device.id} under none of "
            f"{len(plans)} plans: take more devices or a shorter sequence"
        )
    tried.sort(key=lambda one: one[:2])
    best, frontier = tried[:count], _frontier(tried, reach)
    runs = {one.plan: replace(request, plan=one.plan) for one in (*best, *frontier)}
    answers = {plan: estimated(timed([run], pricer)[0]) for plan, run in runs.items()}
    return Found(
        best=tuple(answers[one.plan] for one in best), frontier=tuple(answers[one.plan] for one in frontier),
        plans=len(plans), simulated=len(tried), too_large=too_large,
    )  # fmt: skip


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


def _last_s(tried: Sequence[SimulatedPlan], count: int, reach: float) -> float:
    """The largest bound [s] of a plan that may still count."""
    if len(tried) < count:
        return np.inf
    steps = sorted(one.step_s for one in tried)
    return max(steps[count - 1], reach * steps[0])


def _open(bounds: np.ndarray, needs: np.ndarray, tried: Sequence[SimulatedPlan], count: int) -> np.ndarray:
    """Which plans of these bounds [s] and needs [B] may be among the fastest, or on the frontier."""
    steps, sizes = np.array([one[:2] for one in tried]).reshape(-1, 2).T
    slowest = np.sort(steps)[count - 1] if len(steps) >= count else np.inf
    beaten = ((steps <= bounds[:, None]) & (sizes <= needs[:, None])).any(axis=1)
    return (bounds < slowest) | ~beaten


class SearchedStep(NamedTuple):
    """What is searched for, and who prices it."""

    request: TrainingRun
    pricer: Pricer

    def needs_bytes(self, plans: Sequence[Plan], must_fit: float) -> list[float]:
        """What the device of each plan's fullest rank must have, with context and allocator, so that it is enough with
        a probability [B].
        """
        device = self.request.cluster.device
        return [verdict(memory(replace(self.request, plan=plan)), device).bytes_with(must_fit) for plan in plans]

    def steps_s(self, plans: Sequence[Plan]) -> list[float]:
        """What a step takes under each plan [s], simulated."""
        steps = timed([replace(self.request, plan=plan) for plan in plans], self.pricer) if plans else []
        return [step_s(step.pipeline, step.times, contention(step.run)) for step in steps]


_STEP: list[SearchedStep] = []
"""Of this process, where it is a worker."""


def begin(request: TrainingRun, pricer_of: Callable[[], Pricer]) -> None:
    """Make this process one that looks at plans for a search elsewhere; ``pricer_of`` comes from there."""
    _STEP[:] = [SearchedStep(request, pricer_of())]


def _look(by: SearchedStep | Sequence[Worker], figure: Figure, plans: Sequence[Plan]) -> list[float]:
    """A figure of each plan, here or by workers: in their order, neighbours by the same one, as they share kernels."""
    if isinstance(by, SearchedStep):
        return figure(by, plans)
    cuts = np.linspace(0, len(plans), len(by) + 1).astype(int)
    parts = [(figure, plans[start:stop]) for start, stop in pairwise(cuts) if stop > start]
    return list(chain.from_iterable(shared(by, _look_here, parts)))


def _look_here(task: tuple[Figure, Sequence[Plan]]) -> list[float]:
    figure, plans = task
    return figure(_STEP[0], plans)


def _frontier(tried: Sequence[SimulatedPlan], reach: float) -> list[SimulatedPlan]:
    """Of plans sorted by time those within reach of the first that need less memory than all before them."""
    frontier: list[SimulatedPlan] = []
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
    splits = [(replace(request, plan=plan).local, plan.recompute, plan.pp, plan.vp) for plan in plans]
    first = dict(zip(reversed(splits), reversed(plans), strict=True))
    priced = _priced_passes(request, first, pricer)
    sums = {}
    for split, plan in first.items():
        run, passes = replace(request, plan=plan), priced[split[:2]]
        sums[split] = _stage_sums(source_of(run).stages(run, passes.kernels_s.tolist()), passes)
    keys = [(split, plan.schedule, plan.micro_batches) for split, plan in zip(splits, plans, strict=True)]
    bounds = {key: _bound_s(*sums[key[0]], *key[1:]) for key in dict.fromkeys(keys)}
    return np.array([bounds[key] for key in keys])


def _priced_passes(
    request: TrainingRun, first: dict[Split, Plan], pricer: Pricer
) -> dict[tuple[Local, str], RankPasses]:
    """Passes for each share of a micro-batch and way of recomputing, priced together."""
    programs = programs_by_share([replace(request, plan=plan) for plan in first.values()])
    parts = [program.parts for program in programs.values()]
    by_share = dict(zip(programs, price_lists(parts, request, pricer, factors_of(request.engine)), strict=True))
    return {
        (local, how): RankPasses.of(programs[local], by_share[local], how, request.engine)
        for local, how in dict.fromkeys(split[:2] for split in first)
    }


def _stage_sums(stages: Sequence[Stage], passes: RankPasses) -> tuple[np.ndarray, np.ndarray]:
    """Seconds of one micro-batch on each stage, arrays of shape (3, pp): passes of all its chunks, and of its first."""

    def summed(kinds: Sequence[int], *, before: bool, after: bool) -> list[float]:
        """Forward, backward with what is computed again, and weights of layers and of what stands around them."""
        layers = [1 + kind for kind in kinds]
        every = [*layers, *[0] * before, *[-1] * after]
        forward, backward, weights = (sum(passes.seconds[phase][every].tolist()) for phase in PHASES)
        return [forward, backward + sum(passes.recompute_s[layers].tolist()), weights]

    whole = [summed(s.kinds, before=s.first, after=s.last) for s in stages]
    first = [summed(s.chunks[0], before=s.first, after=s.last and len(s.chunks) == 1) for s in stages]
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


def _before(seconds: np.ndarray) -> np.ndarray:
    """Of each stage, the sum over those before it."""
    return np.cumsum(seconds) - seconds
