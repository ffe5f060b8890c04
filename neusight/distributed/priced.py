"""What units of a trained decoder take on a device: every kernel and collective of many ranks' units priced at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from neusight.devices.spec import DeviceSpec
from neusight.distributed.factors import Factors
from neusight.executors.costs import Costs
from neusight.kernels.conditions import MANY_LAUNCHES, Conditions
from neusight.kernels.distinct import concatenated
from neusight.kernels.families import KernelBatch
from neusight.laws.power import sustained_clock
from neusight.workloads.program import Part, Phase, Program, Segment
from neusight.workloads.training.frameworks import Framework

Pricer = Callable[[KernelBatch, DeviceSpec, Conditions], Costs]
"""What answers for kernels and collectives on a device, such as ``Predictor.kernels``."""
COLLECTIVE = "collective"


@dataclass(frozen=True, kw_only=True)
class PartTime:
    """One part once: its time [s], the standard deviation of its log error that kernels of a kind share (``spread``)
    and that it has of its own, what limits it, and its energy [J].
    """

    part: Part
    latency_s: float
    spread: float
    own_spread: float
    limiter: str
    energy_j: float

    @property
    def total_s(self) -> float:
        """All runs of the part [s]."""
        return self.part.runs * self.latency_s


@dataclass(frozen=True, kw_only=True)
class PricedUnit:
    """A unit with the times of its parts, in its order."""

    unit: Segment
    times: tuple[PartTime, ...]

    def compute_s(self, which: Phase) -> float:
        """Kernels of a pass [s]."""
        return sum(t.total_s for t in self._of(which) if not t.part.group)

    def waits_s(self, which: Phase) -> float:
        """Collectives of a pass in which no kernel runs [s]: those in the way, and of the others what kernels do not
        hide.
        """
        exposed = sum(t.total_s for t in self._of(which) if t.part.group and not t.part.overlapped)
        hidden = sum(t.total_s for t in self._of(which) if t.part.group and t.part.overlapped)
        return exposed + max(0.0, hidden - self.compute_s(which))

    def pass_s(self, which: Phase) -> float:
        """One pass of the unit [s]."""
        return self.compute_s(which) + self.waits_s(which)

    def launches(self, which: Phase) -> int:
        """Kernels and collectives of a pass that the host launches."""
        return round(sum(t.part.runs for t in self._of(which)))

    def _of(self, which: Phase) -> Iterator[PartTime]:
        return (t for t in self.times if t.part.phase == which)


@dataclass(frozen=True, kw_only=True)
class PricedUnits:
    """``Program`` with times."""

    before: PricedUnit
    layers: tuple[PricedUnit, ...]
    after: PricedUnit
    order: tuple[int, ...]

    def counted(self) -> Iterator[tuple[PricedUnit, int]]:
        """Each unit with how often a model has it."""
        yield self.before, 1
        for place, unit in enumerate(self.layers):
            yield unit, self.order.count(place)
        yield self.after, 1


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a rank runs: units of a model for each micro-batch, and ``beside`` them parts of a step."""

    units: Program
    beside: tuple[Part, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PricedWork:
    """``Work`` with times."""

    units: PricedUnits
    beside: tuple[PartTime, ...]


def price(
    many: Sequence[Work], device: DeviceSpec, pricer: Pricer, framework: Framework, factors: Factors
) -> list[PricedWork]:
    """Times of several ranks' work, each family of kernels asked once for all.

    Kernels follow each other in a stream that the host keeps filled.

    Args:
        many: work of one rank each, such as those of several plans.
        device: that runs them.
        pricer: answers for kernels and collectives.
        framework: whose kernels run.
        factors: what they take in a step over what they take by themselves.

    Raises:
        DeviceError: the device lacks a dtype. CoverageError: no rule for a kernel.
    """
    listed = [[*_counted_parts(work.units), *((part, 0) for part in work.beside)] for work in many]
    flat = [part for parts in listed for part, _ in parts]
    families: dict[str, list[int]] = {}
    for number, part in enumerate(flat):
        families.setdefault(part.batch.family, []).append(number)
    costs = {
        family: _asked([flat[n].batch for n in numbers], device, pricer, framework.attention_on(device.capability))
        for family, numbers in families.items()
    }
    row = {number: at for numbers in families.values() for at, number in enumerate(numbers)}
    found, start = [], 0
    for work, parts in zip(many, listed, strict=True):
        places = range(start, start + len(parts))
        times = [
            replace(t, latency_s=t.latency_s * factors.of(t.part, framework))
            for t in _times(parts, [row[place] for place in places], costs)
        ]
        units = _priced(work.units, times)
        found.append(PricedWork(units=units, beside=tuple(times[len(times) - len(work.beside) :])))
        start += len(parts)
    return found


def _counted_parts(units: Program) -> Iterator[tuple[Part, float]]:
    """Every part with how often it runs for one micro-batch of the whole model."""
    counted = ((units.before, 1), *((u, units.order.count(n)) for n, u in enumerate(units.layers)), (units.after, 1))
    for unit, count in counted:
        for part in unit.parts:
            yield part, count * part.runs


def _asked(batches: Sequence[KernelBatch], device: DeviceSpec, pricer: Pricer, variant: str) -> Costs:
    joined = concatenated(batches)
    told = variant if joined.family == "attention" else ""
    return pricer(joined, device, Conditions.of(len(joined), timing="graph", launches=MANY_LAUNCHES, variant=told))


def _times(parts: Sequence[tuple[Part, float]], rows: Sequence[int], costs: dict[str, Costs]) -> list[PartTime]:
    """Parts of one rank with their times."""
    families: dict[str, list[int]] = {}
    for number, (part, _) in enumerate(parts):
        families.setdefault(part.batch.family, []).append(number)
    found: dict[int, PartTime] = {}
    for family, numbers in families.items():
        answer = taken(costs[family], np.array([rows[n] for n in numbers]))
        columns = (answer.latency_s, answer.spread, answer.own_spread, answer.limiter, energy_j(answer))
        for number, values in zip(numbers, zip(*(c.tolist() for c in columns), strict=True), strict=True):
            latency_s, spread, own_spread, limiter, joule = values
            found[number] = PartTime(
                part=parts[number][0],
                latency_s=latency_s,
                spread=spread,
                own_spread=own_spread,
                limiter=limiter,
                energy_j=joule,
            )
    return [found[number] for number in range(len(parts))]


def _priced(units: Program, times: Sequence[PartTime]) -> PricedUnits:
    """Times back to the units that their parts are of."""
    made, start = [], 0
    for unit in (units.before, *units.layers, units.after):
        made.append(PricedUnit(unit=unit, times=tuple(times[start : start + len(unit.parts)])))
        start += len(unit.parts)
    return PricedUnits(before=made[0], layers=tuple(made[1:-1]), after=made[-1], order=units.order)


def taken(costs: Costs, rows: np.ndarray) -> Costs:
    """The rows of costs that ``rows`` selects."""
    columns = {f.name: getattr(costs, f.name) for f in fields(Costs)}
    picked = {name: column[rows] for name, column in columns.items() if isinstance(column, np.ndarray)}
    demand = None if costs.demand is None else costs.demand.take(rows)
    return replace(costs, **picked, demand=demand, energy=None)


def energy_j(costs: Costs) -> np.ndarray:
    """What arithmetic and traffic of each kernel take at the clock that the power limit leaves it [J]; zeros where no
    power law answers.
    """
    demand = costs.demand
    return np.zeros(len(costs.latency_s)) if demand is None else np.asarray(demand.energy_j(sustained_clock(demand)))
