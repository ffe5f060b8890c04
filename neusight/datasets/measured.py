"""What measured rows could have taken: their work and their device's limits, beside the time they took.

The formulas are those of ``neusight.kernels.work``, which a test holds them to; biases are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from neusight.datasets.batches import DTYPE_NAMES, to_batches
from neusight.datasets.load import device_of
from neusight.datasets.observe import observed_tiles
from neusight.devices import DeviceSpec
from neusight.errors import DeviceError
from neusight.kernels import DTYPE_BYTES, KernelBatch

if TYPE_CHECKING:
    import pandas as pd

Batches = Sequence[tuple[KernelBatch, np.ndarray]]
_PRODUCTS = ("gemm", "grouped_gemm", "conv2d", "attention", "attention_context", "attention_generation")
_ORIGIN = ("gpu", "dtype", "framework", "version", "kernel", "kv_cache_dtype")


def measured(frame: pd.DataFrame, devices: Mapping[str, DeviceSpec] | None = None) -> pd.DataFrame:
    """The rows with their work and their device's limits, in SI units, as rules and the physics check need them.

    Adds ``latency_s``, ``execution_s`` (without the launch where that was measured, else the latency), ``flops``,
    ``bytes`` (compulsory: every tensor once), ``padded_flops`` (whole tiles), ``flops_per_s``, ``bytes_per_s``
    (peaks), ``l2_bytes``, ``bound_s`` (roofline), ``same`` (number of the group of rows of the same kernel, GPU and
    software) and the columns of ``observed_tiles``.

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
    flops, moved = np.zeros(len(frame)), np.zeros(len(frame))
    for batch, positions in batches:
        flops[positions], moved[positions] = _work(batch)
    out["flops"], out["bytes"], out["same"] = flops, moved, _same(frame, batches)
    _add_limits(out, devices or {})
    padded = 2.0 * out["grid"] / out["split_k"] * out["tile_m"] * out["tile_n"] * out.get("k", np.nan)
    out["padded_flops"] = padded.where(out["family"] == "gemm").fillna(out["flops"])
    out["bound_s"] = np.maximum(out["flops"] / out["flops_per_s"], out["bytes"] / out["bytes_per_s"])
    return out


def unable(device: DeviceSpec, family: str, dtype: str) -> str:
    """Why rows of a family in a dtype of a data set cannot be compared with a device's limits; '' where they can."""
    if DTYPE_NAMES.get(dtype, dtype) not in DTYPE_BYTES:
        return f"dtype '{dtype}' is not estimated"
    try:
        _peak_flops_per_s(device, family, dtype)
    except DeviceError as error:
        return str(error)
    return ""


def _same(frame: pd.DataFrame, batches: Batches) -> np.ndarray:
    import pandas as pd

    same, groups = np.zeros(len(frame), dtype=np.int64), 0
    origin = frame[[name for name in _ORIGIN if name in frame]]
    for batch, positions in batches:
        keys = pd.DataFrame({f"kernel's {name}": column for name, column in batch.columns.items()})
        keys = keys.join(origin.iloc[positions].reset_index(drop=True))
        codes = keys.groupby(list(keys), dropna=False, sort=False).ngroup().to_numpy()
        same[positions], groups = codes + groups, groups + codes.max() + 1
    return same


def _work(batch: KernelBatch) -> tuple[np.ndarray, np.ndarray]:
    """Floating-point operations and compulsory bytes of kernels; a multiply-add is two operations."""
    if batch.family == "gemm":
        b, m, n, k = (batch[c].astype(np.float64) for c in ("batch", "m", "n", "k"))
        return 2.0 * b * m * n * k, _size(batch) * b * (m * k + k * n + m * n)
    if batch.family == "grouped_gemm":
        return _grouped_work(batch)
    if batch.family == "conv2d":
        return _conv_work(batch)
    if batch.family == "attention":
        return _attention_work(batch)
    flops = batch["flops"] if "flops" in batch.columns else np.zeros(len(batch))
    return flops.astype(np.float64), (batch["read_bytes"] + batch["write_bytes"]).astype(np.float64)


