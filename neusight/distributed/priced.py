"""Times of kernels and collectives of many programs, priced at once, in columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from neusight.devices.spec import DeviceSpec
from neusight.distributed.factors import Factors
from neusight.distributed.training_run import TrainingRun
from neusight.engines import Engine
from neusight.executors.costs import Costs
from neusight.executors.pricing import price, sharing_power
from neusight.kernels.conditions import MANY_LAUNCHES, Conditions
from neusight.kernels.families import KernelBatch
from neusight.schedule.timeline import in_stream, launch_interval_s
from neusight.workloads.program import Part

Pricer = Callable[[KernelBatch, DeviceSpec, Conditions], Costs]
"""What answers for kernels and collectives on a device, such as ``Predictor.kernels``."""
_LABELS = ("name", "phase", "group", "overlapped", "runs")
_FIGURES = ("latency_s", "bound_s", "spread", "own_spread", "cause", "limiter")


@dataclass(frozen=True, kw_only=True)
class PartTimes:
    """Parts with their times, in columns of shape (n,).

    Attributes:
        parts: kernels and collectives; ``name``, ``family``, ``phase``, ``group``, ``overlapped`` and ``runs`` are
            theirs.
        latency_s: time of one run.
        bound_s: time of one run that nothing can beat.
        spread: standard deviation of the log error that kernels of a kind share.
        own_spread: standard deviation of the log error of each by itself.
        cause: key of the error that kernels of a kind share.
        limiter: resource that limits it.
        energy_j: energy of one run.
        row: place of the part in the ``costs`` of its family.
        costs: costs by family, as its kernels run in the step.
    """

    parts: np.ndarray
    name: np.ndarray
    family: np.ndarray
    phase: np.ndarray
    group: np.ndarray
    overlapped: np.ndarray
    runs: np.ndarray
    latency_s: np.ndarray
    bound_s: np.ndarray
    spread: np.ndarray
    own_spread: np.ndarray
    cause: np.ndarray
    limiter: np.ndarray
    energy_j: np.ndarray
    row: np.ndarray
    costs: Mapping[str, Costs]

    def take(self, places: np.ndarray | Sequence[int]) -> PartTimes:
        """The parts at some places, in that order."""
        some = {name: column[places] for name, column in vars(self).items() if name != "costs"}
        return PartTimes(**some, costs=self.costs)

    def joined(self, other: PartTimes) -> PartTimes:
        """These parts, then others that were priced together with them."""
        both = {name: np.append(column, vars(other)[name]) for name, column in vars(self).items() if name != "costs"}
        return PartTimes(**both, costs=self.costs)

    @property
    def total_s(self) -> np.ndarray:
        """All runs of each part in a pass [s]."""
        return np.asarray(self.runs * self.latency_s)

    @property
    def is_kernel(self) -> np.ndarray:
        """Whether each part computes; the others are collectives."""
        return np.asarray(self.group == "")

    def by_family(self) -> Iterator[tuple[str, np.ndarray, Costs]]:
        """Each family with the places of its parts and their costs."""
        for family in dict.fromkeys(self.family.tolist()):
            places = np.flatnonzero(self.family == family)
            yield family, places, self.costs[family].take(self.row[places])

    def sharing_power(self, runs: np.ndarray) -> PartTimes:
        """The parts at the clock that the power of all of them allows together; ``runs`` are those of a step."""
        families = list(self.by_family())
        together = sharing_power([costs for *_, costs in families], [runs[places] for _, places, _ in families])
        latency_s, energy_j, row = self.latency_s.copy(), self.energy_j.copy(), self.row.copy()
        for (_, places, alone), costs in zip(families, together, strict=True):
            latency_s[places] *= costs.latency_s / alone.latency_s
            energy_j[places] = costs.drawn.total_j
            row[places] = np.arange(len(places))
        costs_of = {family: costs for (family, *_), costs in zip(families, together, strict=True)}
        return replace(self, latency_s=latency_s, energy_j=energy_j, row=row, costs=costs_of)


def stream_costs(batch: KernelBatch, device: DeviceSpec, pricer: Pricer, engine: Engine) -> Costs:
    """Costs of kernels of one family that follow each other in a stream that the host keeps filled.

    Args:
        batch: kernels, or collectives.
        device: that runs them.
        pricer: answers for kernels and collectives.
        engine: whose kernels run.
    """
    if engine.kernel_timing == "stream":
        return in_stream(pricer(batch, device, Conditions.of(len(batch))), launch_interval_s(engine, device))
    variant = engine.attention_on(device.facts.reads_shared_memory) if batch.family == "attention" else ""
    conditions = Conditions.of(len(batch), timing="graph", launches=MANY_LAUNCHES, variant=variant)
    return pricer(batch, device, conditions)


def price_parts(
    parts: Sequence[Part], device: DeviceSpec, pricer: Pricer, engine: Engine, factors: Factors
) -> PartTimes:
    """Times of parts that each have one row, in their order; those of many programs are asked for together.

    Args:
        parts: kernels and collectives.
        device: that runs them.
        pricer: answers for kernels and collectives.
        engine: whose kernels run.
        factors: what they take in a step over what they take by themselves.

    Raises:
        DeviceError: the device lacks a dtype. CoverageError: no rule for a kernel.
    """
    priced = price(parts, partial(stream_costs, device=device, pricer=pricer, engine=engine))
    factor = np.array([factors.of(part, engine) for part in parts])
    labels = {name: np.array([getattr(part, name) for part in parts]) for name in _LABELS}
    figures = {name: np.array([getattr(costs, name)[0] for costs in priced]) for name in _FIGURES}
    figures["latency_s"] = figures["latency_s"] * factor
    return PartTimes(
        parts=np.array(parts, dtype=object),
        family=np.array([part.batch.family for part in parts]),
        energy_j=np.array([costs.energy.total_j[0] if costs.energy else 0.0 for costs in priced]),
        row=np.array([costs.rows[0] for costs in priced], dtype=int),
        costs={part.batch.family: costs.costs for part, costs in zip(parts, priced, strict=True)},
        **labels,
        **figures,
    )


def price_lists(lists: Sequence[Sequence[Part]], run: TrainingRun, pricer: Pricer, factors: Factors) -> list[PartTimes]:
    """Times of several lists of parts on the devices of a run, all asked for at once; errors as ``price_parts``."""
    parts = [part for each in lists for part in each]
    times = price_parts(parts, run.cluster.device, pricer, run.engine, factors)
    ends = np.cumsum([len(each) for each in lists])
    return [times.take(places) for places in np.split(np.arange(len(parts)), ends[:-1])]
