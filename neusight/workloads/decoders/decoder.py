"""``Decoder``: a causal language model as its layers, with what it weighs and what it keeps of a sequence."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from neusight.defaults import default_dtype
from neusight.engines import ENGINES
from neusight.errors import ModelError
from neusight.kernels.precision import stored_bytes
from neusight.kernels.schemes import Quantisation
from neusight.workloads.decoders.layers import Cache, Experts, Layer, Norm, SelfAttention
from neusight.workloads.decoders.shares import AdapterSlots
from neusight.workloads.decoders.vision import VisionEncoder


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Multi-token prediction (DeepSeek-V3, section 2.2; Megatron Core, ``MultiTokenPredictionLayer``): each of
    ``depths`` puts the stream and the embedding of a token further on through ``layers`` of its own, or through the
    same where they are ``repeated``, and ends in the model's head and a loss.
    """

    layers: tuple[Layer, ...]
    depths: int = 1
    repeated: bool = False


_NO_VOCABULARY = 64
"""Size of the vocabulary of models that read no words: the least number of columns of products."""


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """``layers`` are kinds of equal layers with how many of each; ``order`` tells the kind of every layer from the
    input on. ``max_len`` is the longest sequence in tokens, 0 where the configuration states none.

    ``positions`` learned positions are added to the embedding; ``embedding`` is its width where that is not hidden
    (OPT-350m); ``extra`` parameters belong to no layer; ``prediction`` is trained beside them and counts with none.
    ``dtype`` of weights, "" where the configuration states none. ``dropout``: in training, activations drop out;
    ``slots`` hold adapters in serving. ``vision`` encodes images and counts with none. ``notes`` say what was assumed
    or approximated.
    """

    name: str
    family: str
    hidden: int
    vocab: int
    tied: bool
    max_len: int
    layers: tuple[tuple[Layer, int], ...]
    order: tuple[int, ...]
    norm: Norm | None = field(default_factory=Norm)
    positions: int = 0
    embedding: int = 0
    embedding_norm: bool = False
    head_bias: bool = False
    dropout: bool = False
    extra: int = 0
    prediction: Prediction | None = None
    dtype: str = ""
    quantisation: Quantisation = field(default_factory=Quantisation)
    slots: AdapterSlots | None = None
    vision: VisionEncoder | None = None
    notes: tuple[str, ...] = ()

    @property
    def served_dtype(self) -> str:
        """Dtype of activations and weights that are not quantised, under engines that serve."""
        return str(default_dtype(self.dtype, ENGINES["vllm"]).value)

    def predicting(self, depths: int) -> Decoder:
        """The decoder with ``depths`` of multi-token prediction in training, each of its last layer."""
        layers = (self.layers[self.order[-1]][0],)
        return replace(self, prediction=Prediction(layers=layers, depths=depths)) if depths else self

    def with_routing(self, routing: str, redundant: int) -> Decoder:
        """The decoder with the routing of experts that a serving engine has: ``Experts.routing`` and
        ``Experts.redundant``.

        Raises:
            ModelError: it has none.
        """
        if not (routing or redundant):
            return self
        if not self.has_experts:
            raise ModelError(f"{self.name} has no experts to route tokens to, or to copy: leave that out")

        def route(layer: Layer) -> Layer:
            part = layer.feed_forward
            if not isinstance(part, Experts):
                return layer
            return replace(layer, feed_forward=replace(part, routing=routing, redundant=redundant))

        return replace(self, layers=tuple((route(layer), count) for layer, count in self.layers))

    def shared_among(self, ranks: int) -> Decoder:
        """The same with as many more heads of self-attention as ranks need to share them evenly, zeros in their
        weights; heads that have keys of their own get more of those as well.
        """

        def pad(layer: Layer) -> Layer:
            part = layer.attention
            if not isinstance(part, SelfAttention) or part.heads % ranks == 0:
                return layer
            heads = -(-part.heads // ranks) * ranks
            own_keys = part.kv_heads == part.heads
            return replace(layer, attention=replace(part, heads=heads, kv_heads=heads if own_keys else part.kv_heads))

        return replace(self, layers=tuple((pad(layer), count) for layer, count in self.layers))

    @property
    def vision_tower(self) -> Decoder | None:
        """Its vision encoder as a model of its own, whose prompts are images."""
        if (v := self.vision) is None:
            return None
        return Decoder(
            name=f"vision encoder of {self.name}", family="vision", hidden=v.hidden, vocab=_NO_VOCABULARY, tied=True,
            max_len=0, layers=((v.layer, v.depth),), order=(0,) * v.depth, norm=v.layer.norm, dtype=self.dtype,
        )  # fmt: skip

    @property
    def encodes(self) -> bool:
        """Tell whether the first layers are an encoder, which reads a source."""
        return any(layer.encodes for layer, _ in self.layers)

    @property
    def depth(self) -> int:
        """Number of layers."""
        return len(self.order)

    @property
    def parameters(self) -> int:
        """All of them; a tied embedding once."""
        return self._outside + sum(count * layer.parameters(self.hidden) for layer, count in self.layers)

    @property
    def active_parameters(self) -> int:
        """Number of parameters that a token uses: all but those of experts that it is not routed to."""
        return self._outside + sum(count * layer.active_parameters(self.hidden) for layer, count in self.layers)

    @property
    def _outside(self) -> int:
        wide = self.embedding or self.hidden
        embedding = self.vocab * wide * (1 if self.tied else 2) + self.positions * self.hidden
        embedding += 2 * wide * self.hidden if wide != self.hidden else 0
        norms = (1 + self.encodes) * (self.norm.weights if self.norm else 0) + (2 if self.embedding_norm else 0)
        return embedding + norms * self.hidden + (self.vocab if self.head_bias else 0) + self.extra

    @property
    def mixture(self) -> Experts | None:
        """The experts of the first layer that has any."""
        parts = (layer.feed_forward for layer, _ in self.layers)
        return next((part for part in parts if isinstance(part, Experts)), None)

    @property
    def has_experts(self) -> bool:
        """Tell whether any layer is a mixture of experts."""
        return self.mixture is not None

    def with_last_layer_again(self) -> Decoder:
        """The same with another layer like its last behind it."""
        last = self.order[-1]
        layers = tuple((layer, count + (kind == last)) for kind, (layer, count) in enumerate(self.layers))
        return replace(self, layers=layers, order=(*self.order, last))

    def with_last_layer_alone(self) -> Decoder:
        """The same with no other layer than its last."""
        return replace(self, layers=((self.layers[self.order[-1]][0], 1),), order=(0,))

    def caches(self, kv_dtype: str, tp: int = 1) -> tuple[Cache, ...]:
        """Caches of the layers for a sequence on one rank, kind by kind."""
        size = stored_bytes(kv_dtype)
        caches = [(c, n) for layer, n in self.layers if layer.attention for c in layer.attention.caches(size, tp)]
        return tuple(replace(cache, layers=count) for cache, count in caches)

    def kv_bytes_per_token(self, kv_dtype: str, tp: int = 1) -> float:
        """Bytes that a token adds to the cache of a rank while no window is full."""
        return sum(cache.layers * cache.bytes_per_token for cache in self.caches(kv_dtype, tp))

    def kv_bytes(self, tokens: np.ndarray | int, kv_dtype: str, tp: int = 1) -> np.ndarray:
        """Bytes of the cache of a sequence of ``tokens`` on a rank, windows full or not; same shape as ``tokens``."""
        length = np.asarray(tokens, dtype=float)
        total = np.zeros_like(length)
        for cache in self.caches(kv_dtype, tp):
            cached = np.minimum(length, cache.window) if cache.window else length
            total = total + cache.layers * cache.bytes_per_token * cached
        return total

    def state_bytes_per_sequence(self, tp: int = 1) -> float:
        """Bytes of the recurrent states of a sequence of any length on a rank."""
        return sum(count * layer.attention.state_bytes(tp) for layer, count in self.layers if layer.attention)
