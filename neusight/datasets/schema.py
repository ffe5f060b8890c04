"""Schemas of measured data: which columns a table has, in which unit and dtype, and what a file must be to be read.

A kernel table has one row a measured kernel. Its family follows from the ``op`` column where there is one, and from
its columns otherwise. pyarrow is imported where a file is opened.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from neusight.errors import DataError
from neusight.kernels import KERNEL_CLASSES
from neusight.kernels.families import COMPOSED, LATER_FIELDS

Kind = Literal["string", "integer", "number", "boolean"]
ARROW: dict[str, str] = {"string": "string", "integer": "int64", "number": "float64", "boolean": "bool"}


@dataclass(frozen=True)
class Field:
    """One column of a table: ``unit`` is '' for names and counts."""

    name: str
    kind: Kind
    unit: str = ""
    required: bool = True
    meaning: str = ""


@dataclass(frozen=True)
class Table:
    """One kind of file. ``ops`` are the values of its ``op`` column, empty when it has none."""

    name: str
    columns: tuple[Field, ...]
    ops: tuple[str, ...] = ()

    @property
    def required(self) -> tuple[str, ...]:
        """Names of the columns that must be there."""
        return tuple(c.name for c in self.columns if c.required)

    @property
    def optional(self) -> tuple[str, ...]:
        """Names of the columns that may be there."""
        return tuple(c.name for c in self.columns if not c.required)

    def arrow(self, names: Iterable[str] | None = None) -> Any:
        """The ``pyarrow.Schema`` of the columns in ``names``, in the table's order (default: all)."""
        import pyarrow as pa

        chosen = self.columns if names is None else [c for c in self.columns if c.name in set(names)]
        kinds = {"string": pa.string(), "integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_()}
        return pa.schema(
            [pa.field(c.name, kinds[c.kind], metadata={"unit": c.unit} if c.unit else None) for c in chosen]
        )


def _integers(*names: str, required: bool = True) -> tuple[Field, ...]:
    return tuple(Field(name, "integer", required=required) for name in names)


_LATENCY = Field("latency_ms", "number", "ms", meaning="time of the kernel, launch included")
_HEAD = (Field("gpu", "string", meaning="id of the device catalogue"), Field("op", "string"))
_DTYPE = Field("dtype", "string", meaning="element type of the operands")
_SPLIT = Field("split", "string", required=False, meaning="train or test, as the origin assigned it")
_TAKEN = (
    Field("timing", "string", required=False, meaning="profiler, events or wall; of a data set, where it is told"),
    Field("operands", "string", required=False, meaning="repeated, model (within a forward pass) or flushed"),
    Field("burst", "number", required=False, meaning="kernels back to back before a rest; many where missing"),
    Field("suspect", "string", required=False, meaning="what is wrong with the row, as its source marks it"),
)
_ORIGIN = (*(Field(name, "string", required=False) for name in ("framework", "version", "kernel")), *_TAKEN)
_PROFILE = (
    Field("kernel_name", "string", required=False, meaning="the kernel that did the work"),
    Field("kernel_names", "string", required=False, meaning="all kernels that ran, ';'-separated"),
    *_integers("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", required=False),
    Field("blocks_per_sm", "number", required=False),
    Field("warps_per_sm", "number", required=False),
)
_SERVING = (
    Field("gpu", "string", meaning="id of the device catalogue"),
    Field("framework", "string"),
    Field("dtype", "string"),
    *(Field(name, "string", required=False) for name in ("version", "kernel")),
    *_TAKEN,
)
_CACHED = (*_SERVING, Field("kv_cache_dtype", "string"))
_LATENT = (
    *(*_CACHED, Field("phase", "string", meaning="context or generation")),
    *_integers("batch", "q_len", "kv_len", "num_heads", "qk_dim", "v_dim"),
)
_HEADS = _integers("batch", "num_heads", "num_kv_heads", "head_dim", "window")

TWO_TENSOR_OPS = ("add", "mul", "div", "pow", "sub")
ONE_TENSOR_OPS = ("add_scalar", "mul_scalar", "div_scalar", "pow_scalar", "sub_scalar")
FUNCTION_OPS = ("relu", "gelu", "tanh", "sigmoid", "silu", "exp", "log", "sqrt", "neg")
SERVING_OPS = ("rope", "rope_eager", "silu_and_mul", "silu_mul_eager", "add3")

KERNEL_TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        Table(
            "gemm",
            (
                *_HEAD,
                _DTYPE,
                _SPLIT,
                _LATENCY,
                *_ORIGIN,
                Field("eager", "boolean", required=False, meaning="launched one by one, not in a graph"),
                Field("bias", "boolean", required=False, meaning="that of float32 linear layers where missing"),
                Field("batch", "integer", required=False, meaning="products a launch; 1 where missing"),
                *_integers("m", "n", "k"),
                *_PROFILE,
            ),
            ops=("linear", "bmm"),
        ),
        Table(
            "elementwise",
            (*_HEAD, _DTYPE, _SPLIT, _LATENCY, *_ORIGIN, *_integers("rows", "cols"), *_PROFILE),
            ops=TWO_TENSOR_OPS + ONE_TENSOR_OPS + FUNCTION_OPS + SERVING_OPS,
        ),
        Table(
            "row_reduction",
            (*_HEAD, _DTYPE, _SPLIT, _LATENCY, *_ORIGIN, *_integers("rows", "cols"), *_PROFILE),
            ops=("softmax", "layer_norm", "rms_norm", "rms_norm_eager", "add_rms_norm"),
        ),
        Table(
            "memory",
            (*_HEAD, _DTYPE, _SPLIT, _LATENCY, *_ORIGIN, *_integers("rows", "cols")),
            ops=("embedding",),
        ),
        Table(
            "conv2d",
            (
                *_HEAD,
                _DTYPE,
                _SPLIT,
                _LATENCY,
                *_ORIGIN,
                *_integers("batch", "in_channels", "out_channels", "kernel_size", "input_size", "stride", "padding"),
                *_PROFILE,
            ),
            ops=("conv2d",),
        ),
        Table(
            "attention_context",
            (
                *(*_CACHED, *_HEADS),
                *(
                    Field("seq_len", "integer"),
                    Field("prefix_len", "integer", required=False, meaning="cached before"),
                ),
                _LATENCY,
            ),
        ),
        Table(
            "attention_generation",
            (*_CACHED, *_HEADS, Field("kv_len", "integer", meaning="tokens already cached"), _LATENCY),
        ),
        Table(
            "attention_mixed",
            (
                *(*_CACHED, *_integers("num_heads", "num_kv_heads", "head_dim", "window")),
                *_integers("seq_len", "prefix_len", "decode_batch", "kv_len", "decode_batch_long", "kv_len_long"),
                _LATENCY,
            ),
        ),
        Table("attention_mla", (*_LATENT, _LATENCY)),
        Table(
            "attention_sparse",
            (
                Field("op", "string"),
                *_LATENT,
                Field("top_k", "integer", meaning="keys of a query"),
                _LATENCY,
            ),
            ops=("indexer_logits", "sparse_mla"),
        ),
        Table(
            "grouped_gemm",
            (
                *(*_SERVING, *_integers("num_groups")),
                Field("tokens_per_group", "integer", required=False, meaning="as planned, give or take 30 %"),
                *(Field("tokens", "number", meaning="of all groups"), *_integers("n", "k"), _LATENCY),
            ),
        ),
        Table(
            "moe",
            (
                *_SERVING,
                *_integers("hidden_size", "ffn_size", "top_k", "num_experts", "moe_tp_size", "moe_ep_size"),
                Field("distribution", "string", meaning="how tokens fall on experts"),
                *_integers("num_tokens"),
                _LATENCY,
            ),
        ),
        Table(
            "nccl",
            (
                *(Field(name, "string") for name in ("gpu", "nccl_version", "collective", "dtype")),
                *_integers("num_gpus"),
                Field("bytes", "integer", "B"),
                _LATENCY,
            ),
        ),
        Table(
            "collectives",
            (
                *(Field("node", "string", meaning="kind of machine"), Field("collective", "string")),
                *_integers("num_gpus", "devices_per_node"),
                Field("bytes", "integer", "B"),
                _LATENCY,
            ),
        ),
        Table(
            "allreduce",
            (
                *(Field(name, "string") for name in ("gpu", "framework", "version", "kernel", "mode")),
                *_integers("num_gpus"),
                Field("bytes", "integer", "B"),
                _LATENCY,
            ),
        ),
    )
}
_KINDS: dict[str, Kind] = {"int": "integer", "bool": "boolean", "str": "string"}


