"""Rows of tables of training runs as questions: plan, cluster and framework, with a default for what is not told.

Sources write the same thing in several ways; what each word means stands here, once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from neusight.errors import DataError
from neusight.plans.plan import Plan

Row = Mapping[str, Any]
_SHARDS = {"": "none", "none": "none", "zero1": "zero1", "zero2": "zero2", "zero3": "zero3", "hsdp": "hsdp"}
_DTYPES = {
    "bfloat16": "bfloat16", "bf16": "bfloat16", "amp_bf16": "bfloat16", "float8": "bfloat16",
    "float16": "float16", "fp16 mixed": "float16", "float32": "float32",
}  # fmt: skip
NARROW = "float8"
"""Of products alone; what stands around them stays in bfloat16."""


@dataclass(frozen=True, kw_only=True)
class ToldRun:
    """What a row says of a run, and ``assumed``: what it leaves out, with the reason for each default.

    ``framework`` is a name of ``neusight.engines``; ``products`` is ``fp8`` where large products
    are; ``network`` in the words of ``cluster_of``, "" where nothing is told.
    """

    source: str
    model: str
    gpu: str
    num_gpus: int
    per_node: int
    network: str
    framework: str
    plan: Plan
    seq_len: int
    dtype: str
    products: str
    step_ms: float | None
    oom: bool
    columns: Row
    assumed: tuple[tuple[str, str, str], ...]


def told_run(row: Row) -> ToldRun:
    """A row of ``training-throughput`` or ``training-runs``, or of a table with such columns.

    Raises:
        DataError: what makes a run is missing, or words that are not known.
        ModelError: a plan that does not divide.
    """
    said = {name: value for name, value in row.items() if not _empty(value)}
    if "num_gpus" not in said:
        said["num_gpus"] = int(np.prod([int(said.get(degree, 1)) for degree in ("dp", "tp", "pp", "cp")]))
    for name in ("model", "gpu", "seq_len"):
        if name not in said:
            raise DataError(f"a training run without {name}: give that column")
    dtype = str(said.get("dtype", "bfloat16"))
    if dtype not in _DTYPES:
        raise DataError(f"unknown dtype '{dtype}' of a run: one of {', '.join(_DTYPES)}")
    framework = _framework(said)
    plan, assumed = _plan(said, framework)
    nodes = int(said.get("nodes", 1))
    step_ms = said.get("step_ms")
    return ToldRun(
        source=str(said.get("source", "")).split("@")[0].strip(),
        model=str(said["model"]),
        gpu=str(said["gpu"]),
        num_gpus=int(said["num_gpus"]),
        per_node=max(1, int(said["num_gpus"]) // nodes),
        network=_network(str(said.get("interconnect", "")), max(1, int(said["num_gpus"]) // nodes)),
        framework=framework,
        plan=plan,
        seq_len=int(said["seq_len"]),
        dtype=_DTYPES[dtype],
        products="fp8" if dtype == NARROW else "",
        step_ms=None if step_ms is None else float(step_ms),
        oom=bool(said.get("oom", False)),
        columns=row,
        assumed=tuple(assumed),
    )


def _empty(value: Any) -> bool:
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))


def _framework(said: Row) -> str:
    """Which framework a source names, in the words of ``neusight.engines``."""
    name = str(said.get("framework", "")).lower()
    if "nemo" in name or "transformer engine" in name:
        return "megatron-te"
    if "megatron" in name:
        attention = str(said.get("attention_kernel") or said.get("attention") or "")
        return "megatron-local" if "unfused" in attention or re.search(r"20(19|2[0-2])", name) else "megatron-te"
    if "torchtitan" in name:
        return "torchtitan"
    if "llm-foundry" in name or "composer" in name:
        return "composer"
    plain = any(word in name for word in ("fsdp", "deepspeed", "accelerate", "lightning", "ddp"))
    return "fsdp" if plain else "megatron-te"


def _plan(said: Row, framework: str) -> tuple[Plan, list[tuple[str, str, str]]]:
    """The plan of a run, and what of it was assumed: (what, value, why)."""
    assumed: list[tuple[str, str, str]] = []

    def default(what: str, value: Any, why: str) -> Any:
        assumed.append((what, str(value), why))
        return value

    tp, pp, cp = (int(said.get(name, 1)) for name in ("tp", "pp", "cp"))
    dp = int(said.get("dp", int(said["num_gpus"]) // (tp * pp * cp)))
    micro = int(said.get("micro_batch", said.get("local_batch", 1)))
    shard = _SHARDS.get(str(said.get("shard", "none")))
    if shard is None:
        raise DataError(f"unknown shard '{said['shard']}' of a run: one of {', '.join(s for s in _SHARDS if s)}")
    recompute, layers, sequence = _recompute(said)
    if framework == "megatron-te" and tp > 1:
        sequence = default("sequence_parallel", True, "recipes of NeMo set it wherever tp is above 1")
    overlap = framework != "megatron-local"
    if "overlap_grad_reduce" not in said and dp > 1:
        default("overlap of gradients", overlap, "frameworks since 2023 reduce them beside the backward pass")
    if "recompute" not in said:
        default("recompute", "none", "not told; or the fewest layers of a stage with which the run fits")
    vp = int(said.get("vp", 1))
    if framework == "megatron-te" and pp > 1 and "vp" not in said:
        vp = default("vp", int(said["layers"]) // pp, "recipes of NeMo interleave, a layer a chunk")
    plan = Plan(
        dp=dp, tp=tp, pp=pp, cp=cp,
        ep=int(said.get("ep", 1)), etp=int(said.get("etp", 0)), vp=vp,
        micro_batch=micro, global_batch=int(said.get("global_batch", micro * dp)),
        sequence_parallel=sequence, shard=shard, recompute=recompute, recompute_layers=layers,
        overlap_gradients=overlap, overlap_parameters=overlap and shard != "none",
        overlap_tp=framework == "megatron-te" and tp > 1,
        gradient_dtype=_gradients(said, framework),
    )  # fmt: skip
    return plan, assumed


def _gradients(said: Row, framework: str) -> str:
    """In which dtype gradients are reduced. FSDP's mixed precision "PURE" of Composer and bfSixteen of fms-fsdp reduce
    in bfloat16, "DEFAULT" and torchtitan's policy in float32, as Megatron does; NeMo's recipes for performance set
    ``grad_reduce_in_fp32 = False``.
    """
    if "nemo" in str(said.get("framework", "")).lower():
        return "bfloat16"
    pure = "mode pure" in str(said.get("notes", "")).lower() or "fms-fsdp" in str(said.get("framework", ""))
    return "bfloat16" if framework in ("fsdp", "composer") and pure else "float32"


def _recompute(said: Row) -> tuple[str, int, bool]:
    """(what is recomputed, layers of it, whether the source says sequence parallel there)."""
    told = str(said.get("recompute", "none")).lower()
    sequence = "sequence parallel" in told or bool(said.get("sequence_parallel", False))
    if told.startswith("every second"):
        return "full", max(1, int(said["layers"]) // (2 * int(said.get("pp", 1)))), sequence
    if "per op" in told:
        return "operators", 0, sequence
    for word in ("full", "selective", "none"):
        if told.startswith(word):
            return word, 0, sequence
    raise DataError(f"unknown recompute '{told}' of a run: one of full, selective, none, every second layer")


def _network(told: str, per_node: int) -> str:
    """Words for ``cluster_of`` from those such as "1600 Gbps RoCE per node" or "8x200Gb/s HDR IB per node"."""
    found = re.search(r"(?:(\d+)\s*x\s*)?(\d+)\s*(?:gbps|gb/s)", told.lower())
    if not found:
        return ""
    # A node's rate is that of its adapters together, one a device unless it tells how many.
    count = int(found[1] or per_node)
    each = float(found[2]) if found[1] else float(found[2]) / count
    kind = next((kind for kind in ("roce", "efa", "ethernet") if kind in told.lower()), "infiniband")
    return f"{count} x {each:g}Gb/s {kind}"
