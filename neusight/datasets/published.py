"""Tables of kernels as other projects publish them, in the columns, names and units of ours, with their conditions.

XLA's performance tables (``xla/tools/{matmul,collective}_perf_table_gen.cc``): the profiler's median over five runs of
each of two sets of operands, which take turns "to prevent caching"; every run copies its operands from the host first,
so that the device rests before each kernel. Products of float32 are TF32's, as XLA allows them by default. On AMD's
GPUs all but those in 8 bit run in rocBLAS (``xla_gpu_enable_cublaslt`` is false). A collective is timed by events
around a launch of its own.

AITER's tuning tables: the fastest kernel found for a shape, the profiler's time of 101 runs back to back whose operands
rotate through more than L2. Operands arrive quantised. Layers of experts are those of one device, whose tokens choose
at random among its experts and arrive sorted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import permutations
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.datasets.columns import coded
from neusight.devices.load import find_device, load_device
from neusight.errors import DataError, DeviceError
from neusight.kernels.precision import DTYPE_BYTES

if TYPE_CHECKING:
    import pandas as pd

TARGETS = {
    "sm_60": "p100-sxm2-16gb",
    "sm_70": "v100-sxm2-16gb",
    "sm_80": "a100-sxm-40gb",
    "sm_90": "h100-sxm-80gb",
    "sm_100": "b200-sxm-180gb",
    "gfx90a": "mi250x",
    "gfx942": "mi300x",
    "gfx950": "mi350x",
}
"""Devices that tables mean which name a compiler's target alone: of XLA those of its older tables, which name both."""
_DTYPES = {
    **{"bf16": "bfloat16", "f16": "float16", "f32": "tf32", "f64": "float64", "s8": "int8"},
    **{"fp16": "float16", "fp32": "float32", "i8": "int8", "fp8": "float8"},
}
_KEPT = ("m", "n", "k", "bias", "suspect", "latency_ms")
_EXECUTIONS = 101.0
"""Of a kernel that AITER tunes, back to back."""


def _plain(name: str) -> str:
    """A name of ours for a dtype, or what it is called: 8-bit floats of any format are one."""
    return "float8" if name.startswith(("f8e", "float8")) else _DTYPES.get(name, name)


def _each(values: Any, rename: Callable[[str], str]) -> np.ndarray:
    """The cells of a column by other names, each distinct one renamed once."""
    codes, names = coded(values)
    return np.array([rename(name) for name in names], dtype=object)[codes]


def _gpu(name: str) -> str:
    """The device that a table names: one of the catalogue, the first of ``a-or-b``, or a compiler's target.

    Raises:
        DataError: none of them.
    """
    first = name.partition("-or-")[0]
    try:
        return TARGETS.get(first) or find_device(first).name
    except DeviceError as error:
        raise DataError(f"no device '{name}' ({error}): add a column gpu with ids of the catalogue") from None


def _devices(rows: pd.DataFrame) -> np.ndarray:
    """Ids of the devices that rows name."""
    return _each(rows[next(name for name in ("gpu", "accelerator", "device") if name in rows)], _gpu)


def _xla_products(rows: pd.DataFrame) -> pd.DataFrame:
    by_amd = _each(_devices(rows), lambda gpu: load_device(gpu).vendor) == "amd"
    on_rocblas = by_amd & ~rows["dtypes"].str.startswith("f8")
    return _frame(
        rows,
        family="gemm",
        op=np.where(rows["b"] == 1, "linear", "bmm"),
        dtype=_each(rows["dtypes"], _of_product),
        batch=rows["b"],
        kernel=rows["dtypes"].where(~on_rocblas, "rocblas"),
        framework="xla",
        **{"timing": "profiler", "operands": "flushed", "burst": 1.0},
    )


def _of_product(name: str) -> str:
    """``bf16xbf16->bf16`` computes in bfloat16; a result that is wider than what is summed up has a name of its own."""
    operands, _, result = name.partition("->")
    dtype, result = (_plain(part) for part in (operands.partition("x")[0], result))
    wider = DTYPE_BYTES.get(result, 0) > max(2, DTYPE_BYTES.get(dtype, 0))
    return name if wider else dtype


