"""``TrainingEstimate``: how long a step takes on a cluster, what it waits for, what it needs and what a run costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from math import exp, log
from operator import attrgetter
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.distributed.priced import PartTimes
from neusight.distributed.sources import source_of
from neusight.distributed.step import PASS, TimedStep
from neusight.distributed.training_run import TrainingRun
from neusight.estimates.core import EstimateCore, core, largest, summed
from neusight.estimates.energy import BoardEnergy, board_energy
from neusight.executors.costs import cause_of
from neusight.kernels.describe import describe
from neusight.kernels.work import work_of
from neusight.laws.doubts import NORMAL_90, Doubts, common, own_key, spread, weighed
from neusight.laws.fitted import with_sources
from neusight.plans.fits import verdict
from neusight.plans.margins import MemoryFit
from neusight.plans.memory import RankMemory, fullest
from neusight.schedule.run import Run
from neusight.schedule.timeline import COMPOSITION, HOST

if TYPE_CHECKING:
    from neusight.figures import Chart

PRODUCTS = ("gemm", "conv2d", "attention", "grouped_gemm", "moe")
"""Families whose arithmetic counts for the utilisation of a device's peak."""
COMPUTING = ("forward", "backward", "weights", "recompute", "optimizer")
"""Times of a step that are of kernels, or of collectives that stand in their way; the others are of exchanges."""


_FIGURES = ("tokens_per_s", "mfu", "hfu", "exposed_s", "bubble", "host_share")


@dataclass(frozen=True, kw_only=True)
class TrainingEstimate(EstimateCore):
    """One training step of a model on the devices of a cluster. Times in seconds.

    Attributes:
        run: what was asked.
        latency_s: of a step, from its first pass to the end of its last update.
        interval: (low, high), which enclose 90 % [s].
        doubts: signed standard deviations of the logarithm of the latency by key.
        schedule: the step as it runs, rank by rank.
        parts_s: kind of kernel or collective → what it takes of a step on the rank that has most of it to do.
        limiters: what limits most of each of these.
        limited_s: resource → what the parts that it limits take on that rank.
        flop: of products and attention of a step on all devices, without what is computed again.
        recomputed_flop: of what is computed again.
        peak_flops_per_s: of a device, in the fastest dtype that products of the step run in.
        memory: of a rank of each kind.
        board_energy: what the boards of all devices draw in a step.
        host_share: share of the passes' time that launches of the host decide.
        warnings: what was assumed or approximated.
        question: the words that were asked with their kind; empty of a ``TrainingRun``.
        given: what measurements of one's own changed.
    """

    run: TrainingRun
    latency_s: float
    interval: tuple[float, float]
    doubts: Doubts
    schedule: Run
    parts_s: Mapping[str, float]
    limiters: Mapping[str, str]
    limited_s: Mapping[str, float]
    flop: float
    recomputed_flop: float
    peak_flops_per_s: float
    memory: tuple[RankMemory, ...]
    board_energy: BoardEnergy | None = None
    host_share: float = 0.0
    warnings: tuple[str, ...] = ()
    question: Mapping[str, Any] = field(default_factory=dict)
    given: Mapping[str, Any] = field(default_factory=dict)

    model = property(attrgetter("run.decoder.name"), doc="Name of the model.")
    gpu = property(attrgetter("run.cluster.device.id"), doc="Id of the devices.")
    devices = property(attrgetter("run.cluster.devices"), doc="Number of devices.")
    plan = property(attrgetter("run.plan"), doc="How devices share the step.")
    cluster = property(attrgetter("run.cluster"), doc="The devices.")
    assumed = property(attrgetter("run.assumed"), doc="Fields that were left open -> value chosen, with the reason.")
    bubble = property(attrgetter("schedule.bubble"), doc="Share of all ranks' time in which they wait for each other.")
    usd_per_hour = property(attrgetter("run.cluster.device.price_usd_per_hour"), doc="Price of a device, if known.")
    price_source = property(attrgetter("run.cluster.device.price_source"), doc="Source of that price.")

    @property
    def limiter(self) -> str:
        """The resource that most of the parts' time is limited by."""
        return largest(self.limited_s)

    @property
    def memory_terms(self) -> Mapping[str, float]:
        """Of the fullest rank [B]."""
        return fullest(self.memory).parts

    @property
    def tokens_per_s(self) -> float:
        """Of all devices together."""
        return self.run.tokens / self.latency_s

    @property
    def mfu(self) -> float:
        """Model FLOP utilisation: products and causal attention that the model needs, over peak (Chowdhery et al. 2022,
        appendix B, who count all of attention).
        """
        return self.flop / (self.latency_s * self.cluster.devices * self.peak_flops_per_s)

    @property
    def hfu(self) -> float:
        """Hardware FLOP utilisation: with what is computed again."""
        return self.mfu * (1.0 + self.recomputed_flop / self.flop)

    @property
    def exposed_s(self) -> float:
        """In which kernels wait for collectives, sends or copies, on the rank that does most."""
        return float(self.schedule.exposed_s.max())

    @property
    def peak_bytes(self) -> float:
        """Of memory on the rank that needs most."""
        return fullest(self.memory).total

    def figure(self, name: str) -> Chart:
        """A chart of ``neusight.distributed.figures.CHARTS``: ``memory`` or ``timeline``, of ranks and their streams.

        Raises:
            DataError: an unknown chart.
        """
        from neusight.distributed.figures import CHARTS
        from neusight.figures import named

        return named(self, name, CHARTS)

    @property
    def fit(self) -> MemoryFit:
        """What the fullest rank needs, with its context and the allocator's slack."""
        return verdict(self.memory, self.cluster.device)

    def hours(self, tokens: float) -> float:
        """Of a run over so many tokens."""
        return tokens / self.tokens_per_s / 3600.0

    def within_probability(self, tokens: float, hours: float) -> float:
        """Probability that a run over so many tokens ends within so many hours."""
        return NormalDist().cdf(log(hours / self.hours(tokens)) / spread(self.doubts))

    def gpu_hours(self, tokens: float) -> float:
        """Of all devices over a run of so many tokens."""
        return self.hours(tokens) * self.cluster.devices

    def cost_usd(self, tokens: float, usd_per_hour: float | None = None) -> float | None:
        """Of a run of so many tokens; None where nobody tells a price of a device-hour.

        Args:
            tokens: of the run.
            usd_per_hour: of a device; default that of its file.
        """
        price = self.usd_per_hour if usd_per_hour is None else usd_per_hour
        return None if price is None else self.gpu_hours(tokens) * price

    def to_dict(self) -> dict[str, Any]:
        """Plain data: the core of every estimate, then what a shared training step has beside it."""
        run = self.run
        return {
            **core(self),
            "cluster": self.cluster.id,
            "nodes": self.cluster.nodes,
            "seq_len": run.seq_len,
            "optimizer": run.optimizer,
            "dtype": run.precision,
            "engine": run.engine.name,
            "plan": asdict(self.plan),
            **{name: getattr(self, name) for name in _FIGURES},
            "critical_path_s": dict(self.schedule.path_s),
            "parts_s": dict(self.parts_s),
            "limiters": dict(self.limiters),
            "memory": [{"rank": rank.rank, "peak_bytes": rank.total, **rank.parts} for rank in self.memory],
        }


