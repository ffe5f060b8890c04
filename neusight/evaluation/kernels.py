"""Kernels, predicted against measured, by GPU, operator and dtype. All errors in percent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

    from neusight.api import Predictor
    from neusight.devices import DeviceSpec

Progress = Callable[[int, int], None]


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
        without the launch, against what was measured without it, or what is left of launches that grew along the table;
        None where neither is known). ``by_family`` the same by
        family and dtype, ``total`` over all rows. Repetitions of a measurement count once. ``skipped``: gpu, family,
        dtype, count and reason of rows in a dtype that is none or that the GPU lacks.

    Raises:
        DataError: no such file, a foreign one, or no row of that split.
        DeviceError: a GPU that neither the catalogue nor the data set has.
    """
    frame, devices, skipped = comparable_kernels(Path(path), split)
    everything = compared_by_gpu(frame, devices, predictor, progress)
    by_family = grouped_errors(everything, ["family", "dtype"])
    rows = grouped_errors(everything, ["gpu", "family", "op", "dtype"])
    return {"rows": rows, "by_family": by_family, "total": _errors(everything), "skipped": skipped}


def comparable_kernels(
    path: Path, split: str | None = None
) -> tuple[pd.DataFrame, dict[str, DeviceSpec], list[dict[str, Any]]]:
    """Rows that can be compared, their devices by id, and what was left out; see ``evaluate_kernels``."""
    from neusight.datasets import device_of, devices_beside, load_kernels

    frame = _coded(load_kernels(path))
    if "repeat" in frame:
        frame = frame[frame["repeat"] != 1]
    if split is not None:
        frame = _of_split(frame, split, path)
    beside = devices_beside(path)
    devices = {str(gpu): device_of(gpu, beside) for gpu in sorted(frame["gpu"].unique())}
    frame, skipped = _computable(frame, devices, path)
    return frame, devices, skipped


def _of_split(frame: pd.DataFrame, split: str, path: Path) -> pd.DataFrame:
    kept = frame[frame["split"] == split]
    if kept.empty:
        known = ", ".join(sorted(s for s in frame["split"].unique() if s)) or "none"
        raise DataError(f"{path} has no rows of split '{split}': it has {known}")
    return kept


def _computable(
    frame: pd.DataFrame, devices: Mapping[str, DeviceSpec], path: Path
) -> tuple[pd.DataFrame, list[dict[str, Any]]]:
    """Rows of single kernels in a dtype that their GPU computes in, and what was left out."""
    from neusight.datasets.batches import single_kernels
    from neusight.datasets.measured import unable

    # Collectives of serving engines have no dtype, and need none: bytes tell everything.
    frame = frame if "dtype" in frame else frame.assign(dtype="")
    keep = np.ones(len(frame), dtype=bool)
    single, skipped = single_kernels(frame), []
    for (gpu, family, dtype), rows in frame.groupby(
        ["gpu", "family", "dtype"], dropna=False, observed=True
    ).indices.items():
        if single[rows].all() and (reason := unable(devices[gpu], family, dtype)):
            keep[rows] = False
            skipped.append({"gpu": gpu, "family": family, "dtype": dtype, "count": len(rows), "reason": reason})
    if not keep.any():
        raise DataError(f"no row of {path} can be compared: {skipped[0]['reason']}")
    return frame[keep], skipped


def _coded(frame: pd.DataFrame) -> pd.DataFrame:
    """The same rows with columns of words as categories: selecting and comparing those moves numbers, not words."""
    import pandas as pd

    words = [name for name in frame if pd.api.types.is_string_dtype(frame[name]) and frame[name].notna().all()]
    return frame.astype(dict.fromkeys(words, "category"))


def compared_by_gpu(
    frame: pd.DataFrame, devices: Mapping[str, DeviceSpec], predictor: Predictor, progress: Progress | None = None
) -> pd.DataFrame:
    """``compare_kernels`` of every GPU's rows, GPU after GPU."""
    import pandas as pd

    gpus = sorted(frame["gpu"].unique())
    compared = []
    for done, gpu in enumerate(gpus, start=1):
        compared.append(compare_kernels(frame[frame["gpu"] == gpu].reset_index(drop=True), devices[gpu], predictor))
        if progress:
            progress(done, len(gpus))
    return pd.concat(compared, ignore_index=True)


def compare_kernels(frame: pd.DataFrame, gpu: str | DeviceSpec, predictor: Predictor) -> pd.DataFrame:
    """One GPU's rows of ``load_kernels``: gpu, family, op, dtype, and in ms measured, predicted, bound, low and high;
    without the launch ``executed`` (measured; NaN where it was not) and ``execution`` (predicted). Of collectives
    the op says who runs what.

    Where launches grew along the table, ``executed`` is what is left of the latency without them.
    """
    from neusight.datasets import to_batches
    from neusight.datasets.conditions import conditions_of
    from neusight.devices import load_device
    from neusight.executors.link.executor import kinds_of

    out = frame[["gpu", "family", "op", "dtype"]].assign(measured=frame["latency_ms"].to_numpy(float))
    ops = out["op"].astype(object).to_numpy(copy=True)
    told = frame["execution_ms"].to_numpy(float) if "execution_ms" in frame else np.full(len(frame), np.nan)
    columns = {name: np.empty(len(frame)) for name in ("predicted", "bound", "low", "high", "execution", "executed")}
    device = load_device(gpu) if isinstance(gpu, str) else gpu
    for batch, positions in to_batches(frame):
        conditions = conditions_of(frame.iloc[positions], batch, device)
        if batch.family == "collective":
            ops[positions] = kinds_of(batch, conditions)
        found = predictor.kernels(batch, device, conditions=conditions)
        alone = np.where(conditions.timing == "stream", out["measured"].to_numpy()[positions], np.nan)
        left = without_drift(batch["op"], positions, alone, 1e3 * found.bound_s)
        executed = np.where(np.isnan(told[positions]), left, told[positions])
        parts = (found.latency_s, found.bound_s, found.low_s, found.high_s, found.execution_s, 1e-3 * executed)
        for name, part in zip(columns, parts, strict=True):
            columns[name][positions] = part * 1e3
    return out.assign(op=ops, **columns)


def without_drift(ops: np.ndarray, place: np.ndarray, alone_ms: np.ndarray, bound_ms: np.ndarray) -> np.ndarray:
    """Lone launches less what drifted along the table, at least the bound [ms]; NaN where nothing did, or where
    ``alone_ms`` is. See ``neusight.learn.drift``.
    """
    from neusight.learn.drift import drifting_floor_s

    left = np.full(len(place), np.nan)
    if np.isnan(alone_ms).all():
        return left
    for op in np.unique(ops):
        rows = np.flatnonzero((ops == op) & ~np.isnan(alone_ms))
        floor_s = drifting_floor_s(place[rows], 1e-3 * alone_ms[rows], 1e-3 * bound_ms[rows]) if len(rows) else None
        if floor_s is not None:
            left[rows] = np.maximum(alone_ms[rows] - 1e3 * floor_s, bound_ms[rows])
    return left


def grouped_errors(rows: pd.DataFrame, keys: list[str]) -> list[dict[str, Any]]:
    """Errors of each group of ``compare_kernels``' rows, in order of the keys."""
    return [
        {**dict(zip(keys, map(str, names), strict=True)), **_errors(part)}
        for names, part in rows.groupby(keys, sort=True, observed=True)
    ]


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
