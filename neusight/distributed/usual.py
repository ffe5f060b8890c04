"""From what is given of a training step to a ``TrainingRun``: the rest is as its engine's users have it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from neusight.devices.cluster import Cluster
from neusight.distributed.training_run import TrainingRun
from neusight.engines import Engine, engine_named
from neusight.errors import DeviceError, ModelError
from neusight.kernels.precision import dtype_named
from neusight.requests import Plan
from neusight.workloads.decoders.decoder import Decoder

USUAL_DTYPE = "bfloat16"
NARROW = "float8"
"""Of large products alone; what stands around them stays in bfloat16."""
_PLAN = tuple(f.name for f in fields(Plan))
_RUN = ("seq_len", "dtype", "optimizer", "micro_batches")


def usual_run(decoder: Decoder, cluster: Cluster, given: Mapping[str, Any], engine: str = "megatron-te") -> TrainingRun:
    """A step with what is given of it; ``dp`` follows from the cluster.

    Args:
        decoder: the model.
        cluster: the devices.
        given: fields of ``Plan``, with ``seq_len`` (default: the model's longest), ``dtype`` (default bfloat16;
            ``fp8``: large products alone), ``optimizer`` (default adam) and ``micro_batches`` of a replica, where no
            ``global_batch`` is given.
        engine: name of the engine whose habits fill in the rest.

    Raises:
        ModelError: an unknown word, a batch or length that is missing or does not divide, stages without layers.
        DeviceError: a cluster that the plan does not fill.
    """
    run_fields(given)
    seq_len = given.get("seq_len") or decoder.max_len
    if not seq_len:
        raise ModelError(f"{decoder.name} states no longest sequence: give seq_len")
    dtype = dtype_named(str(given.get("dtype") or USUAL_DTYPE))
    narrow = dtype == NARROW
    return TrainingRun(
        decoder=decoder,
        cluster=cluster,
        plan=usual_plan(given, cluster.devices, engine),
        seq_len=seq_len,
        engine=engine_named(engine),
        dtype=USUAL_DTYPE if narrow else dtype,
        products="fp8" if narrow else "",
        optimizer=str(given.get("optimizer") or "adam"),
    ).checked()


def run_fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """What is given of the step itself, beside its plan: length, dtype, optimizer (default adam).

    Raises:
        ModelError: an unknown word.
    """
    if unknown := [name for name in given if name not in (*_PLAN, *_RUN)]:
        raise ModelError(f"unknown field '{unknown[0]}' of a training step: one of {', '.join((*_PLAN, *_RUN))}")
    step = {name: given[name] for name in ("seq_len", "dtype") if given.get(name)}
    return {**step, "optimizer": str(given.get("optimizer") or "adam")}


def usual_plan(given: Mapping[str, Any], devices: int, engine: str) -> Plan:
    """A plan for so many devices: what is given of it, and of the rest what an engine's users usually choose.

    Raises:
        ModelError: as ``Plan``. DeviceError: degrees that do not divide the devices.
    """
    habits = engine_named(engine)
    stated = {name: value for name, value in given.items() if name in _PLAN}
    # Checked before anything is divided by them.
    sizes = Plan.of({name: stated[name] for name in ("tp", "pp", "cp") if name in stated})
    ranks = sizes.tp * sizes.pp * sizes.cp
    if devices % ranks:
        words = f"tp {sizes.tp} x pp {sizes.pp} x cp {sizes.cp} = {ranks} devices of a replica"
        raise DeviceError(f"{words} do not divide a cluster of {devices}: choose degrees that do")
    dp = int(stated.setdefault("dp", devices // ranks))
    stated["global_batch"] = stated.get("global_batch") or _global_batch(given, dp)
    if not habits.step_factors and sizes.pp == 1 and not given.get("micro_batches"):
        # Plain PyTorch takes a replica's batch at once.
        stated.setdefault("micro_batch", max(1, stated["global_batch"] // dp))
    dtype = dtype_named(str(given.get("dtype") or USUAL_DTYPE))
    return Plan.of({**_habits(habits, stated, dp * sizes.cp, USUAL_DTYPE if dtype == NARROW else dtype), **stated})


def _global_batch(given: Mapping[str, Any], dp: int) -> int:
    if not given.get("micro_batches"):
        raise ModelError("a training step without a batch: give global_batch, the sequences of a step")
    return dp * int(given.get("micro_batch", 1)) * int(given["micro_batches"])


def _habits(engine: Engine, given: Mapping[str, Any], replicas: int, dtype: str) -> dict[str, Any]:
    shard = given.get("shard", engine.shard if replicas > 1 else "none")
    sequence = bool(given.get("sequence_parallel", engine.sequence_parallel and int(given.get("tp", 1)) > 1))
    return {
        "sequence_parallel": sequence,
        "shard": shard,
        "overlap_gradients": engine.overlaps_exchanges and replicas > 1,
        "overlap_parameters": engine.overlaps_exchanges and shard != "none",
        "overlap_tp": engine.overlaps_tp and sequence,
        **({} if engine.master_weights else {"gradient_dtype": dtype}),
    }
