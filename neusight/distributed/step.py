"""Training steps from question to times on stages: programs of ranks, what they exchange, one price for many plans."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

from neusight.distributed.exchanges import contention, exchanged, sent, tied
from neusight.distributed.factors import Factors, factors_of
from neusight.distributed.priced import PartTime, PricedSegment, Pricer, price_parts
from neusight.distributed.sources import source_of
from neusight.distributed.stage_times import StagedProgram, step_times
from neusight.distributed.training_run import TrainingRun
from neusight.plans.stages import Stage
from neusight.schedule.pipeline import Pipeline
from neusight.schedule.times import StepTimes
from neusight.workloads.decoders.shares import Local
from neusight.workloads.program import Part, Program


@dataclass(frozen=True, kw_only=True)
class RankWork:
    """What the ranks of a run have to do: a program with its collectives placed on nodes, and what belongs to whole
    steps.

    ``exchanges`` are the collectives of each segment's weights and gradients, ``updates`` what runs on each stage after
    all passes: the optimizer's kernels, before them the sum of a tied embedding's gradients.
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

    def staged(self, program: Iterable[PartTime], once: Iterable[PartTime]) -> StagedProgram:
        """Times put on the stages.

        Args:
            program: of ``Program.parts``.
            once: of ``once``.
        """
        times, rest = iter(program), iter(once)
        exchanges = [_next(rest, parts) for parts in self.exchanges]
        return StagedProgram(
            stages=self.stages,
            segments=tuple(
                PricedSegment(segment=segment, times=_next(times, segment.parts), exchanges=collectives)
                for segment, collectives in zip(self.program.segments, exchanges, strict=True)
            ),
            updates=[_next(rest, parts) for parts in self.updates],
            sends=_next(rest, self.sends),
        )


def _next(times: Iterator[PartTime], parts: Sequence[Part]) -> tuple[PartTime, ...]:
    return tuple(islice(times, len(parts)))


@dataclass(frozen=True, kw_only=True)
class TimedStep:
    """A run with everything that its schedule needs."""

    work: RankWork
    staged: StagedProgram
    pipeline: Pipeline
    times: StepTimes
    factors: Factors

    @property
    def run(self) -> TrainingRun:
        """The question."""
        return self.work.run

    @property
    def contention(self) -> float:
        """Share of the devices' multiprocessors that collectives beside kernels take."""
        return contention(self.run.cluster.device, self.run.plan, self.run.placement)


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
    steps = []
    for work in works:
        staged = work.staged(shared[work.run.local], _next(times, work.once))
        step, pieces = step_times(staged, work.run.plan, engine)
        pipeline = Pipeline.of(work.run.plan, pieces)
        steps.append(TimedStep(work=work, staged=staged, pipeline=pipeline, times=step, factors=factors))
    return steps


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
