"""Configurations of DeepSpeed ("DeepSpeed Configuration JSON") as fields of a plan."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from neusight.errors import ModelError, shown
from neusight.plans.keys import flat, whole

_MARKS = ("train_batch_size", "train_micro_batch_size_per_gpu", "zero_optimization", "gradient_accumulation_steps")
_STAGES = ("none", "zero1", "zero2", "zero3")
_NUMBERS = {"train_batch_size": "global_batch_size", "train_micro_batch_size_per_gpu": "micro_batch_size",
            "gradient_accumulation_steps": "micro_batches"}  # fmt: skip
_DEGREES = {"tensor_parallel.autotp_size": "tp", "pipeline.stages": "pp"}
"""Keys of degrees and fields of a plan; 0 means none."""
_DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
_WORDS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "zero_optimization.overlap_comm": ("overlap_grad_reduce", {"true": True, "false": False}),
    "zero_optimization.offload_optimizer.device": ("offload", {"cpu": "optimizer", "nvme": "optimizer"}),
    "zero_optimization.offload_param.device": ("offload", {"cpu": "parameters", "nvme": "parameters"}),
    "bf16.enabled": ("dtype", {"true": "bfloat16"}),
    "fp16.enabled": ("dtype", {"true": "float16"}),
    "optimizer.type": (
        "optimizer",
        {"adam": "adam", "adamw": "adamw", "sgd": "sgd", "fusedadam": "adam", "deepspeedcpuadam": "adam"},
    ),
    "communication_data_type": ("gradient_dtype", _DTYPES),
    "data_types.grad_accum_dtype": ("gradient_dtype", _DTYPES),
}
"""By key the field, and its values by the key's words; other words are left out."""
_TRAITS = {"zero_optimization.reduce_bucket_size": "bucket_parameters",
           "zero_optimization.stage3_max_live_parameters": "live_parameters",
           "zero_optimization.sub_group_size": "grouped_parameters"}  # fmt: skip
_UNREAD = ("zero_hpz_partition_size", "zero_quantized_weights", "zero_quantized_gradients",
           "mics_shard_size", "sequence_parallel_size", "compression_training", "sparse_attention")  # fmt: skip
"""Keys of the file and of its ``zero_optimization`` that change a step's time or memory and have no place in a plan."""


def is_deepspeed(table: Mapping[str, Any]) -> bool:
    """True if a JSON file is a DeepSpeed configuration."""
    return any(name in table for name in _MARKS)


def deepspeed_values(table: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """(fields of a plan and of its run, keys that matter and have no place there). ``auto`` counts as not given.

    Raises:
        ModelError: values that are not read.
    """
    keys = {name: value for name, value in flat(table) if value not in ("auto", None)}
    for name in ("zero_optimization", *{key.partition(".")[0] for key in (*_DEGREES, *_WORDS) if "." in key}):
        if keys.get(name):
            raise ModelError(f"{name} = {shown(keys[name])}: give a table of its keys")
    stage = whole("stage", keys.get("zero_optimization.stage", 0), least=0)
    if stage >= len(_STAGES):
        raise ModelError(f"zero_optimization.stage = {stage}: one of 0, 1, 2, 3")
    values: dict[str, Any] = {"engine": "deepspeed", "shard": _STAGES[stage], "overlap_grad_reduce": bool(stage)}
    values |= {field: whole(name, keys[name]) for name, field in _NUMBERS.items() if name in keys}
    values |= {field: whole(name, keys[name]) for name, field in _DEGREES.items() if keys.get(name)}
    for name, (field, words) in _WORDS.items():
        if (word := str(keys.get(name)).lower()) in words:
            values[field] = words[word]
    traits = {trait: int(keys[name]) for name, trait in _TRAITS.items() if isinstance(keys.get(name), int | float)}
    values |= {"engine_options": json.dumps(traits)} if traits else {}
    zero = table.get("zero_optimization") or {}
    return values, [name for name in _UNREAD if _is_on(zero.get(name)) or _is_on(table.get(name))]


def _is_on(value: Any) -> bool:
    """True if a key switches a feature on: a size above 1, true, or a table that names a device."""
    if isinstance(value, dict):
        return value.get("device", "cpu") != "none" and bool(value)
    return value is True or (isinstance(value, int) and value > 1)
