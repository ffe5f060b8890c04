"""``memory_of``: peak memory that each kind of rank allocates in a training step, part by part."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import MISSING, dataclass, fields, replace

from neusight.devices.spec import DeviceSpec
from neusight.errors import ModelError
from neusight.kernels.precision import stored_bytes
from neusight.plans.margins import TRAINER, MemoryFit, interval_bytes, reserved
from neusight.plans.stages import RankParameters, Stage, end_weights, mirrored, stage_weights, stages_of, waiting
from neusight.plans.states import States, TrainingStep, communicator_bytes, states_of, workspace_bytes
from neusight.requests import Plan, modules_of
from neusight.workloads.decoders.build import trained_program
from neusight.workloads.decoders.decoder import Decoder
from neusight.workloads.decoders.shares import Local
from neusight.workloads.program import HeldWeights, Program, Segment


@dataclass(frozen=True, kw_only=True)
class RankMemory:
    """Bytes of one rank at its peak, which is in the ``moment`` of ``loss``, ``backward`` or ``step``.

    ``activations`` are of all micro-batches that wait for their backward pass, ``loss`` logits and
    intermediate results of the loss, ``temporary`` further tensors of the moment, ``communication`` buffers that are
    sent, received or gathered, ``workspaces`` libraries' buffers. Of CUDA graphs, ``captured_bytes`` is the peak while
    they are captured, ``pooled_bytes`` the size of their private pools, which replays use and PyTorch no longer counts
    as allocated. ``reserve_bytes``: memory of the process in addition to its tensors, where its allocator was replayed;
    None for the usual.
    ``trainer_spread``: ``Engine.memory_spread``; ``communicator_bytes``: part of the context.
    """

    rank: str
    stage: int
    moment: str
    weights: float
    gradients: float
    optimizer: float
    activations: float
    loss: float
    temporary: float
    communication: float
    workspaces: float
    captured_bytes: float = 0.0
    pooled_bytes: float = 0.0
    reserve_bytes: float | None = None
    trainer_spread: float | None = None
    communicator_bytes: float = 0.0

    @property
    def parts(self) -> dict[str, float]:
        """Bytes by part."""
        return {name: getattr(self, name) for name in PARTS}

    @property
    def total(self) -> float:
        """The allocator's peak."""
        return sum(self.parts.values())

    @property
    def allocated(self) -> float:
        """Peak of allocated memory that PyTorch reports [B]: with graphs, in their capture or without their pools."""
        return max(self.captured_bytes, self.total - self.pooled_bytes)

    @property
    def interval(self) -> tuple[float, float]:
        """90 % interval of the peak [B]."""
        return interval_bytes(self.parts)

    def fit(self, device: DeviceSpec) -> MemoryFit:
        """The peak with context and allocator against the memory of a device."""
        terms = reserved(self.parts, self.reserve_bytes)
        terms["context"] += self.communicator_bytes
        shares = {} if self.trainer_spread is None else {TRAINER: self.trainer_spread}
        return MemoryFit(terms=terms, usable_bytes=device.usable_bytes, rank=self.rank, shares=shares)


OVERLAPPED_BUCKETS = 4.5
"""Sizes of a bucket that are in use where it is sent during the backward pass (DeepSpeed's documentation and Hugging
Face's, ``overlap_comm``: 5e8 x 2 bytes x 2 buckets x 4.5 = 9 GB)."""
PARTS = tuple(f.name for f in fields(RankMemory) if f.type == "float" and f.default is MISSING)


def memory_of(decoder: Decoder, plan: Plan, training: TrainingStep, device: DeviceSpec) -> tuple[RankMemory, ...]:
    """The peak of each kind of rank of a pipeline: ``only``, or ``first``, the fullest ``middle`` and ``last``.

    Args:
        decoder: the model.
        plan: how ranks share it.
        training: the step.
        device: the device, whose libraries have workspaces.

    Raises:
        ModelError: ranks cannot share the model evenly, or an unknown optimizer.
    """
    ranks, experts = plan.dp * plan.cp * plan.tp, plan.ep * plan.expert_tp
    if decoder.has_experts and ranks % experts:
        raise ModelError(f"ep x etp = {experts} does not divide dp x cp x tp = {ranks}: change one of them")
    if reason := refused(decoder, plan):
        raise ModelError(reason)
    program = trained_program(decoder, training.share_of(plan), training.engine)
    stages = stages_of(decoder.order, plan, training.chunk_layers)
    stages = mirrored(stages) if plan.directions > 1 else stages
    parameters = [RankParameters.of(stage_weights(stage, program)) for stage in stages]
    states = [(stage, states_of(p, plan, training)) for stage, p in zip(stages, parameters, strict=True)]
    return program_memory(program, states, plan, training, device)


