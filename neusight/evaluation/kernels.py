"""Kernels, predicted against measured, by GPU, operator and dtype. All errors in percent."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.errors import DataError
from neusight.measured.score import Progress, Scored, joined

if TYPE_CHECKING:
    import pandas as pd

    from neusight.api import Predictor
    from neusight.devices import DeviceSpec

_SCORED = ("predicted", "low", "high")


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
        dtype, count and reason of rows in a dtype that is none or that the GPU lacks, or that their source marks.

    Raises:
        DataError: no such file, a foreign one, or no row of that split.
        DeviceError: a GPU that neither the catalogue nor the data set has.
    """
    frame, devices, skipped = comparable_kernels(Path(path), split)
    everything = compared_by_gpu(frame, devices, predictor, progress)
    return {
        "rows": errors_by(everything, "gpu", "family", "op", "dtype"),
        "by_family": errors_by(everything, "family", "dtype"),
        "total": _errors(everything),
        "skipped": skipped,
    }


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
    own_devices = devices_beside(path)
    devices = {str(gpu): device_of(gpu, own_devices) for gpu in sorted(frame["gpu"].unique())}
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
    from neusight.datasets.columns import strings_or
    from neusight.datasets.measured import unable

    # Collectives of serving engines have no dtype, and need none: bytes tell everything.
    frame = frame if "dtype" in frame else frame.assign(dtype="")
    keep = np.ones(len(frame), dtype=bool)
    single, suspect, skipped = single_kernels(frame), strings_or(frame, "suspect"), []
    for (gpu, family, dtype), rows in frame.groupby(
        ["gpu", "family", "dtype"], dropna=False, observed=True
    ).indices.items():
        if single[rows].all() and (reason := unable(devices[gpu], family, dtype)):
            keep[rows] = False
            skipped.append({"gpu": gpu, "family": family, "dtype": dtype, "count": len(rows), "reason": reason})
        elif (marked := rows[suspect[rows] != ""]).size:
            keep[marked] = False
            reason = f"marked by the source: {', '.join(np.unique(suspect[marked]))}"
            skipped.append({"gpu": gpu, "family": family, "dtype": dtype, "count": len(marked), "reason": reason})
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
) -> Scored:
    """``compare_kernels`` of every GPU's rows, GPU after GPU."""
    gpus = sorted(frame["gpu"].unique())
    compared = []
    for done, gpu in enumerate(gpus, start=1):
        compared.append(compare_kernels(frame[frame["gpu"] == gpu].reset_index(drop=True), devices[gpu], predictor))
        if progress:
            progress(done, len(gpus))
    return joined(compared)


def compare_kernels(frame: pd.DataFrame, gpu: str | DeviceSpec, predictor: Predictor) -> Scored:
    """One GPU's rows of ``load_kernels``, in ms; keys are gpu, family, op (of collectives who runs what) and dtype,
    with ``bound`` and, without the launch, ``execution`` (predicted) and ``executed`` (measured; NaN where it was not).

    Where launches grew along the table, ``executed`` is what is left of the latency without them.
    """
    from neusight.datasets import to_batches
    from neusight.datasets.conditions import conditions_of
    from neusight.devices import load_device
    from neusight.executors.link import kinds_of

    measured = frame["latency_ms"].to_numpy(float)
    ops = frame["op"].astype(object).to_numpy(copy=True)
    timed_ms = frame["execution_ms"].to_numpy(float) if "execution_ms" in frame else np.full(len(frame), np.nan)
    names = ("predicted", "bound", "low", "high", "execution", "executed")
    columns = {name: np.empty(len(frame)) for name in names}
    device = load_device(gpu) if isinstance(gpu, str) else gpu
    for batch, positions in to_batches(frame):
        conditions = conditions_of(frame.iloc[positions], batch, device)
        if batch.family == "collective":
            ops[positions] = kinds_of(batch, conditions)
        costs = predictor.kernels(batch, device, conditions=conditions)
        alone = np.where(conditions.timing == "stream", measured[positions], np.nan)
        left = without_drift(batch["op"], positions, alone, 1e3 * costs.bound_s)
        executed = np.where(np.isnan(timed_ms[positions]), left, timed_ms[positions])
        parts = (costs.latency_s, costs.bound_s, *costs.interval_s(), costs.execution_s, 1e-3 * executed)
        for name, part in zip(names, parts, strict=True):
            columns[name][positions] = part * 1e3
    keys = frame[["gpu", "family", "dtype"]].assign(op=ops, **{n: columns.pop(n) for n in names if n not in _SCORED})
    return Scored(keys, **columns, measured=measured)


def without_drift(ops: np.ndarray, place: np.ndarray, alone_ms: np.ndarray, bound_ms: np.ndarray) -> np.ndarray:
    """Lone launches less what drifted along the table, at least the bound [ms]; NaN where nothing did, or where
    ``alone_ms`` is. See ``neusight.learn.training_sets``.
    """
    from neusight.learn.training_sets import drifting_floor_s

    left = np.full(len(place), np.nan)
    if np.isnan(alone_ms).all():
        return left
    for op in np.unique(ops):
        rows = np.flatnonzero((ops == op) & ~np.isnan(alone_ms))
        floor_s = drifting_floor_s(place[rows], 1e-3 * alone_ms[rows], 1e-3 * bound_ms[rows]) if len(rows) else None
        if floor_s is not None:
            left[rows] = np.maximum(alone_ms[rows] - 1e3 * floor_s, bound_ms[rows])
    return left


def errors_by(rows: Scored, *keys: str) -> list[dict[str, Any]]:
    """Errors of each group of ``compare_kernels``' rows, in order of the keys; of all rows without any key."""
    return [{**{key: str(name) for key, name in names.items()}, **_errors(part)} for names, part in rows.groups(*keys)]


def _errors(rows: Scored) -> dict[str, Any]:
    """Errors of predictions relative to what was measured."""
    bound, execution = (rows.keys[name].to_numpy(float) for name in ("bound", "execution"))
    alone = np.abs(execution / rows.keys["executed"].to_numpy(float) - 1)
    alone, figures = alone[~np.isnan(alone)], rows.figures()
    return {
        "count": figures["count"],
        "mape": figures["mean"],
        "median_ape": figures["median"],
        "bias": figures["bias"],
        "roofline_mape": float(100 * np.abs(bound / rows.measured - 1).mean()),
        "inside": figures["inside"],
        "execution_mape": float(100 * alone.mean()) if len(alone) else None,
    }
