"""Configurations of torchtitan (``torchtitan/config_manager.py``, job_config) as fields of a plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from neusight.errors import ModelError, shown

_TABLES = ("parallelism", "activation_checkpoint", "training", "experimental", "float8", "compile")
_DEGREES = {"tensor_parallel_degree": "tp", "pipeline_parallel_degree": "pp", "context_parallel_degree": "cp",
            "expert_parallel_degree": "ep", "expert_tensor_parallel_degree": "etp"}  # fmt: skip
_SCHEDULES = {"1f1b": "1f1b", "interleaved1f1b": "1f1b", "gpipe": "gpipe"}
_ROTATES = {"allgather": "all_gather", "alltoall": "p2p"}
"""Of PyTorch's ``context_parallel``, which sends keys to the next rank by an all-to-all."""
_OPTIMIZERS = {"adam": "adam", "adamw": "adamw"}
_READ = (
    *_DEGREES, "data_parallel_replicate_degree", "data_parallel_shard_degree", "data_parallel_degree",
    "pipeline_parallel_schedule", "pipeline_parallel_microbatch_size", "disable_loss_parallel",
    "context_parallel_rotate_method",
    "local_batch_size", "batch_size", "global_batch_size", "mixed_precision_reduce",
)  # fmt: skip
_MATTERS = ("parallel", "batch", "offload", "reshard", "precision")


def is_torchtitan(table: Mapping[str, Any]) -> bool:
    """Whether a TOML file is one of torchtitan's."""
    return any(isinstance(table.get(name), dict) for name in _TABLES)


def torchtitan_values(table: Mapping[str, Any], depth: int = 0) -> tuple[dict[str, Any], list[str]]:
    """(fields of a plan and of its run, keys that matter and have no place there).

    Args:
        table: the file.
        depth: layers of the model, of which ``selective_ac_option`` may count every so many.

    Raises:
        ModelError: values that are not read.
    """
    keys = dict(_keys(table))
    values: dict[str, Any] = {
        field: _whole(name, keys[name]) for name, field in _DEGREES.items() if keys.get(name) is not None
    }
    values |= _replicas(keys) | _batches(keys, values.get("pp", 1))
    values |= _kept(keys, values) | _rotated(keys)
    values |= _again(table.get("activation_checkpoint", {}), values.get("pp", 1), depth) | _order(keys)
    values["engine"] = "torchtitan-compiled" if _compiled(table, keys) else "torchtitan"
    values["dtype"] = _precision(table)
    values["overlap_tp"] = bool(keys.get("enable_async_tensor_parallel", False))
    if keys.get("seq_len"):
        values["seq_len"] = _whole("seq_len", keys["seq_len"])
    if optimizer := _OPTIMIZERS.get(str(table.get("optimizer", {}).get("name", "")).lower()):
        values["optimizer"] = optimizer
    if keys.get("mixed_precision_reduce"):
        values["gradient_dtype"] = str(keys["mixed_precision_reduce"])
    # Shares of a group that stay gathered have no place in a plan.
    read = _READ if values["shard"] == "hsdp" else (*_READ, "fsdp_reshard_after_forward")
    matters = [name for name in keys if name not in read and any(part in name for part in _MATTERS)]
    return values, [name for name in matters if keys[name] and name != "enable_async_tensor_parallel"]


