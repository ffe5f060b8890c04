"""Parts of a decoder's layer: mixers of tokens, feed-forwards, and their matrices of weights.

One table of ``Projection`` a part answers for parameters, for products and for how ranks share them. Widths of the
residual stream are not repeated in every part: they are given as ``hidden``. Methods that take ``tp`` return
the share of one of ``tp`` tensor-parallel ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from neusight.errors import ModelError
from neusight.workloads.program import HeldWeights

STORED = ("apart", "joined", "transposed")
"""Storage in a module of transformers of parts that engines keep in one matrix: each part by itself, all in one, or
that by inputs (``Conv1D`` of GPT-2)."""


@dataclass(frozen=True, kw_only=True)
class Projection:
    """Weights W[n, k], y = x Wᵀ + bias: ``parts`` that engines keep in one matrix make up n.

    ``stored``: how the model's own module has them, see ``STORED``. ``kind``, which schemes of quantisation tell apart,
    is attention, feed_forward, experts, router or head. ``place``: that of its first part in such a matrix.
    """

    name: str
    k: int
    parts: tuple[int, ...]
    bias: bool = False
    kind: str = "attention"
    stored: str = "apart"
    place: int = 0

    @property
    def n(self) -> int:
        """Columns of the product."""
        return sum(self.parts)

    @property
    def weights(self) -> int:
        """Elements of the matrix."""
        return self.n * self.k

    @property
    def parameters(self) -> int:
        """Elements with those of the bias."""
        return self.weights + (self.n if self.bias else 0)

    @property
    def held(self) -> tuple[HeldWeights, ...]:
        """The matrix in the scheme of its kind, its bias in the model's own dtype."""
        matrix = HeldWeights(self.weights, self.kind, shape=(self.n, self.k))
        return (matrix, *((HeldWeights(self.n),) if self.bias else ()))


@dataclass(frozen=True, kw_only=True)
class Cache:
    """Cache of ``layers`` equal layers for a sequence: bytes per token, of the last ``window`` tokens (0: of all)."""

    layers: int
    bytes_per_token: float
    window: int = 0


_MOST_RANKS = 64
"""Up to which an error lists the degrees that would do."""


def shared_evenly(count: int, ranks: int, what: str) -> int:
    """Number that each of ``ranks`` gets.

    Raises:
        ModelError: they cannot share it evenly, which engines refuse.
    """
    if count % ranks:
        fitting = ", ".join(str(n) for n in range(1, min(count, _MOST_RANKS) + 1) if count % n == 0)
        raise ModelError(f"{what} = {count} cannot be shared by {ranks} ranks: choose a tp or ep of {fitting}")
    return count // ranks


@dataclass(frozen=True, kw_only=True)
class Norm:
    """A norm of rows: ``rms_norm`` or ``layer_norm``, with ``weights`` values a column (2: scale and shift)."""

    op: str = "rms_norm"
    weights: int = 1


class Mixer:
    """Mixer of the tokens of a sequence: matrices of weights, and a cache or state of earlier tokens."""

    @property
    def vectors(self) -> int:
        """Parameters in no matrix."""
        raise NotImplementedError

    def projections(self, hidden: int, tp: int = 1) -> tuple[Projection, ...]:
        """Matrices of a rank, those of the output last."""
        raise NotImplementedError

    def caches(self, size: float, tp: int = 1) -> tuple[Cache, ...]:
        """Caches that grow with a sequence, of values of ``size`` bytes."""
        return ()

    def state_bytes(self, tp: int = 1) -> float:
        """Bytes of a sequence's state, which do not depend on its length."""
        return 0.0


