"""The best plans of a training step on a cluster, exactly: every plan is bounded, and simulated where its bound allows.

A step takes no less than the kernels of its busiest rank with the fill and drain of the pipeline before and after them,
and no less than its busiest rank's collectives. Plans are taken in the order of that bound, until none can be among the
best any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice

import numpy as np

from neusight.distributed.answer import TrainingEstimate
from neusight.distributed.estimate import estimated, memory
from neusight.distributed.factors import shipped_factors
from neusight.distributed.priced import Pricer, Work, price
from neusight.distributed.space import Space, plans_in
from neusight.distributed.stage_times import Exchanged, UnitSeconds
from neusight.distributed.step import timed
from neusight.distributed.training_run import TrainingRun
from neusight.errors import ModelError
from neusight.plans.plan import Plan
from neusight.plans.stages import stages_of
from neusight.schedule.run import step_s
from neusight.workloads.training.build import units_of
from neusight.workloads.training.local import Local

_TOGETHER = 32
"""Plans that are simulated between two looks at how far the search has come."""
Key = tuple[Local, str]


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a search found.

    Attributes:
        best: estimates of the fastest plans that fit, fastest first.
        frontier: plans that no other beats in both time and memory, fastest first, among those whose bound lies below
            the slowest of ``best``.
        plans: in the space.
        simulated: of which the bound did not decide.
        too_large: of those that were looked at, for the devices' memory.
    """

    best: tuple[TrainingEstimate, ...]
    frontier: tuple[TrainingEstimate, ...]
    plans: int
    simulated: int
    too_large: int


def search(
    asked: TrainingRun,
    pricer: Pricer,
    space: Space | None = None,
    count: int = 5,
    progress: Callable[[int, int], None] | None = None,
) -> Found:
    """The fastest plans of a step.

    Args:
        asked: the step; of its plan the global batch counts.
        pricer: answers for kernels and collectives.
        space: which plans there are.
        count: how many of the best.
        progress: called with (bounded or simulated, of) plans.

    Raises:
        ModelError: no plan divides model and batch, or none fits.
    """
    plan, cluster = asked.plan, asked.cluster
    plans = list(plans_in(space or Space(), asked.decoder, cluster, asked.seq_len, plan.global_batch))
    if not plans:
        raise ModelError(
            f"no plan shares {asked.decoder.name} and {plan.global_batch} sequences among {cluster.devices} devices: "
            "choose a global batch that more of their divisors divide"
        )
    bounds = bounds_s(asked, plans, pricer)
    order = np.argsort(bounds, kind="stable")
    kept: list[tuple[float, float, TrainingRun]] = []
    simulated = too_large = 0
    for some in _chunks(order.tolist(), _TOGETHER):
        limit = sorted(step for step, _, _ in kept)[count - 1] if len(kept) >= count else np.inf
        if bounds[some[0]] >= limit:
            break
        runs = [replace(asked, plan=plans[at]) for at in some if bounds[at] < limit]
        needs = [max(rank.total for rank in memory(run)) for run in runs]
        fitting = [(n, r) for n, r in zip(needs, runs, strict=True) if n <= cluster.device.usable_bytes]
        too_large += len(runs) - len(fitting)
        simulated += len(fitting)
        kept += _simulated(fitting, pricer)
        if progress:
            progress(simulated + too_large, len(plans))
    if not kept:
        raise ModelError(
            f"{asked.decoder.name} fits on {cluster.devices} x {cluster.device.id} under none of {len(plans)} plans: "
            "take more devices or a shorter sequence"
        )
    kept.sort(key=lambda entry: entry[:2])
    answered = {id(run): estimated(timed([run], pricer)[0]) for _, _, run in (*kept[:count], *_frontier(kept))}
    return Found(
        best=tuple(answered[id(run)] for _, _, run in kept[:count]),
        frontier=tuple(answered[id(run)] for _, _, run in _frontier(kept)),
        plans=len(plans),
        simulated=simulated,
        too_large=too_large,
    )


