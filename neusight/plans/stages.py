"""Layers of each rank of a pipeline, their weights, and the number of micro-batches that wait in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from neusight.errors import ModelError
from neusight.kernels.schemes import EVERYWHERE
from neusight.requests import Plan
from neusight.workloads.decoders.recipes import Adapters
from neusight.workloads.decoders.shares import Local
from neusight.workloads.program import HeldWeights, Program


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One rank of a pipeline: kinds of the layers of each of its chunks, from the input on, and where each begins.

    ``mirrored``: its second chunk is that of the stage at the same distance from the other end.
    """

    index: int
    of: int
    chunks: tuple[tuple[int, ...], ...]
    begins: tuple[int, ...] = ()
    mirrored: bool = False

    @property
    def first(self) -> bool:
        """True if the rank has the embedding."""
        return self.index == 0 or (self.mirrored and self.index == self.of - 1)

    @property
    def last(self) -> bool:
        """True if the rank has the head and the loss."""
        return self.index == self.of - 1 or (self.mirrored and self.index == 0)

    @property
    def name(self) -> str:
        """``only``, ``first``, ``middle`` or ``last``."""
        if self.of == 1:
            return "only"
        return "first" if self.first else "last" if self.last else "middle"

    @property
    def kinds(self) -> tuple[int, ...]:
        """Kinds of all its layers."""
        return tuple(kind for chunk in self.chunks for kind in chunk)


def local_of(
    plan: Plan, seq_len: int, dtype: str, products: str, *, source_len: int = 0, adapters: Adapters | None = None
) -> Local:
    """A rank's share of a micro-batch of sequences of ``seq_len`` tokens, of an encoder's source of ``source_len``."""
    return Local(
        batch=plan.micro_batch_size,
        seq_len=seq_len,
        cp_comm=plan.cp_comm if plan.cp > 1 else "",
        etp=plan.expert_tp,
        dtype=dtype,
        products=products,
        source_len=source_len,
        adapters=adapters or Adapters(),
        overlap_tp=plan.overlap_tp and plan.sequence_parallel and plan.tp > 1,
        **{name: getattr(plan, name) for name in ("tp", "cp", "ulysses", "ep", "sequence_parallel")},
    )


def stages_of(order: Sequence[int], plan: Plan, layers: Sequence[int] = ()) -> tuple[Stage, ...]:
    """The ranks of a pipeline.

    Args:
        order: kind of each layer of the model, from the input on.
        plan: its ``pp`` stages in ``vp`` chunks each; chunk ``c`` of stage ``i`` is the ``c * pp + i``-th of the model
            (Narayanan et al. 2021, section 2.2).
        layers: number of layers of each chunk, from the input on; default: as evenly as possible, and chunks at both
            ends, which also have embedding and head, are not the longer ones.

    Raises:
        ModelError: more chunks than ``most_chunks``, or ``layers`` that are not those of the model.
    """
    count, depth = plan.pp * plan.vp, len(order)
    if not layers and count > most_chunks(depth):
        raise ModelError(f"a model of {depth} layers: lower pp x vp = {count} to at most {most_chunks(depth)}")
    sizes = tuple(layers) or _evenly(depth, count)
    if len(sizes) != count or sum(sizes) != depth:
        raise ModelError(
            f"{sum(sizes)} layers in {len(sizes)} chunks: the model has {depth}, and pp x vp = {count} chunks: "
            "give as many numbers, with that sum"
        )
    ends = [sum(sizes[: at + 1]) for at in range(count)]
    chunks = [tuple(order[end - size : end]) for end, size in zip(ends, sizes, strict=True)]
    begins = [end - size for end, size in zip(ends, sizes, strict=True)]
    return tuple(
        Stage(index=at, of=plan.pp, chunks=tuple(chunks[at :: plan.pp]), begins=tuple(begins[at :: plan.pp]))
        for at in range(plan.pp)
    )


def mirrored(stages: Sequence[Stage]) -> tuple[Stage, ...]:
    """The ranks of a pipeline whose two ends both begin: each has its stage's chunk and that of the stage mirrored."""
    pairs = zip(stages, reversed(stages), strict=True)
    return tuple(
        replace(stage, chunks=stage.chunks + other.chunks, begins=stage.begins + other.begins, mirrored=True)
        for stage, other in pairs
    )


