"""What a served model keeps on each device: weights, cache, activations, and what the engine takes."""

from __future__ import annotations

from dataclasses import dataclass

from neusight.devices.spec import DeviceSpec
from neusight.engines.server import Server
from neusight.kernels.precision import DTYPE_BYTES
from neusight.requests import Plan
from neusight.workloads.decoders.decoder import Decoder
from neusight.workloads.decoders.layers import Experts, FeedForward, Layer
from neusight.workloads.decoders.quantisation import ServingPrecision
from neusight.workloads.decoders.weights import outside_weight_bytes, weight_bytes

RANK_BYTES = 0.45 * 2**30
"""Buffers of NCCL and of the engines' own all-reduce on each of several ranks. Of vLLM 0.15.1 on H100, whose logs tell
the size of its cache: what weights and activations leave unexplained with tp 2 and 4 (0.43 to 0.47 GiB; none with tp 1;
inference-sim/sim-to-real-accuracy-validation, design document of 2026-03-04, section 4.2)."""
LOGITS_BYTES = 12.0
"""A logit of a sampled row, in 16 and 32 bits and with its probability and what sorting it takes (assumption)."""


@dataclass(frozen=True, kw_only=True)
class ServingMemory:
    """Of each device of a replica, in bytes. ``kv_tokens`` are those that the cache holds, in sequences of a stated
    length; ``state_bytes`` what a sequence keeps beside, whatever its length.
    """

    capacity: float
    weights: float
    activations: float
    buffers: float
    reserve: float
    kv_cache: float
    kv_bytes_per_token: float
    state_bytes: float
    kv_tokens: int

    @property
    def terms(self) -> dict[str, float]:
        """What is allocated, by name [B]."""
        return {name: getattr(self, name) for name in ("weights", "kv_cache", "activations", "buffers")}

    @property
    def fits(self) -> bool:
        """Whether there is room for any cache."""
        return self.kv_tokens > 0


def serving_memory(
    decoder: Decoder,
    device: DeviceSpec,
    precision: ServingPrecision,
    plan: Plan,
    server: Server,
    *,
    max_tokens: int,
    max_num_seqs: int,
    length: int,
    share: float | None = None,
) -> ServingMemory:
    """What a replica keeps on each of its devices; of a pipeline on those of the stage with the most layers.

    Args:
        decoder: the model.
        device: one of the replica's, all alike.
        precision: of weights and cache.
        plan: who keeps what.
        server: what part of the memory is its own.
        max_tokens: new tokens of the largest pass, which its activations are of.
        max_num_seqs: whose logits a pass makes.
        length: tokens of a sequence, of which layers with a window keep no more than that.
        share: of the memory, instead of the engine's.
    """
    outside = outside_weight_bytes(decoder, precision, plan)
    stage = -(-decoder.depth // plan.pp) / decoder.depth
    weights = outside + stage * (weight_bytes(decoder, precision, plan) - outside)
    activations = activation_bytes(decoder, precision, plan, max_tokens, max_num_seqs)
    buffers = RANK_BYTES if plan.world > 1 else 0.0
    used, part = weights + activations + buffers, server.memory_share if share is None else share
    total = device.usable_bytes
    left = part * total - used if server.memory_of == "total" else part * (total - used)
    states = stage * decoder.state_bytes_per_sequence(plan.tp)
    per_token = stage * float(decoder.kv_bytes(length, precision.kv_cache, plan.tp)) / max(length, 1)
    per_token += states / max(length, 1)
    return ServingMemory(
        capacity=total,
        weights=weights,
        activations=activations,
        buffers=buffers,
        reserve=total - used - max(left, 0.0),
        kv_cache=max(left, 0.0),
        kv_bytes_per_token=per_token,
        state_bytes=states,
        kv_tokens=int(max(left, 0.0) / per_token) if per_token else 2**40,
    )


def activation_bytes(
    decoder: Decoder, precision: ServingPrecision, plan: Plan, max_tokens: int, max_num_seqs: int
) -> float:
    """Most that the activations of a pass take [B]: the residual stream twice and the widest layer's inner rows, or the
    logits of all sampled rows.
    """
    size = DTYPE_BYTES[precision.dtype]
    widest = max((_inner_width(layer, decoder.hidden, plan) for layer, _ in decoder.layers), default=0.0)
    rows = size * max_tokens * (2.0 * decoder.hidden + widest)
    return max(rows, LOGITS_BYTES * max_num_seqs * decoder.vocab)


def _inner_width(layer: Layer, hidden: int, plan: Plan) -> float:
    """Values a token between the products of a layer, of its wider half: what goes in, and what comes out."""
    part, tp = layer.feed_forward, plan.tp
    mixed = sum(p.n + p.k for p in layer.attention.projections(hidden, tp)[-1:]) if layer.attention else 0.0
    if isinstance(part, Experts):
        slices = plan.tp * plan.dp / plan.ep
        return max(mixed, part.top_k * (3.0 * part.expert.ffn / slices + hidden))
    if isinstance(part, FeedForward):
        return max(mixed, (3.0 if part.gated else 2.0) * part.ffn / tp)
    return float(mixed)
