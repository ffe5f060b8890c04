"""What a rank holds of a served decoder: parameters by what stores them, and their bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from neusight.kernels.precision import Precision, stored_bytes
from neusight.requests import Plan
from neusight.workloads.decoders.decoder import Decoder
from neusight.workloads.decoders.layers import Experts, FeedForward, Layer, Projection, shared_evenly
from neusight.workloads.decoders.quantisation import ServingPrecision


class Parameters(NamedTuple):
    """So many that are stored alike: in the scheme of a ``kind`` of projections, "" for the model's own dtype.

    ``routed`` ones are of experts among which tokens choose.
    """

    number: float
    kind: str = ""
    routed: bool = False


def layer_parameters(layer: Layer, hidden: int, plan: Plan) -> Iterator[Parameters]:
    """Of one layer on a rank; norms, biases and the vectors of mixers in the model's own dtype.

    Raises:
        ModelError: sizes that ranks cannot share evenly.
    """
    mixer = layer.attention
    if mixer:
        yield from _of_projections(mixer.projections(hidden, plan.tp))
        yield Parameters(mixer.vectors / plan.tp)
    yield Parameters(layer.norms * layer.norm.weights * hidden)
    yield from _of_feed_forward(layer.feed_forward, hidden, plan)


def outside_parameters(decoder: Decoder, plan: Plan) -> float:
    """Of embeddings, head and what else belongs to no layer: shared by the vocabulary."""
    inside = sum(count * layer.parameters(decoder.hidden) for layer, count in decoder.layers)
    return (decoder.parameters - inside) / plan.tp


def layer_weight_bytes(decoder: Decoder, layer: Layer, precision: ServingPrecision, plan: Plan) -> float:
    """Bytes of one layer's weights on a rank, scales included.

    Raises:
        ModelError: sizes that ranks cannot share evenly.
    """
    scheme = precision.quantisation
    return sum(
        held.number
        * (scheme.of(held.kind).weight_bytes(precision.dtype) if held.kind else stored_bytes(precision.dtype))
        for held in layer_parameters(layer, decoder.hidden, plan)
    )


def outside_weight_bytes(decoder: Decoder, precision: ServingPrecision, plan: Plan) -> float:
    """Bytes of ``outside_parameters``."""
    return outside_parameters(decoder, plan) * stored_bytes(precision.dtype)


def weight_bytes(decoder: Decoder, precision: ServingPrecision | Precision, plan: Plan) -> float:
    """Bytes of the weights of all layers, the embedding and the head on one rank, before a pipeline is cut.

    Raises:
        ModelError: sizes that ranks cannot share evenly.
    """
    how = ServingPrecision.of(precision)
    layers = sum(count * layer_weight_bytes(decoder, layer, how, plan) for layer, count in decoder.layers)
    return layers + outside_weight_bytes(decoder, how, plan)


def _of_feed_forward(part: FeedForward | Experts | None, hidden: int, plan: Plan) -> Iterator[Parameters]:
    if isinstance(part, FeedForward):
        yield from _of_projections(part.projections(hidden, plan.tp))
    elif part is not None:
        slices = shared_evenly(plan.tp * plan.dp, plan.ep, "tp x dp")
        many = shared_evenly(part.experts, plan.ep, "number of experts")
        for held in _of_projections(part.expert.projections(hidden, slices, "experts")):
            yield held._replace(number=many * held.number, routed=True)
        yield from _of_feed_forward(part.shared, hidden, plan)
        yield from _of_projections([part.router(hidden)])
        yield Parameters(hidden if part.shared_gate else 0)


def _of_projections(projections: Iterable[Projection]) -> Iterator[Parameters]:
    """Matrices by kind, and their biases."""
    for projection in projections:
        yield Parameters(projection.weights, projection.kind)
        if projection.bias:
            yield Parameters(projection.n)