def _grouped_work(batch: KernelBatch) -> tuple[np.ndarray, np.ndarray]:
    """Every token once, and the weights of each group that has one: beside the fullest, as many as tokens are left."""
    tokens, groups, n, k = (batch[c].astype(np.float64) for c in ("tokens", "groups", "n", "k"))
    fullest = np.clip(batch["largest"], np.ceil(tokens / groups), tokens)
    filled = 1.0 + np.minimum(groups - 1.0, tokens - fullest)
    return 2.0 * tokens * n * k, _size(batch) * (tokens * k + filled * k * n + tokens * n)


def _conv_work(batch: KernelBatch) -> tuple[np.ndarray, np.ndarray]:
    """Input, filter and output once, and the same multiplications, whichever of the three is computed."""
    images, taps = batch["batch"].astype(np.float64), batch["kernel_height"] * batch["kernel_width"]
    reach = [batch["dilation"] * (batch[f"kernel_{side}"] - 1) + 1 for side in ("height", "width")]
    spans = [batch[side] + 2 * batch["padding"] for side in ("height", "width")]
    out = [(span - r) // batch["stride"] + 1 for span, r in zip(spans, reach, strict=True)]
    outputs = images * batch["out_channels"] * out[0] * out[1]
    inputs = images * batch["in_channels"] * batch["height"] * batch["width"]
    depth = batch["in_channels"] / batch["groups"] * taps
    return 2.0 * outputs * depth, _size(batch) * (inputs + outputs + batch["out_channels"] * depth)


def _attention_work(batch: KernelBatch) -> tuple[np.ndarray, np.ndarray]:
    """Forward 4·d a pair, backward 10·d (Dao 2023); q, k, v, o, their gradients, and a float32 sum a query."""
    backward = batch["op"] == "backward"
    heads, kv_heads = (batch["batch"] * batch[c].astype(np.float64) for c in ("heads", "kv_heads"))
    flops = np.where(backward, 10.0, 4.0) * heads * _pairs(batch) * batch["head_dim"]
    queries, keys = heads * batch["q_len"] * batch["head_dim"], kv_heads * batch["kv_len"] * batch["head_dim"]
    tensors = np.where(backward, 4.0, 2.0) * (queries + keys)
    return flops, _size(batch) * tensors + 4.0 * heads * batch["q_len"]


def _pairs(batch: KernelBatch) -> np.ndarray:
    """Query-key pairs of one head that are not masked: the last q queries see kv-q+1 … kv keys, a window at most."""
    q, kv = batch["q_len"].astype(np.float64), batch["kv_len"].astype(np.float64)
    window = np.where(batch["window"] > 0, np.minimum(batch["window"], kv), kv)
    seeing = np.minimum(q, kv)
    short = np.clip(window - (kv - seeing), 0, seeing)
    causal = short * (kv - seeing) + short * (short + 1) / 2 + (seeing - short) * window
    return np.where(batch["causal"], causal, q * window)


def _size(batch: KernelBatch) -> np.ndarray:
    names, codes = np.unique(batch["dtype"], return_inverse=True)
    return np.array([DTYPE_BYTES[str(n)] for n in names], dtype=np.float64)[codes]


def _add_limits(out: pd.DataFrame, devices: Mapping[str, DeviceSpec]) -> None:
    """Datasheet peaks of each row's GPU."""
    keys = out.groupby(["gpu", "dtype", "family"], sort=False).ngroup().to_numpy()
    first = np.unique(keys, return_index=True)[1]
    kinds = out[["gpu", "dtype", "family"]].iloc[first].to_numpy()
    limits = np.array([_limits(device_of(gpu, devices), dtype, family) for gpu, dtype, family in kinds]).reshape(-1, 3)
    out[["flops_per_s", "bytes_per_s", "l2_bytes"]] = limits[keys]


def _limits(device: DeviceSpec, dtype: str, family: str) -> tuple[float, float, float]:
    peak = _peak_flops_per_s(device, family, dtype)
    return peak, device.dram_bandwidth_bytes_per_s, device.l2_capacity_bytes


def _peak_flops_per_s(device: DeviceSpec, family: str, dtype: str) -> float:
    """Of matrix units for products; of vector pipelines for the rest, in float32 where that is faster or all there is.

    Raises:
        DeviceError: a product in a dtype that the device lacks.
    """
    name, rates = DTYPE_NAMES.get(dtype, dtype), device.vector_flops_per_s
    if family in _PRODUCTS:
        return device.gemm_flops_per_s(name)
    single = rates.get("float32") or max(rates.values())
    return rates["float64"] if name == "float64" and name in rates else max(rates.get(name, single), single)
