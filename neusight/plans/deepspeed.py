"""Configurations of DeepSpeed ("DeepSpeed Configuration JSON") as fields of a plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from neusight.errors import ModelError, shown

_MARKS = ("train_batch_size", "train_micro_batch_size_per_gpu", "zero_optimization", "gradient_accumulation_steps")
_STAGES = ("none", "zero1", "zero2", "zero3")
_OPTIMIZERS = {"adam": "adam", "adamw": "adamw", "sgd": "sgd", "fusedadam": "adam", "deepspeedcpuadam": "adam"}
_DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
_NUMBERS = {"train_batch_size": "global_batch_size", "train_micro_batch_size_per_gpu": "micro_batch_size",
            "gradient_accumulation_steps": "micro_batches"}  # fmt: skip
_UNREAD = ("offload_param", "zero_hpz_partition_size", "zero_quantized_weights", "zero_quantized_gradients",
           "mics_shard_size", "sequence_parallel_size", "compression_training", "sparse_attention")  # fmt: skip
"""Of the file and of its ``zero_optimization``: what changes a step's time or memory and has no place in a plan."""


def is_deepspeed(table: Mapping[str, Any]) -> bool:
    """Whether a JSON file is one of DeepSpeed's."""
    return any(name in table for name in _MARKS)


def deepspeed_values(table: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """(fields of a plan and of its run, keys that matter and have no place there). ``auto`` counts as not given.

    Raises:
        ModelError: values that are not read.
    """
    zero = _table(table, "zero_optimization")
    stage = _whole("stage", zero.get("stage", 0), least=0)
    if stage >= len(_STAGES):
        raise ModelError(f"zero_optimization.stage = {stage}: one of 0, 1, 2, 3")
    values: dict[str, Any] = {"engine": "fsdp", "shard": _STAGES[stage], "overlap_grad_reduce": bool(stage)}
    values |= {
        field: _whole(name, table[name]) for name, field in _NUMBERS.items() if table.get(name, "auto") != "auto"
    }
    if "overlap_comm" in zero and zero["overlap_comm"] != "auto":
        values["overlap_grad_reduce"] = bool(zero["overlap_comm"])
    if _table(zero, "offload_optimizer").get("device", "none") != "none":
        values["offload"] = "optimizer"
    for name, dtype in (("bf16", "bfloat16"), ("fp16", "float16")):
        if _table(table, name).get("enabled") is True:
            values["dtype"] = dtype
    values |= _degrees(table) | _rest(table)
    return values, [name for name in _UNREAD if _is_on(zero.get(name)) or _is_on(table.get(name))]


def _table(table: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    values = table.get(name) or {}
    if not isinstance(values, dict):
        raise ModelError(f"{name} = {shown(values)}: give a table of its keys")
    return values


def _whole(name: str, value: Any, least: int = 1) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ModelError(f"{name} = {shown(value)}: give a whole number of at least {least}")
    return value


def _degrees(table: Mapping[str, Any]) -> dict[str, int]:
    tp, pp = _table(table, "tensor_parallel").get("autotp_size"), _table(table, "pipeline").get("stages")
    degrees = {"tp": tp, "pp": pp if isinstance(pp, int) else None}
    return {name: _whole(name, value) for name, value in degrees.items() if value}


def _rest(table: Mapping[str, Any]) -> dict[str, str]:
    """The optimizer, and the dtype in which gradients are summed."""
    values = {}
    if optimizer := _OPTIMIZERS.get(str(_table(table, "optimizer").get("type", "")).lower()):
        values["optimizer"] = optimizer
    dtype = _table(table, "data_types").get("grad_accum_dtype") or table.get("communication_data_type")
    if dtype in _DTYPES:
        values["gradient_dtype"] = _DTYPES[str(dtype)]
    return values


def _is_on(value: Any) -> bool:
    """Whether a key asks for something: sizes above 1, true, or a table that names a device."""
    if isinstance(value, dict):
        return value.get("device", "cpu") != "none" and bool(value)
    return value is True or (isinstance(value, int) and value > 1)