@dataclass(frozen=True, kw_only=True)
class SelfAttention(Mixer):
    """Multi-head, grouped or multi-query attention over a cache of keys and values.

    ``window`` tokens are seen, 0 for all before, or, where it is not ``causal``, all. ``rotary`` values of a head are
    rotated. ``qk_norm`` is "" (none), ``head`` (each head by itself) or ``all`` (all heads as one row), of queries and
    of keys, with ``qk_norm_weights`` values a column. ``gated``: the query projection makes a gate of the output too.
    ``sinks``: a learned score a head.
    ``stored`` is one of ``STORED``.
    """

    heads: int
    kv_heads: int
    head_dim: int
    window: int = 0
    causal: bool = True
    rotary: int = 0
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: str = ""
    qk_norm_op: str = "rms_norm"
    qk_norm_weights: int = 1
    gated: bool = False
    sinks: bool = False
    stored: str = "apart"

    def local_heads(self, tp: int) -> tuple[int, int]:
        """Heads of queries and of keys of a rank; ranks beyond the number of key heads keep copies."""
        heads = shared_evenly(self.heads, tp, "num_attention_heads")
        if tp > self.kv_heads:
            shared_evenly(tp, self.kv_heads, "tp")
            return heads, 1
        return heads, shared_evenly(self.kv_heads, tp, "num_key_value_heads")

    def projections(self, hidden: int, tp: int = 1) -> tuple[Projection, ...]:
        """Query, key and value as one, and the output's."""
        heads, kv_heads = self.local_heads(tp)
        queries = heads * self.head_dim * (2 if self.gated else 1)
        parts = (queries, kv_heads * self.head_dim, kv_heads * self.head_dim)
        return (
            Projection(name="qkv", k=hidden, parts=parts, bias=self.qkv_bias, stored=self.stored),
            Projection(name="output", k=heads * self.head_dim, parts=(hidden,), bias=self.out_bias, stored=self.stored),
        )

    @property
    def vectors(self) -> int:
        """Parameters in no matrix."""
        normed = {"": 0, "head": 2, "all": self.heads + self.kv_heads}[self.qk_norm]
        return normed * self.head_dim * self.qk_norm_weights + (self.heads if self.sinks else 0)

    def caches(self, size: float, tp: int = 1) -> tuple[Cache, ...]:
        """Keys and values, of ``size`` bytes each."""
        width = 2 * self.local_heads(tp)[1] * self.head_dim
        return (Cache(layers=1, bytes_per_token=width * size, window=self.window),)


@dataclass(frozen=True, kw_only=True)
class CrossAttention(SelfAttention):
    """Attention of a decoder's tokens over all that an encoder has made of the source's."""

    causal: bool = False

    def projections(self, hidden: int, tp: int = 1) -> tuple[Projection, ...]:
        """Queries of the decoder's tokens, keys and values as one of the source's, and the output's."""
        heads, kv_heads = self.local_heads(tp)
        queries, width, bias = heads * self.head_dim, kv_heads * self.head_dim, self.qkv_bias
        return (
            Projection(name="cross query", k=hidden, parts=(queries,), bias=bias, stored=self.stored),
            Projection(name="cross key value", k=hidden, parts=(width, width), bias=bias, stored=self.stored),
            Projection(name="output", k=queries, parts=(hidden,), bias=self.out_bias, stored=self.stored),
        )


INDEX_BYTES = 132
"""Bytes of a token in an indexer's cache: 128 values in float8 and a float32 scale (DeepSeek-V3.2, FlashMLA's
layout)."""


@dataclass(frozen=True, kw_only=True)
class Indexer:
    """Scores by which sparse attention selects keys (DeepSeek-V3.2): every rank has all of it."""

    heads: int
    head_dim: int
    selected: int

    def projections(self, hidden: int, q_rank: int) -> tuple[Projection, ...]:
        """Queries from the compressed ones of the attention, one key, a weight a head."""
        return (
            Projection(name="indexer query", k=q_rank, parts=(self.heads * self.head_dim,)),
            Projection(name="indexer key", k=hidden, parts=(self.head_dim,)),
            Projection(name="indexer weight", k=hidden, parts=(self.heads,), kind="router"),
        )


