"""What the weights of a served decoder take on one rank."""

from __future__ import annotations

from collections.abc import Iterable

from neusight.kernels.precision import Precision, stored_bytes
from neusight.workloads.decoders.decoder import Decoder
from neusight.workloads.decoders.layers import Experts, FeedForward, Layer, Projection, shared_evenly
from neusight.workloads.decoders.quantisation import ServingPrecision
from neusight.workloads.decoders.sharding import Sharding


def layer_weight_bytes(decoder: Decoder, layer: Layer, precision: ServingPrecision, sharding: Sharding) -> float:
    """Bytes of one layer's weights on a rank: scales included, norms and biases in the model's own dtype.

    Raises:
        ModelError: sizes that ranks cannot share evenly.
    """
    hidden, size = decoder.hidden, stored_bytes(precision.dtype)
    mixer = layer.attention
    own = (
        _bytes(mixer.projections(hidden, sharding.tp), precision) + size * mixer.vectors / sharding.tp if mixer else 0.0
    )
    return (
        own + size * layer.norms * layer.norm.weights * hidden + _fed(layer.feed_forward, hidden, precision, sharding)
    )


def weight_bytes(decoder: Decoder, precision: ServingPrecision | Precision, sharding: Sharding) -> float:
    """Bytes of the weights of all layers, the embedding and the head on one rank, before a pipeline is cut.

    Raises:
        ModelError: sizes that ranks cannot share evenly.
    """
    how = ServingPrecision.of(precision)
    layers = sum(count * layer_weight_bytes(decoder, layer, how, sharding) for layer, count in decoder.layers)
    return layers + outside_weight_bytes(decoder, how, sharding)


def outside_weight_bytes(decoder: Decoder, precision: ServingPrecision, sharding: Sharding) -> float:
    """Bytes of embeddings, head and what else belongs to no layer: shared by the vocabulary."""
    inside = sum(count * layer.parameters(decoder.hidden) for layer, count in decoder.layers)
    return (decoder.parameters - inside) * stored_bytes(precision.dtype) / sharding.tp


def _fed(part: FeedForward | Experts | None, hidden: int, precision: ServingPrecision, sharding: Sharding) -> float:
    if part is None:
        return 0.0
    if isinstance(part, FeedForward):
        return _bytes(part.projections(hidden, sharding.tp), precision)
    slices = shared_evenly(sharding.tp * sharding.dp, sharding.ep, "tp x dp")
    many = shared_evenly(part.experts, sharding.ep, "number of experts")
    gate = hidden * stored_bytes(precision.dtype) if part.shared_gate else 0.0
    routed = _bytes(part.expert.projections(hidden, slices, "experts"), precision)
    return (
        many * routed + _fed(part.shared, hidden, precision, sharding) + _bytes([part.router(hidden)], precision) + gate
    )


def _bytes(projections: Iterable[Projection], precision: ServingPrecision) -> float:
    """Of matrices in the scheme of their kind, and of their biases."""
    total = 0.0
    for p in projections:
        each = precision.quantisation.of(p.kind).weight_bytes(precision.dtype)
        total += p.weights * each + (p.n * stored_bytes(precision.dtype) if p.bias else 0.0)
    return total