def _keys(table: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Keys of the tables that shape a step: older files have degrees in ``training`` and ``experimental``."""
    for name in ("training", "experimental", "parallelism"):
        part = table.get(name, {})
        if isinstance(part, dict):
            yield from part.items()


def _whole(name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ModelError(f"{name} = {shown(value)}: give a whole number of at least 1")
    return value


def _replicas(keys: Mapping[str, Any]) -> dict[str, Any]:
    """A degree of -1 is what remains of the cluster."""
    copies = keys.get("data_parallel_replicate_degree", 1)
    shared = keys.get("data_parallel_shard_degree", keys.get("data_parallel_degree", -1))
    if shared == -1:
        return {"shard": "hsdp" if copies > 1 else "zero3"}
    dp = {"dp": _whole("data_parallel_replicate_degree", copies) * _whole("data_parallel_shard_degree", shared)}
    if copies > 1 and shared > 1:
        return dp | {"shard": "hsdp", "shard_group": shared}
    return dp | {"shard": "zero3" if shared > 1 else "none"}


def _kept(keys: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, str]:
    """Of fully sharded weights that stay as they were gathered: by default under a pipeline, where gradients are
    reduced once.
    """
    staged, word = values.get("pp", 1) > 1, str(keys.get("fsdp_reshard_after_forward", "default"))
    if word not in ("default", "always", "never"):
        raise ModelError(f"fsdp_reshard_after_forward = {shown(word)}: one of default, always, never is read")
    keeps = word == "never" or (word == "default" and staged)
    return {"shard": "zero1" if staged else "zero2"} if keeps and values.get("shard") == "zero3" else {}


def _rotated(keys: Mapping[str, Any]) -> dict[str, str]:
    word = str(keys.get("context_parallel_rotate_method", "allgather"))
    if word not in _ROTATES:
        raise ModelError(f"context_parallel_rotate_method = {shown(word)}: one of {', '.join(_ROTATES)} is read")
    return {"cp_comm": _ROTATES[word]} if keys.get("context_parallel_degree", 1) > 1 else {}


def _batches(keys: Mapping[str, Any], pp: int) -> dict[str, int]:
    """With stages, a rank's batch is cut into micro-batches, of one sequence unless stated."""
    local = _whole("local_batch_size", keys.get("local_batch_size", keys.get("batch_size", 1)))
    micro = _whole("pipeline_parallel_microbatch_size", keys.get("pipeline_parallel_microbatch_size", 1))
    values = {"micro_batch_size": micro if pp > 1 else local, "micro_batches": max(1, local // micro) if pp > 1 else 1}
    total = keys.get("global_batch_size", -1)
    return values if total == -1 else values | {"global_batch_size": _whole("global_batch_size", total)}


def _again(table: Mapping[str, Any], pp: int, depth: int) -> dict[str, Any]:
    mode, option = str(table.get("mode", "none")), str(table.get("selective_ac_option", "2"))
    if mode not in ("none", "full", "selective"):
        raise ModelError(f"activation_checkpoint.mode = {shown(mode)}: one of none, selective, full is read")
    if mode != "selective":
        return {"recompute": mode}
    if option == "op":
        return {"recompute": "operators"}
    if not option.isdecimal() or not int(option):
        raise ModelError(f"selective_ac_option = {shown(option)}: op, or a whole number, is read")
    return (
        {"recompute": "full", "recompute_layers": max(1, depth // (int(option) * pp))}
        if depth
        else {"recompute": "full"}
    )


def _order(keys: Mapping[str, Any]) -> dict[str, Any]:
    word = str(keys.get("pipeline_parallel_schedule", "1F1B"))
    if word.lower() not in _SCHEDULES:
        raise ModelError(f"pipeline_parallel_schedule = {shown(word)}: one of 1F1B, Interleaved1F1B, GPipe is read")
    # Interleaved, torchtitan gives each rank two chunks unless it says how many layers a chunk has.
    return {"schedule": _SCHEDULES[word.lower()]} | ({"vp": 2} if word.lower().startswith("inter") else {})


def _compiled(table: Mapping[str, Any], keys: Mapping[str, Any]) -> bool:
    return bool(keys.get("compile", False) or table.get("compile", {}).get("enable", False))


def _precision(table: Mapping[str, Any]) -> str:
    """The recipe of products in float8, of one scale a tensor unless stated (``Float8Linear.recipe_name``)."""
    converters, float8 = table.get("model", {}).get("converters", []), table.get("float8", {})
    if "float8" not in converters and not float8.get("enable_float8_linear", False):
        return "bfloat16"
    return "fp8_row" if str(float8.get("recipe_name", "")).startswith("rowwise") else "fp8_current"
