"""Every plan by which the devices of a cluster can share a model's training step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from neusight.devices.cluster import Cluster
from neusight.distributed.sources import Source
from neusight.requests import Plan


@dataclass(frozen=True, kw_only=True)
class Space:
    """What plans may have, where that is not decided by what divides what.

    Tensor-parallel ranks stay in a node. ``longest_micro_batch`` in sequences; ``least_tokens`` of a context-parallel
    rank, below which no one shares a sequence; ``most_vp`` chunks of layers of a rank.
    """

    schedules: tuple[str, ...] = ("1f1b", "zero-bubble", "gpipe")
    shards: tuple[str, ...] = ("none", "zero1", "zero3")
    recomputes: tuple[str, ...] = ("none", "selective", "full")
    longest_micro_batch: int = 16
    least_tokens: int = 1024
    most_cp: int = 16
    most_vp: int = 1024


def plans_in(space: Space, source: Source, cluster: Cluster, seq_len: int, global_batch_size: int) -> Iterator[Plan]:
    """All plans that use every device and divide layers, heads, experts, sequences and batch evenly.

    Args:
        space: choices.
        source: the model.
        cluster: whose devices.
        seq_len: tokens of a sequence.
        global_batch_size: sequences of a step.
    """
    for tp, pp, cp, ep in _degrees(space, source, cluster, seq_len):
        dp = cluster.devices // (tp * pp * cp)
        if global_batch_size % dp:
            continue
        each = global_batch_size // dp
        for micro in (n for n in divisors(each) if n <= space.longest_micro_batch):
            degrees = {"dp": dp, "tp": tp, "pp": pp, "cp": cp, "ep": ep, "etp": 1 if ep > 1 else 0}
            plans = _habits(space, source, degrees, micro, global_batch_size)
            yield from (plan for plan in plans if not source.refused(plan))


def _degrees(space: Space, source: Source, cluster: Cluster, seq_len: int) -> Iterator[tuple[int, int, int, int]]:
    """(tp, pp, cp, ep) that divide the model and leave whole replicas."""
    tps = [n for n in divisors(cluster.per_node) if source.shares(n)]
    cps = [n for n in divisors(seq_len) if n <= space.most_cp and (n == 1 or seq_len // n >= space.least_tokens)]
    for tp, pp, cp in product(tps, divisors(source.depth) or [1], cps):
        if cluster.devices % (tp * pp * cp):
            continue
        ranks = cluster.devices // pp
        for ep in divisors(source.experts) or [1]:
            if ranks % ep == 0 and (ep == 1 or ep <= ranks // tp):
                yield tp, pp, cp, ep


def _habits(
    space: Space, source: Source, degrees: dict[str, Any], micro_batch_size: int, global_batch_size: int
) -> Iterator[Plan]:
    """Schedules, chunks, sharding of states and recomputation of plans of the same degrees."""
    dp, tp, pp = degrees["dp"], degrees["tp"], degrees["pp"]
    micro_batches = global_batch_size // (dp * micro_batch_size)
    # Of one replica there is nothing to shard: all ways of it are none.
    shards = list(dict.fromkeys(s if dp * degrees["cp"] > 1 else "none" for s in space.shards))
    for schedule, vp in _orders(space, source.depth, pp, micro_batches):
        for shard, recompute, sequence in product(shards, space.recomputes, (True, False) if tp > 1 else (False,)):
            if shard == "zero3" and pp > 1:
                # Every micro-batch would gather all weights of a stage again: no framework combines the two.
                continue
            yield Plan(
                **degrees, vp=vp, micro_batch_size=micro_batch_size, global_batch_size=global_batch_size,
                schedule=schedule, sequence_parallel=sequence, shard=shard, recompute=recompute,
                overlap_grad_reduce=True, overlap_param_gather=shard != "none",
            )  # fmt: skip


def _orders(space: Space, depth: int, pp: int, micro_batches: int) -> Iterator[tuple[str, int]]:
    """Schedules with the chunks of layers that a rank may have under each."""
    if pp == 1:
        yield "1f1b", 1
        return
    for schedule in space.schedules:
        yield schedule, 1
        if schedule == "1f1b" and micro_batches % pp == 0:
            yield from (("1f1b", vp) for vp in divisors(depth // pp) if 1 < vp <= space.most_vp)


def divisors(n: int) -> list[int]:
    """All of them, ascending."""
    return [k for k in range(1, n + 1) if n % k == 0]