@dataclass(frozen=True, kw_only=True)
class LatentAttention(Mixer):
    """Multi-head latent attention (DeepSeek-V2): the cache holds ``kv_rank`` values and ``rope_dim`` rotated ones.

    Decodes work in the latent space (absorbed form), prompts with keys and values of each head (expanded). With an
    ``indexer`` both are absorbed. ``normed``: latents have norms.
    """

    heads: int
    q_rank: int
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    bias: bool = False
    normed: bool = True
    indexer: Indexer | None = None

    @property
    def latent_dim(self) -> int:
        """Width of a cached key, whose first ``kv_rank`` are the value."""
        return self.kv_rank + self.rope_dim

    def local_heads(self, tp: int) -> int:
        """Heads of a rank."""
        return shared_evenly(self.heads, tp, "num_attention_heads")

    def projections(self, hidden: int, tp: int = 1) -> tuple[Projection, ...]:
        """Down and up for queries, down and up for keys and values, and the output's; those down on every rank."""
        heads, wide = self.local_heads(tp), self.nope_dim + self.rope_dim
        queries = heads * wide
        down: tuple[Projection, ...] = (
            Projection(name="latent", k=hidden, parts=(self.q_rank, self.latent_dim), bias=self.bias),
            Projection(name="query up", k=self.q_rank, parts=(queries,)),
        )
        if not self.q_rank:
            down = (
                Projection(name="query", k=hidden, parts=(queries,)),
                Projection(name="latent", k=hidden, parts=(self.latent_dim,), bias=self.bias),
            )
        index = self.indexer.projections(hidden, self.q_rank) if self.indexer else ()
        return (
            *down,
            *index,
            Projection(name="key value up", k=self.kv_rank, parts=(heads * (self.nope_dim + self.value_dim),)),
            Projection(name="output", k=heads * self.value_dim, parts=(hidden,), bias=self.bias),
        )

    @property
    def vectors(self) -> int:
        """Parameters in no matrix: two norms, and scale and shift of the indexer's."""
        return self.normed * self.latents + (2 * self.indexer.head_dim if self.indexer else 0)

    @property
    def latents(self) -> int:
        """Values of a token that are expanded again."""
        return self.q_rank + self.kv_rank

    def caches(self, size: float, tp: int = 1) -> tuple[Cache, ...]:
        """One latent key for all heads, on every rank."""
        index = INDEX_BYTES / 128 * self.indexer.head_dim if self.indexer else 0.0
        return (Cache(layers=1, bytes_per_token=self.latent_dim * size + index),)


@dataclass(frozen=True, kw_only=True)
class CompressedAttention(Mixer):
    """Attention over a window and keys that each stand for ``ratio`` tokens (DeepSeek-V4); ratio 0: the window alone.

    One key, which is its own value, serves all heads. Of compressed keys, the ``indexer``'s choice is seen, or all.
    The output goes through ``groups`` matrices of rank ``out_rank``. What its step counts is told in
    ``mixers``.
    """

    heads: int
    head_dim: int
    q_rank: int
    window: int
    ratio: int
    rope_dim: int
    groups: int
    out_rank: int
    indexer: Indexer | None = None

    def local_heads(self, tp: int) -> int:
        """Heads of a rank."""
        return shared_evenly(self.heads, tp, "num_attention_heads")

    def projections(self, hidden: int, tp: int = 1) -> tuple[Projection, ...]:
        """Latent queries with the key, queries up, the compressor's, both of the output."""
        heads, groups = self.local_heads(tp), shared_evenly(self.groups, tp, "o_groups")
        # Each of overlapping compressed keys draws on two blocks, which takes twice the width.
        wide = self.head_dim * (2 if self.indexer else 1)
        inner = (Projection(name="compressor", k=hidden, parts=(wide, wide)),) if self.ratio else ()
        return (
            Projection(name="latent", k=hidden, parts=(self.q_rank, self.head_dim)),
            Projection(name="query up", k=self.q_rank, parts=(heads * self.head_dim,)),
            *inner,
            *self._index(hidden),
            Projection(name="output down", k=heads * self.head_dim // groups, parts=(groups * self.out_rank,)),
            Projection(name="output", k=groups * self.out_rank, parts=(hidden,)),
        )

    def _index(self, hidden: int) -> tuple[Projection, ...]:
        if not self.indexer:
            return ()
        query, _, weight = self.indexer.projections(hidden, self.q_rank)
        wide = 2 * self.indexer.head_dim
        return (query, Projection(name="indexer key", k=hidden, parts=(wide, wide)), weight)

    @property
    def vectors(self) -> int:
        """Norms of queries, keys and compressed keys, positions within a compressed key, sinks."""
        fixed = self.q_rank + self.head_dim + self.heads
        if not self.ratio:
            return fixed
        widths = [self.head_dim, *([self.indexer.head_dim] if self.indexer else [])]
        overlap = 2 if self.indexer else 1
        return fixed + sum(width + self.ratio * overlap * width for width in widths)

    def caches(self, size: float, tp: int = 1) -> tuple[Cache, ...]:
        """Cache of all keys of the window, and of one for ``ratio`` tokens beyond it, on every rank."""
        near = Cache(layers=1, bytes_per_token=self.head_dim * size, window=self.window)
        if not self.ratio:
            return (near,)
        index = INDEX_BYTES / 128 * self.indexer.head_dim if self.indexer else 0.0
        return (near, Cache(layers=1, bytes_per_token=(self.head_dim * size + index) / self.ratio))


STATE_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0}
"""Bytes of an element of a recurrent state, by dtype."""


