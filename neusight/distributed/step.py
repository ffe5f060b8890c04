"""Training steps from question to estimate: units, prices, stages, schedule, memory. Many plans are priced at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from neusight.distributed.exchanges import contention, exchanged, replica_groups, sent
from neusight.distributed.factors import Factors, shipped_factors
from neusight.distributed.priced import PartTime, PricedWork, Pricer, Work, price
from neusight.distributed.stage_times import Exchanged, Staged, step_times
from neusight.distributed.training_run import TrainingRun
from neusight.plans.stages import Held, Stage, stage_held, stages_of
from neusight.schedule.pipeline import Pipeline
from neusight.schedule.times import StepTimes
from neusight.workloads.training.build import units_of
from neusight.workloads.training.optimizer import Update, optimizer_parts
from neusight.workloads.training.units import Part, Unit, Units


@dataclass(frozen=True, kw_only=True)
class Rank:
    """What the ranks of a run have to do: units with their nodes told, and what belongs to whole steps.

    ``collectives`` are those of each unit's weights and gradients, ``updates`` the optimizer's kernels of each stage.
    """

    run: TrainingRun
    stages: tuple[Stage, ...]
    units: Units
    collectives: tuple[tuple[Part, ...], ...]
    updates: tuple[tuple[Part, ...], ...]
    sends: tuple[Part, ...]

    @classmethod
    def of(cls, run: TrainingRun) -> Rank:
        """Built from the question.

        Raises:
            ModelError: sizes that ranks or stages cannot share. DeviceError: a cluster of another size.
        """
        run = run.checked()
        units = run.placement.placed(units_of(run.decoder, run.local, run.framework))
        stages = stages_of(run.decoder, run.plan)
        return cls(
            run=run,
            stages=stages,
            units=units,
            collectives=tuple(tuple(exchanged(unit, run)) for unit in every(units)),
            updates=tuple(updated(stage_held(stage, run.decoder, run.local), run) for stage in stages),
            sends=tuple(sent(run)),
        )

    @cached_property
    def work(self) -> Work:
        """All of it, to be priced."""
        return Work(units=self.units, beside=tuple(self._beside()))

    def _beside(self) -> Iterator[Part]:
        for parts in (*self.collectives, *self.updates, self.sends):
            yield from parts

    def staged(self, priced: PricedWork) -> Staged:
        """Times put on the stages."""
        times = iter(priced.beside)

        def taken(parts: Sequence[Part]) -> tuple[PartTime, ...]:
            return tuple(next(times) for _ in parts)

        collectives = [taken(parts) for parts in self.collectives]
        updates = [taken(parts) for parts in self.updates]
        sends = taken(self.sends)
        every_unit = (priced.units.before, *priced.units.layers, priced.units.after)
        found = [Exchanged(priced=u, collectives=c) for u, c in zip(every_unit, collectives, strict=True)]
        return Staged(
            stages=self.stages,
            before=found[0],
            layers=found[1:-1],
            after=found[-1],
            updates=updates,
            sends=sends,
        )


@dataclass(frozen=True, kw_only=True)
class Timed:
    """A run with everything that its schedule needs."""

    rank: Rank
    staged: Staged
    pipeline: Pipeline
    times: StepTimes
    factors: Factors

    @property
    def run(self) -> TrainingRun:
        """The question."""
        return self.rank.run

    @property
    def contention(self) -> float:
        """Share of the devices' multiprocessors that collectives beside kernels take."""
        return contention(self.run.cluster.device, self.run.plan, self.run.placement)


def timed(runs: Sequence[TrainingRun], pricer: Pricer, factors: Factors | None = None) -> list[Timed]:
    """Times of several runs of one framework on one cluster, all their kernels asked at once.

    Args:
        runs: the questions.
        pricer: answers for kernels and collectives.
        factors: of kernels in steps; default those that ship.

    Raises:
        ModelError, DeviceError: as ``Rank.of`` and ``price``.
    """
    factors = factors or shipped_factors()
    ranks = [Rank.of(run) for run in runs]
    cluster, framework = runs[0].cluster, runs[0].framework
    priced = price([rank.work for rank in ranks], cluster.device, pricer, framework, factors)
    found = []
    for rank, work in zip(ranks, priced, strict=True):
        staged = rank.staged(work)
        times, pieces = step_times(staged, rank.run.plan, framework)
        pipeline = Pipeline.of(rank.run.plan, pieces)
        found.append(Timed(rank=rank, staged=staged, pipeline=pipeline, times=times, factors=factors))
    return found


def every(units: Units) -> tuple[Unit, ...]:
    """All units, in the order of ``UnitTimes``."""
    return (units.before, *units.layers, units.after)


def updated(held: Held, run: TrainingRun) -> tuple[Part, ...]:
    """The optimizer's kernels of a rank that holds some parameters."""
    if run.optimizer == "none":
        return ()
    dense, _ = replica_groups(run, experts=False)
    expert, _ = replica_groups(run, experts=True)
    share = max(1, round(held.dense / dense.ranks + held.expert / expert.ranks))
    plan = run.plan
    whole = plan.shard in ("zero3", "hsdp")
    update = Update(
        algorithm=run.optimizer,
        # Fully sharded weights are stepped in float32 and narrowed where they are gathered.
        dtype="float32" if whole else run.dtype,
        gradient_dtype="float32" if whole else plan.gradient_dtype,
        scales_loss=run.dtype == "float16",
        products="" if whole else run.products,
    )
    return optimizer_parts(share, share if whole else round(held.total), update)


def with_plan(run: TrainingRun, **fields: object) -> TrainingRun:
    """The run under a plan that differs in some fields."""
    return replace(run, plan=replace(run.plan, **fields))  # type: ignore[arg-type]
