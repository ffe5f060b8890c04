"""``units_of``: a decoder as what one rank runs of it for a micro-batch in training."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from neusight.engines import Engine
from neusight.errors import ModelError
from neusight.workloads.decoders.decoder import Decoder
from neusight.workloads.decoders.layers import Experts, FeedForward, LatentAttention, Layer, SelfAttention
from neusight.workloads.program import Program
from neusight.workloads.training.attention import attended
from neusight.workloads.training.ends import after, before
from neusight.workloads.training.feed_forwards import fed
from neusight.workloads.training.local import Local
from neusight.workloads.training.mixtures import mixed
from neusight.workloads.training.norms import residual, stream_norm
from neusight.workloads.training.operations import Operation, unit_of
from neusight.workloads.training.products import separate
from neusight.workloads.training.rank import Rank, configured

PRODUCTS = ("", "fp8")
"""What ``Local.products`` may be."""
REMEMBERED = 1024
"""Calls whose results are kept: plans that differ in other ways share them."""


@lru_cache(maxsize=REMEMBERED)
def units_of(decoder: Decoder, local: Local, engine: Engine) -> Program:
    """Kernels and collectives of a rank: forward, for gradients of activations, and for gradients of weights.

    Collectives leave ``per_node`` at 0: who places the ranks fills it in. What happens once a step is told elsewhere:
    see ``optimizer``. Embeddings that are tied count as parameters of the first unit alone.

    Args:
        decoder: the model, see ``decoder_of``.
        local: the rank's share of a micro-batch.
        engine: which kernels run.

    Raises:
        ModelError: sizes that ranks cannot share evenly, with degrees that would do; mixers without a backward pass.
    """
    _check(local)
    rank = Rank(hidden=decoder.hidden, local=local, engine=configured(engine, decoder))
    return Program(
        before=unit_of("embedding", -1, before(decoder, rank)),
        layers=tuple(unit_of("layer", at, _layer(layer, rank)) for at, (layer, _) in enumerate(decoder.layers)),
        after=unit_of("head", -1, after(decoder, rank)),
        order=decoder.order,
    )


def _check(local: Local) -> None:
    if local.products not in PRODUCTS:
        raise ModelError(f"products in '{local.products}' are not built: choose fp8, or leave it")
    if local.sequence_parallel and local.tokens % local.tp:
        raise ModelError(
            f"{local.tokens} tokens cannot be shared by tp = {local.tp} ranks under sequence parallelism: choose a "
            f"seq_len of {-(-local.seq_len // (local.tp * local.cp)) * local.tp * local.cp}"
        )


def _layer(layer: Layer, rank: Rank) -> Iterator[Operation]:
    """Both branches, with norms where the layer has them and the residual stream beside them.

    Of parallel branches without norms of their own, the second starts from the first's.
    """
    branches = [part for part in (layer.attention, layer.feed_forward) if part]
    for number, branch in enumerate(branches):
        normed = layer.placement != "after" and not (number and layer.placement == "parallel" and layer.norms == 1)
        quantised = normed and rank.narrow("attention") and isinstance(branch, SelfAttention | FeedForward)
        if normed:
            yield stream_norm(rank, layer.norm, quantised=quantised, readers=_readers(branch, rank))
        else:
            yield Operation(backward=(rank.pointwise("add gradients", "add", rank.local.resident_tokens, rank.hidden),))
        yield from _branch(branch, rank, quantised=quantised)
        if layer.placement in ("around", "after"):
            yield stream_norm(rank, layer.norm, what="norm after", branches=False)
        yield residual(rank, bias=_biased(branch))


def _readers(part: object, rank: Rank) -> int:
    """Products that read a norm's result and whose gradients are added where its gradient reads them: not where ranks
    exchange their sum first.
    """
    if not isinstance(part, SelfAttention | FeedForward) or rank.local.tp > 1 or not rank.engine.generated:
        return 1
    return len(separate(rank, part.projections(rank.hidden)[0]))


def _branch(part: object, rank: Rank, *, quantised: bool) -> Iterator[Operation]:
    if isinstance(part, Experts):
        return mixed(part, rank)
    if isinstance(part, FeedForward):
        return fed(part, rank, quantised=quantised)
    return attended(part, rank, quantised=quantised)  # type: ignore[arg-type]


def _biased(part: object) -> bool:
    """Whether the branch's last product has a bias."""
    if isinstance(part, SelfAttention):
        return part.out_bias
    return part.bias if isinstance(part, FeedForward | LatentAttention) else False
