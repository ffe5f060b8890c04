"""What replicas exchange of a unit's weights and gradients, what stages send each other, and what an update runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from neusight.devices.spec import DeviceSpec
from neusight.distributed.training_run import TrainingRun
from neusight.kernels.families import KernelBatch
from neusight.kernels.precision import stored_bytes
from neusight.plans.stages import Stage
from neusight.workloads.program import Part, Phase, Program, Segment

GATHER, REDUCE, SEND = "gather weights", "reduce gradients", "send to the next stage"
TIED = "reduce gradient of the tied embedding"
LEAST_BUCKET, BUCKET_A_REPLICA = 40e6, 1e6
"""Parameters; see ``bucket_parameters``."""
COLLECTIVE_CHANNELS = {"ampere": 24, "later": 16}
"""Thread blocks of NCCL's collectives in a node of eight, as it logs them: "24 coll channels" on NVLink 3, "16 coll
channels" on NVLink 4."""


class Group(NamedTuple):
    """Ranks that exchange: how many, and how many of them share a node."""

    ranks: int
    per_node: int


def replica_groups(run: TrainingRun, *, experts: bool) -> tuple[Group, Group]:
    """(ranks that share weights or states, ranks that hold copies of such a share) of a rank's parameters.

    Without sharding the first is one rank, all others hold copies; with it fully the second is. Hybrid sharding shares
    among ``shard_group`` neighbours, default those of a node (Zhao et al. 2023, section 3.2.2).
    """
    plan, place = run.plan, run.placement
    name = "edp" if experts else "dp-cp"
    size, within = place.size(name), place.within(name)
    if plan.shard == "none":
        return Group(1, 1), Group(size, within)
    if plan.shard != "hsdp":
        return Group(size, within), Group(1, 1)
    shared = min(size, plan.shard_group or within)
    copies = max(1, size // shared)
    return Group(shared, min(shared, within)), Group(copies, max(1, min(copies, within // shared)))


def exchanged(unit: Segment, run: TrainingRun) -> Iterator[Part]:
    """Collectives of a unit's weights and gradients among replicas, of experts apart, and kernels around them."""
    plan = run.plan
    weight, gradient = stored_bytes(run.dtype), stored_bytes(plan.gradient_dtype)
    if unit.frozen_parameters and plan.shard in ("zero3", "hsdp"):
        yield from _gathered_alone(unit.frozen_parameters, run)
    for count, experts in ((unit.parameters, False), (unit.expert_parameters, True)):
        shared, copies = replica_groups(run, experts=experts)
        if not count:
            continue
        bucket = bucket_parameters(count, run)
        runs = count / bucket
        if shared.ranks > 1 and plan.shard in ("zero3", "hsdp") and run.engine.copies_gathered:
            yield from _copied(count, weight, gradient, run.dtype)
        if shared.ranks > 1:
            yield _part(GATHER, "all_gather", shared, bucket * weight, run.dtype, runs=runs)
            yield _part(REDUCE, "reduce_scatter", shared, bucket * gradient, plan.gradient_dtype, runs=runs)
        if copies.ranks > 1:
            yield from _summed(count / shared.ranks, runs, copies, run)


def _summed(count: float, runs: float, copies: Group, run: TrainingRun) -> Iterator[Part]:
    """Gradients of ``count`` parameters among copies, in so many buckets, and what encodes and decodes them."""
    engine, dtype = run.engine, run.plan.gradient_dtype
    size = count * stored_bytes(dtype)
    sent = engine.gradient_share * size
    op, ranks = ("all_gather", copies.ranks) if engine.gathers_gradients else ("all_reduce", 1)
    yield _part(REDUCE, op, copies, ranks * sent / runs, dtype, runs=runs)
    if engine.gradient_share < 1.0:
        for name, read, written in (("encode gradients", size, sent), ("decode gradients", ranks * sent, size)):
            moved = {"read_bytes": round(read), "write_bytes": round(written)}
            batch = KernelBatch.from_columns("memory", op="copy", elements=round(count), dtype=dtype, **moved)
            yield Part(name=name, phase="backward", batch=batch)


def _copied(count: int, weight: float, gradient: float, dtype: str) -> Iterator[Part]:
    """Kernels of each pass: weights of a unit out of the buffer that they were gathered into, gradients into one."""
    passes: tuple[tuple[str, str, Phase, float], ...] = (
        ("copy gathered weights", "copy", "forward", weight),
        ("copy gathered weights", "copy", "backward", weight),
        ("join gradients", "cat", "backward", gradient),
    )
    for name, op, phase, written in passes:
        sizes = {"read_bytes": round(count * weight), "write_bytes": round(count * written)}
        batch = KernelBatch.from_columns("memory", op=op, elements=count, dtype=dtype, **sizes)
        yield Part(name=name, phase=phase, batch=batch)


def _gathered_alone(count: int, run: TrainingRun) -> Iterator[Part]:
    """Frozen weights of fully sharded units, which have no gradients."""
    shared, _ = replica_groups(run, experts=False)
    size = count * run.adapters.frozen_bytes(stored_bytes(run.dtype), projection=True)
    if shared.ranks > 1:
        yield _part(GATHER, "all_gather", shared, size, run.dtype)


def bucket_parameters(count: int, run: TrainingRun) -> float:
    """Parameters that are gathered or reduced together, of which a unit's are ``count``: fully sharded models take unit
    by unit, others fill buckets that grow with the number of replicas, up to all that a chunk of layers has.

    Source: Megatron Core, ``DistributedDataParallelConfig.bucket_size``: 40 million, or one for each replica if that is
    more.
    """
    plan = run.plan
    if plan.shard in ("zero3", "hsdp"):
        return count
    chunk = count * max(1, run.decoder.depth // (plan.pp * plan.vp))
    return min(chunk, max(LEAST_BUCKET, BUCKET_A_REPLICA * plan.dp * plan.cp))


def sent(run: TrainingRun, size: float) -> Iterator[Part]:
    """``size`` [B] of activations from a stage to the next; gradients on the way back are as many."""
    if run.plan.pp == 1:
        return
    group = Group(2, 2 if run.placement.within("pp") > 1 else 1)
    yield _part(SEND, "send_recv", group, size, run.dtype)


def tied(program: Program, stage: Stage, run: TrainingRun) -> Iterator[Part]:
    """The sum of both gradients of an embedding of which the first and the last stage have a copy each, once a step
    (Megatron Core, ``finalize_model_grads``: ``_allreduce_word_embedding_grads``).
    """
    count = program.after.tied_parameters
    if not count or run.plan.pp == 1 or not (stage.first or stage.last) or not program.after.of("backward"):
        return
    group = Group(2, 2 if run.placement.within("pp") == run.plan.pp else 1)
    dtype = run.plan.gradient_dtype
    yield _part(TIED, "all_reduce", group, count * stored_bytes(dtype), dtype, among="pp")


def contention(run: TrainingRun) -> float:
    """Share of a device's multiprocessors that collectives among replicas take from kernels beside them."""
    plan, device = run.plan, run.cluster.device
    if run.placement.size("dp-cp") == 1 or (plan.shard == "none" and not plan.overlap_gradients):
        return 0.0
    return collectives_share(device)


def collectives_share(device: DeviceSpec) -> float:
    """Of a device's multiprocessors, what thread blocks of a collective take."""
    return min(0.5, COLLECTIVE_CHANNELS[device.facts.channels] / device.core_count)


def _part(name: str, op: str, group: Group, size: float, dtype: str, *, runs: float = 1.0, among: str = "dp") -> Part:
    batch = KernelBatch.from_columns(
        "collective", op=op, ranks=group.ranks, per_node=group.per_node, bytes=max(1, round(size)), dtype=dtype
    )
    phase: Phase = "forward" if name == GATHER else "step" if name == TIED else "backward"
    return Part(name=name, phase=phase, batch=batch, runs=runs, group=among)
