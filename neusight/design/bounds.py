"""Lower bounds of a training step's time on a device under any plan, linear in the times of the kernels that it runs.

Two kinds of bounds: the time of all kernels of a micro-batch, with the collectives in their way, shared optimally among
stages; and cuts. The end of a step is a maximum of sums of its parts' times, convex in them, so that its
tangent at one device is below it at all others (Kelley 1960, The Cutting-Plane Method for Solving Convex Programs): a
step that was simulated once bounds it on every design. Kernels are priced by a law that is cheap, the roofline, or by
the devices' executor.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from neusight.devices.spec import DeviceSpec
from neusight.distributed.factors import factors_of
from neusight.distributed.priced import Pricer, price_parts, stream_costs
from neusight.distributed.search import plans_of
from neusight.distributed.sources import memory
from neusight.distributed.space import Space
from neusight.distributed.step import TimedStep, programs_by_share
from neusight.distributed.training_run import TrainingRun
from neusight.engines import Engine
from neusight.kernels.families import KernelBatch
from neusight.kernels.work import work_of
from neusight.laws.bounds import bound_of
from neusight.requests import Plan
from neusight.schedule.run import simulate
from neusight.transforms.recompute import recomputed
from neusight.workloads.program import PHASES, Part, Program

MEMORY_MARGIN = 0.02
"""Share of a plan's memory by which it may differ between devices of one space (assumption: rounding of allocators)."""
_FURTHER = 3
"""Terms of a bound other than kernels: bytes of kernels that are not among them, their number, and seconds."""
_AT_ONCE = 1024
"""Devices that are bounded together, which limits memory."""


def least_share(plan: Plan) -> float:
    r"""Least time of a step over that of all kernels of one micro-batch on all stages.

    .. math:: T \ge \frac{W}{1 - (1 - 1 / m)^p}

    A stage starts after the forward passes of the first micro-batch on the stages before it, and ends before the
    backward passes of the last one on them: :math:`T \ge \sum_{j<i} w_j + m w_i` for each i. Of all ways to share
    :math:`W = \sum w_i`, the least T has :math:`w_i = (1 - 1/m)^i T / m`. Of interleaved chunks, and where gradients of
    weights run later, only the mean stage counts: :math:`T \ge m W / p`.

    Args:
        plan: m micro-batches on p stages.
    """
    batches, stages = plan.micro_batches, plan.pp
    if plan.vp > 1 or plan.schedule not in ("1f1b", "gpipe"):
        return batches / stages
    return float(1.0 / (1.0 - (1.0 - 1.0 / batches) ** stages))


class Cut(NamedTuple):
    """A bound of a step under one plan: coefficients of the resources of ``StepBounds``, shape (K + 3,)."""

    plan: Plan
    coefficients: np.ndarray