def estimated(timed: TimedStep) -> TrainingEstimate:
    """The step, simulated, with what is known of its errors.

    Raises:
        ModelError: no such order of passes.
    """
    question = timed.run
    schedule = timed.schedule
    parts, pp = timed.parts, question.plan.pp
    flop, again = _flop(timed)
    seconds = (timed.runs * parts.latency_s / pp).tolist()
    by_part = summed(zip(zip(parts.name.tolist(), parts.limiter.tolist(), strict=True), seconds, strict=True))
    parts_s = summed((name, part_s) for (name, _), part_s in by_part.items())
    doubts = doubts_of(timed)
    factor = exp(NORMAL_90 * spread(doubts))
    return TrainingEstimate(
        run=question,
        latency_s=schedule.step_s,
        interval=(max(schedule.step_s / factor, _bound_s(timed)), schedule.step_s * factor),
        doubts=doubts,
        schedule=schedule,
        parts_s=dict(sorted(parts_s.items(), key=lambda item: -item[1])),
        limiters={name: limiter for (name, limiter), _ in sorted(by_part.items(), key=lambda item: item[1])},
        limited_s=summed((limiter, part_s) for (_, limiter), part_s in by_part.items()),
        flop=flop,
        recomputed_flop=again,
        peak_flops_per_s=_peak_flops_per_s(timed),
        memory=source_of(question).memory(question, timed.stages),
        board_energy=step_energy(timed, factor),
        host_share=timed.host_share,
        warnings=(*question.decoder.notes, *question.cluster.device.likeness),
    )


