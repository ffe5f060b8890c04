"""Order in which a training step runs: the settings of a plan that decide it, and the passes of each rank of a pipeline
first to last, fixed before any time is known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from neusight.errors import ModelError, nearest
from neusight.requests import SCHEDULES, Plan, directions_of

GATHERS = ("none", "each", "step", "after")
REDUCES = ("none", "each", "last", "after")
SENDS = ("exposed", "overlapped")


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """A training step of ``pp`` ranks with ``vp`` chunks of layers each, over ``micro_batches``.

    Chunk ``c`` of rank ``r`` is stage ``c pp + r`` of the model. Replicas of a rank do what it does.

    Attributes:
        schedule: as for ``order_of``.
        pieces: in which each stage's weights are gathered and their gradients reduced: units, or buckets.
        sends: ``exposed`` sends stand in the way of the sender's kernels, ``overlapped`` ones run beside them.
        gathers: of weights. ``each`` pass gathers its pieces, one ahead (ZeRO-3, FSDP: Zhao et al. 2023, section
            3.3.2); the first forward pass of a ``step`` finds them being gathered since its beginning (ZeRO-1 as
            Megatron-LM overlaps it); or ``after`` the optimizer, in the way.
        reduces: of gradients. After a piece in ``each`` backward pass, in that of the ``last`` micro-batch alone, both
            beside other kernels, or ``after`` all passes, in the way.
        offload: gradients are copied to the host, whose optimizer returns weights.

    Raises:
        ModelError: an unknown word or a number below 1.
    """

    schedule: str = "1f1b"
    pp: int = 1
    vp: int = 1
    micro_batches: int = 1
    pieces: int = 1
    sends: str = "exposed"
    gathers: str = "none"
    reduces: str = "none"
    offload: bool = False

    def __post_init__(self) -> None:
        for name, choices in (("sends", SENDS), ("gathers", GATHERS), ("reduces", REDUCES)):
            word = getattr(self, name)
            if word not in choices:
                raise ModelError(f"unknown {name} '{word}'{nearest(word, choices)}: one of {', '.join(choices)}")
        if self.pieces < 1:
            raise ModelError(f"pieces {self.pieces} of a stage: give a whole number of at least 1")

    @property
    def directions(self) -> int:
        """Number of directions in which micro-batches go through the ranks: both ends of ``dualpipe`` begin with half
        of them.
        """
        return directions_of(self.schedule, self.pp)

    @property
    def chunks(self) -> int:
        """Chunks of layers on each rank, of both directions."""
        return self.vp * self.directions

    @property
    def stages(self) -> int:
        """Pieces that the model is cut into, once for each direction."""
        return self.pp * self.chunks

    def stage_of(self, rank: int, chunk: int) -> int:
        """Number of a rank's chunk: the second direction counts its stages behind those of the first."""
        return chunk * self.pp + (self.pp - 1 - rank if self.directions > 1 and chunk else rank)

    @property
    def last_micro_batch(self) -> int:
        """Number of the last micro-batch of each direction, from 0."""
        return self.micro_batches // self.directions - 1

    @property
    def flushes(self) -> bool:
        """Tell whether all micro-batches of a step leave the pipeline before those of the next enter."""
        return self.schedule != "asynchronous"

    @property
    def splits_weights(self) -> bool:
        """Tell whether gradients of weights are computed in a separate pass."""
        return self.schedule in ("zero-bubble", "dualpipe")

    @classmethod
    def of(cls, plan: Plan, pieces: int = 1) -> Pipeline:
        """The order that a plan's step runs in.

        Sends are overlapped where ranks have several chunks, as in Megatron-LM, which blocks on them otherwise.
        """
        replicas = plan.dp * plan.cp > 1
        return cls(
            schedule=plan.schedule,
            pp=plan.pp,
            vp=plan.vp,
            micro_batches=plan.micro_batches,
            pieces=pieces,
            sends="overlapped" if plan.vp > 1 else "exposed",
            gathers=_gathers(plan) if replicas else "none",
            reduces=_reduces(plan) if replicas else "none",
            offload=plan.offload != "none",
        )


def _gathers(plan: Plan) -> str:
    if plan.shard in ("zero3", "hsdp"):
        return "each"
    if plan.shard == "none":
        return "none"
    return "step" if plan.overlap_param_gather else "after"


def _reduces(plan: Plan) -> str:
    if plan.shard in ("zero2", "zero3", "hsdp"):
        return "each"
    return "last" if plan.overlap_grad_reduce else "after"


class Op(NamedTuple):
    """One pass of one micro-batch through one chunk of a rank's layers.

    ``of`` is ``forward``, ``backward`` (with gradients of weights, unless the schedule runs those on their own) or
    ``weights``.
    """

    of: str
    micro_batch: int
    chunk: int


