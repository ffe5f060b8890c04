"""Rules that doubt measured rows: each names a fault and says why its rows mislead who learns from them.

A rule compares rows of a device with each other and with its datasheet, never with another device, so that no measured
level of a device that is left out reaches a row that is learned from.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from neusight.devices import DeviceSpec
from neusight.errors import DeviceError
from neusight.kernels import KernelBatch
from neusight.kernels.work import by_distinct, work_of
from neusight.laws.bounds import CLOCKS, GEMM_FAMILIES, peak_flops_per_s
from neusight.measured.folder import table_parts
from neusight.measured.pairs import row_codes
from neusight.measured.table import STATISTIC, MeasuredTable, columns_of

if TYPE_CHECKING:
    import pandas as pd

_WINOGRAD = 4.0
"""Multiplications of a direct 3x3 convolution over those of Winograd's F(4x4, 3x3) (Lavin and Gray 2016)."""
_APART = 0.10
"""Distance of repetitions from their median that noise explains."""
_FAST_SHARE = 0.05
"""Share of a layer's balanced rows beyond which it is the routing, not a row, that is not as it says (assumption)."""
_LAYER = ("gpu", "software", "backend", "variant", "dtype", "hidden_size", "ffn_size", "num_experts", "top_k")
_MEASURED_BY = ("source", "table", "software", "host", "libraries", "measured_on")


def find_suspects(table: MeasuredTable) -> np.ndarray:
    """Cells of the column ``suspect``: ``<rule>: <why>`` of the first rule that doubts a row, else None."""
    cells = np.full(len(table), None, dtype=object)
    for find, why in reversed(RULES.items()):
        cells[find(table)] = f"{find.__name__}: {why}"
    return cells


def faster_than_datasheet(table: MeasuredTable) -> np.ndarray:
    """More FLOP/s than the peak, or more bytes/s than DRAM of operands that no cache holds, beyond 5 % of clocks.

    Twice the L2 is room for partial hits; a pass may find there what the one before it wrote.
    """
    fast = np.zeros(len(table), dtype=bool)
    if table.kind != "kernels" or "latency_ms" not in table.frame:
        return fast
    times = 1e-3 * _execution_ms(table.frame)
    for part in table_parts(table, []):
        if part.batch.family != "collective":
            fast[part.rows] = times[part.rows] * CLOCKS < _least_s(part.batch, part.device)
    return fast


def _execution_ms(frame: pd.DataFrame) -> np.ndarray:
    latency = frame["latency_ms"]
    return np.asarray(frame["execution_ms"].fillna(latency) if "execution_ms" in frame else latency, dtype=float)


def _least_s(batch: KernelBatch, device: DeviceSpec) -> np.ndarray:
    """Seconds that the datasheet's rates allow; zero where the device has no rate for a dtype."""
    work = work_of(batch)
    product = batch.family in GEMM_FAMILIES
    rates = by_distinct(batch["dtype"], lambda dtype: _rate(device, dtype, product))
    compute = work.flops / rates / (_WINOGRAD if batch.family == "conv2d" else 1.0)
    uncached = work.bytes / batch.columns.get("passes", 1) > 2.0 * device.on_chip_bytes
    return np.maximum(compute, np.where(uncached, work.bytes / device.dram_bandwidth_bytes_per_s, 0.0))


def _rate(device: DeviceSpec, dtype: str, product: bool) -> float:
    try:
        return peak_flops_per_s(device, dtype, product=product)
    except DeviceError:
        return np.inf


def fewer_experts(table: MeasuredTable) -> np.ndarray:
    """All rows of a layer of experts by a kernel, of whose balanced ones many would read weights faster than DRAM can:
    its tokens did not get the experts that the row says. Of DeepSeek-V3's layer, balanced over eight groups of experts
    that all score the same, a router that keeps four groups (arXiv 2412.19437, section 2.1.2) reaches half of them.
    """
    import pandas as pd

    if not {"num_experts", "distribution"} <= {*table.frame}:
        return np.zeros(len(table), dtype=bool)
    balanced = table.frame["distribution"].fillna("balanced") == "balanced"
    fast = pd.Series(faster_than_datasheet(table), index=table.frame.index).astype(float).where(balanced)
    layer = [table.frame[name] for name in _LAYER if name in table.frame]
    share = fast.groupby(layer, dropna=False, observed=True).transform("mean")
    return (share > _FAST_SHARE).to_numpy()


def conflicting_duplicate(table: MeasuredTable) -> np.ndarray:
    """The same question measured more than once, more than 10 % off the median of its repetitions.

    Where a row has ``execution_ms``, its ``latency_ms`` is not compared: the launch in it varies with a busy host.
    """
    words = {*columns_of("kernels" if table.kind == "kernels" else "gains").values(), *_MEASURED_BY}
    codes = row_codes(table.frame, [name for name in table.frame if name in words])
    apart = np.zeros(len(table), dtype=bool)
    for name in table.quantities:
        if name.endswith("_ms") and not STATISTIC.search(name):
            launched = name == "latency_ms" and "execution_ms" in table.frame
            times = table.frame[name].where(table.frame["execution_ms"].isna()) if launched else table.frame[name]
            apart |= ((times / times.groupby(codes).transform("median") - 1.0).abs() > _APART).to_numpy()
    return apart


RULES: dict[Callable[[MeasuredTable], np.ndarray], str] = {
    fewer_experts: "tokens went to fewer experts than the routing that the rows state",
    faster_than_datasheet: "more work a second than the device can do: the timer or the shape is wrong",
    conflicting_duplicate: "the same question took more than 10 % longer or shorter in its other measurements",
}
"""Functions that return True for rows of a table that are doubted, named as their rule, with the reason."""
