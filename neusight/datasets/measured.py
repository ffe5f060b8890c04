"""What measured rows could have taken: their work and their device's limits, beside the time they took.

Work and limits are those of ``neusight.kernels.work`` and ``neusight.laws.bounds``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from neusight.datasets.batches import to_batches
from neusight.datasets.columns import DTYPE_NAMES
from neusight.datasets.load import device_of
from neusight.datasets.observe import observed_tiles
from neusight.datasets.schema import SERVING_OPS
from neusight.devices import DeviceSpec
from neusight.errors import DeviceError
from neusight.kernels import DTYPE_BYTES, KernelBatch, work_of
from neusight.laws.bounds import GEMM_FAMILIES, peak_flops_per_s

if TYPE_CHECKING:
    import pandas as pd

Batches = Sequence[tuple[KernelBatch, np.ndarray]]
_PRODUCTS = (
    *GEMM_FAMILIES,
    *("attention_context", "attention_generation", "attention_mla", "attention_sparse"),
)
MIXED = "attention_mixed"
"""Table of attention over prompts and decoding sequences in one launch."""
_ORIGIN = ("gpu", "dtype", "framework", "version", "kernel", "kv_cache_dtype", "eager", "timing", "operands")


def measured(frame: pd.DataFrame, devices: Mapping[str, DeviceSpec] | None = None) -> pd.DataFrame:
    """The rows with their work and their device's limits, in SI units, as rules and the physics check need them.

    Adds ``latency_s``, ``execution_s`` (without the launch where that was measured, else the latency), ``flops``,
    ``bytes`` (compulsory: every tensor once), ``passes`` (kernels that share them), ``padded_flops`` (whole tiles),
    ``flops_per_s``, ``bytes_per_s`` (peaks), ``l2_bytes``, ``bound_s`` (roofline), ``same`` (number of the group of
    rows of the same kernel, GPU and software) and the columns of ``observed_tiles``.

    Args:
        frame: rows as ``load_kernels`` gives them.
        devices: by id; default the catalogue.

    Raises:
        DataError: a shape that is no kernel. DeviceError: a GPU that neither ``devices`` nor the catalogue has.
    """
    out = frame.join(observed_tiles(frame))
    out["latency_s"] = frame["latency_ms"] * 1e-3
    alone = frame["execution_ms"] * 1e-3 if "execution_ms" in frame else out["latency_s"]
    out["execution_s"] = alone.fillna(out["latency_s"])
    batches = to_batches(frame)
    flops, moved, passes = np.zeros(len(frame)), np.zeros(len(frame)), np.ones(len(frame))
    for batch, positions in batches:
        work = work_of(batch)
        flops[positions], moved[positions] = work.flops, work.bytes
        passes[positions] = batch.columns.get("passes", 1)
    out["flops"], out["bytes"], out["passes"], out["same"] = flops, moved, passes, _same(frame, batches)
    _add_limits(out, devices or {})
    padded = 2.0 * out["grid"] / out["split_k"] * out["tile_m"] * out["tile_n"] * out.get("k", np.nan)
    out["padded_flops"] = padded.where(out["family"] == "gemm").fillna(out["flops"])
    out["bound_s"] = np.maximum(out["flops"] / out["flops_per_s"], out["bytes"] / out["bytes_per_s"])
    return out


def unable(device: DeviceSpec, family: str, dtype: str) -> str:
    """Why rows of a family in a dtype of a data set cannot be compared with a device's limits; '' where they can."""
    if why := unestimated(family, dtype):
        return why
    try:
        peak_flops_per_s(device, DTYPE_NAMES.get(dtype, dtype), product=family in _PRODUCTS)
    except DeviceError as error:
        return str(error)
    return ""


def unestimated(family: str, dtype: str) -> str:
    """Why no device answers rows of a family in a dtype of a data set; '' where some may."""
    if family == MIXED:
        return "prompts and decoding in one launch are not estimated as one kernel"
    return "" if DTYPE_NAMES.get(dtype, dtype) in DTYPE_BYTES else f"dtype '{dtype}' is not estimated"


def _same(frame: pd.DataFrame, batches: Batches) -> np.ndarray:
    import pandas as pd

    same, groups = np.zeros(len(frame), dtype=np.int64), 0
    origin = frame[[name for name in _ORIGIN if name in frame]]
    if "rows" in frame:
        # A block of theirs has a row, however many elements there are in all.
        origin = origin.assign(by_rows=frame["rows"].where(frame["op"].isin(SERVING_OPS)))
    for batch, positions in batches:
        keys = pd.DataFrame({f"kernel's {name}": column for name, column in batch.columns.items()})
        keys = keys.join(origin.iloc[positions].reset_index(drop=True))
        codes = keys.groupby(list(keys), dropna=False, sort=False).ngroup().to_numpy()
        same[positions], groups = codes + groups, groups + codes.max() + 1
    return same


def _add_limits(out: pd.DataFrame, devices: Mapping[str, DeviceSpec]) -> None:
    """Datasheet peaks of each row's GPU."""
    keys = out.groupby(["gpu", "dtype", "family"], sort=False).ngroup().to_numpy()
    first = np.unique(keys, return_index=True)[1]
    kinds = out[["gpu", "dtype", "family"]].iloc[first].to_numpy()
    limits = np.array([_limits(device_of(gpu, devices), dtype, family) for gpu, dtype, family in kinds]).reshape(-1, 3)
    out[["flops_per_s", "bytes_per_s", "l2_bytes"]] = limits[keys]


def _limits(device: DeviceSpec, dtype: str, family: str) -> tuple[float, float, float]:
    peak = peak_flops_per_s(device, DTYPE_NAMES.get(dtype, dtype), product=family in _PRODUCTS)
    return peak, device.dram_bandwidth_bytes_per_s, device.l2_capacity_bytes
