"""Predicted against measured: kernels by GPU, operator and dtype; whole models row by row. All errors in percent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.errors import DataError, DeviceError

if TYPE_CHECKING:
    import pandas as pd

    from neusight.api import Predictor
    from neusight.devices import DeviceSpec
    from neusight.estimates import Estimate

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
        path: a parquet file of kernel measurements, a folder of them, or the folder of a data set, whose devices count.
        predictor: whose predictions.
        split: keep rows of this split (train or test); default all.
        progress: called with (done, of) a GPU.

    Returns:
        ``rows``: gpu, family, op, dtype, count, mape, median_ape, bias (mean signed error), roofline_mape (the bound
        alone as prediction), inside (share of rows within the 90 % interval) and execution_mape (of the prediction
        without the launch, against what was measured without it; None where that was not). ``by_family`` the same by
        family and dtype, ``total`` over all rows. Repetitions of a measurement count once. ``skipped``: gpu, family,
        dtype, count and reason of rows that are no single kernel, or in a dtype that is none or that the GPU lacks.

    Raises:
        DataError: no such file, a foreign one, or no row of that split.
        DeviceError: a GPU that neither the catalogue nor the data set has.
    """
    import pandas as pd

    from neusight.datasets import device_of, devices_beside, load_kernels

    frame = load_kernels(Path(path))
    if "repeat" in frame:
        frame = frame[frame["repeat"] != 1]
    if split is not None:
        frame = _of_split(frame, split, path)
    beside = devices_beside(Path(path))
    devices = {str(gpu): device_of(gpu, beside) for gpu in sorted(frame["gpu"].unique())}
    frame, skipped = _computable(frame, devices, path)
    gpus = sorted(frame["gpu"].unique())
    compared = []
    for done, gpu in enumerate(gpus, start=1):
        compared.append(compare_kernels(frame[frame["gpu"] == gpu].reset_index(drop=True), devices[gpu], predictor))
        if progress:
            progress(done, len(gpus))
    everything = pd.concat(compared, ignore_index=True)
    by_family = _grouped(everything, ["family", "dtype"])
    rows = _grouped(everything, ["gpu", "family", "op", "dtype"])
    return {"rows": rows, "by_family": by_family, "total": _errors(everything), "skipped": skipped}


def _computable(
    frame: pd.DataFrame, devices: Mapping[str, DeviceSpec], path: Path
) -> tuple[pd.DataFrame, list[dict[str, Any]]]:
    """Rows of single kernels in a dtype that their GPU computes in, and what was left out."""
    from neusight.datasets.batches import single_kernels
    from neusight.datasets.measured import unable

    keep = np.ones(len(frame), dtype=bool)
    single, skipped = single_kernels(frame), []
    for (gpu, family, dtype), rows in frame.groupby(["gpu", "family", "dtype"], dropna=False).indices.items():
        if reason := unable(devices[gpu], family, dtype) if single[rows].all() else f"{family} is no single kernel":
            keep[rows] = False
            skipped.append({"gpu": gpu, "family": family, "dtype": dtype, "count": len(rows), "reason": reason})
    if not keep.any():
        raise DataError(f"no row of {path} can be compared: {skipped[0]['reason']}")
    return frame[keep], skipped


def _of_split(frame: pd.DataFrame, split: str, path: Path) -> pd.DataFrame:
    kept = frame[frame["split"] == split]
    if kept.empty:
        known = ", ".join(sorted(s for s in frame["split"].unique() if s)) or "none"
        raise DataError(f"{path} has no rows of split '{split}': it has {known}")
    return kept


def compare_kernels(frame: pd.DataFrame, gpu: str | DeviceSpec, predictor: Predictor) -> pd.DataFrame:
    """One GPU's rows of ``load_kernels``: gpu, family, op, dtype, and in ms measured, predicted, bound, low and high;
    without the launch ``executed`` (measured; NaN where it was not) and ``execution`` (predicted).
    """
    from neusight.datasets import to_batches

    out = frame[["gpu", "family", "op", "dtype"]].assign(measured=frame["latency_ms"].to_numpy(float))
    out["executed"] = frame["execution_ms"].to_numpy(float) if "execution_ms" in frame else np.nan
    columns = {name: np.empty(len(frame)) for name in ("predicted", "bound", "low", "high", "execution")}
    for batch, positions in to_batches(frame):
        found = predictor.kernels(batch, gpu)
        execution_s = found.latency_s - found.overhead_s
        parts = (found.latency_s, found.bound_s, found.low_s, found.high_s, execution_s)
        for name, part in zip(columns, parts, strict=True):
            columns[name][positions] = part * 1e3
    return out.assign(**columns)


def _grouped(rows: pd.DataFrame, keys: list[str]) -> list[dict[str, Any]]:
    return [{**dict(zip(keys, names, strict=True)), **_errors(part)} for names, part in rows.groupby(keys, sort=True)]


