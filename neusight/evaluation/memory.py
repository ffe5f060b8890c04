"""Memory of training runs, predicted against the allocator's peak, or against whether a run fitted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np

from neusight.devices import load_device
from neusight.distributed.sources import memory
from neusight.errors import DataError, NeusightError
from neusight.evaluation.megatron import DEFAULTS, MegatronRun
from neusight.evaluation.training import asked_of
from neusight.evaluation.training_rows import told_run
from neusight.plans.fits import verdict
from neusight.plans.memory import RankMemory, memory_of

GROUPINGS = (
    ("family",), ("gpu",), ("environment",), ("tp",), ("pp",), ("cp",), ("ep",), ("attention",), ("gpu", "family"),
)  # fmt: skip
WORST = 10
WITHIN = 10.0
"""Percent: the share of rows within it is told."""
FITTED_ON = "a100-sxm-80gb"
"""GPU whose rows alone constants are fitted to."""
Row = Mapping[str, Any]


def evaluate_memory(path: str | Path) -> dict[str, Any]:
    """Every row of a table of training runs.

    Args:
        path: parquet or CSV. With a column ``memory_peak_bytes`` (the peak of PyTorch's allocator on the last rank of
            the pipeline) rows are Megatron-LM's with its flags; else each row is a run that fitted, or ``oom``.

    Returns:
        Of peaks, ``rows``: case, gpu, environment, family, attention, tp, pp, vp, cp, ep, moment, predicted_bytes,
        measured_bytes, ape, bias, parts; ``means`` by ``GROUPINGS`` and of all: count, mean, median, max, bias, within
        (percent of rows within 10 %); ``worst`` rows; ``assumed`` defaults with the number of rows. Of runs, ``rows``:
        model, framework, gpu, num_gpus, tp, pp, vp, dtype, seq_len, micro_batch, recompute, predicted_bytes,
        needed_bytes, usable_bytes, fits, ran, right, rank, parts; ``means``: count and percent right, of those that
        ran, those that did not, and all. Both: ``skipped`` with reasons.

    Raises:
        DataError: no such file, a foreign file, or no row left.
    """
    records = _records(Path(path))
    peaks = "memory_peak_bytes" in records[0] and records[0]["memory_peak_bytes"] is not None
    rows, skipped = [], []
    for record in records:
        try:
            rows.append(_peak_row(record) if peaks else _verdict_row(record))
        except NeusightError as error:
            skipped.append({"case": str(record.get("case") or record.get("model")), "reason": str(error)})
    if not rows:
        raise DataError(f"no row of {path} can be compared: {skipped[0]['reason']}")
    if not peaks:
        return {"rows": rows, "means": _right(rows), "skipped": skipped}
    return {
        "rows": rows,
        "means": _means(rows),
        "worst": sorted(rows, key=lambda row: -row["ape"])[:WORST],
        "assumed": _assumed(records),
        "skipped": skipped,
    }


def fitted_expert_load(path: str | Path, gpu: str = FITTED_ON) -> float:
    """``EXPERT_LOAD`` by least squares of relative errors over the rows with experts of one GPU.

    The peak is linear in it: with x = peak(2) - peak(1) and y = measured - peak(1), the load is 1 + sum(xy) / sum(x²).
    """
    pairs = []
    for record in _records(Path(path)):
        if record["experts"] and record["gpu"] == gpu:
            even, double = (_last(record, expert_load=load).total for load in (1.0, 2.0))
            measured = record["memory_peak_bytes"]
            pairs.append(((double - even) / measured, 1 - even / measured))
    x, y = np.array(pairs).T
    return float(1 + (x * y).sum() / (x * x).sum())


def _records(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".csv":
        import pandas as pd

        if not path.is_file():
            raise DataError(f"{path} is not there: give a table of training runs")
        frame = pd.read_csv(path)
        records = [{str(k): _cell(v) for k, v in row.items()} for row in frame.to_dict("records")]
    else:
        from neusight.datasets.schema import read_parquet

        records = read_parquet(path).to_pylist()
    if not records or not {"gpu", "layers", "micro_batch"} <= records[0].keys():
        raise DataError(f"{path} has no rows with gpu, layers and micro_batch: it is no table of training runs")
    return records


def _cell(value: Any) -> Any:
    """Of a CSV, whose columns with gaps hold counts as floats and gaps as NaN."""
    if isinstance(value, float):
        return None if isnan(value) else int(value) if value.is_integer() else value
    return value


def _last(record: Row, **habits: Any) -> RankMemory:
    """The rank that was measured."""
    run = MegatronRun(record, load_device(record["gpu"]))
    training = replace(run.training, engine=replace(run.engine, **habits))
    return memory_of(run.decoder, run.plan, training, run.device)[-1]


def _peak_row(record: Row) -> dict[str, Any]:
    measured = record.get("memory_peak_bytes")
    if not measured:
        raise DataError("no memory_peak_bytes: nothing was measured")
    run, rank = MegatronRun(record, load_device(record["gpu"])), _last(record)
    error = 100 * (rank.total / measured - 1)
    told = {name: run.told(name) for name in ("case", "gpu", "environment", "family", "tp", "pp", "vp", "cp", "ep")}
    return told | {
        "attention": run.engine.attention,
        "moment": rank.moment,
        "predicted_bytes": round(rank.total),
        "measured_bytes": measured,
        "ape": abs(error),
        "bias": error,
        "parts": {name: round(value) for name, value in rank.parts.items()},
    }


def _verdict_row(record: Row) -> dict[str, Any]:
    asked = asked_of(told_run(record))
    ranks, device = memory(asked), asked.cluster.device
    found, ran = verdict(ranks, device), not record.get("oom")
    rank = max(ranks, key=lambda each: each.total)
    names = ("model", "framework", "gpu", "num_gpus", "tp", "pp", "vp", "dtype", "seq_len", "micro_batch", "recompute")
    return {name: record.get(name) for name in names} | {
        "predicted_bytes": round(rank.total),
        "needed_bytes": round(found.needed_bytes),
        "usable_bytes": round(found.usable_bytes),
        "fits": found.fits,
        "ran": ran,
        "right": found.fits == ran,
        "rank": rank.rank,
        "parts": {name: round(value) for name, value in rank.parts.items()},
    }


def _right(rows: Sequence[Row]) -> list[dict[str, Any]]:
    groups = {"ran": [r for r in rows if r["ran"]], "out of memory": [r for r in rows if not r["ran"]], "all": [*rows]}
    return [
        {"by": name, "count": len(of), "right": 100 * float(np.mean([row["right"] for row in of]))}
        for name, of in groups.items()
        if of
    ]


def _means(rows: Sequence[Row]) -> list[dict[str, Any]]:
    return [{"by": "all", **_mean(rows)}, *(row for keys in GROUPINGS for row in _grouped(rows, keys))]


def _grouped(rows: Sequence[Row], keys: Sequence[str]) -> Iterator[dict[str, Any]]:
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    for names in sorted(groups, key=lambda names: tuple(map(str, names))):
        yield {"by": " ".join(keys), **dict(zip(keys, names, strict=True)), **_mean(groups[names])}


def _mean(rows: Iterable[Row]) -> dict[str, Any]:
    bias = np.array([row["bias"] for row in rows])
    ape = abs(bias)
    return {
        "count": len(bias),
        "mean": float(ape.mean()),
        "median": float(np.median(ape)),
        "max": float(ape.max()),
        "bias": float(bias.mean()),
        "within": 100 * float((ape <= WITHIN).mean()),
    }


def _assumed(records: Sequence[Row]) -> list[dict[str, Any]]:
    counts = Counter(name for record in records for name in DEFAULTS if record.get(name) is None)
    return [{"what": name, "value": DEFAULTS[name], "count": count} for name, count in sorted(counts.items())]
