"""Predicted against measured: kernels by GPU, operator and dtype; whole models row by row. All errors in percent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.errors import DataError, DeviceError

if TYPE_CHECKING:
    import pandas as pd

    from neusight.aggregate import Estimate
    from neusight.api import Predictor

Progress = Callable[[int, int], None]
_NOT_SINGLE = {
    "fusion": "measured with torch.compile; estimates are of eager execution",
    "dp": "measured on several GPUs (data parallel); estimates are of one",
    "tp": "measured on several GPUs (tensor parallel); estimates are of one",
    "pp": "measured on several GPUs (pipeline parallel); estimates are of one",
}


def evaluate_kernels(
    path: Path, predictor: Predictor, split: str | None = None, progress: Progress | None = None
) -> dict[str, Any]:
    """Predict every kernel of a file of measurements and compare.

    Args:
        path: a parquet file of kernel measurements, or a folder of them.
        predictor: whose predictions.
        split: keep rows of this split (train or test); default all.
        progress: called with (done, of) a GPU.

    Returns:
        ``rows``: gpu, op, dtype, count, mape, median_ape, bias (mean signed error), roofline_mape (the bound alone as
        prediction) and inside (share of rows within the 90 % interval); ``total`` the same over all rows. ``skipped``:
        gpu, dtype, count and reason of rows in a dtype that is none or that the GPU lacks.

    Raises:
        DataError: no such file, a foreign one, or no row of that split.
        DeviceError: a GPU that the catalogue lacks.
    """
    import pandas as pd

    from neusight.datasets import load_kernels

    frame = load_kernels(Path(path))
    if split is not None:
        frame = _of_split(frame, split, path)
    frame, skipped = _computable(frame, path)
    gpus = sorted(frame["gpu"].unique())
    compared = []
    for done, gpu in enumerate(gpus, start=1):
        compared.append(compare_kernels(frame[frame["gpu"] == gpu].reset_index(drop=True), gpu, predictor))
        if progress:
            progress(done, len(gpus))
    everything = pd.concat(compared, ignore_index=True)
    rows = [
        {"gpu": gpu, "op": op, "dtype": dtype, **_errors(part)}
        for (gpu, op, dtype), part in everything.groupby(["gpu", "op", "dtype"], sort=True)
    ]
    return {"rows": rows, "total": _errors(everything), "skipped": skipped}


def _computable(frame: pd.DataFrame, path: Path) -> tuple[pd.DataFrame, list[dict[str, Any]]]:
    """Rows in a dtype that their GPU computes in, and what was left out."""
    keep = np.ones(len(frame), dtype=bool)
    skipped = []
    for (gpu, dtype), rows in frame.groupby(["gpu", "dtype"]).indices.items():
        if reason := _unable(gpu, dtype):
            keep[rows] = False
            skipped.append({"gpu": gpu, "dtype": dtype, "count": len(rows), "reason": reason})
    if not keep.any():
        raise DataError(f"no row of {path} can be compared: {skipped[0]['reason']}")
    return frame[keep], skipped


def _unable(gpu: str, dtype: str) -> str:
    from neusight.datasets.load import DTYPE_NAMES
    from neusight.devices import load_device
    from neusight.kernels import DTYPE_BYTES

    device = load_device(gpu)
    name = DTYPE_NAMES.get(dtype, dtype)
    if name not in DTYPE_BYTES:
        return f"dtype '{dtype}' is not estimated"
    try:
        device.gemm_flops_per_s(name)
    except DeviceError as error:
        return str(error)
    return ""


def _of_split(frame: pd.DataFrame, split: str, path: Path) -> pd.DataFrame:
    kept = frame[frame["split"] == split]
    if kept.empty:
        known = ", ".join(sorted(s for s in frame["split"].unique() if s)) or "none"
        raise DataError(f"{path} has no rows of split '{split}': it has {known}")
    return kept


def compare_kernels(frame: pd.DataFrame, gpu: str, predictor: Predictor) -> pd.DataFrame:
    """One GPU's rows of ``load_kernels``: gpu, op, dtype, and milliseconds measured, predicted, bound, low, high."""
    from neusight.datasets import to_batches

    out = frame[["gpu", "op", "dtype"]].assign(measured=frame["latency_ms"].to_numpy(float))
    columns = {name: np.empty(len(frame)) for name in ("predicted", "bound", "low", "high")}
    for batch, positions in to_batches(frame):
        found = predictor.kernels(batch, gpu)
        parts = (found.latency_s, found.bound_s, found.low_s, found.high_s)
        for name, part in zip(columns, parts, strict=True):
            columns[name][positions] = part * 1e3
    return out.assign(**columns)


def _errors(rows: pd.DataFrame) -> dict[str, Any]:
    """Errors of predictions relative to what was measured."""
    relative = rows["predicted"] / rows["measured"] - 1
    inside = (rows["low"] <= rows["measured"]) & (rows["measured"] <= rows["high"])
    return {
        "count": len(rows),
        "mape": float(100 * relative.abs().mean()),
        "median_ape": float(100 * relative.abs().median()),
        "bias": float(100 * relative.mean()),
        "roofline_mape": float(100 * (rows["bound"] / rows["measured"] - 1).abs().mean()),
        "inside": float(100 * inside.mean()),
    }


