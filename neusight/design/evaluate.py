"""Evaluation of a design for a workload: kernels priced, plans simulated, in any process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from neusight.api import Predictor
from neusight.design.bounds import Cut, StepBounds
from neusight.design.workloads import DesignTraining
from neusight.devices.spec import DeviceSpec
from neusight.distributed.estimate import TrainingEstimate
from neusight.distributed.exchanges import contention
from neusight.distributed.search import search
from neusight.distributed.sources import memory
from neusight.distributed.step import TimedStep, timed
from neusight.distributed.training_run import TrainingRun
from neusight.errors import ModelError
from neusight.requests import Plan
from neusight.schedule.run import step_s

_TOGETHER = 4
"""Plans that are simulated at once: the first few decide."""


class Simulated(NamedTuple):
    """A workload's step under a plan on a device, with its cut; infinite, and without a cut, where it does not fit."""

    plan: Plan
    step_s: float
    cut: Cut | None = None


@dataclass(frozen=True, eq=False)
class Workbench:
    """A workload on devices that differ from ``usual`` in their figures, not in their links."""

    predictor: Predictor
    workload: DesignTraining
    usual: DeviceSpec

    @cached_property
    def bounds(self) -> StepBounds:
        """Bounds of the workload without cuts.

        Raises:
            ModelError: no plan divides model and batch.
        """
        pricer = self.predictor.on_cluster(self.run.cluster, self.run.engine)
        return StepBounds.of(self.run, self.workload.space, pricer)

    @cached_property
    def run(self) -> TrainingRun:
        """The step on the usual device."""
        return self.workload.run(self.predictor, self.usual)

    def on(self, device: DeviceSpec) -> TrainingRun:
        """The step on another device."""
        return replace(self.run, cluster=self.run.cluster.model_copy(update={"device": device}))

    def priced(self, device: DeviceSpec) -> np.ndarray:
        """Resources of the step on a device, see ``StepBounds.priced``."""
        run = self.on(device)
        return self.bounds.priced(device, self.predictor.on_cluster(run.cluster, run.engine))

    def best(self, device: DeviceSpec) -> Simulated | None:
        """The fastest plan, without its cut; None where no plan fits."""
        run = self.on(device)
        pricer = self.predictor.on_cluster(run.cluster, run.engine)
        try:
            fastest = search(run, pricer, self.workload.space, 1, reach=1.0, together=_TOGETHER).best[0]
        except ModelError:
            return None
        return Simulated(fastest.plan, fastest.latency_s)

    def simulated(self, device: DeviceSpec, plans: Sequence[Plan]) -> list[Simulated]:
        """The step under each of some plans."""
        run, steps_simulated = self.on(device), []
        pricer = self.predictor.on_cluster(run.cluster, run.engine)
        for start in range(0, len(plans), _TOGETHER):
            runs = [replace(run, plan=plan) for plan in plans[start : start + _TOGETHER]]
            fitting = [r for r in runs if max(rank.total for rank in memory(r)) <= device.usable_bytes]
            steps = {made.run.plan: made for made in timed(fitting, pricer)} if fitting else {}
            steps_simulated += [self._simulate(r, steps.get(r.plan)) for r in runs]
        return steps_simulated

    def _simulate(self, run: TrainingRun, made: TimedStep | None) -> Simulated:
        if made is None:
            return Simulated(run.plan, np.inf)
        whole_s = step_s(made.pipeline, made.times, contention(run))
        return Simulated(run.plan, whole_s, self.bounds.cut(made))

    def estimate(self, device: DeviceSpec, plan: Plan) -> TrainingEstimate:
        """Estimate of the step under a plan on a device."""
        return self.predictor.training(replace(self.on(device), plan=plan))


class DesignQuestion(NamedTuple):
    """A question to a workbench, about some plans or about the best one."""

    workload: int
    device: DeviceSpec
    plans: tuple[Plan, ...] = ()


_BENCHES: list[Workbench] = []
"""Workbenches of this process, once ``begin`` has been called."""


def begin(workloads: Sequence[DesignTraining], usual: DeviceSpec, tile_models: Path | None = None) -> None:
    """Set this process up to answer for workloads on devices like ``usual``."""
    predictor = _predictor(tile_models)
    _BENCHES[:] = [Workbench(predictor, workload, usual) for workload in workloads]


def benches() -> list[Workbench]:
    """Workbenches of this process."""
    return list(_BENCHES)


@lru_cache(maxsize=2)
def _predictor(tile_models: Path | None) -> Predictor:
    return Predictor.load(tile_models)


def priced(task: DesignQuestion) -> np.ndarray:
    """Resources of a workload on a device."""
    return _BENCHES[task.workload].priced(task.device)


def best(task: DesignQuestion) -> Simulated | None:
    """The fastest plan of a workload on a device, regardless of its bound."""
    return _BENCHES[task.workload].best(task.device)


def simulated(task: DesignQuestion) -> list[Simulated]:
    """A workload's step under plans on a device."""
    return _BENCHES[task.workload].simulated(task.device, task.plans)