def _bound_s(timed: TimedStep) -> float:
    """Time that no step can beat: the bounds of kernels of a rank, on average over the stages, one after the other."""
    kernels = timed.parts.is_kernel
    bound_s = float(timed.runs[kernels] @ timed.parts.bound_s[kernels]) / timed.run.plan.pp
    return min(bound_s, timed.schedule.step_s)


def doubts_of(timed: TimedStep) -> dict[str, float]:
    """Signed standard deviations of the logarithm of the step by key.

    Each cause counts by the seconds that it has on the critical path: what a device's kernels have in common, what
    each has of its own, links, and the step as the sum of its parts.
    """
    schedule, parts, kernels, engine = timed.schedule, timed.parts, timed.parts.is_kernel, timed.run.engine.name
    device = timed.run.cluster.device
    seconds = timed.runs * parts.latency_s
    computing = sum(schedule.path_s[name] for name in COMPUTING)
    inside = ~kernels & (parts.group != "dp")
    kernels_s, inside_s = (sum(seconds[some].tolist()) for some in (kernels, inside))
    share = inside_s / (kernels_s + inside_s) if inside_s else 0.0
    linked_s = share * computing + schedule.step_s - computing
    kernels_s = (1.0 - timed.host_share) * (1.0 - share) * computing
    host_s = timed.host_share * computing
    doubts = weighed(
        (
            (kernels_s / schedule.step_s, relative_doubts(parts, seconds, kernels)),
            (linked_s / schedule.step_s, relative_doubts(parts, seconds, ~kernels)),
            (host_s / schedule.step_s, common(cause_of(device, engine, HOST), timed.host.spread)),
            (1.0, common(f"{COMPOSITION}{engine}/{timed.run.decoder.name} {device.id}", timed.factors.spread)),
        )
    )
    what = f"{timed.run.decoder.name} {device.id}"
    kind = "training" if "engine" in timed.run.defaults else timed.factors.kind_of_steps(engine, device)
    return with_sources({key: size for key, size in doubts.items() if size}, kind, what)


def relative_doubts(parts: PartTimes, seconds: np.ndarray, chosen: np.ndarray) -> dict[str, float]:
    """Doubts of the sum of times of chosen parts by key: of kinds, and each part's own.

    Args:
        parts: all parts.
        seconds: time of each [s], shape (n,).
        chosen: whether each counts, shape (n,).
    """
    total_s = float(seconds[chosen].sum())
    if not total_s:
        return {}
    some = parts.take(np.flatnonzero(chosen))
    columns = (seconds[chosen], some.cause, some.spread, some.own_spread)
    return weighed(
        (time_s / total_s, common(cause, size) | {own_key(cause, describe(part.batch.kernel(0))): own})
        for part, time_s, cause, size, own in zip(some.parts, *(column.tolist() for column in columns), strict=True)
    )


def _flop(timed: TimedStep) -> tuple[float, float]:
    """Of products and attention of a step on all devices: what the model needs, and what is computed again."""
    plan, parts = timed.run.plan, timed.parts
    products = np.flatnonzero((timed.role == PASS) & np.isin(parts.family, PRODUCTS))
    flop = np.array([work_of(part.batch).flops[0] for part in parts.parts[products]]) * parts.runs[products]
    ranks = plan.micro_batches * plan.dp * plan.tp * plan.cp
    needed, again = (ranks * sum((flop * count[products]).tolist()) for count in timed.counts(timed.chunks.way == 0))
    return needed, again


def _peak_flops_per_s(timed: TimedStep) -> float:
    """Peak of a device in the fastest dtype that products of the step run in [FLOP/s], so that their utilisation of it
    is at most 1: of autocast steps and recipes of few bits the narrow one, of convolutions in TF32 that.
    """
    products = timed.parts.parts[(timed.role == PASS) & np.isin(timed.parts.family, PRODUCTS)]
    dtypes = {str(part.batch["dtype"][0]) for part in products} or {timed.run.dtype}
    return max(map(timed.run.cluster.device.gemm_flops_per_s, dtypes))


def step_energy(timed: TimedStep, factor: float) -> BoardEnergy:
    """Of all boards in a step; ``factor`` is that of the interval of its time."""
    cluster, step_s = timed.run.cluster, timed.schedule.step_s
    kernels_j = sum((timed.runs * timed.parts.energy_j).tolist()) / timed.run.plan.pp
    return board_energy(cluster.device, kernels_j, (step_s / factor, step_s, step_s * factor)) * cluster.devices
