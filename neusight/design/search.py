"""The best design of a space for workloads, by branch and bound over all of its designs.

Every design has a bound from the roofline first; where it is among the least, from the kernels of a design that is no
slower than any of a group with it, of ever smaller groups, at last its own; then the fastest plan, simulated. What a
simulation gives is a cut that raises all bounds of that plan. The search ends when no bound is below the best design by
more than the gap: that is its proof. Rounds are of fixed size, so that the answer does not depend on how many workers
share them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic

import numpy as np

from neusight.design import evaluate
from neusight.design.evaluate import Best, DesignQuestion, Workbench
from neusight.design.space import Designs
from neusight.errors import ModelError
from neusight.requests import Plan
from neusight.workers import Worker, shared

PRICED, SIMULATED = 512, 8
"""Designs of a round: whose kernels are priced, and whose plans are simulated."""
CUT_REACH = 1.3
"""Plans whose bounds are so many times as long as the reference's step at most are simulated there for their cuts."""
MOST_CUTS = 64
ROOFLINE, EXACT = -1, 2**30
"""What is known of a design's step: its bound by the roofline, or the step. Between them is the number of the groups,
as ``Designs.loosened`` has them, by whose kernels it is bounded.
"""


@dataclass(frozen=True, kw_only=True)
class Optimum:
    """The best design for some workloads.

    Attributes:
        workloads: their numbers.
        row: number of the design.
        steps_s: of each workload.
        least_share: time of any other design over the best's, at least: 1 is a proof that none is faster.
        designs: in the space.
        priced: designs whose kernels were priced.
        simulated: whose plans were.
        seconds: that the search took.
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
    """What is known of all designs under one workload: a row of resources each, which designs of a group share, the
    bound that follows, and the steps that were simulated.
    """

    bench: Workbench
    rows: list[np.ndarray]
    usable_bytes: list[float]
    place: np.ndarray
    level: np.ndarray
    step_s: np.ndarray
    least_s: np.ndarray
    plans: dict[int, Plan] = field(default_factory=dict)

    def bound(self, designs: np.ndarray) -> None:
        """Bounds of some designs by all cuts: none falls."""
        open_ = designs[self.level[designs] != EXACT]
        if not len(open_):
            return
        distinct, at = np.unique(self.place[open_], return_inverse=True)
        resources = np.array([self.rows[row] for row in distinct])
        least = self.bench.bounds.least_s(resources, np.array([self.usable_bytes[row] for row in distinct]))
        self.least_s[open_] = np.maximum(self.least_s[open_], least[at.ravel()])

    def price(self, designs: np.ndarray, level: int, resources: np.ndarray, usable_bytes: float) -> None:
        """Kernels of a design are known that is no slower than any of these."""
        self.place[designs] = len(self.rows)
        self.rows.append(resources)
        self.usable_bytes.append(usable_bytes)
        self.level[designs] = np.where(self.level[designs] == EXACT, EXACT, level)

    def simulate(self, design: int, best: Best, within_s: float) -> None:
        """The step of a design is known, or that it is no shorter than ``within_s``."""
        if best.cut is not None:
            self.bench.bounds.cuts.append(best.cut)
        if best.plan is None and np.isfinite(within_s):
            self.least_s[design] = max(self.least_s[design], within_s)
            return
        self.step_s[design] = self.least_s[design] = best.step_s
        self.level[design] = EXACT
        if best.plan is not None:
            self.plans[design] = best.plan


@dataclass(eq=False)
class DesignSearch:
    """What is known of the designs of a space, by which searches for the best of some workloads go on.

    Args:
        designs: of the space.
        benches: of the workloads, in this process.
        workers: who price and simulate, begun by ``evaluate.begin`` with the same workloads.
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
        """Simulate a design under all workloads, and all plans there that are within reach for their cuts."""
        numbers, itself = range(len(self.known)), len(self.levels) - 1
        self._price([(number, itself, int(self.levels[-1][1][design])) for number in numbers])
        self._simulate([(number, design) for number in numbers], [np.inf for _ in numbers])
        device, tasks = self.designs.device(design), []
        for number, known in enumerate(self.known):
            longest_s = CUT_REACH * known.step_s[design]
            resources = known.rows[known.place[design]]
            plans = known.bench.bounds.plans_within(resources, device.usable_bytes, longest_s)[:MOST_CUTS]
            tasks += [DesignQuestion(number, device, plans=(plan,)) for plan in plans]
        for task, cut in zip(tasks, shared(self.workers, evaluate.cut, tasks), strict=True):
            self.known[task.workload].bench.bounds.cuts.append(cut)

    def simulate_all(self) -> None:
        """Every design under every workload, whatever its bound is: what bounds are checked against."""
        pairs = [(number, design) for number in range(len(self.known)) for design in range(len(self.designs))]
        tasks = [DesignQuestion(number, self.designs.device(design)) for number, design in pairs]
        for (number, design), best in zip(pairs, shared(self.workers, evaluate.best, tasks), strict=True):
            self.known[number].simulate(design, best, np.inf)

    def optimum(
        self,
        workloads: Sequence[int],
        gap: float = 0.0,
        limit_s: float = np.inf,
        within: np.ndarray | None = None,
    ) -> Optimum:
        """The design of the least geometric mean of the workloads' steps; of equals the smallest.

        Args:
            workloads: their numbers.
            gap: by how much, as a share, a design may be faster that is not found.
            limit_s: seconds after which the search ends with the bound that it has then.
            within: which designs may be taken, shape (n,); default all.

        Raises:
            ModelError: no plan fits on any design.
        """
        began, chosen = monotonic(), [self.known[number] for number in workloads]
        admitted = np.ones(len(self.designs), bool) if within is None else within
        before, left = self._counts(workloads), np.flatnonzero(admitted)
        while True:
            for known in chosen:
                known.bound(left)
            mean = np.mean([np.log(known.least_s) for known in chosen], axis=0)
            exact = admitted & np.all([known.level == EXACT for known in chosen], axis=0)
            best = self._least(np.where(exact, mean, np.inf))
            # Bounds rise and the best falls, so that what is not left now will not be again.
            left = left[~exact[left] & (mean[left] < (mean[best] - np.log1p(gap) if exact.any() else np.inf))]
            least = float(np.exp(mean[left].min() - mean[best])) if len(left) and exact.any() else 1.0
            if self.progress:
                self.progress(least)
            if not len(left) or monotonic() - began > limit_s:
                break
            self._refine(workloads, left[np.lexsort((left, mean[left]))], mean[best] if exact.any() else np.inf)
        if not exact.any() or not np.isfinite(mean[best]):
            raise ModelError(
                f"no plan of {self.benches[workloads[0]].workload.name} fits on any design: take more devices"
            )
        priced, simulated = (after - start for after, start in zip(self._counts(workloads), before, strict=True))
        return Optimum(
            workloads=tuple(workloads),
            row=best,
            steps_s=tuple(float(known.step_s[best]) for known in chosen),
            least_share=min(1.0, max(least, 1.0 / (1.0 + gap)) if not len(left) else least),
            designs=len(self.designs),
            priced=priced,
            simulated=simulated,
            seconds=monotonic() - began,
        )

    def _least(self, mean: np.ndarray) -> int:
        """Of the designs of the least mean the one of least area, the first of those."""
        same = np.flatnonzero(mean <= mean.min())
        return int(same[np.lexsort((same, self.designs.area_mm2[same]))][0])

    def _counts(self, workloads: Sequence[int]) -> tuple[int, int]:
        """Designs whose own kernels are known, and whose step is."""
        levels = np.max([self.known[number].level for number in workloads], axis=0)
        return int((levels >= len(self.levels) - 1).sum()), int((levels == EXACT).sum())

    def _refine(self, workloads: Sequence[int], left: np.ndarray, best: float) -> None:
        """The next round: kernels of smaller groups of the designs of least bounds, or, where it is a design's own that
        are known, its plans.
        """
        first, itself = left[:SIMULATED], len(self.levels) - 1
        if any(self.known[n].level[d] < itself for d in first for n in workloads):
            self._price(self._next_groups(workloads, left))
            return
        logs = {n: np.log(self.known[n].least_s[first]) for n in workloads}
        others = sum(logs.values())
        pairs, within_s = [], []
        for at, design in enumerate(first.tolist()):
            for n in workloads:
                if self.known[n].level[design] != EXACT:
                    pairs.append((n, design))
                    # Beyond it the mean is no less than the best's, whatever the other workloads take.
                    within_s.append(float(np.exp(len(workloads) * best - (others[at] - logs[n][at]))))
        self._simulate(pairs, within_s)

    def _next_groups(self, workloads: Sequence[int], left: np.ndarray) -> list[tuple[int, int, int]]:
        """Workload, level and number of the groups of designs, the least first, that are next to be priced."""
        itself = len(self.levels) - 1
        found: dict[tuple[int, int, int], None] = {}
        for design in left:
            for n in workloads:
                if (level := int(self.known[n].level[design]) + 1) <= itself:
                    found.setdefault((n, level, int(self.levels[level][1][design])))
            if len(found) >= PRICED:
                break
        return list(found)

    def _price(self, asked: Sequence[tuple[int, int, int]]) -> None:
        """Price the designs that are no slower than any of a group."""
        devices = [self.levels[level][0].device(group) for _, level, group in asked]
        tasks = [DesignQuestion(number, device) for (number, _, _), device in zip(asked, devices, strict=True)]
        found = shared(self.workers, evaluate.priced, tasks)
        for (number, level, group), device, resources in zip(asked, devices, found, strict=True):
            known = self.known[number]
            members = np.flatnonzero((self.levels[level][1] == group) & (known.level < level))
            known.price(members, level, resources, device.usable_bytes)

    def _simulate(self, pairs: Sequence[tuple[int, int]], within_s: Sequence[float]) -> None:
        tasks = [self._task(*pair, longest_s) for pair, longest_s in zip(pairs, within_s, strict=True)]
        found = shared(self.workers, evaluate.best, tasks)
        for (number, design), longest_s, best in zip(pairs, within_s, found, strict=True):
            self.known[number].simulate(design, best, longest_s)

    def _task(self, number: int, design: int, within_s: float) -> DesignQuestion:
        known, device = self.known[number], self.designs.device(design)
        resources = known.rows[known.place[design]]
        plans = known.bench.bounds.plans_within(resources, device.usable_bytes, within_s)
        return DesignQuestion(number, device, within_s, tuple(plans))
