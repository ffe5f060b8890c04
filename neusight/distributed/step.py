"""Training steps from question to times on stages: programs of ranks, what they exchange, one price for many plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from neusight.distributed.chunks import Chunks
from neusight.distributed.exchanges import GATHER, REDUCE, collectives_share, contention, exchanged, sent, tied
from neusight.distributed.factors import Factors, factors_of
from neusight.distributed.host import HostTimes, host_times, host_update
from neusight.distributed.passes import RankPasses, recomputed_parts, segment_numbers
from neusight.distributed.priced import PartTimes, Pricer, price_lists
from neusight.distributed.sources import source_of
from neusight.distributed.training_run import TrainingRun
from neusight.plans.stages import Stage
from neusight.schedule.pipeline import Pipeline
from neusight.schedule.run import Run, simulate
from neusight.schedule.times import StepTimes
from neusight.workloads.decoders.shares import Local
from neusight.workloads.program import PHASES, Part, Program

PASS, EXCHANGE, UPDATE, SEND = range(4)
"""When a part of a step runs: in passes of a segment, as a collective of its weights or gradients, in the update of a
stage, or between stages."""


@dataclass(frozen=True, kw_only=True)
class StepParts:
    """Everything that a rank of each stage runs in a step: a program with its collectives placed on nodes, then what
    belongs to whole steps. Columns of shape (n,) are sorted by role and place.

    Attributes:
        run: the question.
        stages: of its pipeline.
        program: of its share of a micro-batch.
        once: parts after those of the program: of the segments' weights and gradients, of the update and of sends.
        order: places of the parts among those of the program and ``once``.
        role: when each part runs.
        place: number of its segment, or in an update of its stage.
        again: whether the backward pass runs it once more.
    """

    run: TrainingRun
    stages: tuple[Stage, ...]
    program: Program
    once: tuple[Part, ...]
    order: np.ndarray
    role: np.ndarray
    place: np.ndarray
    again: np.ndarray

    @classmethod
    def of(cls, run: TrainingRun, program: Program, layer_s: Sequence[float] = ()) -> StepParts:
        """Build the parts of a question.

        Args:
            run: the question.
            program: of its share of a micro-batch, see ``programs_by_share``.
            layer_s: seconds of its segments, where stages are balanced by them.

        Raises:
            ModelError: sizes that ranks or stages cannot share.
        """
        source = source_of(run)
        stages = source.stages(run, layer_s)
        parts = [
            (EXCHANGE if part.group else PASS, number, part)
            for number, segment in enumerate(program.segments)
            for part in exchanged(segment, run)
        ]
        for stage in stages:
            updates = (*tied(program, stage, run), *source.update(run, stage))
            parts += [(UPDATE, stage.index, part) for part in updates]
        parts += [(SEND, 0, part) for part in sent(run, source.sent_bytes(run, stages))]
        again = recomputed_parts(program, run.plan.recompute, run.engine)
        role = np.array([*(PASS for _ in again), *(role for role, *_ in parts)])
        place = np.array([*segment_numbers(program), *(place for _, place, _ in parts)])
        order = np.lexsort((place, role))
        return cls(
            run=run,
            stages=stages,
            program=program,
            once=tuple(part for *_, part in parts),
            order=order,
            role=role[order],
            place=place[order],
            again=np.append(again, np.zeros(len(parts), dtype=bool))[order],
        )

    def timed(self, times: PartTimes, factors: Factors) -> TimedStep:
        """The step with its times, at the clock that the power of its kernels allows together.

        Args:
            times: of the program's parts and of ``once``.
            factors: that are in the times.
        """
        step = TimedStep(**vars(self), parts=times.take(self.order), factors=factors)
        return replace(step, parts=step.parts.sharing_power(step.runs))


@dataclass(frozen=True, kw_only=True)
class TimedStep(StepParts):
    """A step with the times of its parts, in their order, and the factors that are in them."""

    parts: PartTimes
    factors: Factors

    @cached_property
    def chunks(self) -> Chunks:
        """The segments of the pipeline's chunks."""
        return Chunks.of(self.run.plan, self.stages, len(self.program.segments))

    @cached_property
    def passes(self) -> RankPasses:
        """Parts that run in passes."""
        mine = self.role == PASS
        return RankPasses(
            times=self.parts.take(mine),
            segments=self.program.segments,
            segment=self.place[mine],
            again=self.again[mine],
        )

    @property
    def pipeline(self) -> Pipeline:
        """The order of passes. A segment is a piece: what is gathered before it runs, and reduced after it."""
        return Pipeline.of(self.run.plan, self.chunks.pieces)

    @cached_property
    def schedule(self) -> Run:
        """The step, simulated.

        Raises:
            ModelError: no such order of passes.
        """
        return simulate(self.pipeline, self.times, contention(self.run))

    @cached_property
    def runs(self) -> np.ndarray:
        """Runs of each part in a step on one rank of each stage together, all micro-batches counted."""
        plan = self.run.plan
        sends = 2.0 * plan.micro_batches * (plan.pp * plan.vp - 1)
        return np.where(self.role == SEND, sends, self._runs_in(self.chunks.way == 0))

    def runs_on(self, rank: int) -> np.ndarray:
        """Runs in a step of each part that is a kernel of a rank or stands in the way of one."""
        mine = (self.chunks.way == 0) & (self.chunks.stage[self.chunks.chunk] == rank)
        waited = (self.role == PASS) | ((self.role == UPDATE) & (self.place == rank))
        return np.where(waited, self._runs_in(mine), 0.0)

    def _runs_in(self, mine: np.ndarray) -> np.ndarray:
        once, again = self.counts(mine)
        passes = self.run.plan.micro_batches * (once + again)
        return self.parts.runs * np.select([self.role == PASS, self.role == EXCHANGE], [passes, once], 1)

    def counts(self, mine: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """How often a micro-batch runs each part of a segment in its passes, and once more in its backward pass.

        Args:
            mine: places in ``chunks`` that count.
        """
        segment = np.where(self.role > EXCHANGE, 0, self.place)
        once, again = self.chunks.counts(mine), self.chunks.counts(mine & self.chunks.again)
        return once[segment], np.where(self.again, again[segment], 0)

    @cached_property
    def times(self) -> StepTimes:
        """Seconds of all parts of a step, in the order of the model's chunks."""
        seconds, chunks, chosen = self._pass_s, self.chunks, {"recompute": self.chunks.again}
        tables = {
            name: chunks.table(pass_s, chosen.get(name)) * self.host.slowdown(name)[:, None]
            for name, pass_s in seconds.items()
        }
        send_s = float(sum(self.parts.total_s[self.role == SEND].tolist()))
        gather = self._exchanged(GATHER)
        return StepTimes(
            **tables,
            send_forward=send_s,
            send_backward=send_s if seconds["backward"].any() or seconds["weights"].any() else 0.0,
            gather_forward=gather,
            gather_backward=gather,
            reduce=self._exchanged(REDUCE),
            **self._updated(),
        )

    @cached_property
    def _pass_s(self) -> dict[str, np.ndarray]:
        """Seconds of each pass of each segment, and of what its backward pass computes again."""
        seconds = {"recompute": self.passes.recompute_s} | {phase: self.passes.seconds[phase] for phase in PHASES}
        if not self.run.plan.overlap_experts:
            return seconds
        hidden = self.passes.hidden_experts_s(collectives_share(self.run.cluster.device))
        return seconds | {phase: seconds[phase] - hidden[phase] for phase in PHASES}

    @cached_property
    def host(self) -> HostTimes:
        """Time of the host or of copies, and of kernels, of each chunk in each pass."""
        return host_times(self.run, self.chunks, self.passes, self._pass_s)

    @property
    def host_share(self) -> float:
        """Share of the passes' time that the host decides."""
        tables = {name: np.asarray(getattr(self.times, name)).sum(axis=1) for name in self._pass_s}
        decided_s = sum(float(self.host.binds(name) @ pass_s) for name, pass_s in tables.items())
        return decided_s / max(sum(float(pass_s.sum()) for pass_s in tables.values()), 1e-300)

    def _exchanged(self, name: str) -> np.ndarray:
        """Collectives of a name by chunk and piece [s]."""
        mine = (self.role == EXCHANGE) & (self.parts.name == name)
        return self.chunks.table(np.bincount(self.place[mine], self.parts.total_s[mine], self.chunks.segments))

    def _updated(self) -> dict[str, np.ndarray]:
        """The update of each chunk, on its device or by the host [s]."""
        plan, mine = self.run.plan, self.role == UPDATE
        if plan.offload != "none":
            updates = [list(self.parts.parts[mine & (self.place == stage)]) for stage in range(plan.pp)]
            return host_update(self.run, self.chunks, updates)
        by_stage = np.bincount(self.place[mine], self.parts.total_s[mine], plan.pp)
        return {"optimizer": (by_stage / (plan.vp * plan.directions))[self.chunks.stage]}

    def kernel_slopes(self, schedule: Run) -> np.ndarray:
        """Seconds by which the step ends later for a second that each kernel takes longer: 0 of collectives, and of
        what the host, or a collective beside it, hides.

        Args:
            schedule: of ``pipeline`` and ``times``.
        """
        slopes, passes, chunks, plan = np.zeros(len(self.role)), self.passes, self.chunks, self.run.plan
        chosen = {name: (self.host.slowdown(name) <= 1.0)[chunks.chunk] for name in self._pass_s}
        chosen["recompute"] &= chunks.again
        kernels: dict[str, np.ndarray] = {"recompute": passes.again & passes.times.is_kernel}
        for phase in PHASES:
            kernels[phase] = passes.kernels_of(phase) & ~passes.hides_kernels(phase)[passes.segment]
        for name, places in chosen.items():
            table = np.reshape(getattr(schedule.slopes, name), (len(chunks.stage), chunks.pieces))
            by_place = np.where(places, table[chunks.chunk, chunks.piece], 0.0)
            by_segment = np.bincount(chunks.segment, by_place, chunks.segments)
            slopes[self.role == PASS] += np.where(kernels[name], by_segment[passes.segment], 0.0)
        if plan.offload == "none":
            by_stage = np.bincount(chunks.stage, np.ravel(schedule.slopes.optimizer)) / (plan.vp * plan.directions)
            updated = (self.role == UPDATE) & self.parts.is_kernel
            slopes[updated] = by_stage[self.place[updated]]
        return slopes * self.parts.runs


def timed(runs: Sequence[TrainingRun], pricer: Pricer, factors: Factors | None = None) -> list[TimedStep]:
    """Times of several runs of one engine on one cluster, all their kernels asked at once.

    Args:
        runs: the questions.
        pricer: answers for kernels and collectives.
        factors: of kernels in steps; default those that ship.

    Raises:
        ModelError, DeviceError: as ``TrainingRun.checked``, ``units_of`` and ``price_parts``.
    """
    engine = runs[0].engine
    factors = factors or factors_of(engine)
    programs = programs_by_share([run.checked() for run in runs])
    price = partial(price_lists, run=runs[0], pricer=pricer, factors=factors)
    shared = [program.parts for program in programs.values()]
    layer_s: dict[Local, list[float]] = {}
    if engine.balanced_stages and any(run.plan.pp > 1 for run in runs):
        pairs = zip(programs.items(), price(shared), strict=True)
        layer_s = {
            local: RankPasses.of(program, times, "none", engine).kernels_s.tolist() for (local, program), times in pairs
        }
    steps = [StepParts.of(run, programs[run.local], layer_s.get(run.local, ())) for run in runs]
    times = price([*shared, *(step.once for step in steps)])
    of_program = dict(zip(programs, times, strict=False))
    once = times[len(shared) :]
    return [step.timed(of_program[step.run.local].joined(t), factors) for step, t in zip(steps, once, strict=True)]


def programs_by_share(runs: Sequence[TrainingRun]) -> dict[Local, Program]:
    """Programs for each share of a micro-batch that runs of one model have: plans that agree in it agree in them.

    Raises:
        ModelError: sizes that ranks cannot share.
    """
    first = dict(zip((run.local for run in reversed(runs)), reversed(runs), strict=True))
    return {local: run.placement.placed(source_of(run).program(run)) for local, run in first.items()}
