"""What replicas exchange of a unit's weights and gradients, what stages send each other, and what an update runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from neusight.devices.spec import DeviceSpec
from neusight.distributed.training_run import TrainingRun
from neusight.kernels.families import Conv2d, Gemm, Kernel, KernelBatch
from neusight.kernels.precision import stored_bytes
from neusight.plans.stages import Stage
from neusight.workloads.program import Part, Phase, Program, Segment

GATHER, REDUCE, SEND = "gather weights", "reduce gradients", "send to the next stage"
TIED = "reduce gradient of the tied embedding"
LEAST_BUCKET, BUCKET_A_REPLICA = 40e6, 1e6
"""Parameters; see ``bucket_parameters``."""


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
            if plan.offload == "parameters":
                yield _part(GATHER, "host_copy", Group(2, 2), bucket * weight / shared.ranks, run.dtype, runs=runs)
            yield _part(REDUCE, "reduce_scatter", shared, bucket * gradient, plan.gradient_dtype, runs=runs)
        if copies.ranks > 1:
            yield from _summed(count / shared.ranks, runs, copies, unit, run)


def _summed(count: float, runs: float, copies: Group, unit: Segment, run: TrainingRun) -> Iterator[Part]:
    """Gradients of ``count`` parameters of a unit among copies, in so many buckets, and what encodes and decodes
    them.
    """
    engine, dtype = run.engine, run.plan.gradient_dtype
    size = count * stored_bytes(dtype)
    factors, shrunk = (2, factored_share(unit, engine.gradient_rank)) if engine.gradient_rank else (1, 1.0)
    sent = engine.gradient_share * shrunk * size
    runs, ranks = factors * runs, copies.ranks if engine.gathers_gradients else 1
    for op, group, share in _sums(copies, run):
        yield _part(REDUCE, op, group, ranks * share * sent / runs, dtype, runs=runs)
    if engine.sums == "adaptive":
        # Of halves of halves, of which there are two each.
        yield _memory("dot products of gradients", count, (2.0 * (1.0 - 1.0 / copies.ranks) * sent, 0.0), dtype)
    if sent < size:
        yield _memory("encode gradients", count, (factors * size, sent), dtype)
        yield _memory("decode gradients", count, (ranks * sent, size), dtype)


def _sums(copies: Group, run: TrainingRun) -> Iterator[tuple[str, Group, float]]:
    """Collectives that add gradients up, each with its ranks and its share of the bytes."""
    within = copies.per_node
    if run.engine.gathers_gradients:
        yield "all_gather", copies, 1.0
    elif run.engine.sums == "levels" and 1 < within < copies.ranks:
        local, others = Group(within, within), Group(copies.ranks // within, 1)
        yield from (("reduce_scatter", local, 1.0), ("all_reduce", others, 1.0 / within), ("all_gather", local, 1.0))
    else:
        yield "all_reduce", copies, 1.0


def factored_share(unit: Segment, rank: int) -> float:
    """Elements that a unit's gradients have where those of its products with weights, m x n, are ``rank`` columns of m
    and of n (Vogels et al. 2019, PowerSGD, algorithm 1), over all that they have.
    """
    sides = [(part.runs, *matrix) for part in unit.of("forward") if (matrix := _matrix(part.batch.kernel(0)))]
    saved = sum(runs * max(0, m * n - rank * (m + n)) for runs, m, n in sides)
    return max(0.0, 1.0 - saved / max(1, unit.parameters))


def _matrix(kernel: Kernel) -> tuple[int, int] | None:
    """Sides of the weight that a kernel multiplies by, None of others."""
    if isinstance(kernel, Conv2d):
        return kernel.out_channels, kernel.in_channels // kernel.groups * kernel.kernel_height * kernel.kernel_width
    return (kernel.n, kernel.k) if isinstance(kernel, Gemm) and kernel.op == "linear" else None


def _copied(count: int, weight: float, gradient: float, dtype: str) -> Iterator[Part]:
    """Kernels of each pass: weights of a unit out of the buffer that they were gathered into, gradients into one."""
    passes: tuple[tuple[str, str, Phase, float], ...] = (
        ("copy gathered weights", "copy", "forward", weight),
        ("copy gathered weights", "copy", "backward", weight),
        ("join gradients", "cat", "backward", gradient),
    )
    for name, op, phase, written in passes:
        yield _memory(name, count, (count * weight, count * written), dtype, op=op, phase=phase)


def _memory(
    name: str, count: float, moved: tuple[float, float], dtype: str, *, op: str = "copy", phase: Phase = "backward"
) -> Part:
    """A kernel that reads and writes so many bytes of ``count`` values."""
    sizes = {"read_bytes": round(moved[0]), "write_bytes": round(moved[1])}
    return Part(
        name=name,
        phase=phase,
        batch=KernelBatch.from_columns("memory", op=op, elements=round(count), dtype=dtype, **sizes),
    )


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
    if run.placement.size("dp-cp") == 1 or (plan.shard == "none" and not plan.overlap_grad_reduce):
        return 0.0
    return collectives_share(device)


def collectives_share(device: DeviceSpec) -> float:
    """Of a device's multiprocessors, what thread blocks of a collective take."""
    return min(0.5, device.facts.channels / device.core_count)


def _part(name: str, op: str, group: Group, size: float, dtype: str, *, runs: float = 1.0, among: str = "dp") -> Part:
    sizes = {"ranks": group.ranks, "per_node": group.per_node, "bytes": max(1, round(size))}
    batch = KernelBatch.from_columns("collective", op=op, dtype=dtype, **sizes)
    phase: Phase = "forward" if name == GATHER else "step" if name == TIED else "backward"
    return Part(name=name, phase=phase, batch=batch, runs=runs, group=among)
