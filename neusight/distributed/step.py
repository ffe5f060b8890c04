"""Training steps from question to estimate: units, prices, stages, schedule, memory. Many plans are priced at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

from neusight.distributed.exchanges import contention, exchanged, replica_groups, sent
from neusight.distributed.factors import Factors, shipped_factors
from neusight.distributed.priced import PartTime, PricedUnits, Pricer, Work, price
from neusight.distributed.stage_times import Exchanged, Staged, step_times
from neusight.distributed.training_run import TrainingRun
from neusight.plans.stages import Held, Stage, stage_held, stages_of
from neusight.schedule.pipeline import Pipeline
from neusight.schedule.times import StepTimes
from neusight.workloads.program import Part, Program, Segment
from neusight.workloads.training.build import units_of
from neusight.workloads.training.local import Local
from neusight.workloads.training.optimizer import Update, optimizer_parts


@dataclass(frozen=True, kw_only=True)
class Rank:
    """What the ranks of a run have to do: units with their nodes told, and what belongs to whole steps.

    ``collectives`` are those of each unit's weights and gradients, ``updates`` the optimizer's kernels of each stage.
    """

    run: TrainingRun
    stages: tuple[Stage, ...]
    units: Program
    collectives: tuple[tuple[Part, ...], ...]
    updates: tuple[tuple[Part, ...], ...]
    sends: tuple[Part, ...]

    @classmethod
    def of(cls, run: TrainingRun, units: Program) -> Rank:
        """Built from the question.

        Args:
            run: the question.
            units: of its share of a micro-batch, see ``units_by_share``.

        Raises:
            ModelError: sizes that ranks or stages cannot share.
        """
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
    def beside(self) -> tuple[Part, ...]:
        """Parts of whole steps."""
        return tuple(part for parts in (*self.collectives, *self.updates, self.sends) for part in parts)

    def staged(self, priced: PricedUnits, beside: Sequence[PartTime]) -> Staged:
        """Times put on the stages."""
        times = iter(beside)

        def taken(parts: Sequence[Part]) -> tuple[PartTime, ...]:
            return tuple(next(times) for _ in parts)

        collectives = [taken(parts) for parts in self.collectives]
        updates = [taken(parts) for parts in self.updates]
        sends = taken(self.sends)
        every_unit = (priced.before, *priced.layers, priced.after)
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
        ModelError, DeviceError: as ``TrainingRun.checked``, ``units_of`` and ``price``.
    """
    factors = factors or shipped_factors()
    units = units_by_share([run.checked() for run in runs])
    ranks = [Rank.of(run, units[run.local]) for run in runs]
    priced = _priced(units, ranks, pricer, factors)
    framework = runs[0].framework
    found = []
    for rank in ranks:
        work = priced[rank.run.local]
        staged = rank.staged(work.units, list(islice(work.beside, len(rank.beside))))
        times, pieces = step_times(staged, rank.run.plan, framework)
        pipeline = Pipeline.of(rank.run.plan, pieces)
        found.append(Timed(rank=rank, staged=staged, pipeline=pipeline, times=times, factors=factors))
    return found


def units_by_share(runs: Sequence[TrainingRun]) -> dict[Local, Program]:
    """Program for each share of a micro-batch that runs of one model have: plans that agree in it agree in them.

    Raises:
        ModelError: sizes that ranks cannot share.
    """
    first = dict(zip((run.local for run in reversed(runs)), reversed(runs), strict=True))
    return {
        local: run.placement.placed(units_of(run.decoder, local, run.framework)) for local, run in first.items()
    }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class _Shared:
    """Times of the units that ranks share, and one by one of what each rank has beside them."""

    units: PricedUnits
    beside: Iterator[PartTime]


def _priced(
    units: Mapping[Local, Program], ranks: Sequence[Rank], pricer: Pricer, factors: Factors
) -> dict[Local, _Shared]:
    """Times by share of a micro-batch."""
    beside: dict[Local, list[Part]] = {local: [] for local in units}
    for rank in ranks:
        beside[rank.run.local] += rank.beside
    works = [Work(units=units[local], beside=tuple(beside[local])) for local in units]
    run = ranks[0].run
    answers = price(works, run.cluster.device, pricer, run.framework, factors)
    return {
        local: _Shared(units=answer.units, beside=iter(answer.beside))
        for local, answer in zip(units, answers, strict=True)
    }


def every(units: Program) -> tuple[Segment, ...]:
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