def most_chunks(depth: int) -> int:
    """Largest number of chunks of ``depth`` layers: embedding and loss may be alone in the first and the last
    (Megatron-LM, ``--account-for-embedding-in-pipeline-split`` and ``--account-for-loss-in-pipeline-split``).
    """
    return depth + 2


def _evenly(layers: int, chunks: int) -> tuple[int, ...]:
    """Layers of each chunk; the remainder goes to the middle."""
    per_chunk, over = divmod(layers, chunks)
    start = (chunks - over) // 2
    return tuple(per_chunk + (start <= at < start + over) for at in range(chunks))


def waiting(stage: Stage, plan: Plan, group: int = 0) -> tuple[int, ...]:
    """Largest number of micro-batches whose activations each chunk of a stage keeps.

    One forward, one backward: ``pp - i`` on stage ``i``; interleaved: ``2 (pp - i - 1) + (vp - 1) group + 1`` chunks'
    worth, ``group`` micro-batches of a chunk before its next (Narayanan et al. 2021; default: ``pp``). GPipe: all
    micro-batches (Huang et al. 2019), but one where no other stage waits for them. Zero bubble: ``pp`` on every stage,
    and as many of each further chunk (Qi et al. 2023, ZB-H1). DualPipe: ``pp - i`` of the stage itself, ``i + 1`` of
    the mirrored one (DeepSeek-AI 2024, table 2). Asynchronous: ``pp - i`` for any step (Narayanan et al. 2019,
    PipeDream, section 3.2).
    """
    most = plan.micro_batches
    if plan.schedule == "asynchronous":
        return (plan.pp - stage.index,) * plan.vp
    if plan.directions > 1:
        return plan.pp - stage.index, stage.index + 1
    if plan.schedule == "gpipe" and plan.pp > 1:
        return (most,) * plan.vp
    group, behind = group or plan.pp, plan.pp - stage.index - 1
    ahead = (1 if plan.vp == 1 else 2) * behind + 1 if plan.schedule == "1f1b" else plan.pp
    started = range(min(most * plan.vp, ahead + (plan.vp - 1) * group))
    order = [at % (group * plan.vp) // group for at in started]
    return tuple(order.count(chunk) for chunk in range(plan.vp))


@dataclass(frozen=True, kw_only=True)
class RankParameters:
    """Trained parameters on a rank: those that all of its replicas share, and those of experts; of both, those in
    matrices of layers. ``frozen`` are untrained ones, ``frozen_projections`` those of them in projections of layers.
    """

    dense: float = 0.0
    expert: float = 0.0
    dense_matrices: float = 0.0
    expert_matrices: float = 0.0
    frozen: float = 0.0
    frozen_projections: float = 0.0

    @classmethod
    def of(cls, held: Iterable[HeldWeights]) -> RankParameters:
        """Parameters of a rank's weights."""
        numbers, matrices, still = [0, 0], [0, 0], [0, 0]
        for weights in held:
            if weights.frozen:
                still[weights.kind in EVERYWHERE] += weights.number
                continue
            numbers[weights.routed] += weights.number
            matrices[weights.routed] += weights.number if weights.is_matrix else 0
        names = ("dense", "expert", "dense_matrices", "expert_matrices")
        trained = dict(zip(names, map(float, (*numbers, *matrices)), strict=True))
        return cls(**trained, frozen=float(sum(still)), frozen_projections=float(still[True]))

    @property
    def matrices(self) -> RankParameters:
        """Parameters in matrices only."""
        return RankParameters(dense=self.dense_matrices, expert=self.expert_matrices)

    @property
    def total(self) -> float:
        """Number of trained parameters of both kinds."""
        return self.dense + self.expert


def stage_weights(stage: Stage, program: Program) -> Iterator[HeldWeights]:
    """Weights of a program on one rank of a stage."""
    for kind in stage.kinds:
        yield from program.layers[kind].held
    yield from end_weights(stage, program)


def end_weights(stage: Stage, program: Program) -> Iterator[HeldWeights]:
    """Weights of embedding, last norm and head on a stage. A tied embedding is on both the first and the last stage."""
    if stage.first:
        yield from program.before.held
    if stage.last:
        yield from program.after.held
    if stage.last and not stage.first:
        yield HeldWeights(program.after.tied_parameters, frozen=program.after.frozen_parameters > 0)
