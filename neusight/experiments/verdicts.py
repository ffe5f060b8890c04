"""What was aimed at, what came out, and what fell short: computed, never stated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from neusight.experiments.declare import Targets


def verdicts(run: Mapping[str, Any], targets: Targets) -> list[dict[str, Any]]:
    """Every target of the steps that ran: ``target``, ``value``, ``limit``, ``met`` and ``short`` (what misses it)."""
    found = []
    if "models" in run:
        found += _of_models(run["models"], targets)
    if "kernels" in run:
        found += [_of_kernels(run["kernels"]["held_out"], name, targets) for name in ("roofline", "bound")]
    return found


def _of_models(models: Mapping[str, Any], targets: Targets) -> list[dict[str, Any]]:
    group = models["groups"]["all"]
    ours, limit = group["predictors"]["ours"], targets.model_worst_percent
    rows = [row for row in models["rows"] if row["group"] != "other_vendor"]
    above = [f"{_step(row)}: {error:+.1f} %" for row in rows if abs(error := row["errors"]["ours"]) > limit]
    count = group["count"]
    mean = _verdict(f"mean error of {count} whole models, %", ours["mean"], targets.model_mean_percent, [])
    return [mean, _verdict(f"worst error of {count} whole models, %", ours["worst"], limit, above)]


def _of_kernels(families: list[dict[str, Any]], name: str, targets: Targets) -> dict[str, Any]:
    limit = targets.kernel_share_of_roofline
    shares = {row["family"]: row[f"share_of_{name}"] for row in families}
    above = [f"{family}: {share:.2f}" for family, share in shares.items() if share > limit]
    what = {"roofline": "the classic roofline's", "bound": "our own bound's"}[name]
    return _verdict(f"largest kernel error of a family over {what}", max(shares.values()), limit, above)


def _verdict(target: str, value: float, limit: float, short: list[str]) -> dict[str, Any]:
    return {"target": target, "value": value, "limit": limit, "met": value <= limit, "short": short}


def _step(row: Mapping[str, Any]) -> str:
    return f"{row['gpu']} {row['model']} {row['mode']} {row['batch']} × {row['seq_len']}"