def program_memory(
    program: Program, stages: Iterable[tuple[Stage, States]], plan: Plan, training: TrainingStep, device: DeviceSpec
) -> tuple[RankMemory, ...]:
    """The peak of each kind of rank of a pipeline, of any program: that of the fullest of a kind.

    Args:
        program: program of a micro-batch, whose segments record the activations they keep.
        stages: stages with the persistent states of their ranks.
        plan: how ranks share it.
        training: the step.
        device: the device, whose libraries have workspaces.
    """
    local = training.share_of(plan)
    fullest: dict[str, RankMemory] = {}
    for stage, states in stages:
        rank = _StageRank(stage, program, plan, training, local).memory(states, device)
        if rank.rank not in fullest or rank.total > fullest[rank.rank].total:
            fullest[rank.rank] = rank
    return tuple(fullest.values())


def refused(decoder: Decoder, plan: Plan) -> str:
    """Reason why a decoder's step is not estimated under a plan, "" if it is."""
    if decoder.encodes and plan.pp > 1:
        return f"pp {plan.pp}: what an encoder gives to all stages behind it is not built: set pp to 1"
    return ""


@dataclass(frozen=True)
class _StageRank:
    """A stage of a pipeline with the program of one of its ranks."""

    stage: Stage
    program: Program
    plan: Plan
    training: TrainingStep
    local: Local

    def memory(self, states: States, device: DeviceSpec) -> RankMemory:
        """The sum of all terms at the moment when it is largest, with the shares of CUDA graphs."""
        whole = self._eager(states, device)
        if not self.training.graphed:
            return whole
        outside = [module for module in ("mlp", "moe", "shared_experts") if module not in self.training.graphed]
        capture = replace(self, plan=replace(self.plan, recompute="+".join(outside)))._eager(states, device)
        return replace(whole, captured_bytes=capture.total, pooled_bytes=capture.activations)

    def _eager(self, states: States, device: DeviceSpec) -> RankMemory:
        """Memory of passes that are launched kernel by kernel."""
        engine = self.training.engine
        moments = self._moments(states)
        name = max(moments, key=lambda name: sum(moments[name]))
        activations, loss, temporary, gradients = moments[name]
        experts = any(segment.expert_parameters for segment in self.program.layers)
        buffers = max(segment.workspace_bytes for segment in self.program.segments)
        return RankMemory(
            rank=self.stage.name,
            stage=self.stage.index,
            moment=name,
            weights=states.weights,
            gradients=gradients,
            optimizer=states.optimizer,
            activations=activations,
            loss=loss,
            temporary=temporary,
            communication=self._communication(),
            workspaces=workspace_bytes(device, engine, experts=experts) + buffers,
            trainer_spread=engine.memory_spread,
            communicator_bytes=communicator_bytes(device, self.plan, engine),
        )

    def _moments(self, states: States) -> dict[str, tuple[float, float, float, float]]:
        """Activations, loss, temporaries and gradients when they may be most."""
        local, engine, after = self.local, self.training.engine, self.program.after
        mask = float(local.batch * local.mask_pairs) if engine.dense_mask else 0.0
        activations_kept, queued = self._activations(), 0.0
        # Gradients that no buffer keeps come to be while activations go.
        fresh = not engine.master_weights and self.plan.micro_batches == 1
        stepped = 0.0 if fresh and engine.steps_in_backward else 1.0
        moments = {"step": (0.0, 0.0, stepped * states.cast, stepped * states.gradients)}
        if self.stage.last:
            head = self._kept_bytes(after)
            losses = self._waiting()[-1] if self.plan.schedule == "gpipe" else 1
            activations_kept += losses * head
            activations_kept += engine.deferred_heads * (head + stored_bytes(local.dtype) * after.logits)
            queued = (losses - 1) * engine.held_logit_bytes * after.logits
            losing = mask + after.widest_bytes
            gradients = 0.0 if fresh else states.gradients
            moments["loss"] = (activations_kept, queued + self._logit_bytes * after.logits, losing, gradients)
        freed, passing, done = self._passing(states.gradients if fresh else 0.0)
        gradients = done if fresh else states.gradients
        moments["backward"] = (activations_kept - freed, queued, mask + passing + after.input_bytes, gradients)
        return moments

    @property
    def _logit_bytes(self) -> float:
        """Bytes for each logit while the loss is computed: the logit and its gradient, and a chunk of the loss's
        results.
        """
        engine, in_dtype = self.training.engine, 2.0 * stored_bytes(self.local.dtype)
        return min(engine.logit_bytes, in_dtype) + max(0.0, engine.logit_bytes - in_dtype) / engine.loss_chunks

    def _waiting(self) -> tuple[int, ...]:
        return waiting(self.stage, self.plan, self.training.chunk_group)

    def _activations(self) -> float:
        """Activations of all micro-batches that wait on a stage [B]; of two layers where the host stores them: one
        layer is copied concurrently with the passes of the other (Rhu et al. 2016, vDNN, section 3.2).
        """
        stage, recompute = self.stage, self.plan.recompute
        if self.training.engine.offloads_activations:
            return 2.0 * max(self._kept_bytes(self.program.layers[kind]) for kind in stage.kinds)
        again = len(stage.kinds)
        if recompute == "full":
            again = self.plan.recompute_layers or again
        total, done = 0.0, 0
        for chunk, count in zip(stage.chunks, self._waiting(), strict=True):
            for kind in chunk:
                total += count * self.program.layers[kind].kept_bytes(recompute if done < again else "none")
                done += 1
            if stage.first and chunk is stage.chunks[0]:
                total += count * self.program.before.kept_bytes("none")
        return total

    def _passing(self, gradients: float) -> tuple[float, float, float]:
        """The backward pass at its peak: freed bytes of segments already done, bytes around a segment's widest
        operation and of its recomputation, and gradients made so far [B].

        Args:
            gradients: gradients of the stage, made one segment after another [B].
        """
        program, stage, engine = self.program, self.stage, self.training.engine
        kinds = {kind: program.layers[kind] for kind in set(stage.kinds)} | (
            {-1: program.before} if stage.first else {}
        )
        kept_bytes = {kind: self._kept_bytes(segment) for kind, segment in kinds.items()}
        gone = {kind: 0.0 if engine.offloads_activations else size for kind, size in kept_bytes.items()}
        extra = {kind: s.widest_bytes + s.kept_bytes("none") - kept_bytes[kind] for kind, s in kinds.items()}
        per_parameter = gradients / (RankParameters.of(stage_weights(stage, program)).total or 1.0)
        made = {kind: per_parameter * (s.parameters + s.expert_parameters) for kind, s in kinds.items()}
        freed, done, most = 0.0, per_parameter * program.after.parameters if stage.last else 0.0, (0.0, 0.0, 0.0)
        for kind in (*reversed(stage.kinds), *((-1,) if stage.first else ())):
            if extra[kind] + done - freed > most[1] + most[2] - most[0]:
                most = (freed, extra[kind], done)
            freed, done = freed + gone[kind], made[kind] + (0.0 if engine.steps_in_backward else done)
        return most

    def _kept_bytes(self, segment: Segment) -> float:
        """Bytes that a segment keeps of one micro-batch; outside of layers only named modules are computed again."""
        again = self.plan.recompute
        return segment.kept_bytes("none" if segment.layer < 0 and not modules_of(again) else again)

    def _communication(self) -> float:
        """Buffers received and sent by each chunk, of the stream that ``tp`` ranks gather, and of layers that FSDP
        gathers.
        """
        plan, stream = self.plan, self.program.after.input_bytes
        total = 2.0 * plan.vp * stream if plan.pp > 1 else 0.0
        if plan.sequence_parallel and plan.tp > 1:
            total += plan.tp * stream
        if plan.shard in ("zero3", "hsdp"):
            total += self._gathered_bytes()
        return total + self._buckets()

    def _buckets(self) -> float:
        """Buffers that gradients are reduced in, see ``Engine.bucket_parameters``."""
        plan, bucket = self.plan, self.training.engine.bucket_parameters
        if not bucket or plan.dp * plan.cp == 1:
            return 0.0
        parameters = RankParameters.of(stage_weights(self.stage, self.program)).total
        buffers = 1 if plan.shard in ("zero3", "hsdp") else 2
        waiting = OVERLAPPED_BUCKETS if plan.overlap_grad_reduce else 1.0
        return waiting * buffers * stored_bytes(self.local.dtype) * min(bucket, parameters)

    def _gathered_bytes(self) -> float:
        """FSDP's buffers [B]: weights of two gathers, one in use and one prefetched; gradients of one as computed and
        as reduced; and, where layers are gathered, weights outside of them (PyTorch FSDP,
        ``BackwardPrefetch.BACKWARD_PRE``; Zhao et al. 2023, section 3.3).
        """
        used, reduced = stored_bytes(self.local.dtype), stored_bytes(self.plan.gradient_dtype)
        layers = [self.program.layers[kind].held for kind in self.stage.kinds]
        ends = tuple(end_weights(self.stage, self.program))
        if self.training.engine.gathers_matrices:
            gathers, outside = [float(w.number) for weights in (*layers, ends) for w in weights], 0.0
        else:
            gathers, outside = [_every(weights) for weights in layers], _every(ends)
        largest = max(gathers, default=0.0)
        if live := self.training.engine.live_parameters:
            return used * min(max(live, 2 * largest), sum(gathers) + outside)
        return used * min(2 * largest, sum(gathers)) + (used + reduced) * largest + used * outside


def _every(held: Iterable[HeldWeights]) -> float:
    """Number of parameters, trained or not."""
    return float(sum(w.number for w in held))


def fullest(ranks: Sequence[RankMemory]) -> RankMemory:
    """The rank that decides whether a plan fits."""
    return max(ranks, key=lambda rank: rank.total)
