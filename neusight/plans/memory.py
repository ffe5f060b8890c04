"""``memory_of``: the most that each kind of rank allocates in a step of training, part by part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from neusight.devices.spec import DeviceSpec
from neusight.engines import ENGINES, Engine
from neusight.errors import ModelError
from neusight.kernels.precision import stored_bytes
from neusight.plans.plan import Plan
from neusight.plans.stages import Stage, layer_held, local_of, outside_held, stage_held, stages_of, waiting
from neusight.plans.states import States, states_of
from neusight.plans.workspaces import workspace_bytes
from neusight.workloads.decoders.decoder import Decoder
from neusight.workloads.decoders.layers import Experts, Layer, SelfAttention
from neusight.workloads.decoders.rank import configured
from neusight.workloads.decoders.shares import Local
from neusight.workloads.training.saved import (
    after_saved,
    before_saved,
    checkpoint_bytes,
    layer_saved,
    logits,
    operators_bytes,
    selected_bytes,
    total_bytes,
)


@dataclass(frozen=True, kw_only=True)
class TrainingStep:
    """What a step of training is of, beside the plan: sequences of ``seq_len`` tokens, precision, optimizer, its
    engine.

    ``dtype`` is that of activations and weights, ``products`` that of large products where it is narrower (float8).
    ``chunk_layers``: layers of each chunk of the pipeline where they differ, ``chunk_group``: micro-batches of a chunk
    before the next where that is not ``pp``.
    """

    seq_len: int
    dtype: str = "bfloat16"
    products: str = ""
    optimizer: str = "adam"
    engine: Engine = ENGINES["megatron-te"]
    chunk_layers: tuple[int, ...] = ()
    chunk_group: int = 0


@dataclass(frozen=True, kw_only=True)
class RankMemory:
    """Bytes of one rank at its peak, which is in the ``moment`` of ``loss``, ``backward`` or ``step``.

    ``activations`` are of all micro-batches that wait for their backward pass, ``loss`` logits and what the loss makes
    of them, ``temporary`` what a moment needs beside, ``communication`` what is sent, received or gathered,
    ``workspaces`` libraries' buffers.
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

    @property
    def parts(self) -> dict[str, float]:
        """Bytes by part."""
        return {name: getattr(self, name) for name in PARTS}

    @property
    def total(self) -> float:
        """The allocator's peak."""
        return sum(self.parts.values())


PARTS = tuple(f.name for f in fields(RankMemory) if f.type == "float")


def memory_of(decoder: Decoder, plan: Plan, training: TrainingStep, device: DeviceSpec) -> tuple[RankMemory, ...]:
    """The peak of each kind of rank of a pipeline: ``only``, or ``first``, the fullest ``middle`` and ``last``.

    Args:
        decoder: the model.
        plan: how ranks share it.
        training: the step.
        device: whose libraries' workspaces.

    Raises:
        ModelError: what ranks cannot share evenly, an unknown optimizer.
    """
    _check_experts(decoder, plan)
    training = replace(training, engine=configured(training.engine, decoder))
    ranks = [_rank(stage, decoder, plan, training, device) for stage in stages_of(decoder, plan, training.chunk_layers)]
    fullest: dict[str, RankMemory] = {}
    for rank in ranks:
        if rank.rank not in fullest or rank.total > fullest[rank.rank].total:
            fullest[rank.rank] = rank
    return tuple(fullest.values())


def _check_experts(decoder: Decoder, plan: Plan) -> None:
    ranks, experts = plan.dp * plan.cp * plan.tp, plan.ep * plan.expert_tp
    if decoder.has_experts and ranks % experts:
        raise ModelError(f"ep x etp = {experts} does not divide dp x cp x tp = {ranks}: change one of them")


def _local(plan: Plan, training: TrainingStep) -> Local:
    return local_of(plan, training.seq_len, training.dtype, training.products)


def _rank(stage: Stage, decoder: Decoder, plan: Plan, training: TrainingStep, device: DeviceSpec) -> RankMemory:
    local = _local(plan, training)
    states = states_of(
        stage_held(stage, decoder, local),
        plan,
        dtype=training.dtype,
        products=training.products,
        optimizer=training.optimizer,
        master_weights=training.engine.master_weights,
        foreach=training.engine.foreach_optimizer,
    )
    moments = _moments(stage, decoder, plan, training, states)
    # Gradients that no buffer keeps come to be while activations go.
    fresh = not training.engine.master_weights and plan.micro_batches == 1
    gradients = {name: 0.0 if fresh and name != "step" else states.gradients for name in moments}
    moment = max(moments, key=lambda name: sum(moments[name]) + gradients[name])
    activations, loss, temporary = moments[moment]
    return RankMemory(
        rank=stage.what,
        stage=stage.index,
        moment=moment,
        weights=states.weights,
        gradients=gradients[moment],
        optimizer=states.optimizer,
        activations=activations,
        loss=loss,
        temporary=temporary,
        communication=_communication(stage, decoder, plan, local),
        workspaces=_workspaces(decoder, local, training.engine, device),
    )


def _moments(
    stage: Stage, decoder: Decoder, plan: Plan, training: TrainingStep, states: States
) -> dict[str, tuple[float, float, float]]:
    """Activations, loss and temporaries when they may be most."""
    local, engine = _local(plan, training), training.engine
    mask = float(local.batch * local.length * local.seq_len) if engine.dense_mask else 0.0
    kept = _activations(stage, decoder, plan, training)
    found = {"step": (0.0, 0.0, states.cast)}
    queued = 0.0
    if stage.last:
        rows, head = logits(decoder, local), total_bytes(after_saved(decoder, local))
        losses = waiting(stage, plan, training.chunk_group)[-1] if plan.schedule == "gpipe" else 1
        kept += losses * head
        kept += engine.deferred_heads * (head + stored_bytes(local.dtype) * rows)
        queued = (losses - 1) * engine.held_logit_bytes * rows
        found["loss"] = (kept, queued + engine.logit_bytes * rows, mask)
    again = _again(stage, decoder, plan, local, engine)
    found["backward"] = (kept, queued, mask + again + _gradients_passing(stage, decoder, local, engine))
    return found