def _xla_collectives(rows: pd.DataFrame) -> pd.DataFrame:
    """``dims`` are elements of the result; the tensor that ``bytes`` count is its operand where that is larger."""
    op, ranks = rows["op"].str.replace("-", "_"), rows["group_size"].fillna(2)
    pairs = op == "collective_permute"
    width = _each(rows["dtype"], lambda name: str(DTYPE_BYTES[_plain(name.lower())])).astype(int)
    size = rows["dims"] * width * ranks.where(op == "reduce_scatter", 1).astype(int)
    return _frame(
        rows,
        family="nccl",
        collective=op.where(~pairs, "send_recv"),
        dtype=_each(rows["dtype"], lambda name: _plain(name.lower()).replace("tf32", "float32")),
        num_gpus=ranks.astype(int),
        bytes=size,
        time_us=1e6 * size / rows["network_throughput_bytes_per_s"],
        framework="xla",
        nccl_version="",
        timing="events",
    )


def _aiter_products(rows: pd.DataFrame) -> pd.DataFrame:
    scaled = rows["dtype"].astype(str) + " " + rows["scale"].fillna("").astype(str)
    return _frame(
        rows,
        family="gemm",
        op=rows["op"].replace("gemm", "linear"),
        dtype=_each(scaled, _scaled),
        batch=rows["b"],
        kernel=rows["lib"].fillna("ck"),
        kernel_name=rows["kernel"],
        **_TUNED,
    )


def _scaled(name: str) -> str:
    """``fp8 blockscale-1x128x128`` is fp8_block, ``int8 row/token`` int8_row, ``bfloat16 row/token`` bfloat16."""
    dtype, _, scale = name.partition(" ")
    if (plain := _plain(dtype)) not in ("float8", "int8"):
        return plain
    short = {"float8": "fp8"}.get(plain, plain)
    if "128" in scale:
        return f"{short}_block"
    return f"{short}_row" if "row" in scale or "token" in scale.lower() else plain


def _aiter_experts(rows: pd.DataFrame) -> pd.DataFrame:
    gated = rows["gated"].astype(bool)
    scaled = rows["dtype_w"].astype(str) + " " + rows["quant"].fillna("").astype(str)
    by = np.where(rows["kernel1"].str.startswith("moe_ck"), "ck", "asm").astype(object)
    whole = {"moe_tp_size": 1, "moe_ep_size": 1, "distribution": "uniform"}
    return _frame(
        rows,
        family="moe",
        dtype=_each(scaled, _scaled),
        hidden_size=rows["hidden"],
        ffn_size=rows["inter"],
        num_experts=rows["experts"],
        top_k=rows["topk"],
        num_tokens=rows["tokens"],
        kernel=by + np.where(gated, "", " nongated"),
        kernel_name=rows["kernel1"],
        **whole,
        **_TUNED,
    )


_TUNED = {"framework": "aiter", "timing": "profiler", "operands": "flushed", "burst": _EXECUTIONS}


def _frame(rows: pd.DataFrame, /, **columns: Any) -> pd.DataFrame:
    """The rows with these columns, the device's id, the latency in milliseconds, and what else tables of ours have."""
    columns = {"op": columns["family"], **columns, "gpu": _devices(rows)}
    out = rows.assign(**columns)
    out["latency_ms"] = out["time_us"] * 1e-3
    return out[[name for name in out if name in columns or name in _KEPT]]


@dataclass(frozen=True)
class PublishedTable:
    """A table of another project, known by ``columns`` that it must have."""

    columns: frozenset[str]
    canonical: Callable[[Any], Any]


_XLA_OPS = {
    **{"linear": "mul_scalar", "binary_step": "sign", "parametric_relu": "leaky_relu", "selu": "elu"},
}
"""Operators of a table of activations by the names of ours that do as much."""
_XLA_TILE = (8, 128)
"""What XLA pads the last two extents of an array to on a TPU (its layouts are written T(8,128))."""


def _xla_arrays(rows: pd.DataFrame) -> pd.DataFrame:
    """Pointwise programs of one tensor a shape ``16x24x16``, whose arrays lie padded in memory."""
    stored = np.array([_stored(shape) for shape in rows["shape"]])
    op = _each(rows["op"], lambda name: _XLA_OPS.get(name, name))
    return _frame(
        rows,
        family=np.where(op == "layer_norm", "row_reduction", "elementwise"),
        op=op,
        dtype=_each(rows["dtype"], _plain),
        rows=stored[:, 0],
        cols=stored[:, 1],
        **_PROGRAM,
    )


