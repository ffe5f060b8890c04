"""Whole models as other people's benchmarks measured them, predicted against measured. All errors in percent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.devices import load_device
from neusight.errors import DataError, NeusightError
from neusight.evaluation.serving import Picked
from neusight.evaluation.step_rows import ToldStep, told_step
from neusight.evaluation.training import records_of, summary

if TYPE_CHECKING:
    from neusight.api import Predictor
    from neusight.estimates import Estimate

BY = ("gpu", "workload", "precision", "layout", "family")
_NAMED = ("gpu", "model", "workload", "precision")


def evaluate_steps(
    path: Path,
    predictor: Predictor,
    picked: Picked | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Predict every step of a table and compare.

    Args:
        path: parquet or CSV with gpu, model, step_ms and the columns of its benchmark, see ``step_rows``.
        predictor: whose predictions.
        picked: which rows: of some GPUs, and so many of them, drawn at random; default all.
        progress: called with (done, of) a row.

    Returns:
        ``rows``: gpu, model, workload, precision, layout, compile, batch, image_size, predicted_ms, low_ms, high_ms,
        measured_ms, ape, bias, inside (the 90 % interval), covered (no operator needed the fallback), family of the
        model, ``fits``: whether the step's memory does, ``failed_fits``: whether that of the next larger batch does,
        where that was tried and did not run, else None, and ``shares``: of the predicted time, by kind of kernel.
        ``means`` by ``BY``, ``by_kind``: of kernels, see ``errors_by_kind``, and ``total``. ``memory``: of both kinds
        of steps the count, and the percentage whose memory is as it was. ``assumed``: what rows do not tell.
        ``skipped``: rows that are not compared, each with its reason.

    Raises:
        DataError: no such file, a foreign file, or no row left.
    """
    records = _drawn(records_of(Path(path)), picked or Picked())
    rows: list[dict[str, Any]] = []
    skipped: list[dict[str, Any]] = []
    for done, record in enumerate(records, start=1):
        try:
            told = told_step(record)
            rows.append(_compared(told, _estimated(told, predictor)) | {"failed_fits": _failed_fits(told, predictor)})
        except NeusightError as error:
            skipped.append({**{key: record.get(key) for key in _NAMED}, "reason": str(error)})
        if progress:
            progress(done, len(records))
    if not rows:
        raise DataError(f"no row of {path} can be compared: {skipped[0]['reason'] if skipped else 'it has none'}")
    return {
        "rows": rows,
        "means": {name: _means(rows, name) for name in BY},
        "by_kind": errors_by_kind(rows),
        "total": summary(rows),
        "memory": _memory(rows),
        "assumed": sorted({text for row in rows for text in row["assumed"]}),
        "skipped": skipped,
    }


def _drawn(records: list[dict[str, Any]], picked: Picked) -> list[dict[str, Any]]:
    """Those of the GPUs asked for; of them as many as asked for, in the table's order."""
    kept = [record for record in records if not picked.gpus or record.get("gpu") in picked.gpus]
    if picked.limit is None or picked.limit >= len(kept):
        return kept
    chosen = np.random.default_rng(picked.seed).choice(len(kept), picked.limit, replace=False)
    return [kept[place] for place in sorted(chosen)]


def _estimated(told: ToldStep, predictor: Predictor) -> Estimate:
    load_device(told.gpu)
    return predictor.estimate(told.model, told.gpu, inputs=told.inputs, allow_fallback=True, **told.options)


def _failed_fits(told: ToldStep, predictor: Predictor) -> bool | None:
    """Whether the batch that did not run would have fitted; None where there is none."""
    if told.batch_failed is None:
        return None
    larger = replace(told, options={**told.options, "batch": told.batch_failed})
    return _estimated(larger, predictor).memory.fits


def _memory(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Steps that ran and fit, and batches that did not run and do not [percent]."""
    ran = [row["fits"] for row in rows]
    failed = [not row["failed_fits"] for row in rows if row["failed_fits"] is not None]
    named = {"ran_fits": ran, "failed_does_not_fit": failed}
    return {name: {"count": len(right), "right": 100 * float(np.mean(right))} for name, right in named.items() if right}


def _compared(told: ToldStep, estimate: Estimate) -> dict[str, Any]:
    low, high = (1e3 * value for value in estimate.interval)
    predicted, measured = 1e3 * estimate.latency_s, told.measured_ms
    return {
        **told.told,
        "predicted_ms": predicted,
        "low_ms": low,
        "high_ms": high,
        "measured_ms": measured,
        "ape": 100 * abs(predicted / measured - 1),
        "bias": 100 * (predicted / measured - 1),
        "inside": low <= measured <= high,
        "covered": not estimate.uncovered,
        "fits": estimate.memory.fits,
        "family": str(told.told["model"]).split("_")[0].rstrip("0123456789"),
        "shares": _shares(estimate),
        "assumed": told.assumed,
    }


def _shares(estimate: Estimate) -> dict[str, float]:
    """Of the predicted time, by what runs: convolutions by kind, other kernels by family."""
    total_s: dict[str, float] = {}
    for row in estimate.by_kernel:
        kind = _kind(row.kernel, row.family)
        total_s[kind] = total_s.get(kind, 0.0) + row.total_s
    whole = sum(total_s.values())
    return {kind: value / whole for kind, value in sorted(total_s.items())}


def _kind(described: str, family: str) -> str:
    if family != "conv2d":
        return family or "wait"
    if " groups " in described:
        return "grouped convolution"
    return "1x1 convolution" if ", 1x1" in described else "convolution"


def errors_by_kind(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each kind of kernel the mean bias of rows, weighted by its share of their time [%], and that share [%].

    What a kind is blamed for is what rows that it takes most of are wrong by; kinds that always occur together share
    the blame.
    """
    kinds = sorted({kind for row in rows for kind, share in row["shares"].items() if share})
    bias = np.array([row["bias"] for row in rows])
    found = []
    for kind in kinds:
        share = np.array([row["shares"].get(kind, 0.0) for row in rows])
        found.append({"kind": kind, "share": 100 * float(share.mean()), "bias": float(np.average(bias, weights=share))})
    return sorted(found, key=lambda row: -row["share"])


def _means(rows: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    values = sorted({str(row[name]) for row in rows})
    return [{name: value, **summary([row for row in rows if str(row[name]) == value])} for value in values]


def columns_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row without what is no number or word."""
    return {key: value for key, value in row.items() if key not in ("shares", "assumed")}