def _errors(rows: pd.DataFrame) -> dict[str, Any]:
    """Errors of predictions relative to what was measured."""
    relative = rows["predicted"] / rows["measured"] - 1
    inside = (rows["low"] <= rows["measured"]) & (rows["measured"] <= rows["high"])
    alone = (rows["execution"] / rows["executed"] - 1).abs().dropna()
    return {
        "count": len(rows),
        "mape": float(100 * relative.abs().mean()),
        "median_ape": float(100 * relative.abs().median()),
        "bias": float(100 * relative.mean()),
        "roofline_mape": float(100 * (rows["bound"] / rows["measured"] - 1).abs().mean()),
        "inside": float(100 * inside.mean()),
        "execution_mape": float(100 * alone.mean()) if len(alone) else None,
    }


def evaluate_models(
    path: Path,
    configs: Path,
    predictor: Predictor,
    gpus: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Predict every whole-model measurement on one GPU and compare.

    A training row is forward to the logits, backward from the gradient of the loss, and the step of the optimizer
    where it names one; the loss itself is left out. Devices come from the data set of the file where it has them.

    Args:
        path: parquet with gpu, model, mode, batch, seq_len, option, e2e_ms; attention and optimizer where it has them.
        configs: folder with ``<model>.json`` for the models named there.
        predictor: whose predictions.
        gpus: keep rows of these; default all.
        progress: called with (done, of) a row.

    Returns:
        ``rows``: gpu, model, mode, batch, seq_len, option, dtype, attention, optimizer, predicted_ms, interval_ms,
        measured_ms, ape, and forward and backward alike where they were measured; ``covered`` says that no kernel
        needed the fallback, ``inside`` that the interval holds the measurement. ``means`` by gpu and mode,
        ``by_vendor``, and ``total``: count, mape, max_ape, covered, inside. ``skipped``: rows that are not compared,
        each with its reason.

    Raises:
        DataError: no such file or folder, a foreign file, or no row left.
        DeviceError: a GPU that neither the catalogue nor the data set of the file has.
    """
    from neusight.datasets import device_of, devices_beside, load_models

    if not Path(configs).is_dir():
        raise DataError(f"{configs} is not a folder: give the one that holds <model>.json for the models of {path}")
    frame = load_models(Path(path))
    records = frame[frame["gpu"].isin(list(gpus))].to_dict("records") if gpus else frame.to_dict("records")
    beside = devices_beside(Path(path))
    devices = {gpu: device_of(gpu, beside) for gpu in {record["gpu"] for record in records}}
    rows, skipped = [], []
    for done, record in enumerate(records, start=1):
        config, device = Path(configs) / f"{record['model']}.json", devices[record["gpu"]]
        if reason := _reason(record, config, device):
            skipped.append({**_asked(record), "reason": reason})
        else:
            rows.append(_compared(record, _predicted(record, config, device, predictor)))
        if progress:
            progress(done, len(records))
    if not rows:
        why = skipped[0]["reason"] if skipped else f"it has none of {', '.join(gpus or ('any GPU',))}"
        raise DataError(f"no row of {path} can be compared: {why}")
    return {"rows": rows, **_means(rows, devices), "skipped": skipped}


def _reason(record: dict[Any, Any], config: Path, device: DeviceSpec) -> str:
    from neusight.workloads.load import DTYPES

    if option := record["option"]:
        kind = option.rstrip("0123456789_")
        return _NOT_SINGLE.get(kind, f"option '{option}' is not estimated")
    if record["dtype"] not in DTYPES:
        return f"whole models in dtype '{record['dtype']}' are not estimated"
    if not config.is_file():
        return f"no {config.name} among the configurations"
    return _lacks(device, record["dtype"])


def _lacks(device: DeviceSpec, dtype: str) -> str:
    try:
        device.gemm_flops_per_s(dtype)
    except DeviceError as error:
        return str(error)
    return ""


def _asked(record: dict[Any, Any]) -> dict[str, Any]:
    step = ("gpu", "model", "mode", "batch", "seq_len", "option", "dtype", "attention", "optimizer")
    return {key: record[key] for key in step}


def _predicted(record: dict[Any, Any], config: Path, device: DeviceSpec, predictor: Predictor) -> Estimate:
    return predictor.estimate(
        config,
        device,
        mode=record["mode"],
        batch=int(record["batch"]),
        seq_len=None if record["seq_len"] is None else int(record["seq_len"]),
        dtype=record["dtype"],
        optimizer=record["optimizer"],
        attention=record["attention"],
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


def _means(rows: list[dict[str, Any]], devices: dict[str, DeviceSpec]) -> dict[str, Any]:
    vendors = {gpu: devices[gpu].vendor for gpu in {row["gpu"] for row in rows}}
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
