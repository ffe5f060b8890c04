"""What a served model keeps on each device: weights, cache, activations, and what the engine takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from neusight.engines import Engine
from neusight.kernels.precision import stored_bytes
from neusight.plans.margins import MemoryFit
from neusight.plans.stages import Stage, stage_weights, stages_of
from neusight.requests import Plan
from neusight.serving.lookup import PassSizes
from neusight.serving.passes import ReplicaPricer
from neusight.serving.speculation import OWN_LAYER
from neusight.workloads.decoders.build import step_program
from neusight.workloads.decoders.decoder import Decoder
from neusight.workloads.decoders.quantisation import ServingPrecision
from neusight.workloads.decoders.rank import FLOAT_BYTES
from neusight.workloads.decoders.shares import Steps
from neusight.workloads.program import HeldWeights, Program

RANK_BYTES = 0.45 * 2**30
"""Buffers of NCCL and of the engines' own all-reduce on each of several ranks. Of vLLM 0.15.1 on H100, whose logs tell
the size of its cache: what weights and activations leave unexplained with tp 2 and 4 (0.43 to 0.47 GiB; none with tp 1;
inference-sim/sim-to-real-accuracy-validation, design document of 2026-03-04, section 4.2)."""
SPREADS = {"kept": 0.25, "libraries": 0.05}
"""Standard deviations of activations and buffers as shares of them, see ``plans.margins``: buffers as ``RANK_BYTES``
was found; engines find the activations of a pass by running one, which fuses more or less than is taken here
(assumption)."""
LOGITS_BYTES = 12.0
"""A logit of a sampled row, in 16 and 32 bits and with its probability and what sorting it takes (assumption)."""


@dataclass(frozen=True, kw_only=True)
class ServingMemory:
    """Of each device of a replica, in bytes. ``kv_tokens`` are those that the cache holds, in sequences of a stated
    length; ``state_bytes`` what a sequence keeps beside, whatever its length; ``on_host`` of the weights are not on the
    device.
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
    on_host: float = 0.0

    @property
    def terms(self) -> dict[str, float]:
        """What is allocated, by name [B]: of all weights, those that stay with the host are taken off again."""
        sizes = {name: getattr(self, name) for name in ("weights", "kv_cache", "activations", "buffers")}
        return sizes | ({"on_host": -self.on_host} if self.on_host else {})

    @property
    def shares(self) -> dict[str, float]:
        """Terms of the capacity in words: what is allocated, and what the engine keeps free [B]."""
        sizes = {"weights": self.weights - self.on_host, "activations": self.activations, "buffers": self.buffers}
        return {**sizes, "KV cache": self.kv_cache, "kept free": self.reserve}

    @property
    def fit(self) -> MemoryFit:
        """All but the cache, with what the engine keeps free, against the capacity."""
        terms = {name: size for name, size in self.terms.items() if name != "kv_cache"}
        return MemoryFit(terms={**terms, "kept_free": self.reserve}, usable_bytes=self.capacity, shares=SPREADS)

    @property
    def kv_tokens_interval(self) -> tuple[int, int]:
        """Tokens of the cache that the rest leaves room for with 90 %."""
        if not self.kv_bytes_per_token:
            return self.kv_tokens, self.kv_tokens
        low, high = self.fit.interval
        low_tokens, high_tokens = ((self.fit.usable_bytes - used) / self.kv_bytes_per_token for used in (high, low))
        return int(max(low_tokens, 0.0)), int(max(high_tokens, 0.0))

    @property
    def fits(self) -> bool:
        """Whether there is room for any cache."""
        return self.kv_tokens > 0


