"""Training steps from question to times on stages: programs of ranks, what they exchange, one price for many plans."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice

import numpy as np

from neusight.distributed.exchanges import collectives_share, contention, exchanged, sent, tied
from neusight.distributed.factors import Factors, factors_of
from neusight.distributed.priced import PartTime, PricedSegment, Pricer, SegmentSeconds, price_parts
from neusight.distributed.sources import source_of
from neusight.distributed.training_run import TrainingRun
from neusight.executors.pricing import sharing_power
from neusight.kernels.precision import stored_bytes
from neusight.laws.routes import host_link
from neusight.plans.stages import Stage
from neusight.schedule.pipeline import Pipeline
from neusight.schedule.run import Run, simulate
from neusight.schedule.times import StepTimes
from neusight.transforms.recompute import recomputed
from neusight.workloads.decoders.shares import Local
from neusight.workloads.program import PHASES, Part, Phase, Program

Counted = tuple[PartTime, float]
"""A part and how often it runs in a step on one rank of each stage together, all micro-batches counted."""


HOST_UPDATE_S = 0.25e-9
"""Of a parameter by Adam on all cores of a node [s]: 0.22 s of a billion, 2.57 s of ten (Ren et al. 2021, ZeRO-Offload,
table 4, on two Xeon 8168)."""


@dataclass(frozen=True, kw_only=True)
class RankWork:
    """What the ranks of a run have to do: a program with its collectives placed on nodes, and what belongs to whole
    steps.

    ``exchanges`` are the collectives of each segment's weights and gradients with the kernels around them, ``updates``
    what runs on each stage after all passes: the optimizer's kernels, before them the sum of a tied embedding's
    gradients.
    """

    run: TrainingRun
    stages: tuple[Stage, ...]
    program: Program
    exchanges: tuple[tuple[Part, ...], ...]
    updates: tuple[tuple[Part, ...], ...]
    sends: tuple[Part, ...]

    @classmethod
    def of(cls, run: TrainingRun, program: Program, layer_s: Sequence[float] = ()) -> RankWork:
        """Built from the question.

        Args:
            run: the question.
            program: of its share of a micro-batch, see ``programs_by_share``.
            layer_s: seconds of its segments, where stages are balanced by them.

        Raises:
            ModelError: sizes that ranks or stages cannot share.
        """
        source = source_of(run)
        stages = source.stages(run, layer_s)
        return cls(
            run=run,
            stages=stages,
            program=program,
            exchanges=tuple(tuple(exchanged(segment, run)) for segment in program.segments),
            updates=tuple((*tied(program, stage, run), *source.update(run, stage)) for stage in stages),
            sends=tuple(sent(run, source.sent_bytes(run, stages))),
        )

    @cached_property
    def once(self) -> tuple[Part, ...]:
        """Parts that run once a step, or between micro-batches, instead of in a segment's passes."""
        return tuple(part for parts in (*self.exchanges, *self.updates, self.sends) for part in parts)

    def timed(self, program: Iterable[PartTime], once: Iterable[PartTime], factors: Factors) -> TimedStep:
        """The work with its times.

        Args:
            program: of ``Program.parts``.
            once: of ``once``.
            factors: that are in the times.
        """
        times, rest = iter(program), iter(once)
        exchanges = [_next(rest, parts) for parts in self.exchanges]
        return TimedStep(
            work=self,
            segments=tuple(
                PricedSegment(
                    segment=segment,
                    times=(*_next(times, segment.parts), *(each for each in around if not each.part.group)),
                    exchanges=tuple(each for each in around if each.part.group),
                )
                for segment, around in zip(self.program.segments, exchanges, strict=True)
            ),
            updates=[_next(rest, parts) for parts in self.updates],
            sends=_next(rest, self.sends),
            factors=factors,
        )


def _next(times: Iterator[PartTime], parts: Sequence[Part]) -> tuple[PartTime, ...]:
    return tuple(islice(times, len(parts)))


