"""Under which conditions the rows of each data set were timed.

Columns ``timing`` and ``operands`` tell it where they are there. Rows of serving engines have neither: how
aiconfigurator's collectors timed them was read from their source (``collector/`` at 095f58a), and older versions of an
engine may differ. Rows without any of it are single launches on one set of operands.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from neusight.datasets.columns import coded, flags_or, strings_or
from neusight.datasets.load import collected
from neusight.devices import DeviceSpec
from neusight.kernels import Conditions, KernelBatch, work_of
from neusight.kernels.conditions import COLD
from neusight.kernels.work import weight_bytes

if TYPE_CHECKING:
    import pandas as pd

SERVING = ("sglang", "vllm", "trtllm")
"""Frameworks of aiconfigurator's tables."""
_TIMINGS = {"profiler": "profiler", "events": "stream", "wall": "wall"}
"""Events stand around launches in a stream."""
WALL_FLOOR_S = 50e-6
"""Calls in a loop that take less tell the host's time, not the kernel's (README of the data)."""
_OPERATORS, _REPLAYED = 6, 5
"""Operators in the graph of a product, and runs of a layer of experts in theirs, at most."""
_REPLAYS = 6.0
"""Replays of a graph in a burst, at least."""
_FILLED = 0.45
"""Share of the memory that sglang's sets of operands may fill."""

_VARIANTS: tuple[tuple[str, str], ...] = (
    *((name, name) for name in ("fa4", "fa3", "fa2")),
    # FlashAttention-3 names itself; without a number it is the second, which Ampere runs.
    ("fa2", r"flash_attn|flash_attention"),
    ("trtllm_gen", r"trtllm_mha|trtllmdecode|trtllmprefill"),
    ("weight_only", "weightonlyquant"),
    ("smooth_quant", "smoothquant"),
    ("triton", r"torch_flow_triton"),
    ("cutlass", r"cutlass|fp8_scaled_mm|moe_torch_flow"),
    ("deepgemm", "deepgemm"),
    ("marlin", "marlin"),
    ("triton", r"triton|fused_moe"),
    # SGLang's trtllm_mha are kernels that FlashInfer brings, as are those that vLLM names after it.
    ("flashinfer", r"flashinfer|paged_decode|trtllm_mha"),
    ("flash_attention", r"vllm_attention_layer"),
    ("trtllm", r"torch_flow|trt_flow"),
    ("contiguous", "contiguous"),
    ("masked", "masked"),
    ("torch", r"linear|vllm_default|^sglang$"),
    ("ck", r"^ck(tile)?\b"),
    *((name, rf"^{name}\b") for name in ("asm", "rocblas")),
)
"""What a kernel's name stands for; the first that it has."""
_FRAMEWORKS: tuple[tuple[str, str, str], ...] = (
    (r"sarathi", "torch", "sarathi"),
    (r"^(py)?torch", "torch", ""),
    (r"flash-attn", "flash-attn", "fa2"),
    (r"sgl-kernel", "sglang", "fa3"),
    (r"flashinfer", "flashinfer", "flashinfer"),
    (r"frontier", "vllm", ""),
)
"""Engine and usual variant of data sets' frameworks; others are engines of their own name."""


def conditions_of(rows: pd.DataFrame, batch: KernelBatch, device: DeviceSpec) -> Conditions:
    """The conditions of measured rows.

    Args:
        rows: of one family, as ``load_kernels`` gives them.
        batch: their kernels, as ``to_batches`` gives them, in the order of the rows.
        device: that measured them.
    """
    once = work_of(batch).bytes
    if collected(rows).all():
        return _of_collection(rows, once)
    if batch.family == "collective":
        return _of_collectives(rows)
    engine, variant = _who(rows)
    variant = np.where(variant == "flash_attention", _flash_attention(device), variant)
    timing, operands = (strings_or(rows, name) for name in ("timing", "operands"))
    stated = {name: timing == name for name in _TIMINGS}
    columns = {
        "timing": np.select(list(stated.values()), list(_TIMINGS.values()), "stream"),
        "launches": np.ones(len(rows)),
        "cycled_bytes": np.where(np.isin(operands, ("model", "flushed")), COLD, once),
        "one_input": np.zeros(len(rows), dtype=bool),
    }
    served = np.isin(strings_or(rows, "framework"), SERVING) & (timing == "")
    if served.any():
        serving_columns = _of_serving(rows, batch, device, once)
        columns = {name: np.where(served, serving_columns[name], column) for name, column in columns.items()}
    # vLLM's 16-bit operands are not random; they draw less power.
    equal = served & (engine == "vllm") & (batch.family == "gemm") & (batch["dtype"] == "bfloat16")
    burst = _burst(batch, columns["timing"], columns["launches"])
    if "burst" in rows:
        burst = np.where(rows["burst"].notna(), rows["burst"], burst)
    who = {"engine": engine, "variant": variant, "recorded": True}
    return Conditions.of(len(rows), **columns, **who, random=~equal, burst=burst)


def _flash_attention(device: DeviceSpec) -> str:
    """What vLLM runs where a source names its attention alone: FlashAttention-3 was written for Hopper's asynchronous
    units, everywhere else it is the second (``vllm/v1/attention/backends/fa_utils.py``, ``get_flash_attn_version``).
    """
    return "fa3" if str(device.compute_capability).startswith("9.") else "fa2"


