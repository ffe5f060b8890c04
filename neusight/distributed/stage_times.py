"""What each stage of a pipeline takes: times of segments put where a plan has them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from neusight.distributed.priced import PartTime, PricedSegment, SegmentSeconds
from neusight.engines import Engine
from neusight.plans.stages import Stage
from neusight.requests import Plan
from neusight.schedule.times import StepTimes
from neusight.workloads.program import Phase


@dataclass(frozen=True, kw_only=True)
class StagedProgram:
    """A program on a rank of each stage: ``segments`` before the layers, one a kind of layer, and after them, with what
    an update of each stage runs and what a send is.
    """

    stages: Sequence[Stage]
    segments: tuple[PricedSegment, ...]
    updates: Sequence[Sequence[PartTime]]
    sends: Sequence[PartTime]

    @property
    def kinds(self) -> int:
        """Of layers."""
        return len(self.segments) - 2


def step_times(staged: StagedProgram, plan: Plan, engine: Engine) -> tuple[StepTimes, int]:
    """Times of a step in the order of the model's chunks, and the most pieces that a chunk has.

    A segment is a piece: what is gathered before it runs, and reduced after it. Where replicas exchange nothing beside
    other work, a chunk is one piece.
    """
    seconds = [segment.seconds(plan, engine) for segment in staged.segments]
    chunks = _chunks(staged.stages, plan, staged.kinds)
    pieces = max(map(len, chunks)) if plan.dp * plan.cp > 1 else 1
    again = _recomputed_layers(chunks, plan)

    def table(of: Callable[[SegmentSeconds], float], keep: Mapping[tuple[int, int], bool] | None = None) -> np.ndarray:
        rows = np.zeros((len(chunks), pieces))
        for stage, units in enumerate(chunks):
            for at, unit in enumerate(units):
                if keep is None or keep.get((stage, at), False):
                    rows[stage, min(at, pieces - 1)] += of(seconds[unit])
        return rows

    def passes(phase: Phase) -> np.ndarray:
        """Of kernels, or of the host that dispatches those of a chunk one after another, whichever takes longer."""
        rows = table(lambda unit: float(getattr(unit, phase)))
        kernels_s, host_s = rows.sum(axis=1), table(lambda unit: unit.dispatch[phase]).sum(axis=1)
        slower = np.divide(host_s, kernels_s, out=np.ones_like(kernels_s), where=kernels_s > 0.0)
        return rows * np.maximum(1.0, slower)[:, None]

    each = [sum(t.total_s for t in update) / plan.vp for update in staged.updates]
    send_s = sum(t.total_s for t in staged.sends)
    times = StepTimes(
        forward=passes("forward"),
        backward=passes("backward"),
        weights=passes("weights"),
        recompute=table(lambda u: u.recompute, again),
        send_forward=send_s,
        send_backward=send_s if any(s.backward or s.weights for s in seconds) else 0.0,
        gather_forward=table(lambda u: u.gather),
        gather_backward=table(lambda u: u.gather),
        reduce=table(lambda u: u.reduce),
        optimizer=np.array([each[chunk % plan.pp] for chunk in range(len(chunks))]),
    )
    return times, pieces


def _chunks(stages: Sequence[Stage], plan: Plan, kinds: int) -> list[list[int]]:
    """Program of each chunk in the order of the model: 0 stands before the layers, ``kinds + 1`` after them."""
    segments = [[1 + kind for kind in stages[at % plan.pp].chunks[at // plan.pp]] for at in range(plan.pp * plan.vp)]
    segments[0] = [0, *segments[0]]
    segments[-1] = [*segments[-1], kinds + 1]
    return segments


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


def segment_counts(staged: StagedProgram, plan: Plan, own: Collection[int] | None = None) -> list[int]:
    """How often chunks have each of ``StagedProgram.segments``: those of a model, or ``own`` ones by their places."""
    chunks = _chunks(staged.stages, plan, staged.kinds)
    units = [unit for at, chunk in enumerate(chunks) if own is None or at in own for unit in chunk]
    return [units.count(at) for at in range(len(staged.segments))]


def recomputed_counts(staged: StagedProgram, plan: Plan, own: Collection[int] | None = None) -> list[int]:
    """How many of each of ``StagedProgram.segments`` a micro-batch's backward pass computes again."""
    chunks = _chunks(staged.stages, plan, staged.kinds)
    marked = _recomputed_layers(chunks, plan) if plan.recompute != "none" else {}
    again = [chunks[chunk][at] for chunk, at in marked if own is None or chunk in own]
    return [again.count(at) for at in range(len(staged.segments))]
