"""Distributed training steps, predicted against measured, row by row. All errors in percent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.devices import cluster_of, load_cluster, load_device
from neusight.devices.cluster import Cluster
from neusight.distributed.answer import TrainingEstimate
from neusight.distributed.sources import memory
from neusight.distributed.training_run import TrainingRun
from neusight.engines import engine_named
from neusight.errors import DataError, NeusightError
from neusight.evaluation.training_rows import ToldRun, told_run
from neusight.learn.training_steps import MeasuredStep
from neusight.plans.fits import verdict
from neusight.workloads.training.columns import decoder_of_columns

if TYPE_CHECKING:
    from neusight.api import Predictor
    from neusight.distributed.factors import Factors

BY = ("source", "gpu", "model", "dtype", "num_gpus")
USUAL_CLUSTERS = {"a100-sxm-80gb": "dgx-a100", "a100-sxm-40gb": "dgx-a100", "h100-sxm-80gb": "dgx-h100"}
"""Whose network a cluster has of which nobody tells it: that of NVIDIA's machines with the same GPU."""


def evaluate_training(
    path: Path,
    predictor: Predictor,
    progress: Callable[[int, int], None] | None = None,
    *,
    factors: Factors | None = None,
    gpus: Collection[str] = (),
) -> dict[str, Any]:
    """Predict every training step of a table and compare.

    Args:
        path: parquet or CSV with model, gpu, num_gpus, seq_len, the model's sizes, and what of a plan is told; see
            ``training_rows`` for defaults.
        predictor: whose predictions.
        progress: called with (done, of) a row.
        factors: what kernels take in steps; default those that ship.
        gpus: keep rows of these; default all.

    Returns:
        ``rows``: source, model, gpu, num_gpus, nodes, dtype, plan, predicted_ms, low_ms, high_ms, measured_ms, ape,
        bias, inside (the 90 % interval), peak_memory_bytes, fits, oom. ``means`` by ``BY`` and in ``total``: count,
        mean, median, worst, bias, inside. ``memory``: how many that ran are said to fit, and of those that ran out of
        memory not to. ``assumed``: defaults taken, each with its reason and the number of rows. ``skipped``: rows that
        are not compared, each with its reason.

    Raises:
        DataError: no such file, a foreign file, or no row left.
    """
    records = [row for row in records_of(Path(path)) if not gpus or row.get("gpu") in gpus]
    rows: list[dict[str, Any]] = []
    skipped: list[dict[str, str]] = []
    assumed: Counter[tuple[str, str, str]] = Counter()
    for done, record in enumerate(records, start=1):
        try:
            told = told_run(record)
            rows.append(_compared(told, predictor.training(asked_of(told), factors)))
            assumed.update(told.assumed)
        except NeusightError as error:
            skipped.append({"row": _named(record, done), "reason": str(error)})
        if progress:
            progress(done, len(records))
    if not rows:
        raise DataError(f"no row of {path} can be compared: {skipped[0]['reason'] if skipped else 'it has none'}")
    measured = [row for row in rows if row["measured_ms"] is not None]
    return {
        "rows": rows,
        "means": {name: _means(measured, name) for name in BY},
        "total": summary(measured),
        "memory": _memory(rows),
        "assumed": [{"what": w, "value": v, "why": y, "rows": n} for (w, v, y), n in assumed.most_common()],
        "skipped": skipped,
    }


def measured_steps(tables: Iterable[Path]) -> list[MeasuredStep]:
    """Steps of tables that were measured, as what was run.

    Raises:
        DataError: a table is missing.
    """
    found = []
    for record in (record for table in tables for record in records_of(table)):
        try:
            told = told_run(record)
            if told.step_ms is not None:
                found.append(MeasuredStep(source=told.source, seconds=told.step_ms / 1e3, run=asked_of(told)))
        except NeusightError:
            continue
    return found


def asked_of(told: ToldRun) -> TrainingRun:
    """What a row ran, as a question.

    Where it does not tell what was computed again, that is the fewest layers of a stage with which the run fits: it
    ran.

    Raises:
        NeusightError: an unknown GPU, a model that its columns do not describe, a plan that does not fit.
    """
    asked = TrainingRun(
        decoder=decoder_of_columns(told.columns),
        cluster=_cluster(told),
        plan=told.plan,
        seq_len=told.seq_len,
        engine=engine_named(told.framework),
        dtype=told.dtype,
        products=told.products,
    )
    untold = any(what == "recompute" for what, _, _ in told.assumed)
    return _fitting(asked) if untold and told.plan.recompute == "none" else asked