def _stored(shape: str) -> tuple[int, int]:
    """Rows and columns of an array as it lies in memory: in the order of its extents that pads least, as XLA chooses
    its layout; one of one dimension is not padded.
    """
    extents = tuple(map(int, shape.split("x")))
    if len(extents) == 1:
        return 1, extents[0]
    padded = [
        (int(np.prod(images, dtype=np.int64)) * _multiple(row, _XLA_TILE[0]), _multiple(last, _XLA_TILE[1]))
        for *images, row, last in permutations(extents)
    ]
    return min(padded, key=lambda stored: stored[0] * stored[1])


def _multiple(extent: int, of: int) -> int:
    return -(-extent // of) * of


def _xla_programs(rows: pd.DataFrame) -> pd.DataFrame:
    """Products, each a program; a host's clock around one holds its dispatch. Products of float32 are rounded to
    bfloat16, as XLA does by default.
    """
    hosts = rows["timing"].str.startswith("host").to_numpy(dtype=bool)
    return _frame(
        rows,
        family="gemm",
        op="linear",
        dtype=_each(rows["dtype"], lambda name: _plain(name).replace("tf32", "float32")),
        bias=False,
        **_PROGRAM | {"timing": np.where(hosts, "wall", "profiler")},
    )


def _xla_copies(rows: pd.DataFrame) -> pd.DataFrame:
    """Copies from HBM to on-chip memory: their bytes, a few of the event among them, are read from HBM once."""
    return _frame(rows, family="memory", op="copy_in", dtype="uint8", rows=1, cols=rows["raw_bytes"], **_PROGRAM)


def _tpu_benchmarks(rows: pd.DataFrame) -> pd.DataFrame:
    """Copies within HBM, as ``time_us`` has them, and sums over the chips of a slice, or of each chip with those in its
    place in other slices, which have a part of the matrix each; ``gb_s`` is what a ring's rank sends
    (accelerator-microbenchmarks, ``benchmark_collectives.py``: psum).
    """
    copies = rows["op"].str.startswith("hbm copy").to_numpy(dtype=bool)
    slices = _each(rows["topology"], lambda name: (re.match(r"(\d+) x ", name) or ["", "1"])[1]).astype(int)
    chips = _each(rows["topology"], lambda name: (re.findall(r"-(\d+)", name) or ["1"])[0]).astype(int)
    ranks, size = np.where(slices > 1, slices, chips), rows["bytes"] // slices
    return _frame(
        rows,
        family=np.where(copies, "memory", "nccl"),
        op=np.where(copies, "copy", ""),
        collective=np.where(copies, "", "all_reduce"),
        dtype="bfloat16",
        rows=1,
        cols=size // DTYPE_BYTES["bfloat16"],
        num_gpus=ranks,
        devices_per_node=np.where(slices > 1, 1, chips),
        bytes=size,
        nccl_version="",
        time_us=rows["time_us"].fillna(1e-3 * size * 2.0 * (ranks - 1) / ranks / rows["gb_s"]),
        **_PROGRAM,
    )


_PROGRAM = {"framework": "xla", "timing": "profiler", "operands": "flushed", "burst": 1.0}


PUBLISHED = (
    PublishedTable(frozenset(["accelerator", "op", "m", "n", "k", "timing", "time_us"]), _xla_programs),
    PublishedTable(frozenset(["accelerator", "shape", "elements", "time_std_us"]), _xla_arrays),
    PublishedTable(frozenset(["accelerator", "shape", "raw_bytes", "time_us"]), _xla_copies),
    PublishedTable(frozenset(["accelerator", "op", "topology", "gb_s", "time_us"]), _tpu_benchmarks),
    PublishedTable(frozenset(["dtypes", "b", "m", "n", "k", "time_us"]), _xla_products),
    PublishedTable(frozenset(["op", "dims", "group_size", "network_throughput_bytes_per_s"]), _xla_collectives),
    PublishedTable(frozenset(["op", "dtype", "scale", "lib", "b", "m", "n", "k", "time_us"]), _aiter_products),
    PublishedTable(
        frozenset(["dtype_w", "quant", "hidden", "inter", "experts", "topk", "tokens", "time_us"]), _aiter_experts
    ),
)


def published(names: Collection[str]) -> PublishedTable | None:
    """Whose table has columns of these names; None where it is none of ``PUBLISHED``."""
    return next((table for table in PUBLISHED if table.columns <= set(names)), None)


def beside_kernels(names: Collection[str]) -> bool:
    """Whether a file with columns of these names is XLA's table of cycles of scalar operations: no kernels."""
    return {"op", "clock_cycles"} <= set(names)
