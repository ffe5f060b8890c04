"""The best design of a space for workloads, by branch and bound over all of its designs.

Every design has a bound from the roofline first, then, where it is among the least, from its executor's kernels, then
the fastest plan, simulated. What a simulation gives is a cut that raises all bounds of that plan. The search ends when
no bound is below the best design by more than the gap: that is its proof. Rounds are of fixed size, so that the answer
does not depend on how many workers share them.
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

PRICED, SIMULATED = 64, 4
"""Designs of a round: whose kernels are priced, and whose plans are simulated."""
CUT_REACH = 1.3
"""Plans whose bounds are so many times as long as the reference's step at most are simulated there for their cuts."""
MOST_CUTS = 64
ROOFLINE, KERNELS, EXACT = range(3)
"""What is known of a design's step: its bound by the roofline, or by kernels, or the step."""


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
    """What is known of all designs under one workload: a row of resources each, which alike designs share at first, the
    bound that follows, and the steps that were simulated.
    """

    bench: Workbench
    usable_bytes: np.ndarray
    rows: list[np.ndarray]
    place: np.ndarray
    level: np.ndarray
    step_s: np.ndarray
    plans: dict[int, Plan] = field(default_factory=dict)
    least_s: np.ndarray = field(default_factory=lambda: np.zeros(0))

    def bound(self) -> None:
        """Bounds of all designs by all cuts."""
        distinct = self.bench.bounds.least_s(np.array(self.rows), self._usable)
        self.least_s = np.where(self.level == EXACT, self.step_s, np.maximum(distinct[self.place], self.step_s))

    @property
    def _usable(self) -> np.ndarray:
        usable = np.zeros(len(self.rows))
        usable[self.place] = self.usable_bytes
        return usable

    def price(self, design: int, resources: np.ndarray) -> None:
        """Kernels of a design are known."""
        self.place[design] = len(self.rows)
        self.rows.append(resources)
        self.level[design] = KERNELS

    def simulate(self, design: int, best: Best, within_s: float) -> None:
        """The step of a design is known, or that it is no shorter than ``within_s``."""
        if best.plan is None and np.isfinite(within_s):
            self.step_s[design] = within_s
            return
        self.step_s[design], self.level[design] = best.step_s, EXACT
        if best.plan is not None:
            self.plans[design] = best.plan
        if best.cut is not None:
            self.bench.bounds.cuts.append(best.cut)


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
        usable = np.array([device.usable_bytes for device in devices])[groups]
        self.known = [
            _KnownDesigns(
                bench=bench,
                usable_bytes=usable,
                rows=[bench.bounds.roofline(device) for device in devices],
                place=groups.copy(),
                level=np.full(len(self.designs), ROOFLINE),
                step_s=np.zeros(len(self.designs)),
            )
            for bench in self.benches
        ]

    def refer(self, design: int) -> None:
        """Simulate a design under all workloads, and all plans there that are within reach for their cuts."""
        numbers = range(len(self.known))
        self._price([(number, design) for number in numbers])
        self._simulate([(number, design) for number in numbers], [np.inf for _ in numbers])
        device, tasks = self.designs.device(design), []
        for number, known in enumerate(self.known):
            longest_s = CUT_REACH * known.step_s[design]
            resources = known.rows[known.place[design]]
            plans = known.bench.bounds.plans_within(resources, device.usable_bytes, longest_s)[:MOST_CUTS]
            tasks += [DesignQuestion(number, device, plans=(plan,)) for plan in plans]
        for task, cut in zip(tasks, shared(self.workers, evaluate.cut, tasks), strict=True):
            self.known[task.workload].bench.bounds.cuts.append(cut)

    def optimum(self, workloads: Sequence[int], gap: float = 0.0, limit_s: float = np.inf) -> Optimum:
        """The design of the least geometric mean of the workloads' steps; of equals the smallest.

        Args:
            workloads: their numbers.
            gap: by how much, as a share, a design may be faster that is not found.
            limit_s: seconds after which the search ends with the bound that it has then.

        Raises:
            ModelError: no plan fits on any design.
        """
        began, chosen = monotonic(), [self.known[number] for number in workloads]
        before = self._counts(workloads)
        while True:
            for known in chosen:
                known.bound()
            mean = np.mean([np.log(known.least_s) for known in chosen], axis=0)
            exact = np.all([known.level == EXACT for known in chosen], axis=0)
            best = self._least(np.where(exact, mean, np.inf))
            left = np.flatnonzero(~exact & (mean < mean[best] - np.log1p(gap) if exact.any() else ~exact))
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
        levels = np.max([self.known[number].level for number in workloads], axis=0)
        return int((levels >= KERNELS).sum()), int((levels == EXACT).sum())

    def _refine(self, workloads: Sequence[int], left: np.ndarray, best: float) -> None:
        """The next round: kernels of the designs of least bounds, or, where they are priced, their plans."""
        first = left[:SIMULATED]
        open_ = [(n, int(d)) for d in left[:PRICED] for n in workloads if self.known[n].level[d] == ROOFLINE]
        if any(self.known[n].level[d] == ROOFLINE for d in first for n in workloads):
            self._price(open_)
            return
        logs = {n: np.log(self.known[n].least_s[first]) for n in workloads}
        others = sum(logs.values())
        pairs, within_s = [], []
        for at, design in enumerate(first.tolist()):
            for n in workloads:
                if self.known[n].level[design] == KERNELS:
                    pairs.append((n, design))
                    # Beyond it the mean is no less than the best's, whatever the other workloads take.
                    within_s.append(float(np.exp(len(workloads) * best - (others[at] - logs[n][at]))))
        self._simulate(pairs, within_s)

    def _price(self, pairs: Sequence[tuple[int, int]]) -> None:
        tasks = [DesignQuestion(number, self.designs.device(design)) for number, design in pairs]
        for (number, design), resources in zip(pairs, shared(self.workers, evaluate.priced, tasks), strict=True):
            self.known[number].price(design, resources)

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