def serving_memory(replica: ReplicaPricer, sizes: PassSizes, *, share: float | None = None) -> ServingMemory:
    """What a replica keeps on each of its devices; of a pipeline on those of the stage whose cache holds fewest tokens.

    Args:
        replica: the model on its devices; one that drafts beside it has its share on each rank and caches every token.
            An encoder of images does on each rank of the first stage, and any other, in 16 bits.
        sizes: new tokens of the largest pass, which its activations are of; sequences whose logits it makes; tokens of
            a sequence, of which layers with a window keep no more than that.
        share: of the memory, instead of the engine's.

    Raises:
        ModelError: sizes that ranks or stages cannot share.
    """
    own_layer = replica.speculation is not None and replica.speculation.draft in OWN_LAYER
    decoder = replica.decoder.with_last_layer_again() if own_layer else replica.decoder
    precision, plan = replica.precision, replica.plan
    program = _of_a_token(decoder, precision, plan, replica.engine)
    server = replica.engine.serving if share is None else replace(replica.engine.serving, memory_share=share)

    buffers = RANK_BYTES if plan.world > 1 else 0.0
    beside, draft_token_bytes = (0.0, 0.0) if own_layer else _of_a_draft(replica.draft, sizes.length)
    if tower := replica.decoder.vision_tower:
        beside += tower.parameters * stored_bytes(tower.served_dtype) / plan.tp

    def of(stage: Stage) -> ServingMemory:
        counted = Counter(stage.kinds).items()
        layers = replace(decoder, layers=tuple((decoder.layers[kind][0], count) for kind, count in counted))
        states = layers.state_bytes_per_sequence(plan.tp)
        per_token = _token_bytes(layers, precision, plan, sizes.length) + draft_token_bytes
        held = [*stage_weights(stage, program)]
        weights = weight_bytes(held, precision) + beside
        apart = server.embedding_on_host and stage.first and not program.after.tied_parameters
        on_host = weight_bytes(program.before.held, precision) if apart else 0.0
        # Every rank gathers the logits of all.
        activations = activation_bytes(stage, program, sizes.tokens, plan.tp * sizes.sequences)
        activations = max(activations, quantising_bytes(held, precision))
        total, used, part = replica.device.usable_bytes, weights - on_host + activations + buffers, server.memory_share
        kept_free = (1.0 - part) * (max(total - used, 0.0) if server.memory_of == "free" else total)
        if server.memory_of == "weights":
            kept_free = max(kept_free - activations - buffers, 0.0)
        left = max(total - used - kept_free, 0.0)
        if server.memory_of == "sequences":
            left = min(left, sizes.sequences * (sizes.length + replica.queries) * per_token)
        return ServingMemory(
            capacity=total,
            weights=weights,
            activations=activations,
            buffers=buffers,
            reserve=kept_free,
            kv_cache=left,
            kv_bytes_per_token=per_token,
            state_bytes=states,
            kv_tokens=int(left / per_token) if per_token else 2**40,
            on_host=on_host,
        )

    stages = (of(stage) for stage in stages_of(decoder.order, plan))
    return min(stages, key=lambda memory: (memory.kv_tokens, -memory.weights))


def _of_a_draft(draft: ReplicaPricer | None, length: int) -> tuple[float, float]:
    """Weights of a model that drafts, and what it caches of each token, on a rank [B]."""
    if draft is None:
        return 0.0, 0.0
    program = _of_a_token(draft.decoder, draft.precision, draft.plan, draft.engine)
    (stage,) = stages_of(draft.decoder.order, replace(draft.plan, pp=1))
    weights = weight_bytes(stage_weights(stage, program), draft.precision)
    return weights, _token_bytes(draft.decoder, draft.precision, draft.plan, length)


def _token_bytes(decoder: Decoder, precision: ServingPrecision, plan: Plan, length: int) -> float:
    """What a rank keeps of each token of a sequence of some length [B]."""
    kept = float(decoder.kv_bytes(length, precision.kv_cache, plan.tp)) + decoder.state_bytes_per_sequence(plan.tp)
    return kept / max(length, 1)


@lru_cache(maxsize=64)
def _of_a_token(decoder: Decoder, precision: ServingPrecision, plan: Plan, engine: Engine) -> Program:
    """A pass of one token, in which all that passes take memory for is linear."""
    return step_program(decoder, Steps.of(prompts=1, prompt_tokens=1), precision, plan, engine)


def weight_bytes(held: Iterable[HeldWeights], precision: ServingPrecision) -> float:
    """Bytes of weights with their scales."""
    numbers: Counter[str] = Counter()
    for each in held:
        numbers[each.kind] += each.number
    own, scheme = stored_bytes(precision.dtype), precision.quantisation
    return sum(
        number * (scheme.of(kind).weight_bytes(precision.dtype) if kind else own) for kind, number in numbers.items()
    )


def quantising_bytes(held: Iterable[HeldWeights], precision: ServingPrecision) -> float:
    """What the largest matrix takes while it is quantised where it is to stay [B]: in 16 bits and in float32, less what
    is left of it.
    """
    scheme, own = precision.quantisation, stored_bytes(precision.dtype)
    sizes = (prod(each.shape) for each in held if scheme.quantised_on_device and each.kind in scheme.kinds)
    return max(sizes, default=0) * (own + FLOAT_BYTES - scheme.weight_bytes(precision.dtype))


def activation_bytes(stage: Stage, program: Program, tokens: int, sampled: int) -> float:
    """Most that the activations of a pass take [B]: the residual stream twice and what enters and leaves the widest
    operation, or logits of ``sampled`` rows.
    """
    widest = max(float(program.layers[kind].widest_bytes[0]) for kind in set(stage.kinds))
    rows = tokens * (2.0 * float(program.before.input_bytes[0]) + widest)
    return max(rows, LOGITS_BYTES * sampled * float(program.after.logits[0]) if stage.last else 0.0)
