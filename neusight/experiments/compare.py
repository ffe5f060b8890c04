"""Two runs compared, prediction by prediction: what turned from right to wrong, and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from neusight.errors import DataError
from neusight.experiments.results import has_rows, judged

WHOLE = "whole models"
"""What whole models are called beside kinds of kernels."""
STEP = ("source", "model", "gpu", "num_gpus", "dtype", "seq_len", "plan")
"""What tells steps of distributed training apart."""
CALL = ("left_out", "gpu", "host", "day", "graph", "mode", "l2_flushed")
"""What tells timed programs apart."""
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
    """What ``compare`` finds: ``cases`` are in both results, ``lost`` and ``new`` are numbers of those in one alone.

    ``by`` says what a case is: a ``prediction``, or the ``mean`` of those of one GPU and kind.
    """

    by: str
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
    """Join two results: single predictions where both hold them, else the means that summaries hold.

    Averages hide cases that cancel, so that predictions say more: kernels of the samples that results keep, and
    whole models.

    Args:
        old: results, or the summary, of the earlier run.
        new: those of the later one.
        tolerance: percent by which a prediction may miss and still be right.

    Raises:
        DataError: one is of a quick run and the other is not, or they have nothing in common.
    """
    if bool(old["quick"]) != bool(new["quick"]):
        raise DataError("one of the two is a quick run, whose figures are no results: compare runs of one sort")
    by, errors_of = ("prediction", _predictions) if has_rows(old) and has_rows(new) else ("mean", _means)
    before, after = dict(errors_of(old)), dict(errors_of(new))
    common = [key for key in before if key in after]
    if not common:
        raise DataError(f"{old['experiment']} and {new['experiment']} have no {by} in common: give runs of one")
    cases = tuple(Case(*key, before[key], after[key]) for key in common)
    return Comparison(by, cases, len(before) - len(common), len(after) - len(common), tolerance)


def _predictions(results: Results) -> Iterator[tuple[tuple[str, str], float]]:
    """Group, name and signed error of every prediction that results keep, of the predictor that targets judge."""
    for row in results.get("kernels", {}).get("sample", ()):
        group = f"{row['gpu']} {row['kind']}"
        yield (group, f"{row['fold']} {group} {row['op']} {row['id']}"), row["error"]
    for row in results.get("models", {}).get("rows", ()):
        if row["predictor"] == judged(results):
            group = f"{row['gpu']} {WHOLE}"
            name = f"{row['fold']} {group} {row['model']} {row['mode']} {row['batch']} × {row['seq_len']}"
            yield (group, name), row["error"]
    for row in (row for row in results.get("rows", ()) if row["error"] is not None):
        if "cell" in row:
            yield (f"{row['source']} {row['quantity']}", f"{row['cell']} {row['quantity']}"), row["error"]
        elif "graph" in row:
            yield (
                (f"{row['mode']}, {row['left_out']} left out", " ".join(str(row[name]) for name in CALL)),
                row["error"],
            )
        else:
            yield (row["source"], " ".join(str(row[name]) for name in STEP)), row["error"]


def _means(results: Results) -> Iterator[tuple[tuple[str, str], float]]:
    """Group, name and mean error of everything that a summary holds of that predictor."""
    for cell in results.get("kernels", {}).get("cells", ()):
        if cell["predictor"] == judged(results):
            group = f"{cell['gpu']} {cell['kind']}"
            yield (group, f"{cell['fold']} {group}, mean"), cell["mean"]
    for row in results.get("models", {}).get("by_gpu", ()):
        if row["predictor"] == judged(results):
            yield (f"{row['gpu']} {WHOLE}", f"{row['gpu']} {WHOLE}, mean"), row["mean"]
    for row in results.get("totals", ()):
        yield (f"by {row['by']}", f"{row['by']} {row['name']}, mean"), row["mean"]
    for row in results.get("by_gpu", ()):
        group = f"{row['mode']}, {row['left_out']} left out"
        yield (group, f"{group}, {row['gpu']} {row['size']}, mean"), row["mean"]
    for row in results.get("groups", ()):
        group = f"{row['source']} {row['quantity']}"
        yield (group, " ".join((group, row["engine"], row["gpu"], row["fault"])).strip() + ", mean"), row["mean"]
