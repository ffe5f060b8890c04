"""Configurations of torchtitan (``torchtitan/config_manager.py``, job_config) as fields of a plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from neusight.errors import ModelError, shown
from neusight.plans.keys import flat, whole, word_of

_TABLES = ("parallelism", "activation_checkpoint", "training", "experimental", "float8", "compile")
_SHAPING = ("training", "experimental", "parallelism")
"""Tables whose keys shape a step: older files have degrees in the first two."""
_DEGREES = {"tensor_parallel_degree": "tp", "pipeline_parallel_degree": "pp", "context_parallel_degree": "cp",
            "expert_parallel_degree": "ep", "expert_tensor_parallel_degree": "etp"}  # fmt: skip
_SCHEDULES = {"1F1B": {"schedule": "1f1b"}, "Interleaved1F1B": {"schedule": "1f1b", "vp": 2},
              "GPipe": {"schedule": "gpipe"}}  # fmt: skip
"""Interleaved, torchtitan gives each rank two chunks unless the number of layers of a chunk is given."""
_ROTATES = {"allgather": "all_gather", "alltoall": "p2p"}
"""Rotation methods of PyTorch's ``context_parallel``, which sends keys to the next rank by an all-to-all."""
_OPTIMIZERS = {"adam": "adam", "adamw": "adamw"}
_READ = (
    *_DEGREES, "data_parallel_replicate_degree", "data_parallel_shard_degree", "data_parallel_degree",
    "pipeline_parallel_schedule", "pipeline_parallel_microbatch_size", "disable_loss_parallel",
    "context_parallel_rotate_method",
    "local_batch_size", "batch_size", "global_batch_size", "mixed_precision_reduce",
)  # fmt: skip
_MATTERS = ("parallel", "batch", "offload", "reshard", "precision")


def is_torchtitan(table: Mapping[str, Any]) -> bool:
    """True if a TOML file is a torchtitan configuration."""
    return any(isinstance(table.get(name), dict) for name in _TABLES)


def torchtitan_values(table: Mapping[str, Any], depth: int = 0) -> tuple[dict[str, Any], list[str]]:
    """(fields of a plan and of its run, keys that matter and have no place there).

    Args:
        table: the file.
        depth: layers of the model, of which ``selective_ac_option`` may select every n-th.

    Raises:
        ModelError: values that are not read.
    """
    tables = dict(flat(table))
    shaping = [table[name] for name in _SHAPING if isinstance(table.get(name), dict)]
    keys = {name: value for part in shaping for name, value in part.items()}
    values: dict[str, Any] = {
        field: whole(name, keys[name]) for name, field in _DEGREES.items() if keys.get(name) is not None
    }
    pp, rotates = values.get("pp", 1), keys.get("context_parallel_rotate_method", "allgather")
    rotated = word_of("context_parallel_rotate_method", rotates, _ROTATES)
    values |= _replicas(keys) | _batches(keys, pp)
    values |= _reshard(keys, values) | ({"cp_comm": rotated} if keys.get("context_parallel_degree", 1) > 1 else {})
    schedule = keys.get("pipeline_parallel_schedule", "1F1B")
    values |= _again(tables, pp, depth) | word_of("pipeline_parallel_schedule", schedule, _SCHEDULES)
    is_compiled = keys.get("compile", False) or tables.get("compile.enable", False)
    values["engine"] = "torchtitan-compiled" if is_compiled else "torchtitan"
    values["dtype"] = _precision(tables)
    values["overlap_tp"] = bool(keys.get("enable_async_tensor_parallel", False))
    if keys.get("seq_len"):
        values["seq_len"] = whole("seq_len", keys["seq_len"])
    if optimizer := _OPTIMIZERS.get(str(tables.get("optimizer.name", "")).lower()):
        values["optimizer"] = optimizer
    if keys.get("mixed_precision_reduce"):
        values["gradient_dtype"] = str(keys["mixed_precision_reduce"])
    # Shares of a group that stay gathered have no place in a plan.
    read = _READ if values["shard"] == "hsdp" else (*_READ, "fsdp_reshard_after_forward")
    matters = [name for name in keys if name not in read and any(part in name for part in _MATTERS)]
    return values, [name for name in matters if keys[name] and name != "enable_async_tensor_parallel"]


def _replicas(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Replicas and their sharding; a degree of -1 means all remaining ranks of the cluster."""
    copies = keys.get("data_parallel_replicate_degree", 1)
    shared = keys.get("data_parallel_shard_degree", keys.get("data_parallel_degree", -1))
    if shared == -1:
        return {"shard": "hsdp" if copies > 1 else "zero3"}
    dp = {"dp": whole("data_parallel_replicate_degree", copies) * whole("data_parallel_shard_degree", shared)}
    if copies > 1 and shared > 1:
        return dp | {"shard": "hsdp", "shard_group": shared}
    return dp | {"shard": "zero3" if shared > 1 else "none"}


def _reshard(keys: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, str]:
    """Sharding of fully sharded weights that stay gathered: by default under a pipeline, where gradients are reduced
    once.
    """
    staged, word = values.get("pp", 1) > 1, keys.get("fsdp_reshard_after_forward", "default")
    stays_gathered = word_of("fsdp_reshard_after_forward", word, {"default": staged, "always": False, "never": True})
    return {"shard": "zero1" if staged else "zero2"} if stays_gathered and values.get("shard") == "zero3" else {}


def _batches(keys: Mapping[str, Any], pp: int) -> dict[str, int]:
    """Batch sizes: with stages, a rank's batch is cut into micro-batches, of one sequence by default."""
    local = whole("local_batch_size", keys.get("local_batch_size", keys.get("batch_size", 1)))
    micro = whole("pipeline_parallel_microbatch_size", keys.get("pipeline_parallel_microbatch_size", 1))
    values = {"micro_batch_size": micro if pp > 1 else local, "micro_batches": max(1, local // micro) if pp > 1 else 1}
    total = keys.get("global_batch_size", -1)
    return values if total == -1 else values | {"global_batch_size": whole("global_batch_size", total)}


def _again(tables: Mapping[str, Any], pp: int, depth: int) -> dict[str, Any]:
    mode = tables.get("activation_checkpoint.mode", "none")
    option = str(tables.get("activation_checkpoint.selective_ac_option", "2"))
    recompute = word_of("activation_checkpoint.mode", mode, {n: n for n in ("none", "selective", "full")})
    if recompute != "selective":
        return {"recompute": recompute}
    if option == "op":
        return {"recompute": "operators"}
    if not option.isdecimal() or not int(option):
        raise ModelError(f"selective_ac_option = {shown(option)}: op, or a whole number, is read")
    layers = {"recompute_layers": max(1, depth // (int(option) * pp))} if depth else {}
    return {"recompute": "full", **layers}


def _precision(tables: Mapping[str, Any]) -> str:
    """The recipe of products in float8, with one scale a tensor by default (``Float8Linear.recipe_name``)."""
    converters = tables.get("model.converters") or ()
    if "float8" not in converters and not tables.get("float8.enable_float8_linear", False):
        return "bfloat16"
    return "fp8_row" if str(tables.get("float8.recipe_name", "")).startswith("rowwise") else "fp8_current"
