"""Two runs of one experiment, prediction by prediction; of a summary alone, group by group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from neusight.errors import DataError
from neusight.lab.results import Results

MOVED = 1.0
"""Percentage points by which a case must differ to have turned."""
_KEYS = ("set", "place", "contestant", "seed", "left_out", "fold", "quantity")
"""What names a single prediction."""


@dataclass(frozen=True)
class Case:
    """What both runs predicted, with its errors in percent before and after."""

    group: str
    name: str
    before: float
    after: float

    def turned(self, tolerance: float) -> str:
        """``worse`` from right, within a tolerance in percent, to wrong, or ``better``; else ""."""
        before, after = abs(self.before), abs(self.after)
        if (before <= tolerance) == (after <= tolerance) or abs(after - before) <= MOVED:
            return ""
        return "worse" if after > before else "better"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Cases of two runs ``by`` prediction, or by mean where one of them is a summary; ``lost`` and ``new`` are those
    of one run alone.
    """

    by: str
    cases: list[Case]
    lost: int
    new: int
    tolerance: float

    @property
    def worse(self) -> list[Case]:
        """Cases that turned from right to wrong."""
        return [case for case in self.cases if case.turned(self.tolerance) == "worse"]

    def groups(self) -> list[dict[str, Any]]:
        """Cases, mean errors before and after, and how many turned, by group."""
        rows = []
        for group in dict.fromkeys(case.group for case in self.cases):
            own = [case for case in self.cases if case.group == group]
            means = {name: float(np.mean([abs(getattr(case, name)) for case in own])) for name in ("before", "after")}
            turned = Counter(case.turned(self.tolerance) for case in own)
            rows.append({"group": group, "cases": len(own), **means, **{n: turned[n] for n in ("worse", "better")}})
        return rows


def compare(old: Results, new: Results, tolerance: float = 10.0) -> Comparison:
    """Join two runs.

    Args:
        old, new: results or summaries of one experiment.
        tolerance: percent within which a prediction is right.

    Raises:
        DataError: they share no case.
    """
    single = "rows" in old and "rows" in new
    before, after = (dict(_rows(results) if single else _means(results)) for results in (old, new))
    both = [key for key in before if key in after]
    if not both:
        raise DataError(f"{old['experiment']} and {new['experiment']} share no case: compare runs of one experiment")
    cases = [Case(key[0], " ".join(filter(None, key)), before[key], after[key]) for key in both]
    by = "prediction" if single else "mean"
    lost, added = len(before) - len(both), len(after) - len(both)
    return Comparison(by=by, cases=cases, lost=lost, new=added, tolerance=tolerance)


def _rows(results: Results) -> Iterator[tuple[tuple[str, ...], float]]:
    for row in results["rows"]:
        if row.get("error") is not None:
            yield tuple(str(row[name]) for name in _KEYS), row["error"]


def _means(results: Results) -> Iterator[tuple[tuple[str, ...], float]]:
    for group, rows in results["groups"].items():
        for row in rows:
            if row.get("mean") is not None:
                words = (str(value) for value in row.values() if isinstance(value, str))
                yield (group, *words), row["mean"]
