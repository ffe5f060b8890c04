"""Single kernels on held-out GPUs: error of the estimate against that of two rooflines, by family and operator."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.laws.bounds import flops_per_s
from neusight.laws.work import work_of

if TYPE_CHECKING:
    import pandas as pd

    from neusight.api import Predictor
    from neusight.devices import DeviceSpec
    from neusight.experiments.declare import Split
    from neusight.kernels import KernelBatch

LONG_MS = 0.1
"""Kernels from here on are hardly touched by the launch, which no roofline knows of."""


def classic_roofline_s(batch: KernelBatch, device: DeviceSpec) -> np.ndarray:
    """``max(flops / peak, compulsory bytes / DRAM bandwidth)`` in seconds, shape (n,); Williams et al. 2009."""
    work = work_of(batch)
    return np.maximum(work.flops / flops_per_s(batch, device), work.bytes / device.dram_bandwidth_bytes_per_s)


def compared_kernels(source: Path, gpus: tuple[str, ...], predictor: Predictor) -> pd.DataFrame:
    """Every measured row of the GPUs, whatever split its file says: none of them was trained on.

    Returns:
        Columns gpu, family, op, and milliseconds measured, predicted, low, high, bound, roofline.

    Raises:
        DataError: no such file, or a foreign one.
    """
    import pandas as pd

    from neusight.datasets import load_kernels, to_batches
    from neusight.devices import load_device
    from neusight.evaluation import compare_kernels

    frame = load_kernels(source)
    parts = []
    for gpu in gpus:
        rows = frame[frame["gpu"] == gpu].reset_index(drop=True)
        roofline = np.empty(len(rows))
        for batch, positions in to_batches(rows):
            roofline[positions] = 1e3 * classic_roofline_s(batch, load_device(gpu))
        parts.append(compare_kernels(rows, gpu, predictor).assign(family=rows["family"], roofline=roofline))
    return pd.concat(parts, ignore_index=True)


def summarise_kernels(rows: pd.DataFrame, split: Split) -> dict[str, Any]:
    """Errors in percent: ``held_out`` and ``other_vendor`` GPUs pooled by family, ``by_gpu`` and ``by_op``.

    Each entry has count, mape, median_ape, bias, inside (share within the 90 % interval), bound_mape (our lower bound
    as prediction), roofline_mape, their ratios to mape, and ``long`` alike for kernels of at least ``LONG_MS``.
    """
    held = rows[rows["gpu"].isin(split.held_out)]
    return {
        "long_ms": LONG_MS,
        "held_out": _grouped(held, ["family"]),
        "other_vendor": _grouped(rows[rows["gpu"].isin(split.other_vendor)], ["family"]),
        "by_gpu": _grouped(rows, ["gpu", "family"]),
        "by_op": _grouped(held, ["family", "op"]),
    }


def _grouped(rows: pd.DataFrame, keys: list[str]) -> list[dict[str, Any]]:
    found = []
    for names, part in rows.groupby(keys, sort=True):
        long = part[part["measured"] >= LONG_MS]
        figures = {**kernel_errors(part), "long": kernel_errors(long) if len(long) else None}
        found.append({**dict(zip(keys, names, strict=True)), **figures})
    return found


def kernel_errors(rows: pd.DataFrame) -> dict[str, Any]:
    """Errors in percent of one group of rows, and their ratio to those of the two rooflines."""
    signed = 100 * (rows["predicted"] / rows["measured"] - 1)
    inside = (rows["low"] <= rows["measured"]) & (rows["measured"] <= rows["high"])
    mape = float(signed.abs().mean())
    floors = {name: float(100 * (rows[name] / rows["measured"] - 1).abs().mean()) for name in ("bound", "roofline")}
    return {
        "count": len(rows),
        "mape": mape,
        "median_ape": float(signed.abs().median()),
        "bias": float(signed.mean()),
        "inside": float(100 * inside.mean()),
        **{f"{name}_mape": error for name, error in floors.items()},
        **{f"share_of_{name}": mape / error for name, error in floors.items()},
    }
