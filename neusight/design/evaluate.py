"""What a design does for a workload: kernels priced, plans simulated, in whichever process is asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from neusight.api import Predictor
from neusight.design.bounds import Cut, StepBounds
from neusight.design.workloads import Training
from neusight.devices.spec import DeviceSpec
from neusight.distributed.estimate import TrainingEstimate
from neusight.distributed.search import search
from neusight.distributed.step import timed
from neusight.distributed.training_run import TrainingRun
from neusight.requests import Plan

_TOGETHER = 4
"""Plans that are simulated at once: the first few decide."""
LONGEST_S = 1e7
"""Of a step that is still one: where no plan fits, none is shorter."""


class Best(NamedTuple):
    """The fastest plan of a workload on a device; ``step_s`` is infinite and there is no plan where none fits, or none
    is as fast as was asked for. With the cut of its simulation, or of the first plan that was asked for: what refuted
    the bound of this device raises those of others.
    """

    step_s: float
    plan: Plan | None = None
    cut: Cut | None = None


@dataclass(frozen=True, eq=False)
class Workbench:
    """A workload on devices that differ from ``usual`` in their figures, not in their links."""

    predictor: Predictor
    workload: Training
    usual: DeviceSpec

    @cached_property
    def bounds(self) -> StepBounds:
        """Without cuts.

        Raises:
            ModelError: no plan divides model and batch.
        """
        return StepBounds.of(self.run, self.workload.space)

    @cached_property
    def run(self) -> TrainingRun:
        """The step on the usual device."""
        return self.workload.run(self.predictor, self.usual)

    def on(self, device: DeviceSpec) -> TrainingRun:
        """The step on another."""
        return replace(self.run, cluster=self.run.cluster.model_copy(update={"device": device}))

    def priced(self, device: DeviceSpec) -> np.ndarray:
        """Resources of a step there, see ``StepBounds.priced``."""
        run = self.on(device)
        return self.bounds.priced(device, self.predictor.on_cluster(run.cluster, run.engine))

    def best(self, device: DeviceSpec, within_s: float = np.inf, plans: Sequence[Plan] = ()) -> Best:
        """The fastest plan, of those that may be faster than ``within_s``, or of ``plans``."""
        run = self.on(device)
        pricer = self.predictor.on_cluster(run.cluster, run.engine)
        space, longest_s = self.workload.space, min(within_s, LONGEST_S)
        found = search(run, pricer, space, 1, reach=1.0, within_s=longest_s, together=_TOGETHER, plans=plans).best
        if not found or found[0].latency_s >= longest_s:
            return Best(np.inf, cut=self.cut(device, plans[0]) if plans else None)
        return Best(found[0].latency_s, found[0].plan, self.cut(device, found[0].plan))

    def cut(self, device: DeviceSpec, plan: Plan) -> Cut:
        """Of the step under a plan there."""
        return self.bounds.cut(self._timed(device, plan))

    def estimate(self, device: DeviceSpec, plan: Plan) -> TrainingEstimate:
        """Of the step under a plan there."""
        return self.predictor.training(replace(self.on(device), plan=plan))

    def _timed(self, device: DeviceSpec, plan: Plan):  # type: ignore[no-untyped-def]
        run = self.on(device)
        (step,) = timed([replace(run, plan=plan)], self.predictor.on_cluster(run.cluster, run.engine))
        return step


class DesignQuestion(NamedTuple):
    """A question to a workbench: about ``plans`` alone where there are any, and steps shorter than ``within_s``."""

    workload: int
    device: DeviceSpec
    within_s: float = np.inf
    plans: tuple[Plan, ...] = ()


_BENCHES: list[Workbench] = []
"""Of this process, once ``begin`` has been called."""


def begin(workloads: Sequence[Training], usual: DeviceSpec, tile_models: Path | None = None) -> None:
    """Set this process up to answer for workloads on devices like ``usual``."""
    predictor = _predictor(tile_models)
    _BENCHES[:] = [Workbench(predictor, workload, usual) for workload in workloads]


def benches() -> list[Workbench]:
    """Those of this process."""
    return list(_BENCHES)


@lru_cache(maxsize=2)
def _predictor(tile_models: Path | None) -> Predictor:
    return Predictor.load(tile_models)


def priced(task: DesignQuestion) -> np.ndarray:
    """Resources of a workload on a device."""
    return _BENCHES[task.workload].priced(task.device)


def best(task: DesignQuestion) -> Best:
    """The fastest plan of a workload on a device."""
    return _BENCHES[task.workload].best(task.device, task.within_s, task.plans)


def cut(task: DesignQuestion) -> Cut:
    """Of a workload's step under a plan on a device."""
    return _BENCHES[task.workload].cut(task.device, task.plans[0])
