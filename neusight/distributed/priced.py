"""What segments of a program take on a device: kernels and collectives of many ranks' programs priced at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from neusight.devices.spec import DeviceSpec
from neusight.distributed.exchanges import GATHER, REDUCE
from neusight.distributed.factors import Factors
from neusight.engines import Engine
from neusight.executors.costs import Costs
from neusight.executors.pricing import price
from neusight.kernels.conditions import MANY_LAUNCHES, Conditions
from neusight.kernels.families import KernelBatch
from neusight.requests import Plan
from neusight.schedule.timeline import in_stream, launch_interval_s
from neusight.transforms.recompute import recomputed
from neusight.workloads.dispatch import part_dispatches
from neusight.workloads.program import PHASES, Part, Phase, Segment

Pricer = Callable[[KernelBatch, DeviceSpec, Conditions], Costs]
"""What answers for kernels and collectives on a device, such as ``Predictor.kernels``."""


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
    costs: Costs
    """Of all kernels of the part's family that were priced together, as they run in the step, with ``row`` its own."""
    row: int

    def as_in(self, costs: Costs, row: int) -> PartTime:
        """The part as one of a family's kernels at another clock."""
        longer = float(costs.latency_s[row] / self.costs.latency_s[self.row])
        joules = float(costs.take(np.array([row])).drawn.total_j[0])
        return replace(self, latency_s=self.latency_s * longer, energy_j=joules, costs=costs, row=row)

    @property
    def total_s(self) -> float:
        """All runs of the part [s]."""
        return self.part.runs * self.latency_s


@dataclass(frozen=True, kw_only=True)
class SegmentSeconds:
    """Seconds of one segment for one micro-batch: of each pass, of what the backward pass computes again, and of what
    replicas exchange of it.
    """

    forward: float
    backward: float
    weights: float
    recompute: float
    gather: float
    reduce: float
    kernels: float
    """Of both passes, without collectives."""
    dispatch: Mapping[str, float]
    """Of the host, for each pass."""


@dataclass(frozen=True, kw_only=True)
class PricedSegment:
    """A segment with the times of its parts, in its order, and of its weights' and gradients' ``exchanges``."""

    segment: Segment
    times: tuple[PartTime, ...]
    exchanges: tuple[PartTime, ...] = ()

    def seconds(self, plan: Plan, engine: Engine, share: float = 0.0) -> SegmentSeconds:
        """What the segment takes under a plan; ``share`` of a device's multiprocessors run its collectives."""
        once = {id(t.part): t.total_s for t in self.times}
        hidden = self._hidden_experts(share) if plan.overlap_experts else dict.fromkeys(PHASES, 0.0)
        return SegmentSeconds(
            forward=self.pass_s("forward") - hidden["forward"],
            backward=self.pass_s("backward") - hidden["backward"],
            weights=self.pass_s("weights") - hidden["weights"],
            dispatch={phase: engine.dispatch_s(self.dispatched(phase)) for phase in PHASES},
            recompute=sum(once[id(part)] for part in recomputed(self.segment, plan.recompute, engine)),
            gather=sum(t.total_s for t in self.exchanges if t.part.name == GATHER),
            reduce=sum(t.total_s for t in self.exchanges if t.part.name == REDUCE),
            kernels=self.kernels_s,
        )

    @property
    def kernels_s(self) -> float:
        """Kernels of all passes [s], without collectives: where stages begin does not depend on links."""
        return sum(t.total_s for t in self.times if not t.part.group)

    def pass_s(self, phase: Phase) -> float:
        """One pass of the segment [s]: its kernels, collectives in their way, and of overlapped ones what kernels do
        not hide.
        """
        exposed_s = sum(t.total_s for t in self._of(phase) if t.part.group and not t.part.overlapped)
        return exposed_s + max(self._beside_s(phase))

    def hides_kernels(self, phase: Phase) -> bool:
        """Whether what is overlapped takes longer than the kernels of a pass."""
        kernels_s, overlapped_s = self._beside_s(phase)
        return overlapped_s > kernels_s

    def _beside_s(self, phase: Phase) -> tuple[float, float]:
        """Kernels of a pass, and collectives that run beside them [s]."""
        times = list(self._of(phase))
        kernels_s = sum(t.total_s for t in times if not t.part.group)
        return kernels_s, sum(t.total_s for t in times if t.part.group and t.part.overlapped)

    def _hidden_experts(self, share: float) -> dict[Phase, float]:
        """Of each pass [s], what exchanges of tokens run beside the kernels of another micro-batch's other pass, less
        by what kernels are slowed while they do (DeepSeek-AI 2024, sections 3.2.1 and 3.2.2).
        """
        exchanges = {phase: sum(t.total_s for t in self._of(phase) if t.part.group == "ep") for phase in PHASES}
        total = sum(exchanges.values())
        hidden = min(total, (1.0 - share) * self.kernels_s) * (1.0 - share) / total if total else 0.0
        return {phase: hidden * each for phase, each in exchanges.items()}

    def dispatched(self, phase: Phase) -> float:
        """What the host does in a pass, see ``workloads.dispatch``."""
        if self.segment.dispatches:
            return dict(self.segment.dispatches).get(phase, 0.0)
        return sum(float(t.part.runs) * part_dispatches(t.part) for t in self._of(phase))

    def _of(self, phase: Phase) -> Iterator[PartTime]:
        return (t for t in self.times if t.part.phase == phase)


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
) -> list[PartTime]:
    """Times of parts that each have one row, in their order; those of many programs are asked for together.

    Kernels follow each other in a stream that the host keeps filled.

    Args:
        parts: kernels and collectives.
        device: that runs them.
        pricer: answers for kernels and collectives.
        engine: whose kernels run.
        factors: what they take in a step over what they take by themselves.

    Raises:
        DeviceError: the device lacks a dtype. CoverageError: no rule for a kernel.
    """

    cost = partial(stream_costs, device=device, pricer=pricer, engine=engine)
    return [
        PartTime(
            part=part,
            latency_s=float(costs.latency_s[0]) * factors.of(part, engine),
            spread=float(costs.spread[0]),
            own_spread=float(costs.own_spread[0]),
            limiter=str(costs.limiter[0]),
            energy_j=float(costs.energy.total_j[0]) if costs.energy else 0.0,
            costs=costs.costs,
            row=int(costs.rows[0]),
        )
        for part, costs in zip(parts, price(parts, cost), strict=True)
    ]
