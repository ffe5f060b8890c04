"""The answer to a search: the best design of each workload beside a device, with the interval of the gain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

from neusight.design import evaluate
from neusight.design.search import DesignSearch, Optimum
from neusight.design.space import DesignSpace
from neusight.design.workloads import Training
from neusight.devices.load import load_device
from neusight.errors import DataError
from neusight.requests import Plan
from neusight.what_if.gain import Gain
from neusight.workers import hired


@dataclass(frozen=True, kw_only=True)
class BestDesign:
    """The best design for a workload, and what its throughput is over that of another device."""

    workload: Training
    design: dict[str, float]
    area_mm2: float
    power_w: float
    optimum: Optimum
    plan: str
    gain: Gain

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
    workloads: Sequence[Training],
    *,
    against: str = "",
    gap: float = 0.0,
    limit_s: float = 600.0,
    jobs: int = 1,
    ray: str = "",
) -> list[BestDesign]:
    """The best design of a space for each workload.

    Args:
        space: of designs.
        workloads: each by itself.
        against: a device to compare with; "" for the space's baseline.
        gap: by how much, as a share, a design may be faster that is not found.
        limit_s: seconds for all workloads.
        jobs, ray: who share the work, see ``workers.hired``.

    Raises:
        DataError: a space without a baseline. ModelError: no plan fits.
    """
    if not space.baseline:
        raise DataError(f"{space.id} states no baseline: add a table [baseline] with a value of each axis")
    began, designs = monotonic(), space.admitted
    first = designs.row(**space.baseline)
    usual = designs.device(first)
    beside = load_device(against) if against else usual

    found = []
    with hired(jobs, ray, evaluate.begin, tuple(workloads), usual) as workers:
        # This process bounds and estimates, whoever else prices.
        evaluate.begin(tuple(workloads), usual)
        benches = evaluate.benches()
        search = DesignSearch(designs, benches, workers)
        search.refer(first)
        for number, bench in enumerate(benches):
            left_s = (limit_s - (monotonic() - began)) / (len(benches) - number)
            best = search.optimum([number], gap, left_s)
            after = bench.estimate(designs.device(best.row), search.known[number].plans[best.row])
            before = bench.estimate(beside, bench.best(beside).plan or after.plan)
            found.append(
                BestDesign(
                    workload=bench.workload,
                    design=designs.described(best.row),
                    area_mm2=float(designs.area_mm2[best.row]),
                    power_w=float(designs.power_w[best.row]),
                    optimum=best,
                    plan=_plan_words(after.plan),
                    gain=Gain.of(before, after, "throughput"),
                )
            )
    return found


def _plan_words(plan: Plan) -> str:
    degrees = f"dp {plan.dp} x tp {plan.tp} x pp {plan.pp}"
    return f"{degrees}, micro-batches of {plan.micro_batch}, recompute {plan.recompute}"
