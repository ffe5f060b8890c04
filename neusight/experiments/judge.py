"""What was aimed at, what came out and what fell short; and what turned between two runs. Computed, never stated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from neusight.errors import DataError
from neusight.experiments.declare import Targets
from neusight.experiments.results import OURS, PLANNED, has_rows, judged

WHOLE = "whole models"
"""What whole models are called beside kinds of kernels."""

COUNTERPARTS = {
    "neusight-paper": "published:neusight",
    "habitat": "published:habitat",
    "li": "published:li",
    "roofline": "published:roofline",
}
"""Baselines that are trained here, by kind, and the same ones as published."""
NOISE = 1.0
"""Percentage points by which an error may grow before it counts: other versions of a library move it so much."""
Found = Mapping[str, Any]


def verdicts(parts: Found, targets: Targets, predictors: Mapping[str, str]) -> list[dict[str, Any]]:
    """Every target of the parts that ran: ``target``, ``aim``, ``value``, ``met`` and ``short`` (what misses it).

    Args:
        found: the parts of a run: kernels, models, few_shot.
        targets: what was aimed at.
        predictors: name to kind, in their order; the first is judged.
    """
    first = next(iter(predictors))
    rows: list[dict[str, Any]] = []
    if kernels := parts.get("kernels"):
        rows += _of_kernels(kernels, targets, first)
    if models := parts.get("models"):
        rows += _of_models(models, targets, first)
        rows += _of_baselines(models["groups"], targets, predictors)
    if few_shot := parts.get("few_shot_curve"):
        rows += _of_few_shot(few_shot, targets)
    return rows


def _of_kernels(kernels: Found, targets: Targets, judged: str) -> Iterator[dict[str, Any]]:
    cells = [c for c in kernels["cells"] if (c["predictor"], c["group"]) == (judged, "held_out")]
    kinds = [k for k in kernels["by_kind"] if (k["predictor"], k["group"]) == (judged, "held_out")]
    for kind in kinds:
        if limit := targets.kernel_mean.get(kind["kind"]):
            above = [f"{c['gpu']} {c['mape']:.1f}" for c in cells if c["kind"] == kind["kind"] and c["mape"] > limit]
            yield at_most(f"{kind['kind']}, mean over {kind['gpus']} held-out GPUs", kind["mean"], limit, above)
    if targets.kernel_gpu is not None and cells:
        limit = targets.kernel_gpu
        above = [f"{c['gpu']} {c['kind']} {c['mape']:.1f}" for c in cells if c["mape"] > limit]
        yield at_most("largest mean of a kind on a held-out GPU", max(c["mape"] for c in cells), limit, above)
    if targets.coverage and cells and all(c["inside"] is not None for c in cells):
        inside = sum(c["inside"] * c["count"] for c in cells) / sum(c["count"] for c in cells)
        low, high = targets.coverage
        beyond = [f"{c['gpu']} {c['kind']} {c['inside']:.0f}" for c in cells if not low <= c["inside"] <= high]
        yield between("kernels within their 90 % interval", inside, targets.coverage, beyond)


def _of_models(models: Found, targets: Targets, judged: str) -> Iterator[dict[str, Any]]:
    groups = models["groups"]
    held = groups.get("held_out")
    if held:
        count, ours = held["count"], held["predictors"][judged]
        if limit := targets.model_mean:
            yield at_most(f"mean of {count} whole models, held-out GPUs", ours["mean"], limit, [])
        if limit := targets.model_worst:
            rows = [row for row in models["rows"] if row["group"] == "held_out"]
            above = [f"{step_name(row)} {error:+.1f}" for row in rows if abs(error := _of(row, judged)) > limit]
            yield at_most(f"worst of {count} whole models, held-out GPUs", ours["worst"], limit, above)
    if (limit := targets.all_model_mean) and "all" in groups:
        count, ours = groups["all"]["count"], groups["all"]["predictors"][judged]
        yield at_most(f"mean of {count} whole models", ours["mean"], limit, [])
    if targets.coverage and held and held["inside"] is not None:
        beyond = [step_name(row) for row in models["rows"] if row["group"] == "held_out" and not row["inside"]]
        yield between("whole models within their 90 % interval", held["inside"], targets.coverage, beyond)


def _of(row: Mapping[str, Any], name: str) -> float:
    """The error of the first training of a predictor."""
    return next(error for label, error in row["errors"].items() if label.partition("/")[0] == name)


def _of_baselines(groups: Found, targets: Targets, predictors: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    limit = targets.baseline_points
    if limit is None or "all" not in groups:
        return
    errors = groups["all"]["predictors"]
    for name, kind in predictors.items():
        here, published = errors.get(name), errors.get(COUNTERPARTS.get(kind, ""))
        if here and published:
            yield at_most(f"{name}: points from its published mean", abs(here["mean"] - published["mean"]), limit, [])


def _of_few_shot(few_shot: Found, targets: Targets) -> Iterator[dict[str, Any]]:
    if (limit := targets.few_shot) is None:
        return
    points = targets.few_shot_points
    for row in few_shot["by_kind"]:
        if (row["design"], row["points"]) == (PLANNED, points):
            above = [
                f"{cell['gpu']} {cell['mape']:.1f}"
                for cell in few_shot["cells"]
                if (cell["design"], cell["kind"], cell["points"]) == (PLANNED, row["kind"], points)
                and cell["mape"] > limit
            ]
            yield at_most(f"{row['kind']} with {points} measured kernels", row["mean"], limit, above)


def at_most(target: str, value: float, limit: float, short: list[str]) -> dict[str, Any]:
    """A target from above; ``short`` names what misses it."""
    met = value <= limit
    return {"target": target, "aim": f"at most {limit:g}", "value": value, "met": met, "short": [] if met else short}


def between(target: str, value: float, limits: tuple[float, float], short: list[str]) -> dict[str, Any]:
    """A target with two ends."""
    met = limits[0] <= value <= limits[1]
    aim = f"{limits[0]:g} to {limits[1]:g}"
    return {"target": target, "aim": aim, "value": value, "met": met, "short": [] if met else short}


def near(target: str, value: float, reported: float) -> dict[str, Any]:
    """A figure of the literature, which is no limit: met within a tenth of it."""
    met = abs(value / reported - 1.0) <= 0.1
    return {"target": target, "aim": f"{reported:g} reported", "value": value, "met": met, "short": []}


def step_name(row: Mapping[str, Any]) -> str:
    """A whole-model row in words: GPU, model, mode, batch x length."""
    return f"{row['gpu']} {row['model']} {row['mode']} {row['batch']} × {row['seq_len']}"


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


def compare(old: Found, new: Found, tolerance: float = 10.0) -> Comparison:
    """Join two results: single predictions where both hold them, else the means that summaries hold.

    Averages hide cases that cancel, so that predictions say more: kernels of the samples that results keep, whole
    models, and products of simulated layers.

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


