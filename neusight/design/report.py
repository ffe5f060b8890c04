"""The answer to a search: the best designs of each workload compared with a device, with intervals of the gains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any

import numpy as np

from neusight.design import evaluate
from neusight.design.front import limits, pareto_front
from neusight.design.search import DesignSearch, Optimum
from neusight.design.space import DesignSpace
from neusight.design.workloads import DesignTraining
from neusight.devices.load import load_device
from neusight.devices.spec import DeviceSpec
from neusight.distributed.estimate import TrainingEstimate
from neusight.errors import DataError, ModelError
from neusight.requests import Plan
from neusight.what_if.gain import Gain
from neusight.workers import hired


@dataclass(frozen=True, kw_only=True)
class BestDesign:
    """The best design for a workload, and its throughput over that of another device."""

    workload: DesignTraining
    design: dict[str, float]
    area_mm2: float
    power_w: float
    optimum: Optimum
    plan: str
    gain: Gain

    @property
    def design_words(self) -> str:
        """Values of the design's axes in words."""
        return " ".join(f"{name}={value:g}" for name, value in self.design.items())

    def to_dict(self) -> dict[str, Any]:
        """Plain data, one level deep."""
        share = self.optimum.least_share
        return {
            "workload": self.workload.name, **self.design, "area_mm2": self.area_mm2, "power_w": self.power_w,
            "step_s": self.optimum.steps_s[0], "plan": self.plan, "gain": self.gain.ratio, "gain_low": self.gain.low,
            "gain_high": self.gain.high, "gap": 1.0 / share - 1.0, "designs": self.optimum.designs,
            "priced": self.optimum.priced, "simulated": self.optimum.simulated, "seconds": self.optimum.seconds,
        }  # fmt: skip


def answers(
    space: DesignSpace,
    workloads: Sequence[DesignTraining],
    *,
    against: str = "",
    gap: float = 0.0,
    limit_s: float = 600.0,
    front: int = 0,
    every: bool = False,
    progress: Callable[[float], None] | None = None,
    jobs: int = 1,
    ray: str = "",
) -> list[BestDesign]:
    """The best design of a space for each workload, or the designs that no other beats.

    Args:
        space: space of designs.
        workloads: workloads, each with a separate search.
        against: a device to compare with; "" for the space's baseline.
        gap: share by which a design that is not found may be faster.
        limit_s: time for all workloads [s].
        front: number of limits of area, and of power, below each of which the best design is searched too: the Pareto
            front of these is returned.
        every: True if every design is simulated, regardless of its bound.
        progress: called with the bound over the best so far after each round.
        jobs, ray: processes that share the work, see ``workers``.

    Raises:
        DataError: a space without a baseline. ModelError: no plan fits.
    """
    if not space.baseline:
        raise DataError(f"{space.id} states no baseline: add a table [baseline] with a value of each axis")
    ends, designs = monotonic() + limit_s, space.admitted
    usual = space.baseline_device
    compared = load_device(against) if against else usual
    with hired(jobs, ray, evaluate.begin, tuple(workloads), usual) as workers:
        # This process bounds and estimates, even if others price.
        evaluate.begin(tuple(workloads), usual)
        search = DesignSearch(designs, evaluate.benches(), workers, progress)
        search.refer(designs.nearest(**space.baseline))
        if every:
            search.simulate_all()
        judges = [_Judge(search, number, compared) for number in range(len(workloads))]
        bests: list[BestDesign] = []
        for judge in judges:
            searches = (len(judges) - judge.number) * (1 + 2 * front)
            bests += judge.front(front, gap, (ends - monotonic()) / searches)
        if not front:
            # Workloads whose proof is open share the time that others did not need.
            still = [number for number, best in enumerate(bests) if best.optimum.least_share < 1.0 / (1.0 + gap)]
            for done, number in enumerate(still):
                bests[number] = judges[number].longer(bests[number], gap, (ends - monotonic()) / (len(still) - done))
    return bests


@dataclass(eq=False)
class _Judge:
    """Searches for one workload, with a comparison of the result with a device."""

    search: DesignSearch
    number: int
    beside: DeviceSpec
    before: TrainingEstimate | None = field(default=None, init=False)

    def front(self, count: int, gap: float, limit_s: float) -> list[BestDesign]:
        """The best design, and with ``count`` the Pareto front of those below that many limits of area and of power."""
        best = self.best(gap, limit_s)
        if not count:
            return [best]
        candidates = [best]
        for within in limits(self.search.designs, best.optimum.row, count):
            # The least designs may have too little memory for any plan.
            with suppress(ModelError):
                candidates.append(self.best(gap, limit_s, within))
        return pareto_front(candidates)

    def longer(self, found: BestDesign, gap: float, limit_s: float) -> BestDesign:
        """The best design after ``limit_s`` more seconds."""
        more, before = self.best(gap, limit_s), found.optimum
        spent = ("priced", "simulated", "seconds")
        sums = {name: getattr(before, name) + getattr(more.optimum, name) for name in spent}
        return replace(more, optimum=replace(more.optimum, **sums))

    def best(self, gap: float, limit_s: float, within: np.ndarray | None = None) -> BestDesign:
        """The best of the admitted designs."""
        optimum = self.search.optimum([self.number], gap, limit_s, within)
        designs, row, bench = self.search.designs, optimum.row, self.search.benches[self.number]
        after = bench.estimate(designs.device(row), self.search.known[self.number].plans[row])
        if self.before is None:
            other = bench.best(self.beside)
            self.before = bench.estimate(self.beside, other.plan if other else after.plan)
        return BestDesign(
            workload=bench.workload,
            design=designs.described(row),
            area_mm2=float(designs.area_mm2[row]),
            power_w=float(designs.power_w[row]),
            optimum=optimum,
            plan=_plan_words(after.plan),
            gain=Gain.of(self.before, after, "throughput"),
        )


def _plan_words(plan: Plan) -> str:
    degrees = f"dp {plan.dp} x tp {plan.tp} x pp {plan.pp}"
    return f"{degrees}, micro-batches of {plan.micro_batch_size}, recompute {plan.recompute}"