def evaluate_models(
    path: Path,
    configs: Path,
    predictor: Predictor,
    gpus: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Predict every whole-model measurement on one GPU and compare.

    A training row is forward to the logits and backward from the gradient of the loss, without loss and optimizer.

    Args:
        path: parquet with gpu, model, mode, batch, seq_len, option, e2e_ms.
        configs: folder with ``<model>.json`` for the models named there.
        predictor: whose predictions.
        gpus: keep rows of these; default all.
        progress: called with (done, of) a row.

    Returns:
        ``rows``: gpu, model, mode, batch, seq_len, option, dtype, predicted_ms, interval_ms, measured_ms, ape, and
        forward and backward alike where they were measured; ``covered`` says that no kernel needed the fallback,
        ``inside`` that the interval holds the measurement. ``means`` by gpu and mode, ``by_vendor``, and ``total``:
        count, mape, max_ape, covered, inside. ``skipped``: rows that are not compared, each with its reason.

    Raises:
        DataError: no such file or folder, a foreign file, or no row left.
        DeviceError: a GPU that the catalogue lacks.
    """
    from neusight.datasets import load_models

    if not Path(configs).is_dir():
        raise DataError(f"{configs} is not a folder: give the one that holds <model>.json for the models of {path}")
    frame = load_models(Path(path))
    records = frame[frame["gpu"].isin(list(gpus))].to_dict("records") if gpus else frame.to_dict("records")
    rows, skipped = [], []
    for done, record in enumerate(records, start=1):
        config = Path(configs) / f"{record['model']}.json"
        if reason := _reason(record["option"], config):
            skipped.append({**_asked(record), "reason": reason})
        else:
            rows.append(_compared(record, _predicted(record, config, predictor)))
        if progress:
            progress(done, len(records))
    if not rows:
        why = skipped[0]["reason"] if skipped else f"it has none of {', '.join(gpus or ('any GPU',))}"
        raise DataError(f"no row of {path} can be compared: {why}")
    return {"rows": rows, **_means(rows), "skipped": skipped}


def _reason(option: str, config: Path) -> str:
    if option:
        kind = option.rstrip("0123456789_")
        return _NOT_SINGLE.get(kind, f"option '{option}' is not estimated")
    return "" if config.is_file() else f"no {config.name} among the configurations"


def _asked(record: dict[Any, Any]) -> dict[str, Any]:
    return {key: record[key] for key in ("gpu", "model", "mode", "batch", "seq_len", "option", "dtype")}


def _predicted(record: dict[Any, Any], config: Path, predictor: Predictor) -> Estimate:
    return predictor.estimate(
        config,
        record["gpu"],
        mode=record["mode"],
        batch=int(record["batch"]),
        seq_len=int(record["seq_len"]),
        dtype=record["dtype"],
        allow_fallback=True,
    )


def _compared(record: dict[Any, Any], estimate: Estimate) -> dict[str, Any]:
    low, high = (1e3 * value for value in estimate.interval)
    measured = float(record["e2e_ms"])
    row = {
        **_asked(record),
        "predicted_ms": 1e3 * estimate.latency_s,
        "interval_ms": [low, high],
        "measured_ms": measured,
        "ape": _ape(1e3 * estimate.latency_s, measured),
        "bias": 100 * (1e3 * estimate.latency_s / measured - 1),
        "covered": estimate.coverage["fallback"] == 0,
        "inside": low <= measured <= high,
    }
    for phase in ("forward", "backward"):
        if record[f"{phase}_ms"] == record[f"{phase}_ms"]:
            predicted = 1e3 * estimate.by_phase.get(phase, 0.0)
            row |= {f"{phase}_predicted_ms": predicted, f"{phase}_measured_ms": float(record[f"{phase}_ms"])}
            row[f"{phase}_ape"] = _ape(predicted, float(record[f"{phase}_ms"]))
    return row


def _ape(predicted: float, measured: float) -> float:
    return 100 * abs(predicted / measured - 1)


def _means(rows: list[dict[str, Any]]) -> dict[str, Any]:
    from neusight.devices import load_device

    vendors = {gpu: load_device(gpu).vendor for gpu in {row["gpu"] for row in rows}}
    pairs = sorted({(row["gpu"], row["mode"]) for row in rows})
    by_pair = [
        {"gpu": gpu, "mode": mode, **_mean([r for r in rows if (r["gpu"], r["mode"]) == (gpu, mode)])}
        for gpu, mode in pairs
    ]
    by_vendor = [
        {"vendor": vendor, **_mean([r for r in rows if vendors[r["gpu"]] == vendor])}
        for vendor in sorted(set(vendors.values()))
    ]
    return {"means": by_pair, "by_vendor": by_vendor, "total": _mean(rows)}


def _mean(rows: list[dict[str, Any]]) -> dict[str, Any]:
    apes = [row["ape"] for row in rows]
    return {
        "count": len(rows),
        "mape": float(np.mean(apes)),
        "max_ape": max(apes),
        "bias": float(np.mean([row["bias"] for row in rows])),
        "covered": 100 * float(np.mean([row["covered"] for row in rows])),
        "inside": 100 * float(np.mean([row["inside"] for row in rows])),
    }
