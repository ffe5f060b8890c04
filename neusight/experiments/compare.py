"""Two results of an experiment, prediction by prediction: averages hide cases that cancel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from neusight.errors import DataError

NOISE = 1.0
"""Percentage points by which an error may grow before it counts: other versions of a library move it so much."""
Results = Mapping[str, Any]


@dataclass(frozen=True)
class Case:
    """One prediction in both results; errors are signed and in percent."""

    group: str
    name: str
    before: float
    after: float

    def turned(self, tolerance: float) -> bool:
        """Whether it was right and is wrong now: off by no more than ``tolerance`` before, and by more than that, and
        by more than ``NOISE`` points more than before, now.
        """
        before, after = abs(self.before), abs(self.after)
        return before <= tolerance < after and after - before > NOISE


@dataclass(frozen=True)
class Comparison:
    """What ``compare`` finds. ``cases`` are in both results; ``lost`` and ``new`` are numbers of those in one alone."""

    cases: tuple[Case, ...]
    lost: int
    new: int
    tolerance: float

    @property
    def worse(self) -> list[Case]:
        """Cases that turned from right to wrong, the worst first."""
        return sorted((c for c in self.cases if c.turned(self.tolerance)), key=lambda c: -abs(c.after))

    @property
    def better(self) -> list[Case]:
        """Cases that turned from wrong to right."""
        return [c for c in self.cases if Case(c.group, c.name, c.after, c.before).turned(self.tolerance)]

    def groups(self) -> list[dict[str, Any]]:
        """Mean error before and after, in percent, and how many cases turned: by group and over all."""
        names = [*dict.fromkeys(case.group for case in self.cases), "all"]
        return [self._group(name, [c for c in self.cases if name in (c.group, "all")]) for name in names]

    def _group(self, name: str, cases: Sequence[Case]) -> dict[str, Any]:
        worse, better = set(self.worse), set(self.better)
        return {
            "group": name,
            "cases": len(cases),
            "before": float(np.mean([abs(case.before) for case in cases])),
            "after": float(np.mean([abs(case.after) for case in cases])),
            "worse": sum(case in worse for case in cases),
            "better": sum(case in better for case in cases),
        }


def compare(old: Results, new: Results, tolerance: float = 10.0) -> Comparison:
    """Join the single predictions of two results: kernels of the samples that they keep, and whole models.

    Args:
        old: results of the earlier run.
        new: results of the later one.
        tolerance: percent by which a prediction may miss and still be right.

    Raises:
        DataError: one is of a quick run and the other is not, or they have no prediction in common.
    """
    if bool(old["quick"]) != bool(new["quick"]):
        raise DataError("one of the two is a quick run, whose figures are no results: compare runs of one sort")
    before, after = dict(_errors(old)), dict(_errors(new))
    common = [key for key in before if key in after]
    if not common:
        raise DataError(f"{old['experiment']} and {new['experiment']} have no prediction in common: give runs of one")
    cases = tuple(Case(_group(key), " ".join(map(str, key)), before[key], after[key]) for key in common)
    return Comparison(cases, len(before) - len(common), len(after) - len(common), tolerance)


def _errors(results: Results) -> Iterator[tuple[tuple[Any, ...], float]]:
    """Identity and signed error of every prediction that results keep, of the predictor that targets judge."""
    for row in results.get("kernels", {}).get("sample", ()):
        yield (row["fold"], row["gpu"], row["kind"], row["op"], row["id"]), row["error"]
    for row in results.get("models", {}).get("rows", ()):
        step = (f"{row['batch']} × {row['seq_len']}",)
        yield (
            (row["fold"], row["gpu"], "whole models", row["model"], row["mode"], *step),
            next(iter(row["errors"].values())),
        )


def _group(key: Sequence[Any]) -> str:
    return f"{key[1]} {key[2]}"