def _fitting(asked: TrainingRun) -> TrainingRun:
    """The run with the fewest layers of each stage computed again with which it fits; as it is where none do."""
    device, plan = asked.cluster.device, asked.plan
    for layers in range(asked.decoder.depth // plan.pp + 1):
        again = replace(plan, recompute="full", recompute_layers=layers) if layers else plan
        tried = replace(asked, plan=again)
        if verdict(memory(tried), device).fits:
            return tried
    return asked


def _cluster(told: ToldRun) -> Cluster:
    nodes = -(-told.num_gpus // told.per_node)
    if not told.network and told.gpu in USUAL_CLUSTERS and nodes > 1:
        usual = load_cluster(USUAL_CLUSTERS[told.gpu])
        return usual.model_copy(update={"device": load_device(told.gpu), "per_node": told.per_node, "nodes": nodes})
    return cluster_of(told.gpu, told.per_node, nodes, told.network if nodes > 1 else "")


def records_of(path: Path) -> list[dict[str, Any]]:
    """Rows of a parquet or CSV file."""
    if path.suffix == ".csv":
        import pandas as pd

        if not path.is_file():
            raise DataError(f"no file {path}: give a parquet or CSV file of training runs")
        return [dict(row) for row in pd.read_csv(path).to_dict("records")]
    from neusight.datasets.schema import read_parquet

    records: list[dict[str, Any]] = read_parquet(path).to_pylist()
    return records


def _named(record: Mapping[Any, Any], number: int) -> str:
    return f"{record.get('model', 'row')} on {record.get('num_gpus', '?')} x {record.get('gpu', '?')} (row {number})"


def _compared(told: ToldRun, estimate: TrainingEstimate) -> dict[str, Any]:
    predicted, measured, plan = 1e3 * estimate.latency_s, told.step_ms, estimate.plan
    low, high = 1e3 * estimate.low_s, 1e3 * estimate.high_s
    bias = None if measured is None else 100.0 * (predicted / measured - 1.0)
    return {
        "source": told.source,
        "model": told.model,
        "gpu": told.gpu,
        "num_gpus": told.num_gpus,
        "nodes": estimate.cluster.nodes,
        "dtype": told.products or told.dtype,
        "framework": told.framework,
        "software": str(told.columns.get("framework") or ""),
        "plan": plan.short,
        "global_batch": plan.global_batch,
        "seq_len": told.seq_len,
        "micro_batch": plan.micro_batch,
        "predicted_ms": predicted,
        "low_ms": low,
        "high_ms": high,
        "measured_ms": measured,
        "ape": None if bias is None else abs(bias),
        "bias": bias,
        "inside": None if measured is None else low <= measured <= high,
        "mfu": 100.0 * estimate.mfu,
        "bubble": 100.0 * estimate.bubble,
        "exposed_ms": 1e3 * estimate.exposed_s,
        "peak_memory_bytes": estimate.peak_bytes,
        "fits": estimate.fits,
        "oom": told.oom,
    }


def _means(rows: Sequence[Mapping[str, Any]], by: str) -> list[dict[str, Any]]:
    groups: dict[Any, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row[by], []).append(row)
    return [{by: value, **summary(groups[value])} for value in sorted(groups)]


def summary(rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Count, mean, median and worst absolute error, mean signed error, and the share inside of intervals."""
    listed = list(rows)
    if not listed:
        return {"count": 0}
    errors = np.array([row["ape"] for row in listed])
    return {
        "count": len(listed),
        "mean": float(errors.mean()),
        "median": float(np.median(errors)),
        "worst": float(errors.max()),
        "bias": float(np.mean([row["bias"] for row in listed])),
        "inside": 100.0 * float(np.mean([row["inside"] for row in listed])),
    }


def _memory(rows: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    listed = list(rows)
    return {
        "ran": sum(not row["oom"] for row in listed),
        "ran_and_fits": sum(not row["oom"] and row["fits"] for row in listed),
        "out_of_memory": sum(row["oom"] for row in listed),
        "out_of_memory_and_does_not_fit": sum(row["oom"] and not row["fits"] for row in listed),
    }
