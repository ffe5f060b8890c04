"""The best design of a space for workloads, by branch and bound over all of its designs.

Every design has a bound from the roofline first; where it is among the least, from the kernels of a design that is no
slower than any of its group, for ever smaller groups, at last its own; then the fastest plan, simulated. A
simulation gives a cut that raises all bounds of that plan. The search ends when no bound is below the best design by
more than the gap: that is its proof. Rounds are of fixed size, so that the answer does not depend on how many workers
share them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic

import numpy as np

from neusight.design import evaluate
from neusight.design.evaluate import DesignQuestion, Simulated, Workbench
from neusight.design.space import Designs
from neusight.devices.spec import DeviceSpec
from neusight.errors import ModelError
from neusight.requests import Plan
from neusight.workers import Worker, shared

PRICED, SIMULATED, PLANS = 512, 4, 8
"""Limits of a round: groups of designs whose kernels are priced; designs that are simulated, and plans of each."""
EACH = 4
"""Plans that a worker simulates at a time."""
REFERENCE_PLANS = 64
"""Plans of the least bounds that are simulated on the reference, for their cuts."""
ROOFLINE, EXACT = -1, 2**30
"""Levels of knowledge of a design's step: its bound by the roofline, or the step. Between them is the number of the
groups, see ``Designs.loosened``, by whose kernels it is bounded.
"""


@dataclass(frozen=True, kw_only=True)
class Optimum:
    """The best design for some workloads.

    Attributes:
        workloads: numbers of the workloads.
        row: number of the design.
        steps_s: step of each workload [s].
        least_share: lower bound of the time of any other design over the best's: 1 proves that none is faster.
        designs: number of designs in the space.
        priced: number of designs whose kernels were priced.
        simulated: number of designs whose plans were simulated.
        seconds: duration of the search [s].
    """

    workloads: tuple[int, ...]
    row: int
    steps_s: tuple[float, ...]
    least_share: float
    designs: int
    priced: int
    simulated: int
    seconds: float


@dataclass(eq=False)
class _KnownDesigns:
    """Knowledge of all designs under one workload: resources, which designs of a group share, the bound that follows,
    the least simulated step with its plan, and all simulated plans.
    """

    bench: Workbench
    rows: list[np.ndarray]
    usable_bytes: list[float]
    place: np.ndarray
    level: np.ndarray
    step_s: np.ndarray
    least_s: np.ndarray
    plans: dict[int, Plan] = field(default_factory=dict)
    tried: dict[int, set[Plan]] = field(default_factory=dict)

    def bound(self, designs: np.ndarray) -> None:
        """Raise the bounds of some designs by all cuts."""
        open_ = designs[self.level[designs] != EXACT]
        if not len(open_):
            return
        distinct, at = np.unique(self.place[open_], return_inverse=True)
        resources = np.array([self.rows[row] for row in distinct])
        least = self.bench.bounds.least_s(resources, np.array([self.usable_bytes[row] for row in distinct]))
        self.least_s[open_] = np.maximum(self.least_s[open_], least[at.ravel()])

    def price(self, designs: np.ndarray, level: int, resources: np.ndarray, usable_bytes: float) -> None:
        """Record the kernels of a design that is no slower than any of ``designs``."""
        self.place[designs] = len(self.rows)
        self.rows.append(resources)
        self.usable_bytes.append(usable_bytes)
        self.level[designs] = np.where(self.level[designs] == EXACT, EXACT, level)

    def open_plans(self, design: int, device: DeviceSpec, within_s: float) -> list[Plan]:
        """Plans that were not simulated and may be faster than a time and than the simulated ones."""
        within_s, tried = min(within_s, float(self.step_s[design])), self.tried.get(design, set())
        resources = self.rows[self.place[design]]
        plans = self.bench.bounds.plans_within(resources, device.usable_bytes, within_s)
        return [plan for plan in plans if plan not in tried]

    def simulate(self, design: int, found: Sequence[Simulated]) -> None:
        """Record the simulated steps of a design under some plans."""
        for step in found:
            self.tried.setdefault(design, set()).add(step.plan)
            if step.cut is not None:
                self.bench.bounds.cuts.append(step.cut)
            if step.step_s < self.step_s[design]:
                self.step_s[design], self.plans[design] = step.step_s, step.plan

    def settle(self, design: int, within_s: float) -> None:
        """Record that no other plan of a design is faster than a time or than the simulated ones."""
        least_s = min(within_s, float(self.step_s[design]))
        self.least_s[design] = max(self.least_s[design], least_s)
        if least_s == self.step_s[design]:
            self.least_s[design], self.level[design] = least_s, EXACT


@dataclass(eq=False)
class DesignSearch:
    """Knowledge of the designs of a space, with which searches for the best design of some workloads continue.

    Args:
        designs: designs of the space.
        benches: workbenches of the workloads, in this process.
        workers: workers that price and simulate, begun by ``evaluate.begin`` with the same workloads.
        progress: called with (workload or None, bound over best) after each round.
    """

    designs: Designs
    benches: Sequence[Workbench]
    workers: Sequence[Worker]
    progress: Callable[[float], None] | None = None

    def __post_init__(self) -> None:
        rows, groups = self.designs.alike()
        devices = [self.designs.device(int(row)) for row in rows]
        self.levels = self.designs.loosened()
        self.known = [
            _KnownDesigns(
                bench=bench,
                rows=[bench.bounds.roofline(device) for device in devices],
                usable_bytes=[device.usable_bytes for device in devices],
                place=groups.copy(),
                level=np.full(len(self.designs), ROOFLINE),
                step_s=np.full(len(self.designs), np.inf),
                least_s=np.zeros(len(self.designs)),
            )
            for bench in self.benches
        ]

    def refer(self, design: int) -> None:
        """Simulate a design under all workloads, and its plans of the least bounds for their cuts."""
        numbers, itself = range(len(self.known)), len(self.levels) - 1
        self._price([(number, itself, int(self.levels[-1][1][design])) for number in numbers])
        self._settle([(number, design) for number in numbers])
        device = self.designs.device(design)
        open_ = [state.open_plans(design, device, np.inf)[:REFERENCE_PLANS] for state in self.known]
        self._simulate([(number, design, plans) for number, plans in zip(numbers, open_, strict=True)])

    def simulate_all(self) -> None:
        """Simulate every design under every workload regardless of its bound: a check of the bounds."""
        self._settle([(number, design) for number in range(len(self.known)) for design in range(len(self.designs))])

    def _settle(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Find the fastest plan of workloads on designs."""
        tasks = [DesignQuestion(number, self.designs.device(design)) for number, design in pairs]
        for (number, design), best in zip(pairs, shared(self.workers, evaluate.best, tasks), strict=True):
            self.known[number].simulate(design, [] if best is None else [best])
            self.known[number].settle(design, np.inf)

    def optimum(
        self,
        workloads: Sequence[int],
        gap: float = 0.0,
        limit_s: float = np.inf,
        within: np.ndarray | None = None,
    ) -> Optimum:
        """The design of the least geometric mean of the workloads' steps; of equals the smallest.

        Args:
            workloads: numbers of the workloads.
            gap: share by which a design that is not found may be faster.
            limit_s: time after which the search ends with the bound that it has then [s].
            within: mask of the designs that are admitted, shape (n,); default all.

        Raises:
            ModelError: no plan fits on any design.
        """
        began, chosen = monotonic(), [self.known[number] for number in workloads]
        admitted = np.ones(len(self.designs), bool) if within is None else within
        before, left = self._counts(workloads), np.flatnonzero(admitted)
        while True:
            for state in chosen:
                state.bound(left)
            mean = np.mean([np.log(state.least_s) for state in chosen], axis=0)
            exact = np.all([state.level == EXACT for state in chosen], axis=0)
            steps = np.where(admitted, np.mean([np.log(state.step_s) for state in chosen], axis=0), np.inf)
            best = self._least(steps)
            # Bounds rise and the best falls, so that what is not left now will not be again.
            left = left[~exact[left] & (mean[left] < steps[best] - np.log1p(gap))]
            least = float(np.exp(mean[left].min() - steps[best])) if len(left) and np.isfinite(steps[best]) else 1.0
            if self.progress:
                self.progress(least)
            if not len(left) or monotonic() - began > limit_s:
                break
            self._refine(workloads, left[np.lexsort((left, mean[left]))], float(steps[best]))
        if not np.isfinite(steps[best]):
            raise ModelError(
                f"no plan of {self.benches[workloads[0]].workload.name} fits on any design: take more devices"
            )
        priced, simulated = (after - start for after, start in zip(self._counts(workloads), before, strict=True))
        return Optimum(
            workloads=tuple(workloads),
            row=best,
            steps_s=tuple(float(state.step_s[best]) for state in chosen),
            least_share=min(1.0, max(least, 1.0 / (1.0 + gap)) if not len(left) else least),
            designs=len(self.designs),
            priced=priced,
            simulated=simulated,
            seconds=monotonic() - began,
        )

    def _least(self, mean: np.ndarray) -> int:
        """The first design of least area among those of the least mean."""
        same = np.flatnonzero(mean <= mean.min())
        return int(same[np.lexsort((same, self.designs.area_mm2[same]))][0])

    def _counts(self, workloads: Sequence[int]) -> tuple[int, int]:
        """Numbers of designs whose kernels are priced individually, and of simulated ones."""
        levels = np.max([self.known[number].level for number in workloads], axis=0)
        simulated = {design for number in workloads for design in self.known[number].tried}
        return int((levels >= len(self.levels) - 1).sum()), len(simulated)

    def _refine(self, workloads: Sequence[int], left: np.ndarray, best: float) -> None:
        """Run the next round: price kernels of smaller groups of the designs of least bounds, or, where a design's
        kernels are priced individually, simulate its plans.
        """
        first, itself = left[:SIMULATED], len(self.levels) - 1
        if any(self.known[n].level[d] < itself for d in first for n in workloads):
            self._price(self._next_groups(workloads, left))
            return
        logs = {n: np.log(self.known[n].least_s[first]) for n in workloads}
        others, requests = sum(logs.values()), []
        for at, design in enumerate(first.tolist()):
            device = self.designs.device(design)
            for n in workloads:
                state = self.known[n]
                # Beyond it the mean is no less than the best's, for any time of the other workloads.
                within_s = float(np.exp(len(workloads) * best - (others[at] - logs[n][at])))
                plans = state.open_plans(design, device, within_s) if state.level[design] != EXACT else []
                if plans:
                    requests.append((n, design, plans[:PLANS]))
                else:
                    state.settle(design, within_s)
        self._simulate(requests)

    def _next_groups(self, workloads: Sequence[int], left: np.ndarray) -> list[tuple[int, int, int]]:
        """Workload, level and number of the next groups of designs to price, those of the least bounds first."""
        itself = len(self.levels) - 1
        groups: dict[tuple[int, int, int], None] = {}
        for design in left:
            for n in workloads:
                if (level := int(self.known[n].level[design]) + 1) <= itself:
                    groups.setdefault((n, level, int(self.levels[level][1][design])))
            if len(groups) >= PRICED:
                break
        return list(groups)

    def _price(self, asked: Sequence[tuple[int, int, int]]) -> None:
        """Price the designs that are no slower than any of a group."""
        devices = [self.levels[level][0].device(group) for _, level, group in asked]
        tasks = [DesignQuestion(number, device) for (number, _, _), device in zip(asked, devices, strict=True)]
        resources_of = shared(self.workers, evaluate.priced, tasks)
        for (number, level, group), device, resources in zip(asked, devices, resources_of, strict=True):
            state = self.known[number]
            members = np.flatnonzero((self.levels[level][1] == group) & (state.level < level))
            state.price(members, level, resources, device.usable_bytes)

    def _simulate(self, asked: Sequence[tuple[int, int, Sequence[Plan]]]) -> None:
        """Simulate workloads on designs under some plans each."""
        tasks, owners = [], []
        for number, design, plans in asked:
            device = self.designs.device(design)
            for start in range(0, len(plans), EACH):
                tasks.append(DesignQuestion(number, device, tuple(plans[start : start + EACH])))
                owners.append((number, design))
        for (number, design), steps in zip(owners, shared(self.workers, evaluate.simulated, tasks), strict=True):
            self.known[number].simulate(design, steps)
