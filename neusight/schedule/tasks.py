"""The tasks of a training step: passes, sends, collectives and copies of one rank of each stage, and their order."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from neusight.schedule.graph import NOTHING, Graph, Tasks
from neusight.schedule.pipeline import Op, Pipeline, order_of

KINDS = (
    "forward",
    "backward",
    "weights",
    "send_forward",
    "send_backward",
    "gather_forward",
    "gather_backward",
    "reduce",
    "optimizer",
    "to_host",
    "to_device",
    "barrier",
)
STREAMS = ("compute", "communication", "send forward", "send backward", "copy", "host")
LABELS = ("rank", "stream", "kind", "stage", "piece", "micro_batch")
_KIND = {name: number for number, name in enumerate(KINDS)}
_COMPUTE, _COMMUNICATION, _COPY, _HOST = (STREAMS.index(name) for name in ("compute", "communication", "copy", "host"))
_DIRECTION = {"forward": 1, "backward": -1, "weights": 0}
"""Step from the stage of a pass to the stage that receives its output: the next, the one before, or no other."""
_SEND_OF = {"forward": "send_forward", "backward": "send_backward"}
_SEND_STREAM = {"forward": STREAMS.index("send forward"), "backward": STREAMS.index("send backward")}
_WAITS = 3
"""Tasks that one task can wait for."""


@lru_cache(maxsize=32)
def graph_of(pipeline: Pipeline) -> Graph:
    """Tasks of a step, labelled by ``LABELS``. ``piece`` is ``pipeline.pieces`` where a task is of all of them.

    Raises:
        ModelError: as for ``order_of``.
    """
    step = _Step(pipeline)
    step.passes()
    step.update()
    return step.tasks.graph()


class _Rank:
    """State of a rank during scheduling: its passes to come, and the last task in each of its streams."""

    def __init__(self, pipeline: Pipeline, rank: int) -> None:
        self.number = rank
        self.ops = order_of(pipeline.schedule, pipeline.pp, pipeline.vp, pipeline.micro_batches, rank)
        self.done = 0
        self.last = [NOTHING] * len(STREAMS)
        self.to_gather: Iterator[tuple[Op, int]] = iter(())
        self.gathered: dict[tuple[Op, int], int] = {}


class _Step:
    """Adds the tasks of all ranks, each when those that it waits for are there."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.of = pipeline
        self.pp, self.stages = pipeline.pp, pipeline.stages
        self.tasks = Tasks(LABELS)
        self.arrived: dict[tuple[str, int, int] | None, int] = {None: NOTHING}
        self.ranks = [_Rank(pipeline, rank) for rank in range(pipeline.pp)]
        self.whole = (pipeline.pieces,)
        self.split = tuple(range(pipeline.pieces))
        self.last_gradients = "weights" if pipeline.splits_weights else "backward"
        for rank in self.ranks:
            self._plan_gathers(rank)

    def passes(self) -> None:
        """All forward and backward passes, with what runs beside them."""
        while any(rank.done < len(rank.ops) for rank in self.ranks):
            for rank in self.ranks:
                self._advance(rank)

    def update(self) -> None:
        """Add the tasks after the passes. Optimizers start together where steps end: gradients are clipped by the norm
        of all of them.
        """
        for rank in self.ranks:
            self._after_passes(rank)
        ends = [self._own_barrier(rank) for rank in self.ranks]
        if self.of.flushes:
            ends = [self._barrier(ends)] * len(ends)
        for rank, end in zip(self.ranks, ends, strict=True):
            self._optimize(rank, end)

    def _advance(self, rank: _Rank) -> None:
        """Passes of a rank up to one that waits for what no rank has sent yet."""
        while rank.done < len(rank.ops):
            op = rank.ops[rank.done]
            source = self._sent(op, self._stage(rank, op.chunk), -1) if self.of.flushes else None
            if source not in self.arrived:
                return
            self._pass(rank, op, self.arrived[source])
            rank.done += 1

    def _stage(self, rank: _Rank, chunk: int) -> int:
        return self.of.stage_of(rank.number, chunk)

    def _sent(self, op: Op, stage: int, hops: int) -> tuple[str, int, int] | None:
        """Pass that receives what the stage ``hops`` stages further sends; None beyond the model and on the same
        rank.
        """
        of, micro_batch, _ = op
        at = stage + hops * _DIRECTION[of]
        way = self.stages // self.of.directions
        if at == stage or self.pp == 1 or not 0 <= at < self.stages or at // way != stage // way:
            return None
        return of, at, micro_batch

    def _add(
        self, rank: _Rank, stream: int, what: tuple[str, int, int, int], other: int = NOTHING, own: int = NOTHING
    ) -> int:
        """A task at the end of a stream; ``what`` is its kind, stage, piece and micro-batch."""
        kind, stage, piece, micro_batch = what
        last = rank.last
        concurrent = last[_COMMUNICATION] if stream == _COMPUTE and kind not in _SEND_OF.values() else NOTHING
        label = (rank.number, stream, _KIND[kind], stage, piece, micro_batch)
        last[stream] = self.tasks.add(label, last[stream], other, own, concurrent)
        return last[stream]

    def _pass(self, rank: _Rank, op: Op, other: int) -> None:
        """A pass with its collectives, piece by piece where it has any, and the send of what comes out."""
        stage = self._stage(rank, op.chunk)
        for piece in self._pieces(op):
            gathered = self._gather(rank, op, piece)
            done = self._add(rank, _COMPUTE, (op.of, stage, piece, op.micro_batch), other, gathered)
            other = NOTHING
            if op.of == self.last_gradients:
                self._reduce(rank, op, piece, done)
        if self._sent(op, stage, +1) is not None:
            self._send(rank, op, stage)

    def _pieces(self, op: Op) -> tuple[int, ...]:
        """Backward passes take pieces from the last to the first."""
        if not (self._gathers(op) or self._reduces(op)):
            return self.whole
        return self.split if op.of == "forward" else self.split[::-1]

    def _gathers(self, op: Op) -> bool:
        if self.of.gathers == "each":
            return op.of != "weights"
        return self.of.gathers == "step" and op.of == "forward" and op.micro_batch == 0

    def _reduces(self, op: Op) -> bool:
        if op.of != self.last_gradients:
            return False
        is_last = op.micro_batch == self.of.last_micro_batch
        return self.of.reduces == "each" or (self.of.reduces == "last" and is_last)

    def _plan_gathers(self, rank: _Rank) -> None:
        """Plan the gathers of weights of a rank, in order, and add the first ones. Those of a step's first passes wait
        for nothing.
        """
        gathers = [(op, piece) for op in rank.ops if self._gathers(op) for piece in self._pieces(op)]
        rank.to_gather = iter(gathers)
        ahead = len(gathers) if self.of.gathers == "step" else 1
        for _ in range(ahead):
            self._gather_next(rank)

    def _gather_next(self, rank: _Rank) -> None:
        following = next(rank.to_gather, None)
        if following is not None:
            op, piece = following
            what = f"gather_{op.of}", self._stage(rank, op.chunk), piece, op.micro_batch
            rank.gathered[following] = self._add(rank, _COMMUNICATION, what, own=rank.last[_COMPUTE])

    def _gather(self, rank: _Rank, op: Op, piece: int) -> int:
        """The gather that a piece waits for; that of the piece after it starts beside it."""
        if not self._gathers(op):
            return NOTHING
        self._gather_next(rank)
        return rank.gathered.pop((op, piece))

    def _reduce(self, rank: _Rank, op: Op, piece: int, done: int) -> None:
        """The reduction of gradients that are done, and their way to the host after the last of them."""
        stage = self._stage(rank, op.chunk)
        if self._reduces(op):
            done = self._add(rank, _COMMUNICATION, ("reduce", stage, piece, op.micro_batch), own=done)
        if op.micro_batch == self.of.last_micro_batch and self.of.reduces != "after":
            self._to_host(rank, stage, piece, done)

    def _to_host(self, rank: _Rank, stage: int, piece: int, done: int) -> None:
        if self.of.offload:
            self._add(rank, _COPY, ("to_host", stage, piece, NOTHING), own=done)

    def _send(self, rank: _Rank, op: Op, stage: int) -> None:
        what = _SEND_OF[op.of], stage, self.of.pieces, op.micro_batch
        stream = _COMPUTE if self.of.sends == "exposed" else _SEND_STREAM[op.of]
        self.arrived[op.of, stage, op.micro_batch] = self._add(rank, stream, what, own=rank.last[_COMPUTE])

    def _after_passes(self, rank: _Rank) -> None:
        if self.of.reduces != "after":
            return
        for chunk in reversed(range(self.of.chunks)):
            stage, compute = self._stage(rank, chunk), rank.last[_COMPUTE]
            done = self._add(rank, _COMMUNICATION, ("reduce", stage, self.of.pieces, NOTHING), own=compute)
            self._to_host(rank, stage, self.of.pieces, done)

    def _own_barrier(self, rank: _Rank) -> int:
        """When a rank's streams have come to their ends."""
        return self._join(rank.number, [rank.last[at] for at in (_COMPUTE, _COMMUNICATION, _COPY)])

    def _barrier(self, waited: list[int]) -> int:
        """When all ranks have come to the end of their passes, in a tree."""
        while len(waited) > 1:
            groups = (waited[at : at + _WAITS] for at in range(0, len(waited), _WAITS))
            waited = [self._join(0, group) for group in groups]
        return waited[0]

    def _join(self, rank: int, waited: list[int]) -> int:
        label = (rank, NOTHING, _KIND["barrier"], 0, self.of.pieces, NOTHING)
        before, other, third = (*waited, NOTHING, NOTHING)[:3]
        return self.tasks.add(label, before, other, third)

    def _optimize(self, rank: _Rank, together: int) -> None:
        transfers = rank.last[_COPY if self.of.offload else _COMMUNICATION]
        all_there = self._add(rank, _COMPUTE, ("barrier", rank.number, *self.whole, NOTHING), together, transfers)
        for chunk in range(self.of.chunks):
            where = self._stage(rank, chunk), *self.whole, NOTHING
            done = self._add(rank, _HOST if self.of.offload else _COMPUTE, ("optimizer", *where), own=all_there)
            if self.of.offload:
                done = self._add(rank, _COPY, ("to_device", *where), own=done)
            if self.of.gathers == "after":
                self._add(rank, _COMMUNICATION, ("gather_forward", *where), own=done)