def _conditions() -> tuple[Field, ...]:
    """How a row was measured: statistics, the device's state, and what ran."""
    spread = ("tenth percentile", "ninetieth percentile")
    return (
        Field("latency_p10_ms", "number", "ms", required=False, meaning=spread[0]),
        Field("latency_p90_ms", "number", "ms", required=False, meaning=spread[1]),
        Field("launches", "integer", required=False, meaning="single launches behind latency_ms"),
        Field("execution_ms", "number", "ms", required=False, meaning="one kernel of a graph's replay, operands cold"),
        Field("execution_p10_ms", "number", "ms", required=False, meaning=spread[0]),
        Field("execution_p90_ms", "number", "ms", required=False, meaning=spread[1]),
        Field("replays", "integer", required=False, meaning="graph replays behind execution_ms"),
        Field("cached_ms", "number", "ms", required=False, meaning="as execution_ms on one set of operands: L2 warm"),
        Field("operand_sets", "integer", required=False, meaning="sets of operands that launches rotate through"),
        Field("clock_mhz", "number", "MHz", required=False, meaning="of the SMs, while it ran"),
        Field("memory_clock_mhz", "number", "MHz", required=False),
        Field("power_w", "number", "W", required=False),
        Field("temperature_c", "number", "°C", required=False),
        Field("throttle", "string", required=False, meaning="reasons the driver gave, '' none, ';'-separated"),
        Field("stable", "boolean", meaning="small spread, and not throttled by heat"),
        Field("repeat", "integer", meaning="0, or 1 where a kernel was measured once more, to know the noise"),
        Field("measured_at", "string", required=False, meaning="UTC, ISO 8601"),
        Field("worker", "string", required=False, meaning="host and device that measured it"),
    )