@dataclass(frozen=True, kw_only=True)
class TimedStep:
    """Work with its times: ``segments`` before the layers, one a kind of layer, and after them, with what an update of
    each stage runs and what a send is.
    """

    work: RankWork
    segments: tuple[PricedSegment, ...]
    updates: Sequence[Sequence[PartTime]]
    sends: Sequence[PartTime]
    factors: Factors

    @property
    def run(self) -> TrainingRun:
        """The question."""
        return self.work.run

    def sharing_power(self) -> TimedStep:
        """The step at the clock that the power of its kernels allows together: the same on ranks of all stages."""
        families: dict[int, list[Counted]] = {}
        for time, runs in counted(self):
            families.setdefault(id(time.costs), []).append((time, runs))
        groups = [[time for time, _ in group] for group in families.values()]
        alone = [group[0].costs.take(np.array([time.row for time in group])) for group in groups]
        together = sharing_power(alone, [np.array([runs for _, runs in group]) for group in families.values()])
        pairs = zip(groups, together, strict=True)
        now = {id(time): time.as_in(costs, row) for group, costs in pairs for row, time in enumerate(group)}

        def times(parts: Sequence[PartTime]) -> tuple[PartTime, ...]:
            return tuple(now.get(id(time), time) for time in parts)

        segments = [replace(s, times=times(s.times), exchanges=times(s.exchanges)) for s in self.segments]
        updates, sends = [times(update) for update in self.updates], times(self.sends)
        return replace(self, segments=tuple(segments), updates=updates, sends=sends)

    @cached_property
    def schedule(self) -> Run:
        """The step, simulated.

        Raises:
            ModelError: no such order of passes.
        """
        return simulate(self.pipeline, self.times, contention(self.run))

    @property
    def pipeline(self) -> Pipeline:
        """The order of passes. A segment is a piece: what is gathered before it runs, and reduced after it."""
        return Pipeline.of(self.run.plan, self._pieces)

    @property
    def _pieces(self) -> int:
        """Most that a chunk has; one where replicas exchange nothing beside other work."""
        return max(map(len, self._chunks)) if self.run.plan.dp * self.run.plan.cp > 1 else 1

    @cached_property
    def _chunks(self) -> list[list[int]]:
        """Numbers of the segments of each chunk, in the order of the model, once for each direction."""
        plan, stages = self.run.plan, self.work.stages
        chunks = [[1 + kind for kind in stages[at % plan.pp].chunks[at // plan.pp]] for at in range(plan.pp * plan.vp)]
        chunks[0] = [0, *chunks[0]]
        chunks[-1] = [*chunks[-1], len(self.segments) - 1]
        return chunks * plan.directions

    @cached_property
    def _again(self) -> set[tuple[int, int]]:
        """Places (chunk, segment in it) of layers that may be computed again: all, or so many of each stage."""
        plan, marked = self.run.plan, set()
        left = [[plan.recompute_layers or 10**9] * plan.pp for _ in range(plan.directions)]
        for chunk, segments in enumerate(self._chunks):
            way, stage = chunk // (plan.pp * plan.vp), chunk % plan.pp
            for at, segment in enumerate(segments):
                if 0 < segment < len(self.segments) - 1 and left[way][stage] > 0:
                    marked.add((chunk, at))
                    left[way][stage] -= 1
        return marked

    @cached_property
    def times(self) -> StepTimes:
        """Of a step in the order of the model's chunks."""
        plan, pieces, chunks = self.run.plan, self._pieces, self._chunks
        share = collectives_share(self.run.cluster.device)
        seconds = [segment.seconds(plan, self.run.engine, share) for segment in self.segments]

        def table(of: Callable[[SegmentSeconds], float], keep: Collection[tuple[int, int]] | None = None) -> np.ndarray:
            rows = np.zeros((len(chunks), pieces))
            for chunk, segments in enumerate(chunks):
                for at, segment in enumerate(segments):
                    if keep is None or (chunk, at) in keep:
                        rows[chunk, min(at, pieces - 1)] += of(seconds[segment])
            return rows

        def passes(*phases: Phase) -> np.ndarray:
            """Of kernels, of the host that dispatches those of a chunk one after another, or of copies of what is kept,
            whichever takes longest in phases that follow each other.
            """
            rows = np.stack([table(lambda unit, name=name: float(getattr(unit, name))) for name in phases])  # type: ignore
            return np.asarray(rows * np.maximum(1.0, self._host_share(phases, seconds))[:, None])

        (forward,), (backward, weights) = passes("forward"), passes("backward", "weights")
        each = [sum(t.total_s for t in update) / (plan.vp * plan.directions) for update in self.updates]
        send_s, gather = sum(t.total_s for t in self.sends), table(lambda unit: unit.gather)
        return StepTimes(
            forward=forward,
            backward=backward,
            weights=weights,
            recompute=table(lambda unit: unit.recompute, self._again),
            send_forward=send_s,
            send_backward=send_s if any(s.backward or s.weights for s in seconds) else 0.0,
            gather_forward=gather,
            gather_backward=gather,
            reduce=table(lambda unit: unit.reduce),
            **self._updated([each[chunk % plan.pp] for chunk in range(len(chunks))]),
        )

    def _host_share(self, phases: Sequence[Phase], seconds: Sequence[SegmentSeconds]) -> np.ndarray:
        """Of each chunk, what the host or copies take in phases that follow each other, over what kernels take."""
        kernels = [sum(getattr(unit, name) for name in phases) for unit in seconds]
        dispatch = [sum(unit.dispatch[name] for name in phases) for unit in seconds]
        kernels_s, dispatch_s = (
            np.array([sum(of[number] for number in chunk) for chunk in self._chunks]) for of in (kernels, dispatch)
        )
        host_s = np.maximum(dispatch_s, self._copied_s)
        return np.divide(host_s, kernels_s, out=np.ones_like(kernels_s), where=kernels_s > 0.0)

    def kernel_slopes(self, schedule: Run) -> Iterator[Counted]:
        """Kernels with the seconds by which the step ends later for a second that one of their runs takes longer: none
        of what the host, or a collective beside it, hides.

        Args:
            schedule: of ``pipeline`` and ``times``.
        """
        slopes, plan = schedule.slopes, self.run.plan
        for phase, number, at in self._slots():
            slope = float(np.atleast_2d(getattr(slopes, phase).T).T[at])
            for time in self._kernels_of(phase, number) if slope else ():
                yield time, slope * float(time.part.runs)
        for chunk, slope in enumerate(np.asarray(slopes.optimizer).ravel()):
            for time in self.updates[chunk % plan.pp] if plan.offload != "optimizer" else ():
                if not time.part.group:
                    yield time, float(slope) / (plan.vp * plan.directions) * float(time.part.runs)

    def _slots(self) -> Iterator[tuple[str, int, tuple[int, int]]]:
        """(part of a pass, segment, its place in a table of ``times``) of all passes whose kernels can be late."""
        share = collectives_share(self.run.cluster.device)
        seconds = [segment.seconds(self.run.plan, self.run.engine, share) for segment in self.segments]
        groups: tuple[tuple[Phase, ...], ...] = (("forward",), ("backward", "weights"))
        held = {phase: self._host_share(phases, seconds) > 1.0 for phases in groups for phase in phases}
        for chunk, numbers in enumerate(self._chunks):
            for at, number in enumerate(numbers):
                place = chunk, min(at, self._pieces - 1)
                yield from ((phase, number, place) for phase in PHASES if not held[phase][chunk])
                if (chunk, at) in self._again:
                    yield "recompute", number, place

    def _kernels_of(self, name: str, number: int) -> Iterator[PartTime]:
        """Kernels of a segment that run in a pass, or again in its backward pass."""
        segment = self.segments[number]
        if name == "recompute":
            again = {id(part) for part in recomputed(segment.segment, self.run.plan.recompute, self.run.engine)}
            yield from (time for time in segment.times if id(time.part) in again and not time.part.group)
        elif not any(segment.hides_kernels(phase) for phase in PHASES if phase == name):
            yield from (time for time in segment.times if time.part.phase == name and not time.part.group)

    def _updated(self, on_device_s: Sequence[float]) -> dict[str, np.ndarray]:
        """The update of each chunk on its device, or by the host's cores, which all ranks of a node share, with its
        gradients and weights on their ways over the link [s].
        """
        plan, cluster = self.run.plan, self.run.cluster
        if plan.offload != "optimizer":
            return {"optimizer": np.array(on_device_s)}
        numbers = [max(map(_parameters, update), default=0) / (plan.vp * plan.directions) for update in self.updates]
        stepped = np.array([numbers[chunk % plan.pp] for chunk in range(len(self._chunks))])
        copy_s = stepped * stored_bytes(self.run.dtype) / host_link(cluster.device).bandwidth_bytes_per_s
        ranks = min(cluster.per_node, cluster.devices)
        by_piece = np.repeat(copy_s[:, None] / self._pieces, self._pieces, axis=1)
        return {"optimizer": stepped * ranks * HOST_UPDATE_S, "to_host": by_piece, "to_device": copy_s}

    @property
    def _copied_s(self) -> np.ndarray:
        """Of each chunk, what its layers keep on its way to the host, or back [s], where it lies there."""
        if not self.run.engine.offloads_activations:
            return np.zeros(len(self._chunks))
        layers = [s.segment.kept_bytes(self.run.plan.recompute) if s.segment.layer >= 0 else 0.0 for s in self.segments]
        link = host_link(self.run.cluster.device).bandwidth_bytes_per_s
        return np.array([sum(layers[number] for number in chunk) / link for chunk in self._chunks])

    def segment_counts(self, own: Collection[int] | None = None) -> list[int]:
        """How often chunks have each of ``segments``: those of a model, or ``own`` ones by their places; of two
        directions of one, which a micro-batch goes.
        """
        numbers = [number for at in self._of_model(own) for number in self._chunks[at]]
        return [numbers.count(number) for number in range(len(self.segments))]

    def recomputed_counts(self, own: Collection[int] | None = None) -> list[int]:
        """How many of each of ``segments`` a micro-batch's backward pass computes again."""
        marked = self._again if self.run.plan.recompute != "none" else ()
        chunks = self._of_model(own)
        again = [self._chunks[chunk][at] for chunk, at in marked if chunk in chunks]
        return [again.count(number) for number in range(len(self.segments))]

    def _of_model(self, own: Collection[int] | None) -> Collection[int]:
        return range(self.run.plan.pp * self.run.plan.vp) if own is None else own


def _parameters(time: PartTime) -> float:
    """That a kernel of an optimizer updates, 0 of others."""
    batch = time.part.batch
    return float(batch["elements"].max()) if batch.family in ("optimizer", "elementwise") else 0.0


def counted(timed: TimedStep) -> Iterator[Counted]:
    """Every part of a step with its runs on a rank of each stage together."""
    plan, counts = timed.run.plan, timed.segment_counts()
    yield from _passes(timed, counts, timed.recomputed_counts())
    for segment, count in zip(timed.segments, counts, strict=True):
        for time in segment.exchanges:
            yield time, count * time.part.runs
    for update in timed.updates:
        for time in update:
            yield time, time.part.runs
    for time in timed.sends:
        yield time, 2.0 * plan.micro_batches * (plan.pp * plan.vp - 1)


def counted_on(timed: TimedStep, rank: int) -> Iterator[Counted]:
    """Parts that stand in the way of a rank's kernels, or are such, with their runs in a step."""
    plan = timed.run.plan
    own = [at for at in range(plan.pp * plan.vp) if at % plan.pp == rank]
    yield from _passes(timed, timed.segment_counts(own), timed.recomputed_counts(own))
    for time in timed.updates[rank]:
        yield time, time.part.runs


def _passes(timed: TimedStep, counts: Sequence[int], again: Sequence[int]) -> Iterator[Counted]:
    plan = timed.run.plan
    for segment, count, more in zip(timed.segments, counts, again, strict=True):
        twice = {id(part) for part in recomputed(segment.segment, plan.recompute, timed.run.engine)}
        for time in segment.times:
            runs = count + (more if id(time.part) in twice else 0)
            if runs:
                yield time, float(plan.micro_batches * runs * time.part.runs)


def timed(runs: Sequence[TrainingRun], pricer: Pricer, factors: Factors | None = None) -> list[TimedStep]:
    """Times of several runs of one engine on one cluster, all their kernels asked at once.

    Args:
        runs: the questions.
        pricer: answers for kernels and collectives.
        factors: of kernels in steps; default those that ship.

    Raises:
        ModelError, DeviceError: as ``TrainingRun.checked``, ``units_of`` and ``price_parts``.
    """
    factors = factors or factors_of(runs[0].engine)
    programs = programs_by_share([run.checked() for run in runs])
    engine, device = runs[0].engine, runs[0].cluster.device

    def price(parts: Sequence[Part]) -> Iterator[PartTime]:
        return iter(price_parts(parts, device, pricer, engine, factors))

    parts = [part for program in programs.values() for part in program.parts]
    seconds: dict[Local, list[float]] = {}
    if engine.balanced_stages and any(run.plan.pp > 1 for run in runs):
        known = price(parts)
        seconds = {local: [s.kernels_s for s in priced_segments(p, known)] for local, p in programs.items()}
    works = [RankWork.of(run, programs[run.local], seconds.get(run.local, ())) for run in runs]
    times = price([*parts, *(part for work in works for part in work.once)])
    shared = {local: _next(times, program.parts) for local, program in programs.items()}
    return [work.timed(shared[work.run.local], _next(times, work.once), factors).sharing_power() for work in works]


def priced_segments(program: Program, times: Iterator[PartTime]) -> list[PricedSegment]:
    """Segments with the next of some times, those of ``Program.parts``."""
    return [PricedSegment(segment=s, times=_next(times, s.parts)) for s in program.segments]


def programs_by_share(runs: Sequence[TrainingRun]) -> dict[Local, Program]:
    """Programs for each share of a micro-batch that runs of one model have: plans that agree in it agree in them.

    Raises:
        ModelError: sizes that ranks cannot share.
    """
    first = dict(zip((run.local for run in reversed(runs)), reversed(runs), strict=True))
    return {local: run.placement.placed(source_of(run).program(run)) for local, run in first.items()}