def bounds_s(asked: TrainingRun, plans: Sequence[Plan], pricer: Pricer) -> np.ndarray:
    """Below which no step of each plan can be, shape (plans,)."""
    seconds = _unit_seconds(asked, plans, pricer)
    return np.array([_bound_s(asked, plan, seconds[_local(asked, plan), plan.recompute]) for plan in plans])


def _local(asked: TrainingRun, plan: Plan) -> Local:
    return replace(asked, plan=plan).local


def _unit_seconds(asked: TrainingRun, plans: Sequence[Plan], pricer: Pricer) -> dict[Key, list[UnitSeconds]]:
    """Seconds of all units for each share of a micro-batch and way of recomputing, priced together."""
    first: dict[Local, Plan] = {}
    for plan in plans:
        first.setdefault(_local(asked, plan), plan)
    placed = [
        replace(asked, plan=plan).placement.placed(units_of(asked.decoder, local, asked.framework))
        for local, plan in first.items()
    ]
    framework = asked.framework
    works = price([Work(units=units) for units in placed], asked.cluster.device, pricer, framework, shipped_factors())
    found: dict[Key, list[UnitSeconds]] = {}
    for local, work in zip(first, works, strict=True):
        units = [Exchanged(priced=unit, collectives=()) for unit, _ in work.units.counted()]
        for recompute in {plan.recompute for plan in plans}:
            how = replace(first[local], recompute=recompute)
            found[local, recompute] = [unit.seconds(how, framework) for unit in units]
    return found


def _bound_s(asked: TrainingRun, plan: Plan, units: Sequence[UnitSeconds]) -> float:
    """Kernels of each rank, between the forward passes that come before its first and the backward passes after its
    last.
    """
    stages = stages_of(asked.decoder, plan)
    weights = 0.0 if plan.schedule == "zero-bubble" else 1.0
    fill = worst = 0.0
    for stage in stages:
        first = _sum(units, stage.chunks[0], before=stage.first, after=stage.last and plan.vp == 1)
        whole = _sum(units, stage.kinds, before=stage.first, after=stage.last)
        busy = plan.micro_batches * (whole[0] + whole[1] + whole[2])
        worst = max(worst, fill + busy)
        fill += first[0] + first[1] + weights * first[2]
    return worst


def _sum(
    units: Sequence[UnitSeconds], kinds: Iterable[int], *, before: bool, after: bool
) -> tuple[float, float, float]:
    """(forward, backward with what is computed again, weights) of some layers and of what stands around them."""
    listed = [units[1 + kind] for kind in kinds]
    forward = sum(u.forward for u in listed)
    backward = sum(u.backward + u.recompute for u in listed)
    weights = sum(u.weights for u in listed)
    for there, unit in ((before, units[0]), (after, units[-1])):
        if there:
            forward, backward, weights = forward + unit.forward, backward + unit.backward, weights + unit.weights
    return forward, backward, weights


def _simulated(
    fitting: Sequence[tuple[float, TrainingRun]], pricer: Pricer
) -> Iterator[tuple[float, float, TrainingRun]]:
    """(seconds, bytes, run) of each."""
    if not fitting:
        return
    for (need, run), made in zip(fitting, timed([run for _, run in fitting], pricer), strict=True):
        yield float(step_s(made.pipeline, made.times, made.contention)[0]), need, run


def _frontier(kept: Sequence[tuple[float, float, TrainingRun]]) -> list[tuple[float, float, TrainingRun]]:
    """Of plans sorted by time those that need less memory than all before them."""
    found: list[tuple[float, float, TrainingRun]] = []
    for entry in kept:
        if not found or entry[1] < found[-1][1]:
            found.append(entry)
    return found


def _chunks(numbers: Sequence[int], size: int) -> Iterator[list[int]]:
    for _, group in groupby(enumerate(numbers), key=lambda pair: pair[0] // size):
        yield [number for _, number in islice(group, size)]