def _burst(batch: KernelBatch, timing: np.ndarray, launches: np.ndarray) -> np.ndarray:
    """Kernels before a rest: those of a graph's replays, one where batched products and convolutions were launched
    singly (short ones of power-limited boards run faster than long ones, which single products do not), infinitely
    many elsewhere.
    """
    alone = (timing == "stream") & ((batch["op"] == "bmm") | (batch.family == "conv2d"))
    return np.select([timing == "graph", alone], [_REPLAYS * launches, 1.0], np.inf)


def _of_collection(rows: pd.DataFrame, once: np.ndarray) -> Conditions:
    """Rows of ``neusight collect``: ``latency_ms`` is of launches by themselves, sets of operands take turns."""
    sets = rows["operand_sets"].fillna(1).to_numpy(dtype=float) if "operand_sets" in rows else np.ones(len(rows))
    engine, variant = _who(rows)
    who = {"engine": engine, "variant": variant, "recorded": True}
    return Conditions.of(len(rows), cycled_bytes=np.maximum(sets, 1.0) * once, **who)


def _of_collectives(rows: pd.DataFrame) -> Conditions:
    """NCCL's are means of many launches back to back, behind which the host's time hides, or a profiler's times, unless
    each stood between events; engines' own are replays of a graph, or calls (``eager``).
    """
    engine, mode = (strings_or(rows, name) for name in ("framework", "mode"))
    own = np.isin(engine, SERVING)
    lone = strings_or(rows, "timing") == "events"
    timing = np.select([lone, ~own, mode == "graph"], ["stream", "profiler", "graph"], "stream")
    return Conditions.of(len(rows), timing=timing, engine=np.where(own | (engine == "xla"), engine, "torch"))


def _of_serving(rows: pd.DataFrame, batch: KernelBatch, device: DeviceSpec, once: np.ndarray) -> dict[str, np.ndarray]:
    """Graphs of several operators, by table and engine; attention has one operator on one set of operands."""
    framework = strings_or(rows, "framework")
    timing = np.full(len(rows), "graph")
    launches, cycled, one_input = np.ones(len(rows)), once, np.zeros(len(rows), dtype=bool)
    if batch.family == "gemm":
        # Without a graph where the engine plans on the host, and where a layer is timed within a network.
        eager, layer = flags_or(rows, "eager", False), _within_network(rows)
        launches, cycled = _products(batch, device, once, framework)
        timing = np.where(eager | layer, "stream", timing)
        launches = np.where(eager | layer, 1.0, launches)
        cycled = np.select([layer, eager], [COLD, once], cycled)
        one_input = framework != "sglang"
    elif batch.family == "moe":
        # The weights are the same each time; balanced tokens need but one routing, except in sglang.
        one = (batch["distribution"] == "balanced") & (framework != "sglang")
        launches = np.where(one, 1.0, _REPLAYED)
    return {"timing": timing, "launches": launches, "cycled_bytes": cycled, "one_input": one_input}


def _within_network(rows: pd.DataFrame) -> np.ndarray:
    """Layers that TensorRT itself timed by events, run once behind others whose weights fill hundreds of megabytes."""
    codes, names = coded(strings_or(rows, "kernel"))
    return np.array([name.startswith("trt_flow") for name in names])[codes]


def _products(
    batch: KernelBatch, device: DeviceSpec, once: np.ndarray, framework: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(operators in a graph, bytes between two uses of an operand) of products.

    sglang: each operator has its own A and B, six unless they would fill the memory. vllm: one A, six B.
    trtllm: one A, and up to five B, until they exceed L2. Results lie where the last one lay.
    """
    b_bytes = batch["batch"] * batch["k"].astype(float) * batch["n"] * weight_bytes(batch)
    own = np.clip(np.floor(_FILLED * device.dram_capacity_bytes / once), 1.0, _OPERATORS)
    turns = np.where(framework == "vllm", _OPERATORS, np.clip(np.ceil(device.on_chip_bytes / b_bytes), 1.0, 5.0))
    sglang = framework == "sglang"
    rotating = np.where(sglang, (own - 1.0) * (once - work_of(batch).write_bytes), (turns - 1.0) * b_bytes)
    return np.where(sglang, own, turns), once + rotating


def _who(rows: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Engine and variant of each row, found once for each distinct framework and kernel."""
    codes, frameworks = coded(strings_or(rows, "framework"))
    kinds, kernels = coded(strings_or(rows, "kernel"))
    engines, usual = zip(*(_engine(name) for name in frameworks), strict=True)
    variants = np.array([_variant(name) for name in kernels])[kinds]
    engine, variant = np.array(engines)[codes], np.where(variants == "", np.array(usual)[codes], variants)
    # Frontier profiles vLLM's kernels, but calls FlashInfer by itself.
    alone = (np.array(frameworks) == "frontier")[codes] & (variant == "flashinfer")
    return np.where(alone, variant, engine), variant


def _engine(framework: str) -> tuple[str, str]:
    name = framework.lower()
    return next(((engine, usual) for pattern, engine, usual in _FRAMEWORKS if re.search(pattern, name)), (name, ""))


def _variant(kernel: str) -> str:
    lowered = kernel.lower()
    return next((variant for variant, pattern in _VARIANTS if re.search(pattern, lowered)), "")