@dataclass(frozen=True, kw_only=True)
class Recurrent(Mixer):
    """A causal convolution over ``conv`` tokens, then a state in ``state_dtype`` that each token updates."""

    conv: int = 4
    state_dtype: str = "float32"

    def state_elements(self, tp: int = 1) -> int:
        """Elements of the recurrent state of a sequence."""
        raise NotImplementedError

    def conv_channels(self, tp: int = 1) -> int:
        """Channels of the convolution."""
        raise NotImplementedError

    def state_bytes(self, tp: int = 1) -> float:
        """State and last inputs of the convolution, those in 16 bits."""
        inputs = self.conv_channels(tp) * (self.conv - 1)
        return self.state_elements(tp) * STATE_BYTES[self.state_dtype] + 2.0 * inputs


@dataclass(frozen=True, kw_only=True)
class LinearAttention(Recurrent):
    """Gated DeltaNet (Yang et al. 2025): a state of key_dim x value_dim a value head, and a convolution before it."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int

    def widths(self, tp: int = 1) -> tuple[int, int, int]:
        """Keys, values and value heads of a rank."""
        keys = shared_evenly(self.key_heads, tp, "linear_num_key_heads")
        values = shared_evenly(self.value_heads, tp, "linear_num_value_heads")
        return keys * self.key_dim, values * self.value_dim, values

    def projections(self, hidden: int, tp: int = 1) -> tuple[Projection, ...]:
        """Query, key, value and gate as one; decay and step as one; the output's."""
        keys, values, heads = self.widths(tp)
        return (
            Projection(name="qkvz", k=hidden, parts=(keys, keys, values, values)),
            Projection(name="decay", k=hidden, parts=(heads, heads), kind="router"),
            Projection(name="output", k=values, parts=(hidden,)),
        )

    @property
    def vectors(self) -> int:
        """Filters of the convolution, step and decay of each head, one norm for all heads."""
        return self.conv_channels() * self.conv + 2 * self.value_heads + self.value_dim

    def state_elements(self, tp: int = 1) -> int:
        """Elements of the recurrent state of a sequence."""
        return self.widths(tp)[1] * self.key_dim

    def conv_channels(self, tp: int = 1) -> int:
        """Keys, queries and values."""
        keys, values, _ = self.widths(tp)
        return 2 * keys + values


