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
from neusight.kernels.families import LATER_FIELDS

Kind = Literal["string", "integer", "number", "boolean"]
ARROW: dict[str, str] = {"string": "string", "integer": "int64", "number": "float64", "boolean": "bool"}


@dataclass(frozen=True)
class Field:
    """One column of a table: ``unit`` is '' for names and counts."""

    name: str
    kind: Kind
    unit: str = ""
    required: bool = True


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

    def arrow(self, names: Iterable[str] | None = None) -> Any:
        """The ``pyarrow.Schema`` of the columns in ``names``, in the table's order (default: all)."""
        import pyarrow as pa

        chosen = self.columns if names is None else [c for c in self.columns if c.name in set(names)]
        kinds = {"string": pa.string(), "integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_()}
        return pa.schema(
            [pa.field(c.name, kinds[c.kind], metadata={"unit": c.unit} if c.unit else None) for c in chosen]
        )


_UNITS = {"_ms": "ms", "_mhz": "MHz", "_w": "W", "_c": "°C", "bytes": "B"}
"""Of columns, by the end of their names."""
_STRINGS = frozenset((
    "gpu", "op", "dtype", "split", "framework", "version", "kernel", "timing", "operands", "suspect", "kernel_name",
    "kernel_names", "kv_cache_dtype", "phase", "distribution", "nccl_version", "collective", "node", "mode", "model",
    "option", "attention", "optimizer", "sample", "family", "throttle", "measured_at", "worker",
))  # fmt: skip
_NUMBERS = frozenset(("burst", "blocks_per_sm", "warps_per_sm", "tokens"))
_FLAGS = frozenset(("eager", "bias", "stable"))


def _field(text: str) -> Field:
    """A column by its name; one that may be missing ends in ``?``. What has a unit is a number, bytes are counted."""
    name = text.removesuffix("?")
    unit = next((unit for end, unit in _UNITS.items() if name.endswith(end)), "")
    kinds: dict[Kind, bool] = {
        "string": name in _STRINGS,
        "boolean": name in _FLAGS,
        "number": name in _NUMBERS or unit not in ("", "B"),
    }
    return Field(name, next((kind for kind, here in kinds.items() if here), "integer"), unit, name == text)


def _fields(*names: str) -> tuple[Field, ...]:
    return tuple(_field(name) for text in names for name in text.split())


# timing: profiler, events or wall. operands: repeated, model (within a forward pass) or flushed. burst: kernels back
# to back before a rest. suspect: what is wrong with the row, as its source marks it.
_TAKEN = "timing? operands? burst? suspect?"
_ORIGIN = f"framework? version? kernel? {_TAKEN}"
# kernel_name did the work; kernel_names are all that ran, ';'-separated.
_PROFILE = "kernel_name? kernel_names? grid_x? grid_y? grid_z? block_x? block_y? block_z? blocks_per_sm? warps_per_sm?"
# gpu: id of the device catalogue. split: train or test, as the origin assigned it.
_OPERATOR = f"gpu op dtype split? latency_ms {_ORIGIN}"
_SERVING = f"gpu framework dtype version? kernel? {_TAKEN}"
_CACHED = f"{_SERVING} kv_cache_dtype"
_HEADS = "num_heads num_kv_heads head_dim window"
_LATENT = f"{_CACHED} phase batch q_len kv_len num_heads qk_dim v_dim"

TWO_TENSOR_OPS = ("add", "mul", "div", "pow", "sub")
ONE_TENSOR_OPS = ("add_scalar", "mul_scalar", "div_scalar", "pow_scalar", "sub_scalar")
FUNCTION_OPS = ("relu", "leaky_relu", "elu", "gelu", "tanh", "sigmoid", "silu", "exp", "log", "sqrt", "neg", "sign")
SERVING_OPS = ("rope", "rope_eager", "silu_and_mul", "silu_mul_eager", "add3")

KERNEL_TABLES: dict[str, Table] = {
    name: Table(name, _fields(columns), ops)
    for name, columns, ops in (
        # batch: products a launch, 1 where missing. bias: that of float32 linear layers where missing. eager:
        # launched one by one, not in a graph.
        ("gemm", f"{_OPERATOR} eager? bias? batch? m n k {_PROFILE}", ("linear", "bmm")),
        (
            "elementwise",
            f"{_OPERATOR} rows cols {_PROFILE}",
            TWO_TENSOR_OPS + ONE_TENSOR_OPS + FUNCTION_OPS + SERVING_OPS,
        ),
        (
            "row_reduction",
            f"{_OPERATOR} rows cols {_PROFILE}",
            ("softmax", "layer_norm", "rms_norm", "rms_norm_eager", "add_rms_norm"),
        ),
        ("memory", f"{_OPERATOR} rows cols", ("embedding", "copy", "copy_in")),
        (
            "conv2d",
            f"{_OPERATOR} batch in_channels out_channels kernel_size input_size stride padding {_PROFILE}",
            ("conv2d",),
        ),
        # prefix_len and kv_len: tokens cached before the new ones.
        ("attention_context", f"{_CACHED} batch {_HEADS} seq_len prefix_len? latency_ms", ()),
        ("attention_generation", f"{_CACHED} batch {_HEADS} kv_len latency_ms", ()),
        (
            "attention_mixed",
            f"{_CACHED} {_HEADS} seq_len prefix_len decode_batch kv_len decode_batch_long kv_len_long latency_ms",
            (),
        ),
        # phase: context or generation. top_k: keys of a query.
        ("attention_mla", f"{_LATENT} latency_ms", ()),
        ("attention_sparse", f"op {_LATENT} top_k latency_ms", ("indexer_logits", "sparse_mla")),
        # tokens: of all groups. tokens_per_group: as planned, give or take 30 %.
        ("grouped_gemm", f"{_SERVING} num_groups tokens_per_group? tokens n k latency_ms", ()),
        # distribution: how tokens fall on experts.
        (
            "moe",
            f"{_SERVING} hidden_size ffn_size top_k num_experts moe_tp_size moe_ep_size distribution num_tokens"
            " latency_ms",
            (),
        ),
        ("nccl", "gpu nccl_version collective dtype num_gpus bytes latency_ms", ()),
        # node: kind of machine.
        ("collectives", "node collective num_gpus devices_per_node bytes latency_ms", ()),
        ("allreduce", "gpu framework version kernel mode num_gpus bytes latency_ms", ()),
    )
}
"""Tables by name; ``latency_ms`` is the time of the kernel, launch included."""

# What any run was measured under: reasons that the driver gave for throttling ('' none, ';'-separated), UTC by ISO
# 8601, host and device that measured it.
_STATE = "clock_mhz? memory_clock_mhz? power_w? temperature_c? throttle?"
_WHEN = "measured_at? worker?"
MODEL_TABLE = Table(
    "model_latency",
    # model: name of a config file, without .json. mode: inference or training. seq_len: empty for images. option: ''
    # single GPU, fusion, dp4, tp4, pp4_1. attention: eager (where missing), sdpa or flash. optimizer: whose step is
    # part of e2e_ms, none where missing. Percentiles are sums of the phases'. iterations: steps behind the medians.
    # Peaks are given out by the allocator. stable: small spread, and not throttled by heat.
    _fields(
        "gpu model mode dtype? batch seq_len option? e2e_ms forward_ms? backward_ms? attention? optimizer?",
        "optimizer_ms? e2e_p10_ms? e2e_p90_ms? iterations? peak_memory_bytes? sample? framework? stable?",
        f"{_STATE} {_WHEN}",
    ),
)
# How a collected row was measured. launches: single ones behind latency_ms. execution_ms: one kernel of a graph's
# replay, operands cold; replays: those behind it. cached_ms: as execution_ms on one set of operands, L2 warm.
# operand_sets: that launches rotate through. repeat: 0, or 1 where a kernel was measured once more, to know the
# noise.
_STATISTICS = (
    "latency_p10_ms? latency_p90_ms? launches? execution_ms? execution_p10_ms? execution_p90_ms? replays? cached_ms?"
    " operand_sets?"
)
_KINDS: dict[str, Kind] = {"int": "integer", "bool": "boolean", "str": "string"}


def _collected(family: str, kernel: type[Any]) -> Table:
    """Rows that `neusight collect` measured: every field of the kernel, with the conditions of the measurement. No two
    rows of a set share a ``sample``, which names a planned measurement.
    """
    shape = tuple(
        Field(f.name, _KINDS[str(f.type)], required=f.name not in LATER_FIELDS)
        for f in fields(kernel)
        if f.name not in ("op", "dtype")
    )
    head = _fields("sample family gpu op dtype split? latency_ms")
    measured = _fields(_STATISTICS, _STATE, "stable? repeat", _WHEN, _ORIGIN, _PROFILE)
    return Table(family, (*head, *shape, *measured))


COLLECTED_TABLES: dict[str, Table] = {
    family: _collected(family, kind) for family, kind in KERNEL_CLASSES.items() if family != "moe"
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
