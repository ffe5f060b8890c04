"""``units_of`` and ``step_program``: a decoder as what one rank runs of it, in training and in serving.

Both go through the same operations of the same layers. In training a part has one row and three passes; in serving it
has a row for each of many passes over a cache, and nothing is differentiated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import chain

from neusight.engines import ENGINES, Engine
from neusight.errors import ModelError
from neusight.kernels.precision import Precision
from neusight.requests import Plan
from neusight.workloads.decoders.adapters import freeze
from neusight.workloads.decoders.decoder import Decoder
from neusight.workloads.decoders.ends import after, before, predict_ahead
from neusight.workloads.decoders.experts import mixture
from neusight.workloads.decoders.feed_forwards import dense
from neusight.workloads.decoders.layers import Experts, FeedForward, LatentAttention, Layer, Mixer, SelfAttention
from neusight.workloads.decoders.mixers import mix
from neusight.workloads.decoders.operations import Operation, segment_of, within
from neusight.workloads.decoders.products import product_input, separate
from neusight.workloads.decoders.quantisation import ServingPrecision
from neusight.workloads.decoders.rank import Rank, configure
from neusight.workloads.decoders.shares import Local, Steps
from neusight.workloads.decoders.stream import residual, stream_norm
from neusight.workloads.program import Program, Segment

REMEMBERED = 1024
"""Calls whose results are kept: plans that differ in other ways share them."""


def units_of(decoder: Decoder, local: Local, engine: Engine) -> Program:
    """Kernels and collectives of a rank in training: forward, for gradients of activations, and for those of weights.

    Collectives leave ``per_node`` at 0: who places the ranks fills it in. What happens once a step is told elsewhere:
    see ``optimizer``. Embeddings that are tied count as parameters of the first segment alone.

    Args:
        decoder: the model, see ``decoder_of``.
        local: the rank's share of a micro-batch.
        engine: which kernels run.

    Raises:
        ModelError: sizes that ranks cannot share evenly, with degrees that would do; mixers without a backward pass.
    """
    program = trained_program(decoder, local, engine)
    if reason := next((segment.unbuilt for segment in program.segments if segment.unbuilt), ""):
        raise ModelError(reason)
    return program


@lru_cache(maxsize=REMEMBERED)
def trained_program(decoder: Decoder, local: Local, engine: Engine) -> Program:
    """Program of ``units_of`` for training, with the weights and activations of mixers whose kernels in training are
    unknown. A source is as long as what is made of it, unless stated.

    Raises:
        ModelError: sizes that ranks cannot share evenly.
    """
    if decoder.encodes and not local.source_len:
        local = replace(local, source_len=local.seq_len)
    rank = Rank.for_training(decoder.hidden, local, configure(engine, decoder))

    def segment(name: str, layer: int, operations: Iterable[Operation], on: Rank) -> Segment:
        trained = freeze(operations) if local.adapters else operations
        return segment_of(name, layer, trained, float(on.row_bytes(on.resident_tokens)))

    program = _program(decoder, rank, segment)
    local.check()
    return program


def step_program(
    decoder: Decoder,
    steps: Steps,
    precision: ServingPrecision | Precision,
    plan: Plan,
    engine: Engine = ENGINES["vllm"],
) -> Program:
    """Kernels and collectives that one rank runs in passes through all layers.

    Every part is a column over the steps. A pipeline is cut elsewhere, by the share of each kind of layers that a
    stage has; ``plan.pp`` means nothing here.

    Args:
        decoder: the model.
        steps: passes of one attention group: with ``plan.dp`` the other groups bring as many tokens again.
        precision: of weights, arithmetic and cache.
        plan: ``tp`` ranks share attention and feed-forwards, ``dp`` groups of them hold attention each for their own
            sequences, and all share the experts: ``ep`` of them whole, or ``tp * dp`` slices of each.
        engine: one that serves.

    Raises:
        ModelError: sizes that ranks cannot share evenly.
    """
    if (plan.tp * plan.dp) % plan.ep:
        raise ModelError(
            f"ep = {plan.ep} does not divide tp x dp = {plan.tp * plan.dp}: experts are shared by those ranks"
        )
    if decoder.encodes:
        raise ModelError(f"{decoder.name} has an encoder, which engines that are known here do not serve: train it")
    rank = replace(
        Rank.for_serving(decoder.hidden, steps, ServingPrecision.of(precision), plan, engine), slots=decoder.slots
    )

    def segment(name: str, layer: int, operations: Iterable[Operation], on: Rank) -> Segment:
        undifferentiated = (replace(operation, backward=(), weights=(), saved=()) for operation in operations)
        return segment_of(name, layer, undifferentiated, on.row_bytes(on.resident_tokens))

    return _program(decoder, rank, segment)


def _program(
    decoder: Decoder, rank: Rank, segment: Callable[[str, int, Iterable[Operation], Rank], Segment]
) -> Program:
    ranks = [rank.source if layer.encodes else rank for layer, _ in decoder.layers]
    return Program(
        before=segment("embedding", -1, before(decoder, rank), rank),
        layers=tuple(
            segment("layer", at, _layer(layer, on), on)
            for at, ((layer, _), on) in enumerate(zip(decoder.layers, ranks, strict=True))
        ),
        after=segment("head", -1, chain(_predict_tokens(decoder, rank), after(decoder, rank)), rank),
        order=decoder.order,
    )


def _predict_tokens(decoder: Decoder, rank: Rank) -> Iterator[Operation]:
    """Depths of multi-token prediction in training; the widest operation inside layers is that of the model's
    layers.
    """
    prediction = decoder.prediction
    if prediction is None or rank.serves:
        return
    for depth in range(prediction.depths):
        new_layers = prediction.layers if depth == 0 or not prediction.repeated else ()
        inside = (done for layer in prediction.layers for done in _layer(layer, rank))
        for done in predict_ahead(decoder, rank, inside):
            table = done.tied_parameters if depth == 0 else 0
            yield replace(done, widest_bytes=0.0, held=done.held if new_layers else (), tied_parameters=table)


def _layer(layer: Layer, rank: Rank) -> Iterator[Operation]:
    """Both branches, with norms where the layer has them and the residual stream beside them.

    Of parallel branches without norms of their own, the second starts from the first's. Where norms add what the branch
    before them gave, the first layer's first norm adds nothing, which is one addition too many in a whole model, and
    one kernel has the norms of parallel branches.
    """
    branches = layer.branches
    parallel, after = layer.placement == "parallel", layer.placement == "after"
    joint = parallel and layer.norms > 1 and rank.engine.residual == "norm"
    narrow = not after and rank.narrow("attention") and rank.recipe.normed
    for number, branch in enumerate(branches):
        second = parallel and number > 0
        normed = not after and not (second and layer.norms == 1)
        module = _norm_module(branch, rank)
        if not rank.serves:
            yield from within(module, (_begin_branch(rank, normed=normed, kept=not (second and layer.norms == 1)),))
        if normed and not (second and joint):
            at_once = branches if joint else (branch,)
            for done in stream_norm(
                rank,
                layer.norm,
                adds=(len(branches) if parallel else 1) * (not second),
                quantised=sum(narrow and _narrows(part) for part in at_once),
                readers=tuple(_readers(part, rank) for part in at_once),
            ):
                yield replace(next(within(module, (done,))), saved=done.saved)
        later = layer.reduced_jointly and rank.serves and branch is not branches[-1]
        of_branch = replace(rank, reduces=False) if later else rank
        yield from _branch(branch, of_branch, quantised=normed and narrow and _narrows(branch))
        if layer.placement in ("around", "after"):
            yield from stream_norm(rank, layer.norm, name="norm after", branches=False, adds=int(after))
        yield from residual(rank, bias=_has_bias(branch), ends=second or after)


def _norm_module(branch: Mixer | FeedForward | Experts, rank: Rank) -> str:
    """Module whose recomputation repeats the norm before a branch: a separate one, or that of the branch whose first
    product includes it (Megatron Core, ``get_gpt_layer_with_transformer_engine_spec``).
    """
    separate = isinstance(branch, LatentAttention | Experts) or not rank.engine.transformer_engine
    return "layernorm" if separate else "mlp" if isinstance(branch, FeedForward) else ""


def _narrows(part: Mixer | FeedForward | Experts) -> bool:
    """Tell whether a part's first product reads a norm's result in 8 bits."""
    return isinstance(part, SelfAttention | FeedForward)


def _readers(part: Mixer | FeedForward | Experts, rank: Rank) -> int:
    """Products that read a norm's result and whose gradients are added where its gradient reads them: not where ranks
    exchange their sum first.
    """
    if not isinstance(part, SelfAttention | FeedForward) or rank.tp > 1 or not rank.engine.generated:
        return 1
    return len(separate(rank, part.projections(rank.hidden)[0]))


def _begin_branch(rank: Rank, *, normed: bool, kept: bool) -> Operation:
    """Beginning of a branch: its gradient is added to the stream's, unless a norm's kernel does that, and its input is
    saved.
    """
    shape = rank.resident_tokens, rank.hidden
    fused = normed and rank.engine.residual in ("norm", "add_norm")
    return Operation(
        backward=() if fused else (rank.pointwise("add gradients", "add", *shape),),
        saved=(product_input(rank, "branch input", rank.kept_tokens * rank.hidden),) if kept else (),
    )


def _branch(part: Mixer | FeedForward | Experts, rank: Rank, *, quantised: bool) -> Iterator[Operation]:
    if isinstance(part, Experts):
        return within("moe", mixture(part, rank))
    if isinstance(part, FeedForward):
        return dense(part, rank, quantised=quantised)
    return mix(part, rank, quantised=quantised)


def _has_bias(part: Mixer | FeedForward | Experts) -> bool:
    """Tell whether the branch's last product has a bias."""
    if isinstance(part, SelfAttention):
        return part.out_bias
    return part.bias if isinstance(part, FeedForward | LatentAttention) else False