def _activations(stage: Stage, decoder: Decoder, plan: Plan, training: TrainingStep) -> float:
    """Of all micro-batches that wait on a stage."""
    local, engine = _local(plan, training), training.engine
    each = [_layer_kept(layer, decoder, plan, local, engine) for layer, _ in decoder.layers]
    whole = [total_bytes(layer_saved(layer, decoder.hidden, local, engine)) for layer, _ in decoder.layers]
    budget = (plan.recompute_layers or len(stage.kinds)) if plan.recompute == "full" else len(stage.kinds)
    total, done = 0.0, 0
    for chunk, count in zip(stage.chunks, waiting(stage, plan, training.chunk_group), strict=True):
        for kind in chunk:
            total += count * (each if done < budget else whole)[kind]
            done += 1
        if stage.first and chunk is stage.chunks[0]:
            total += count * total_bytes(before_saved(decoder, local, engine))
    return total


def _layer_kept(layer: Layer, decoder: Decoder, plan: Plan, local: Local, engine: Engine) -> float:
    if plan.recompute == "full":
        return checkpoint_bytes(decoder.hidden, local)
    if plan.recompute == "selective":
        return selected_bytes(layer, decoder.hidden, local, engine)
    if plan.recompute == "operators":
        return operators_bytes(layer, decoder.hidden, local)
    return total_bytes(layer_saved(layer, decoder.hidden, local, engine))


def _again(stage: Stage, decoder: Decoder, plan: Plan, local: Local, engine: Engine) -> float:
    """What the layer that is computed again keeps meanwhile."""
    if plan.recompute == "none":
        return 0.0
    layers = [decoder.layers[kind][0] for kind in set(stage.kinds)]
    whole = (total_bytes(layer_saved(layer, decoder.hidden, local, engine)) for layer in layers)
    kept = (_layer_kept(layer, decoder, plan, local, engine) for layer in layers)
    return max((a - b for a, b in zip(whole, kept, strict=True)), default=0.0)


def _gradients_passing(stage: Stage, decoder: Decoder, local: Local, engine: Engine) -> float:
    """Of activations around the widest operator: the stream's gradient, and what goes into it and comes out."""
    size = stored_bytes(local.dtype)
    stream = local.resident_tokens * decoder.hidden * size
    widest = (_widest(decoder.layers[kind][0], decoder.hidden, local, engine) for kind in set(stage.kinds))
    return stream + size * max(widest, default=0.0)


def _widest(layer: Layer, hidden: int, local: Local, engine: Engine) -> float:
    """Elements of the gradients before and after a feed-forward's activation, or an unfused softmax."""
    part, mixer, rows = layer.feed_forward, layer.attention, float(local.tokens)
    inner = 0.0
    if isinstance(part, Experts):
        rows *= local.etp / local.tp * part.top_k
        inner = rows * sum(p.n if p.k == hidden else p.k for p in part.expert.projections(hidden, local.etp))
    elif part:
        up, down = part.projections(hidden, local.tp)
        inner = rows * (up.n + down.k)
    if isinstance(mixer, SelfAttention) and engine.writes_scores:
        return max(inner, 2.0 * mixer.local_heads(local.tp)[0] * local.tokens * local.seq_len)
    return inner


def _communication(stage: Stage, decoder: Decoder, plan: Plan, local: Local) -> float:
    """What each chunk received and sends; the stream that ``tp`` ranks gather; layers that FSDP gathers."""
    size = stored_bytes(local.dtype)
    stream = local.resident_tokens * decoder.hidden * size
    total = 2.0 * plan.vp * stream if plan.pp > 1 else 0.0
    if plan.sequence_parallel and plan.tp > 1:
        total += local.tokens * decoder.hidden * size
    if plan.shard in ("zero3", "hsdp"):
        total += _gathered(stage, decoder, plan, local)
    return total


def _gathered(stage: Stage, decoder: Decoder, plan: Plan, local: Local) -> float:
    """Of FSDP: two layers' weights, one in use and one fetched ahead; one's gradient as computed and as reduced; and
    what is outside of layers (PyTorch FSDP, ``BackwardPrefetch.BACKWARD_PRE``; Zhao et al. 2023, section 3.3).
    """
    layers = (layer_held(decoder.layers[kind][0], decoder.hidden, local).total for kind in set(stage.kinds))
    outside = outside_held(stage, decoder, local).total
    used, reduced = stored_bytes(local.dtype), stored_bytes(plan.gradient_dtype)
    return (3 * used + reduced) * max(layers, default=0.0) + used * outside


def _workspaces(decoder: Decoder, local: Local, engine: Engine, device: DeviceSpec) -> float:
    total = workspace_bytes(device, engine, experts=decoder.has_experts)
    if engine.score_buffer:
        heads = (
            mixer.local_heads(local.tp)[0]
            for layer, _ in decoder.layers
            if isinstance(mixer := layer.attention, SelfAttention)
        )
        total += max(heads, default=0) * local.tokens * local.seq_len * stored_bytes(local.dtype)
    return total


def fullest(ranks: Sequence[RankMemory]) -> RankMemory:
    """The rank that decides whether a plan fits."""
    return max(ranks, key=lambda rank: rank.total)
