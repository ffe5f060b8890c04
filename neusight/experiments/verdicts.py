"""What was aimed at, what came out, and what fell short: computed, never stated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from neusight.experiments.declare import Targets

COUNTERPARTS = {
    "neusight-paper": "published:neusight",
    "habitat": "published:habitat",
    "li": "published:li",
    "roofline": "published:roofline",
}
"""Baselines that are trained here, by kind, and the same ones as published."""
PLANNED = "plan"
"""The few-shot design that is judged: kernels chosen before anything of the GPU is measured."""
Rows = Sequence[Mapping[str, Any]]
Found = Mapping[str, Any]


def verdicts(found: Found, targets: Targets, predictors: Mapping[str, str]) -> list[dict[str, Any]]:
    """Every target of the parts that ran: ``target``, ``aim``, ``value``, ``met`` and ``short`` (what misses it).

    Args:
        found: the parts of a run: kernels, models, few_shot.
        targets: what was aimed at.
        predictors: name to kind, in their order; the first is judged.
    """
    judged = next(iter(predictors))
    rows: list[dict[str, Any]] = []
    if kernels := found.get("kernels"):
        rows += _of_kernels(kernels, targets, judged)
    if models := found.get("models"):
        rows += _of_models(models, targets, judged)
        rows += _of_baselines(models["groups"], targets, predictors)
    if few_shot := found.get("few_shot_curve"):
        rows += _of_few_shot(few_shot, targets)
    return rows


def _of_kernels(kernels: Found, targets: Targets, judged: str) -> Iterator[dict[str, Any]]:
    cells = [c for c in kernels["cells"] if (c["predictor"], c["group"]) == (judged, "held_out")]
    kinds = [k for k in kernels["by_kind"] if (k["predictor"], k["group"]) == (judged, "held_out")]
    for kind in kinds:
        if limit := targets.kernel_mean.get(kind["kind"]):
            above = [f"{c['gpu']} {c['mape']:.1f}" for c in cells if c["kind"] == kind["kind"] and c["mape"] > limit]
            yield _at_most(f"{kind['kind']}, mean over {kind['gpus']} held-out GPUs", kind["mean"], limit, above)
    if targets.kernel_gpu is not None and cells:
        limit = targets.kernel_gpu
        above = [f"{c['gpu']} {c['kind']} {c['mape']:.1f}" for c in cells if c["mape"] > limit]
        yield _at_most("largest mean of a kind on a held-out GPU", max(c["mape"] for c in cells), limit, above)
    if targets.coverage and cells and all(c["inside"] is not None for c in cells):
        inside = sum(c["inside"] * c["count"] for c in cells) / sum(c["count"] for c in cells)
        low, high = targets.coverage
        beyond = [f"{c['gpu']} {c['kind']} {c['inside']:.0f}" for c in cells if not low <= c["inside"] <= high]
        yield _between("kernels within their 90 % interval", inside, targets.coverage, beyond)


def _of_models(models: Found, targets: Targets, judged: str) -> Iterator[dict[str, Any]]:
    groups = models["groups"]
    held = groups.get("held_out")
    if held:
        count, ours = held["count"], held["predictors"][judged]
        if limit := targets.model_mean:
            yield _at_most(f"mean of {count} whole models, held-out GPUs", ours["mean"], limit, [])
        if limit := targets.model_worst:
            rows = [row for row in models["rows"] if row["group"] == "held_out"]
            above = [f"{step_name(row)} {error:+.1f}" for row in rows if abs(error := _of(row, judged)) > limit]
            yield _at_most(f"worst of {count} whole models, held-out GPUs", ours["worst"], limit, above)
    if (limit := targets.all_model_mean) and "all" in groups:
        count, ours = groups["all"]["count"], groups["all"]["predictors"][judged]
        yield _at_most(f"mean of {count} whole models", ours["mean"], limit, [])
    if targets.coverage and held and held["inside"] is not None:
        beyond = [step_name(row) for row in models["rows"] if row["group"] == "held_out" and not row["inside"]]
        yield _between("whole models within their 90 % interval", held["inside"], targets.coverage, beyond)


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
            yield _at_most(f"{name}: points from its published mean", abs(here["mean"] - published["mean"]), limit, [])


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
            yield _at_most(f"{row['kind']} with {points} measured kernels", row["mean"], limit, above)


def _at_most(target: str, value: float, limit: float, short: list[str]) -> dict[str, Any]:
    met = value <= limit
    return {"target": target, "aim": f"at most {limit:g}", "value": value, "met": met, "short": [] if met else short}


def _between(target: str, value: float, limits: tuple[float, float], short: list[str]) -> dict[str, Any]:
    met = limits[0] <= value <= limits[1]
    aim = f"{limits[0]:g} to {limits[1]:g}"
    return {"target": target, "aim": aim, "value": value, "met": met, "short": [] if met else short}


def step_name(row: Mapping[str, Any]) -> str:
    """A whole-model row in words: GPU, model, mode, batch x length."""
    return f"{row['gpu']} {row['model']} {row['mode']} {row['batch']} × {row['seq_len']}"
