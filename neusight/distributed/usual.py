"""From what a person tells of a training step to a ``TrainingRun``: the rest is as its framework's users have it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from neusight.devices.cluster import Cluster
from neusight.distributed.training_run import TrainingRun
from neusight.errors import DeviceError, ModelError
from neusight.kernels.precision import dtype_named
from neusight.plans.plan import Plan
from neusight.workloads.decoders.decoder import Decoder
from neusight.workloads.training.frameworks import framework_named

NARROW = "float8"
"""Of large products alone; what stands around them stays in bfloat16."""
_PLAN = tuple(f.name for f in fields(Plan))
_RUN = ("seq_len", "dtype", "optimizer", "micro_batches")


def usual_run(
    decoder: Decoder, cluster: Cluster, told: Mapping[str, Any], framework: str = "megatron-te"
) -> TrainingRun:
    """A step with what is told of it; ``dp`` follows from the cluster.

    Args:
        decoder: the model.
        cluster: the devices.
        told: fields of ``Plan``, with ``seq_len`` (default: the model's longest), ``dtype`` (default bfloat16;
            ``fp8``: large products alone), ``optimizer`` (default adam) and ``micro_batches`` of a replica, where no
            ``global_batch`` is told.
        framework: whose habits fill in the rest, see ``usual_plan``.

    Raises:
        ModelError: an unknown word, a batch or length that is missing or does not divide, stages without layers.
        DeviceError: a cluster that the plan does not fill.
    """
    if unknown := [name for name in told if name not in (*_PLAN, *_RUN)]:
        raise ModelError(f"unknown field '{unknown[0]}' of a training step: one of {', '.join((*_PLAN, *_RUN))}")
    seq_len = told.get("seq_len") or decoder.max_len
    if not seq_len:
        raise ModelError(f"{decoder.name} states no longest sequence: give seq_len")
    dtype = dtype_named(str(told.get("dtype") or "bfloat16"))
    narrow = dtype == NARROW
    return TrainingRun(
        decoder=decoder,
        cluster=cluster,
        plan=usual_plan(told, cluster.devices, framework),
        seq_len=seq_len,
        framework=framework_named(framework),
        dtype="bfloat16" if narrow else dtype,
        products="fp8" if narrow else "",
        optimizer=str(told.get("optimizer") or "adam"),
    ).checked()


def usual_plan(told: Mapping[str, Any], devices: int, framework: str) -> Plan:
    """A plan for so many devices: what is told of it, and of the rest what a framework's users usually choose.

    Megatron Core shares optimizer states among replicas and runs what they exchange beside other work, as it does with
    what tensor-parallel ranks exchange, which share the residual stream too (NeMo's recipes; ``--use-distributed-
    optimizer``, ``--overlap-grad-reduce``, ``--overlap-param-gather``, ``--tp-comm-overlap``). Megatron-LM of 2022
    keeps copies and exchanges gradients after all passes. FSDP and torchtitan share weights as well.

    Raises:
        ModelError: as ``Plan``. DeviceError: degrees that do not divide the devices.
    """
    framework_named(framework)
    given = {name: value for name, value in told.items() if name in _PLAN}
    # Checked before anything is divided by them.
    sizes = Plan.of({name: given[name] for name in ("tp", "pp", "cp") if name in given})
    ranks = sizes.tp * sizes.pp * sizes.cp
    if devices % ranks:
        words = f"tp {sizes.tp} x pp {sizes.pp} x cp {sizes.cp} = {ranks} devices of a replica"
        raise DeviceError(f"{words} do not divide a cluster of {devices}: choose degrees that do")
    dp = int(given.setdefault("dp", devices // ranks))
    given["global_batch"] = given.get("global_batch") or _global_batch(told, dp)
    return Plan.of({**_habits(framework, given, dp * sizes.cp), **given})


def _global_batch(told: Mapping[str, Any], dp: int) -> int:
    if not told.get("micro_batches"):
        raise ModelError("a training step without a batch: give global_batch, the sequences of a step")
    return dp * int(told.get("micro_batch", 1)) * int(told["micro_batches"])


def _habits(framework: str, given: Mapping[str, Any], replicas: int) -> dict[str, Any]:
    current = framework != "megatron-local"
    sharded = "zero1" if framework == "megatron-te" else "zero3" if current else "none"
    shard = given.get("shard", sharded if replicas > 1 else "none")
    sequence = bool(given.get("sequence_parallel", int(given.get("tp", 1)) > 1))
    return {
        "sequence_parallel": sequence,
        "shard": shard,
        "overlap_gradients": current and replicas > 1,
        "overlap_parameters": current and shard != "none",
        "overlap_tp": framework == "megatron-te" and sequence,
    }