@dataclass(eq=False, kw_only=True)
class StepBounds:
    """The distinct kernels of all plans of a step, and bounds of the step under each plan.

    Attributes:
        engine: engine that runs the plans.
        plans: all P plans.
        parts: distinct kernels, K.
        counts: runs of a micro-batch on all stages, for S shares and kinds of recomputation, shape (S, K).
        waits_s: time of collectives in the way of kernels for each row of ``counts`` [s], shape (S,).
        split: row of ``counts`` for each plan, shape (P,).
        share: ``least_share`` of each plan, shape (P,).
        needs_bytes: memory that the fullest rank of each plan needs [B], shape (P,).
        cuts: cuts of plans that were simulated.
    """

    engine: Engine
    plans: tuple[Plan, ...]
    parts: tuple[Part, ...]
    counts: np.ndarray
    waits_s: np.ndarray
    split: np.ndarray
    share: np.ndarray
    needs_bytes: np.ndarray
    cuts: list[Cut] = field(default_factory=list)

    @classmethod
    def of(cls, request: TrainingRun, space: Space, pricer: Pricer) -> StepBounds:
        """Bounds of all plans of a space; collectives are timed on the request's links.

        Raises:
            ModelError: no plan divides model and batch.
        """
        plans = tuple(plans_of(request, space))
        runs = [replace(request, plan=plan) for plan in plans]
        programs = programs_by_share(runs)
        keys = [(run.local, run.plan.recompute) for run in runs]
        splits = {key: number for number, key in enumerate(dict.fromkeys(keys))}
        counted = [_count_parts(programs[local], how, request.engine) for local, how in splits]
        parts, counts = _columns(counted, collectives=False)
        waiting, runs_of = _columns(counted, collectives=True)
        device, factors = request.cluster.device, factors_of(request.engine)
        times = price_parts(waiting, device, pricer, request.engine, factors)
        return cls(
            engine=request.engine,
            plans=plans,
            parts=parts,
            counts=counts,
            waits_s=runs_of @ times.latency_s,
            split=np.array([splits[key] for key in keys]),
            share=np.array([least_share(plan) for plan in plans]),
            needs_bytes=np.array([max(rank.total for rank in memory(run)) for run in runs]),
        )

    def roofline(self, device: DeviceSpec) -> np.ndarray:
        """Resources by the roofline, shape (K + 3,): the time of each part's arithmetic and traffic at peak rates,
        times the engine's factor [s]; then the time of a byte, of a cache full of bytes, and of a second.
        """
        return self._resources(device, lambda batch: bound_of(batch, work_of(batch), device).bound_s)

    def priced(self, device: DeviceSpec, pricer: Pricer) -> np.ndarray:
        """Resources like ``roofline``, with kernels timed by the device's executor at full clock, since kernels that
        other kernels leave power to are not slowed.

        Raises:
            DeviceError: the device lacks a dtype. CoverageError: no rule for a kernel.
        """

        def seconds_of(batch: KernelBatch) -> np.ndarray:
            costs = stream_costs(batch, device, pricer, self.engine)
            return np.minimum(costs.latency_s, costs.at_clock(1.0).latency_s)

        return self._resources(device, seconds_of)

    def least_s(self, resources: np.ndarray, usable_bytes: np.ndarray) -> np.ndarray:
        """Least time of a step under any plan that may fit [s], shape (n,); infinite where none does.

        Args:
            resources: resources of each device in a row, shape (n, K + 3).
            usable_bytes: usable memory of each device [B], shape (n,).
        """
        starts = range(0, len(resources), _AT_ONCE)
        return np.concatenate(
            [
                self._least_s(resources[at : at + _AT_ONCE], usable_bytes[at : at + _AT_ONCE]).min(axis=0)
                for at in starts
            ]
        )

    def plans_within(self, resources: np.ndarray, usable_bytes: float, longest_s: float) -> list[Plan]:
        """Plans whose bound on a device is below a time, those of the least bounds first."""
        bounds = self._least_s(resources[None], np.array([usable_bytes]))[:, 0]
        return [self.plans[at] for at in np.argsort(bounds, kind="stable") if bounds[at] < longest_s]

    def _least_s(self, resources: np.ndarray, usable_bytes: np.ndarray) -> np.ndarray:
        """Least time of a step under each plan on each device [s], shape (P, n)."""
        work_s = self.counts @ resources[:, :-_FURTHER].T + self.waits_s[:, None]
        least = self.share[:, None] * work_s[self.split]
        if self.cuts:
            places = {plan: number for number, plan in enumerate(self.plans)}
            rows = np.array([places[cut.plan] for cut in self.cuts])
            np.maximum.at(least, rows, np.array([cut.coefficients for cut in self.cuts]) @ resources.T)
        fits = (1.0 - MEMORY_MARGIN) * self.needs_bytes[:, None] <= usable_bytes
        return np.where(fits, least, np.inf)

    def cut(self, timed: TimedStep) -> Cut:
        """The tangent of a step whose collectives do not slow concurrent kernels: a lower bound of its time on any
        device with the same links.
        """
        schedule, parts = simulate(timed.pipeline, timed.times), timed.parts
        slopes = timed.kernel_slopes(schedule)
        coefficients = np.zeros(len(self.parts) + _FURTHER)
        for place in np.flatnonzero(slopes):
            part, slope = parts.parts[place], float(slopes[place])
            column = self._columns.get(_key(part.batch))
            if column is None:
                weight = slope * factors_of(self.engine).of(part, self.engine)
                coefficients[-_FURTHER:-1] += weight * float(work_of(part.batch).bytes[0]), -weight
            else:
                coefficients[column] += slope
        rest = float(slopes @ parts.latency_s)
        coefficients[-1] = max(0.0, schedule.step_s - rest)
        return Cut(timed.run.plan, coefficients)

    def _resources(self, device: DeviceSpec, seconds_of: Callable[[KernelBatch], np.ndarray]) -> np.ndarray:
        seconds = np.zeros(len(self.parts))
        for rows, batch, factor in self._families:
            seconds[rows] = factor * seconds_of(batch)
        a_byte_s = 1.0 / device.dram_bandwidth_bytes_per_s
        return np.array([*seconds, a_byte_s, device.cached_bytes * a_byte_s, 1.0])

    @cached_property
    def _columns(self) -> dict[Hashable, int]:
        """Column of each part, by its kernel."""
        return {_key(part.batch): number for number, part in enumerate(self.parts)}

    @cached_property
    def _families(self) -> list[tuple[np.ndarray, KernelBatch, np.ndarray]]:
        """Parts of each family: their places, their kernels, and the engine's factors."""
        families: dict[str, list[int]] = {}
        for number, part in enumerate(self.parts):
            families.setdefault(part.batch.family, []).append(number)
        factors = factors_of(self.engine)
        return [
            (
                np.array(numbers),
                KernelBatch.joined([self.parts[number].batch for number in numbers]),
                np.array([factors.of(self.parts[number], self.engine) for number in numbers]),
            )
            for numbers in families.values()
        ]


Counted = dict[Hashable, tuple[Part, float]]
"""Distinct kernels and collectives of a micro-batch on all stages, each with its runs."""


def _count_parts(program: Program, recompute: str, engine: Engine) -> Counted:
    """Runs of kernels, recomputation included, and of collectives in the way of kernels under any plan."""
    total: Counted = {}
    counts = [1, *np.bincount(program.order, minlength=len(program.layers)).tolist(), 1]
    for segment, count in zip(program.segments, counts, strict=True):
        again = recomputed(segment, recompute, engine) if segment.layer >= 0 else ()
        for part in (*(part for part in segment.parts if part.phase in PHASES), *again):
            if not part.group or not (part.overlapped or part.group == "ep"):
                key = _key(part.batch)
                total[key] = part, total.get(key, (part, 0.0))[1] + count * float(part.runs)
    return total


def _columns(counted: Sequence[Counted], *, collectives: bool) -> tuple[tuple[Part, ...], np.ndarray]:
    """Distinct kernels, or collectives, of all counts, and the number of runs of each, a row for each count."""
    parts = {key: part for pairs in counted for key, (part, _) in pairs.items() if bool(part.group) == collectives}
    columns = {key: number for number, key in enumerate(parts)}
    counts = np.zeros((len(counted), len(parts)))
    for row, pairs in enumerate(counted):
        for key, (_, number) in pairs.items():
            if key in columns:
                counts[row, columns[key]] = number
    return tuple(parts.values()), counts


def _key(batch: KernelBatch) -> Hashable:
    return batch.family, *(column[0].item() for column in batch.columns.values())
