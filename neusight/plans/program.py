"""``TracedStep``: what one device runs of a workload, with its kernels as columns."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import ceil

import numpy as np

from neusight.errors import ModelError
from neusight.kernels.describe import describe
from neusight.kernels.families import Collective, KernelBatch, group_by_family
from neusight.kernels.precision import stored_bytes
from neusight.kernels.sparsity import with_zeros
from neusight.plans.allocator import reserve_bytes
from neusight.plans.plan import Plan
from neusight.plans.shard_graph import scaled
from neusight.workloads.workload import Launch, MemoryProfile, Workload

LARGEST_NODE = 16
"""Devices: where the law of links holds."""


@dataclass(frozen=True)
class TracedStep:
    """One rank's share of a step, ready for any device: what repeated estimates have in common.

    ``batches`` holds one batch a family with the positions that its rows have in ``launches``; ``counts`` how often
    each launch runs. ``traffic_bytes`` are the sets of distinct bytes of ``Workload.traffic_bytes``.
    """

    rank: int
    workload: Workload
    launches: tuple[Launch, ...]
    batches: tuple[tuple[KernelBatch, np.ndarray], ...]
    descriptions: tuple[str, ...]
    memory: MemoryProfile
    traffic_bytes: tuple[int, ...]
    host_operators: int
    _reserves: dict[float, int] = field(default_factory=dict, repr=False, compare=False)

    def reserve_bytes(self, capacity_bytes: float) -> int:
        """What a process takes beside the tensors of its workload [B], see ``plans.allocator``; replayed once for each
        capacity [B].
        """
        if capacity_bytes not in self._reserves:
            self._reserves[capacity_bytes] = reserve_bytes(self.workload, capacity_bytes)
        return self._reserves[capacity_bytes]

    @property
    def counts(self) -> np.ndarray:
        """Runs of each launch in a step, shape (launches,)."""
        return np.array([launch.count for launch in self.launches])


def single(workload: Workload) -> TracedStep:
    """The whole step on one device."""
    return _program(workload, workload.launches, 0)


def replica(workload: Workload, plan: Plan, rank: int = 0) -> TracedStep:
    """One rank's step, from what it runs for one micro-batch: passes once a micro-batch, then the sum of gradients
    over replicas, then one update.

    With ``zero1`` or ``zero2`` each replica updates its share of the parameters and gathers those of the others. The
    gradients of a rank are reduced in one piece after the last backward pass, unless ``overlap_gradients`` leaves them
    to the schedule.

    Raises:
        ModelError: a plan that is not estimated for traced models.
    """
    _hold_known(plan)
    passes, share = plan.micro_batches, 1.0 if plan.shard == "none" else 1.0 / plan.dp
    launches = [
        replace(one, kernel=scaled(one.kernel, share))
        if one.phase == "optimizer"
        else replace(one, count=one.count * passes)
        for one in workload.launches
    ]
    if workload.request.mode == "training":
        launches += _exchanges(workload, plan)
    held = workload.memory
    if share < 1.0:
        held = replace(held, optimizer=ceil(held.optimizer * share))
    if plan.shard == "zero2":
        held = replace(held, gradients=ceil(held.gradients * share))
    program = _program(workload, tuple(launches), rank)
    once = sum(node.copies for node in workload.nodes if node.phase == "optimizer")
    operators = program.host_operators if program.host_operators == 1 else passes * (workload.length - once) + once
    return replace(program, memory=held, host_operators=operators)


def gradient_bytes(workload: Workload, plan: Plan) -> int:
    """Bytes of a rank's gradients as replicas exchange them."""
    return int(workload.parameters * stored_bytes(plan.gradient_dtype))


def _exchanges(workload: Workload, plan: Plan) -> list[Launch]:
    if plan.dp == 1:
        return []
    if plan.shard == "none":
        return [] if plan.overlap_gradients else [_collective("all_reduce", gradient_bytes(workload, plan), plan)]
    dtype = workload.request.precision.weights
    weights = int(workload.parameters * stored_bytes(dtype))
    reduced = [] if plan.overlap_gradients else [_collective("reduce_scatter", gradient_bytes(workload, plan), plan)]
    return [*reduced, _collective("all_gather", weights, replace(plan, gradient_dtype=dtype))]


def _collective(op: str, size: int, plan: Plan) -> Launch:
    kernel = Collective(op=op, ranks=plan.dp, bytes=size, dtype=plan.gradient_dtype)
    return Launch(kernel=kernel, operator=op, phase="optimizer", count=1)


def _hold_known(plan: Plan) -> None:
    """Raises:
    ModelError: a way to share a step that is estimated for decoders alone.
    """
    if plan.world > LARGEST_NODE:
        raise ModelError(
            f"{plan.world} devices share a traced model's step: what they exchange is known within one node of at most "
            f"{LARGEST_NODE}; lower dp, tp or pp"
        )
    for name in ("cp", "ep", "vp", "recompute", "offload", "sequence_parallel", "schedule"):
        if getattr(plan, name) != getattr(Plan(), name):
            raise ModelError(f"{name} {getattr(plan, name)} of a traced model is not estimated: leave it out")
    if plan.shard not in ("none", "zero1", "zero2") and plan.dp > 1:
        raise ModelError(f"shard {plan.shard} of a traced model is not estimated: one of none, zero1, zero2")


def _program(workload: Workload, launches: tuple[Launch, ...], rank: int) -> TracedStep:
    return TracedStep(
        rank=rank,
        workload=workload,
        launches=launches,
        batches=tuple(
            (_with_zeros(batch, at, launches), at)
            for batch, at in group_by_family(launch.kernel for launch in launches)
        ),
        descriptions=tuple(describe(launch.kernel) for launch in launches),
        memory=workload.memory,
        traffic_bytes=workload.traffic_bytes,
        host_operators=1 if workload.request.engine.launch == "graph" else workload.length,
    )


def _with_zeros(batch: KernelBatch, positions: np.ndarray, launches: tuple[Launch, ...]) -> KernelBatch:
    """Columns of zeros where a transform has told any."""
    zeros = [launches[at].zeros for at in positions]
    return with_zeros(batch, zeros) if any(pair is not None for pair in zeros) else batch
