"""What each stage of a pipeline takes: times of units put where a plan has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from neusight.distributed.exchanges import GATHER, REDUCE
from neusight.distributed.priced import PartTime, PricedUnit
from neusight.plans.plan import Plan
from neusight.plans.stages import Stage
from neusight.schedule.times import StepTimes
from neusight.workloads.program import Phase
from neusight.workloads.training.frameworks import Framework
from neusight.workloads.training.recompute import recomputed


@dataclass(frozen=True, kw_only=True)
class UnitSeconds:
    """Seconds of one unit of one micro-batch: of each pass, of what the backward pass computes again, and of what
    replicas exchange of it.
    """

    forward: float
    backward: float
    weights: float
    recompute: float
    gather: float
    reduce: float


@dataclass(frozen=True, kw_only=True)
class Exchanged:
    """A unit with the times of its kernels, and of its weights' and gradients' collectives."""

    priced: PricedUnit
    collectives: tuple[PartTime, ...]

    def seconds(self, plan: Plan, framework: Framework) -> UnitSeconds:
        """What the unit takes under a plan; an eager framework's host needs its time for every launch."""
        host_s = framework.host_s_per_operator if framework.launch == "eager" else 0.0

        def passed(which: Phase) -> float:
            return max(self.priced.pass_s(which), host_s * self.priced.launches(which))

        once = {id(t.part): t.total_s for t in self.priced.times}
        again = recomputed(self.priced.unit, plan.recompute, framework)
        return UnitSeconds(
            forward=passed("forward"),
            backward=passed("backward"),
            weights=passed("weights"),
            recompute=sum(once[id(part)] for part in again),
            gather=self._of(GATHER),
            reduce=self._of(REDUCE),
        )

    def _of(self, what: str) -> float:
        return sum(t.total_s for t in self.collectives if t.part.what == what)


@dataclass(frozen=True, kw_only=True)
class Staged:
    """A rank of each stage: units of every chunk, with what an update of each stage runs and what a send is."""

    stages: Sequence[Stage]
    before: Exchanged
    layers: Sequence[Exchanged]
    after: Exchanged
    updates: Sequence[Sequence[PartTime]]
    sends: Sequence[PartTime]

    @property
    def units(self) -> tuple[Exchanged, ...]:
        """All units: before the layers, one a kind of layer, after them."""
        return (self.before, *self.layers, self.after)


def step_times(staged: Staged, plan: Plan, framework: Framework) -> tuple[StepTimes, int]:
    """Times of a step in the order of the model's chunks, and the most pieces that a chunk has.

    A unit is a piece: what is gathered before it runs, and reduced after it. Where replicas exchange nothing beside
    other work, a chunk is one piece.
    """
    seconds = [unit.seconds(plan, framework) for unit in staged.units]
    chunks = _chunks(staged.stages, plan, len(staged.layers))
    pieces = max(map(len, chunks)) if plan.dp * plan.cp > 1 else 1
    again = _recomputed_layers(chunks, plan)

    def table(of: Callable[[UnitSeconds], float], keep: Mapping[tuple[int, int], bool] | None = None) -> np.ndarray:
        rows = np.zeros((len(chunks), pieces))
        for stage, units in enumerate(chunks):
            for at, unit in enumerate(units):
                if keep is None or keep.get((stage, at), False):
                    rows[stage, min(at, pieces - 1)] += of(seconds[unit])
        return rows

    each = [sum(t.total_s for t in update) / plan.vp for update in staged.updates]
    send_s = sum(t.total_s for t in staged.sends)
    times = StepTimes(
        forward=table(lambda u: u.forward),
        backward=table(lambda u: u.backward),
        weights=table(lambda u: u.weights),
        recompute=table(lambda u: u.recompute, again),
        send_forward=send_s,
        send_backward=send_s,
        gather_forward=table(lambda u: u.gather),
        gather_backward=table(lambda u: u.gather),
        reduce=table(lambda u: u.reduce),
        optimizer=np.array([each[chunk % plan.pp] for chunk in range(len(chunks))]),
    )
    return times, pieces


def _chunks(stages: Sequence[Stage], plan: Plan, kinds: int) -> list[list[int]]:
    """Program of each chunk in the order of the model: 0 stands before the layers, ``kinds + 1`` after them."""
    found = [[1 + kind for kind in stages[at % plan.pp].chunks[at // plan.pp]] for at in range(plan.pp * plan.vp)]
    found[0] = [0, *found[0]]
    found[-1] = [*found[-1], kinds + 1]
    return found


def _recomputed_layers(chunks: Sequence[Sequence[int]], plan: Plan) -> dict[tuple[int, int], bool]:
    """Places (chunk, unit in it) of layers that are computed again: all, or of each stage the first so many."""
    last = max(map(max, chunks))
    marked: dict[tuple[int, int], bool] = {}
    left = [plan.recompute_layers or 10**9] * plan.pp
    for chunk, units in enumerate(chunks):
        for at, unit in enumerate(units):
            if 0 < unit < last and left[chunk % plan.pp] > 0:
                marked[chunk, at] = True
                left[chunk % plan.pp] -= 1
    return marked


def unit_counts(staged: Staged, plan: Plan) -> list[int]:
    """How often a model has each of ``Staged.units``."""
    units = [unit for chunk in _chunks(staged.stages, plan, len(staged.layers)) for unit in chunk]
    return [units.count(at) for at in range(len(staged.units))]


def recomputed_counts(staged: Staged, plan: Plan) -> list[int]:
    """How many of each of ``Staged.units`` a micro-batch's backward pass computes again."""
    chunks = _chunks(staged.stages, plan, len(staged.layers))
    again = [chunks[chunk][at] for chunk, at in _recomputed_layers(chunks, plan)] if plan.recompute != "none" else []
    return [again.count(at) for at in range(len(staged.units))]