_OF_ANY_RUN = ("clock_mhz", "memory_clock_mhz", "power_w", "temperature_c", "throttle", "measured_at", "worker")
MODEL_TABLE = Table(
    "model_latency",
    (
        Field("gpu", "string", meaning="id of the device catalogue"),
        Field("model", "string", meaning="name of a config file, without .json"),
        Field("mode", "string", meaning="inference or training"),
        Field("dtype", "string", required=False),
        Field("batch", "integer"),
        Field("seq_len", "integer", meaning="empty for images"),
        Field("option", "string", required=False, meaning="'' single GPU, fusion, dp4, tp4, pp4_1"),
        Field("e2e_ms", "number", "ms"),
        Field("forward_ms", "number", "ms", required=False),
        Field("backward_ms", "number", "ms", required=False),
        Field("attention", "string", required=False, meaning="eager, sdpa or flash; eager where missing"),
        Field("optimizer", "string", required=False, meaning="whose step is part of e2e_ms; none where missing"),
        Field("optimizer_ms", "number", "ms", required=False),
        Field("e2e_p10_ms", "number", "ms", required=False, meaning="sum of the phases' tenth percentiles"),
        Field("e2e_p90_ms", "number", "ms", required=False, meaning="sum of the phases' ninetieth percentiles"),
        Field("iterations", "integer", required=False, meaning="steps behind the medians"),
        Field("peak_memory_bytes", "integer", "B", required=False, meaning="given out by the allocator, at most"),
        Field("sample", "string", required=False, meaning="names a planned measurement"),
        Field("framework", "string", required=False),
        Field("stable", "boolean", required=False, meaning="small spread, and not throttled by heat"),
        *(column for column in _conditions() if column.name in _OF_ANY_RUN),
    ),
)


def _collected(family: str, kernel: type[Any]) -> Table:
    """Rows that `neusight collect` measured: every field of the kernel, with the conditions of the measurement."""
    shape = tuple(
        Field(f.name, _KINDS[str(f.type)], required=f.name not in LATER_FIELDS)
        for f in fields(kernel)
        if f.name not in ("op", "dtype")
    )
    sample = Field("sample", "string", meaning="names a planned measurement; no two rows of a set share it")
    head = (sample, Field("family", "string"), *_HEAD, _DTYPE, _SPLIT, _LATENCY)
    return Table(family, (*head, *shape, *_conditions(), *_ORIGIN, *_PROFILE))


COLLECTED_TABLES: dict[str, Table] = {
    family: _collected(family, kind) for family, kind in KERNEL_CLASSES.items() if family not in COMPOSED
}
"""Tables by kernel family; a file is one of these where it has the columns ``sample`` and ``family``."""

TABLE_OF_OP: dict[str, Table] = {op: table for table in KERNEL_TABLES.values() for op in table.ops}


def read_parquet(path: Path) -> Any:
    """A ``pyarrow.Table`` of the whole file.

    Raises:
        DataError: the file is missing, truncated, or not parquet.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not path.is_file():
        fault = "is a folder" if path.is_dir() else "is not there"
        raise DataError(f"{path} {fault}: give a parquet file of measurements")
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty: copy it again from its source")
    with path.open("rb") as file:
        whole = file.read(4) == b"PAR1" and file.seek(-4, 2) and file.read(4) == b"PAR1"
        begins = file.seek(0) == 0 and file.read(4) == b"PAR1"
    if not whole:
        fault = "truncated (its parquet footer is missing)" if begins else "not a parquet file"
        raise DataError(f"{path} is {fault}: copy it again from its source, or `neusight datasets import` a CSV")
    try:
        return pq.ParquetFile(path).read()
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{path} cannot be read as parquet ({reason}): copy it again from its source") from error