def order_of(schedule: str, p: int, v: int, m: int, rank: int) -> tuple[Op, ...]:
    """Passes that a rank runs in a step, first to last.

    ``gpipe`` runs all forward passes and then all backward passes (Huang et al. 2019), chunk by chunk where there are
    several (breadth-first, Lamy-Poirier 2022). ``1f1b`` runs one forward and one backward pass in turn after a warm-up
    of ``p - rank - 1`` forward passes (PipeDream-Flush, Narayanan et al. 2021a); interleaved, of
    ``2 (p - rank - 1) + (v - 1) p`` in groups of ``p`` micro-batches (Narayanan et al. 2021b, section 2.2, as in
    Megatron-LM). ``zero-bubble`` is ZB-H1 (Qi et al. 2024, section 2.1): gradients of weights come ``rank`` backward
    passes late, so that they fill what would be a bubble, and a hop from the last rank adds one forward pass alone to
    the warm-up. ``dualpipe`` feeds half of the micro-batches in at each end: every rank has the chunk of its stage and
    that of the stage mirrored, chunk 1, whose micro-batches come the other way (DeepSeek-AI 2024, section 3.2.1, and
    its published ``dualpipe.py``). ``asynchronous`` is ``1f1b`` whose ranks find what they wait for sent by the step
    before, and update their weights by themselves (PipeMare, Yang et al. 2021, section 2). Without a pipeline, passes
    follow each other as in ``1f1b``.

    Args:
        schedule: one of ``SCHEDULES``.
        p: ranks in a line.
        v: chunks of layers of each rank; chunk ``c`` of rank ``r`` is stage ``c p + r`` of the model.
        m: micro-batches.
        rank: from 0, which has the embedding.

    Raises:
        ModelError: an unknown schedule, a number below 1, a rank that is none, chunks that take turns over
            micro-batches that are no multiple of ``p``, or two directions of too few.
    """
    _check(schedule, p, v, m, rank)
    if schedule == "dualpipe" and p > 1:
        return tuple(_both_ways(p, m // 2, rank))
    if schedule == "gpipe" and p > 1:
        return tuple(_breadth_first(v, m))
    forward = [Op("forward", *_turn(k, p, v)) for k in range(m * v)]
    backward = [Op("backward", i, v - 1 - chunk) for _, i, chunk in forward]
    hop = 2 if v > 1 and schedule == "1f1b" else 1
    warm_up = min(m * v, hop * (p - rank - 1) + (v - 1) * p)
    late = rank if schedule in ("zero-bubble", "dualpipe") else None
    return tuple(_one_forward_one_backward(forward, backward, warm_up, late))


def _both_ways(p: int, m: int, rank: int) -> Iterator[Op]:
    """``m`` micro-batches each way, way 0 from the rank's nearer end: the eight steps of ``dualpipe.py``."""
    near, half = int(rank >= p // 2), min(rank, p - 1 - rank)
    inner = p // 2 - half - 1
    both = ((1, "whole"), (0, "whole"))
    passes = [
        *[(0, "forward")] * (2 * inner),
        *[(0, "forward"), (1, "forward")] * (half + 1),
        *[(1, "whole"), (1, "forward")] * inner,
        *[(0, "forward"), (1, "whole"), (1, "forward"), (0, "whole")] * (m - p + half + 1),
        *[(1, "whole"), (1, "forward"), (0, "whole")] * inner,
        *(both * (half + 1))[: half + 1],
        # From here on gradients of weights wait until no rank waits for gradients of activations.
        *[(way, "backward") for way, _ in (both * (half + 1))[half + 1 :]],
        *[(0, "weights"), (0, "backward")] * inner,
        *[(0, "weights")] * (half + 1),
    ]
    done, late = Counter[tuple[str, int]](), list[Op]()
    for way, word in passes:
        if word == "weights":
            yield late.pop(0)
            continue
        of = "forward" if word == "forward" else "backward"
        op = Op(of, done[of, way], way ^ near)
        done[of, way] += 1
        yield op
        if word == "whole":
            yield op._replace(of="weights")
        elif word == "backward":
            late.append(op._replace(of="weights"))


def _turn(k: int, p: int, v: int) -> tuple[int, int]:
    """Micro-batch and chunk of the ``k``-th forward pass: ``p`` micro-batches through one chunk, then the next."""
    group, at = divmod(k, p * v)
    return group * p + at % p, at // p


def _breadth_first(v: int, m: int) -> Iterator[Op]:
    for chunk in range(v):
        yield from (Op("forward", i, chunk) for i in range(m))
    for chunk in reversed(range(v)):
        yield from (Op("backward", i, chunk) for i in range(m))


def _one_forward_one_backward(forward: list[Op], backward: list[Op], warm_up: int, late: int | None) -> Iterator[Op]:
    """``late``: backward passes by which those for weights follow, none where they are part of them."""
    yield from forward[:warm_up]
    for k, op in enumerate(backward):
        yield from forward[warm_up + k : warm_up + k + 1]
        yield op
        if late is not None and k >= late:
            yield backward[k - late]._replace(of="weights")
    if late:
        yield from (op._replace(of="weights") for op in backward[max(0, len(backward) - late) :])


def _check(schedule: str, p: int, v: int, m: int, rank: int) -> None:
    if schedule not in SCHEDULES:
        raise ModelError(f"unknown schedule '{schedule}'{nearest(schedule, SCHEDULES)}: one of {', '.join(SCHEDULES)}")
    for name, value in (("pp", p), ("vp", v), ("micro-batches", m)):
        if value < 1:
            raise ModelError(f"{name} {value} of a pipeline: give a whole number of at least 1")
    if not 0 <= rank < p:
        raise ModelError(f"rank {rank} of a pipeline of {p}: give one from 0 to {p - 1}")
    if schedule == "dualpipe" and p > 1 and (p % 2 or m % 2 or m < 2 * p or v > 1):
        raise ModelError(
            f"dualpipe of {p} pipeline ranks, {v} chunks each, and {m} micro-batches: an even number of ranks is "
            f"needed, vp 1, and an even number of at least {2 * p} micro-batches"
        )
    if v > 1 and m % p and schedule != "gpipe":
        fits = max(p, m // p * p)
        raise ModelError(
            f"{m} micro-batches over {p} pipeline ranks of {v} chunks each: interleaved, a multiple of {p} is needed, "
            f"such as {fits}, or vp 1"
        )