def _predictions(results: Found) -> Iterator[tuple[tuple[str, str], float]]:
    """Group, name and signed error of every prediction that results keep, of the predictor that targets judge."""
    for row in results.get("kernels", {}).get("sample", ()):
        group = f"{row['gpu']} {row['kind']}"
        yield (group, f"{row['fold']} {group} {row['op']} {row['id']}"), row["error"]
    for row in results.get("models", {}).get("rows", ()):
        group = f"{row['gpu']} {WHOLE}"
        name = f"{row['fold']} {group} {row['model']} {row['mode']} {row['batch']} × {row['seq_len']}"
        yield (group, name), next(iter(row["errors"].values()))
    yield from _of_boards(results)
    for row in results.get("products", ()):
        yield (row["network"], f"{row['network']} {row['layer']} {row['product']}"), row["model_error"]
    for row in results.get("rows", ()):
        yield (f"{row['source']} {row['quantity']}", f"{row['cell']} {row['quantity']}"), row["error"]


def _means(results: Found) -> Iterator[tuple[tuple[str, str], float]]:
    """Group, name and mean error of everything that a summary holds of that predictor."""
    for cell in results.get("kernels", {}).get("cells", ()):
        if cell["predictor"] == judged(results):
            group = f"{cell['gpu']} {cell['kind']}"
            yield (group, f"{cell['fold']} {group}, mean"), cell["mape"]
    yield from _of_boards(results)
    for gpu, errors in results.get("models", {}).get("by_gpu", {}).items():
        yield (f"{gpu} {WHOLE}", f"{gpu} {WHOLE}, mean"), errors["predictors"][judged(results)]["mean"]
    for row in results.get("tile_model", ()):
        yield (row["network"], f"{row['network']}, mean"), row["mean"]
    for row in results.get("groups", ()):
        group = f"{row['source']} {row['quantity']}"
        yield (group, " ".join((group, row["engine"], row["gpu"], row["fault"])).strip() + ", mean"), row["mean"]


def _of_boards(results: Found) -> Iterator[tuple[tuple[str, str], float]]:
    """The same of boards that were left out, alone or with their die."""
    for cell in results.get("cells", ()):
        if cell["contestant"] == OURS:
            group = f"{cell['gpu']} {cell['family']}"
            yield (group, f"{cell['fold']} {group}, mean"), cell["mape"]