@dataclass(frozen=True, kw_only=True)
class StateSpace(Recurrent):
    """Mamba-2 (Dao and Gu 2024): a state of head_dim x state a head; ``groups`` share input and output matrices.

    ``normed``: the gated norm before the output has weights.
    """

    heads: int
    head_dim: int
    state: int
    groups: int
    bias: bool = False
    conv_bias: bool = True
    normed: bool = True

    def widths(self, tp: int = 1) -> tuple[int, int, int]:
        """Inner width, width of all groups' B (and C), and heads of a rank."""
        heads = shared_evenly(self.heads, tp, "mamba_num_heads")
        groups = max(1, self.groups // tp)
        return heads * self.head_dim, groups * self.state, heads

    def projections(self, hidden: int, tp: int = 1) -> tuple[Projection, ...]:
        """Gate, input, B, C and step as one; the output's."""
        inner, grouped, heads = self.widths(tp)
        return (
            Projection(name="input", k=hidden, parts=(inner, inner, grouped, grouped, heads), bias=self.bias),
            Projection(name="output", k=inner, parts=(hidden,), bias=self.bias),
        )

    @property
    def vectors(self) -> int:
        """Filters, step, decay and skip of each head, the gated norm."""
        norm = self.normed * self.heads * self.head_dim
        return self.conv_channels() * (self.conv + self.conv_bias) + 3 * self.heads + norm

    def state_elements(self, tp: int = 1) -> int:
        """Elements of the recurrent state of a sequence."""
        return self.widths(tp)[0] * self.state

    def conv_channels(self, tp: int = 1) -> int:
        """Input, B and C."""
        inner, grouped, _ = self.widths(tp)
        return inner + 2 * grouped


@dataclass(frozen=True, kw_only=True)
class SelectiveScan(Recurrent):
    """Mamba (Gu and Dao 2023): a state of ``state`` values for each of ``inner`` channels.

    Sizes of steps are made of ``rank`` values of a token. ``normed``: those, inputs and outputs of the state have norms
    (Jamba).
    """

    inner: int
    state: int
    rank: int
    bias: bool = False
    conv_bias: bool = True
    normed: bool = False

    @property
    def scan_inputs(self) -> int:
        """Values of a token that all channels share: of its step, and what enters and leaves the state."""
        return self.rank + 2 * self.state

    def projections(self, hidden: int, tp: int = 1) -> tuple[Projection, ...]:
        """Input and gate as one; values that the scan reads; sizes of steps; the output's."""
        inner = self.conv_channels(tp)
        return (
            Projection(name="input", k=hidden, parts=(inner, inner), bias=self.bias),
            Projection(name="scan inputs", k=inner, parts=(self.rank, self.state, self.state)),
            Projection(name="steps", k=self.rank, parts=(inner,), bias=True),
            Projection(name="output", k=inner, parts=(hidden,), bias=self.bias),
        )

    @property
    def vectors(self) -> int:
        """Filters, decays and skip of each channel, norms of what all channels share."""
        return self.inner * (self.conv + self.conv_bias + self.state + 1) + self.normed * self.scan_inputs

    def state_elements(self, tp: int = 1) -> int:
        """Elements of the recurrent state of a sequence."""
        return self.conv_channels(tp) * self.state

    def conv_channels(self, tp: int = 1) -> int:
        """Channels of the convolution on a rank."""
        return shared_evenly(self.inner, tp, "mamba_expand x hidden_size")


@dataclass(frozen=True, kw_only=True)
class ParallelMixers(Mixer):
    """Mixers of the same tokens, whose outputs are added (Falcon-H1)."""

    parts: tuple[Mixer, ...]

    def projections(self, hidden: int, tp: int = 1) -> tuple[Projection, ...]:
        """Matrices of all of them."""
        return tuple(projection for part in self.parts for projection in part.projections(hidden, tp))

    @property
    def vectors(self) -> int:
        """Parameters in no matrix."""
        return sum(part.vectors for part in self.parts)

    def caches(self, size: float, tp: int = 1) -> tuple[Cache, ...]:
        """Caches that grow with a sequence, of values of ``size`` bytes."""
        return tuple(cache for part in self.parts for cache in part.caches(size, tp))

    def state_bytes(self, tp: int = 1) -> float:
        """Bytes of a sequence's states, which do not depend on its length."""
        return sum(part.state_bytes(tp) for part in self.parts)


@dataclass(frozen=True, kw_only=True)
class FeedForward:
    """Up (with a gate beside it), activation, down; ``squared``: the activation's result is; ``stored`` is one of
    ``STORED``.
    """

    ffn: int
    gated: bool = True
    bias: bool = False
    activation: str = "silu"
    squared: bool = False
    stored: str = "apart"

    def projections(self, hidden: int, tp: int = 1, kind: str = "feed_forward") -> tuple[Projection, ...]:
        """Gate and up as one, and down."""
        ffn = shared_evenly(self.ffn, tp, "intermediate_size")
        up, name = ((ffn, ffn), "gate up") if self.gated else ((ffn,), "up")
        return (
            Projection(name=name, k=hidden, parts=up, bias=self.bias, kind=kind, stored=self.stored),
            Projection(name="down", k=ffn, parts=(hidden,), bias=self.bias, kind=kind, stored=self.stored),
        )

    def parameters(self, hidden: int) -> int:
        """All of them."""
        return sum(p.parameters for p in self.projections(hidden))


@dataclass(frozen=True, kw_only=True)
class Experts:
    """A mixture: each token takes ``top_k`` of ``experts`` feed-forwards, and ``shared`` ones as well.

    ``shared_gate``: one value a token weights the shared ones (Qwen2-MoE). As they are served: ``routing`` says how
    tokens fall on experts, as ``Moe.distribution``, "" as is usual; ``redundant`` copies are held of those with most.
    """

    expert: FeedForward
    experts: int
    top_k: int
    shared: FeedForward | None = None
    shared_gate: bool = False
    router_bias: bool = False
    routing: str = ""
    redundant: int = 0

    def router(self, hidden: int) -> Projection:
        """Scores of all experts, on every rank."""
        return Projection(name="router", k=hidden, parts=(self.experts,), bias=self.router_bias, kind="router")

    def parameters(self, hidden: int, experts: int | None = None) -> int:
        """Number of parameters of the router, of ``experts`` experts (default: all) and of the shared ones."""
        routed = (self.experts if experts is None else experts) * self.expert.parameters(hidden)
        shared = self.shared.parameters(hidden) if self.shared else 0
        return routed + shared + (hidden if self.shared_gate else 0) + self.router(hidden).parameters


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One layer: a mixer, a second one ``cross`` over an encoder's results, a feed-forward, any of which may be
    missing, and norms of the residual stream. ``encodes``: it sees the source's tokens.

    ``placement`` of norms: ``before`` each of both, ``around`` each (Gemma 2), ``after`` each (OLMo 2), or
    ``parallel``: before, and both branches start from the same input; ``norms`` counts them. ``reduced_jointly``:
    serving engines add parallel branches up before ranks exchange their partial sums, once a layer (vLLM
    ``models/falcon.py``, TensorRT-LLM ``models/falcon/model.py``).
    """

    attention: Mixer | None = None
    cross: CrossAttention | None = None
    feed_forward: FeedForward | Experts | None = None
    encodes: bool = False
    norm: Norm = field(default_factory=Norm)
    norms: int = 2
    placement: str = "before"
    reduced_jointly: bool = False

    def parameters(self, hidden: int) -> int:
        """All parameters of the layer."""
        return self._mixer_and_norms(hidden) + (self.feed_forward.parameters(hidden) if self.feed_forward else 0)

    def active_parameters(self, hidden: int) -> int:
        """Number of parameters that a token uses: all but those of experts that it is not routed to."""
        if isinstance(self.feed_forward, Experts):
            return self._mixer_and_norms(hidden) + self.feed_forward.parameters(hidden, self.feed_forward.top_k)
        return self.parameters(hidden)

    @property
    def branches(self) -> tuple[Mixer | FeedForward | Experts, ...]:
        """Parts that add to the residual stream, in order."""
        return tuple(part for part in (self.attention, self.cross, self.feed_forward) if part)

    def _mixer_and_norms(self, hidden: int) -> int:
        """Number of parameters of mixers and norms."""
        mixers = [part for part in self.branches if isinstance(part, Mixer)]
        matrices = sum(p.parameters for mixer in mixers for p in mixer.projections(hidden))
        return matrices + sum(mixer.vectors for mixer in mixers) + self.norms * self.norm.weights * hidden


def attending(layer: Layer) -> tuple[Layer, Layer]:
    """A layer of self-attention as one of an encoder, which sees all, and as one that attends to its results too.

    Raises:
        ModelError: another mixer.
    """
    part = layer.attention
    if not isinstance(part, SelfAttention):
        raise ModelError("an encoder whose layers have no self-attention is not built: trace it")
    cross = CrossAttention(
        heads=part.heads, kv_heads=part.kv_heads, head_dim=part.head_dim, qkv_bias=part.qkv_bias,
        out_bias=part.out_bias, stored=part.stored,
    )  # fmt: skip
    encoder = replace(layer, attention=replace(part, causal=False), encodes=True)
    return encoder, replace(layer, cross=cross, norms=layer.norms + 1)


def count_equal(layers: Sequence[Layer]) -> tuple[tuple[Layer, int], ...]:
    """Distinct layers with their numbers, in the order in which they first come."""
    counts: dict[Layer, int] = {}
    for layer in layers:
        counts[layer] = counts.get(layer, 0) + 1
    return tuple(counts.items())
