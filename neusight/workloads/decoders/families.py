"""Families of decoders that are built of attention and feed-forwards: what each does its own way, as one table.

A family's modelling code in transformers is the source of its row; the tests hold every row against it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from neusight.errors import ModelError
from neusight.workloads.decoders.layers import Experts, FeedForward, Layer, Mixer, Norm, ParallelMixers, SelfAttention
from neusight.workloads.decoders.reading import Keys
from neusight.workloads.decoders.recurrent import attending_layers, check_attending, recurrent_mixer

LAYER_NORM = Norm(op="layer_norm", weights=2)
USUAL: Mapping[str, Mapping[str, Any]] = {
    "gelu": {"model_type": "gpt2"},
    "squared_relu": {"model_type": "nemotron", "partial_rotary_factor": 0.5, "hidden_act": "relu2"},
    "swiglu": {"model_type": "llama"},
    "geglu": {"model_type": "llama", "hidden_act": "gelu"},
}
"""Usual architectures by activation, as keys of a configuration: GPT-3 and MPT (learned positions, biases, layer norm,
tied), Nemotron-4 (arXiv:2402.16819, table 1), Llama and Grok-1."""
_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True)
class Family:
    """Differences of a family of models from Llama.

    A bias is True, False or the key that says so. ``qk_norm`` and its key; ``every``: with a ``sliding_window``, each
    layer whose number (from 1) it divides sees everything, 0: none does. ``expert_bias`` goes with routers and experts.
    ``recurrent`` is the mixer of layers that do not attend, see ``recurrent_mixer``; ``parallel_mixers``: every layer
    has both. ``dense_width`` is the key of the width of dense feed-forwards.
    ``stored`` and ``ffn_stored`` are how attention and feed-forwards keep their matrices, see ``layers.STORED``.
    ``usual`` are values that configurations may leave out.
    """

    norm: Norm = field(default_factory=Norm)
    norms: int = 2
    placement: str = "before"
    gated: bool = True
    activation: str = "silu"
    qkv_bias: bool | str = False
    out_bias: bool | str = False
    ffn_bias: bool | str = False
    qk_norm: str = ""
    qk_norm_key: str = ""
    every: int = 0
    sinks: bool = False
    gated_attention: bool = False
    rotary: bool = True
    positions: int = -1
    embedding_norm: bool = False
    head_bias: bool | str = False
    expert_bias: bool = False
    shared_gate: bool = False
    recurrent: str = ""
    parallel_mixers: bool = False
    dense_width: str = "intermediate_size"
    stored: str = "apart"
    ffn_stored: str = "apart"
    usual: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)


def _usual(**values: Any) -> Mapping[str, Any]:
    return MappingProxyType(values)


_TIED = _usual(tie_word_embeddings=True)
_DROPS = _usual(tie_word_embeddings=True, dropout=0.1)
_LLAMA = Family(qkv_bias="attention_bias", out_bias="attention_bias", ffn_bias="mlp_bias")
_PLAIN = Family()
_QWEN2 = Family(qkv_bias=True)
_QWEN3 = Family(qkv_bias="attention_bias", out_bias="attention_bias", qk_norm="head", usual=_usual(head_dim=128))
_GEMMA = Family(
    activation="gelu", qkv_bias="attention_bias", out_bias="attention_bias",
    usual=_usual(tie_word_embeddings=True, head_dim=256),
)  # fmt: skip
_GEMMA2 = replace(
    _GEMMA, norms=4, placement="around", every=2,
    usual=_usual(tie_word_embeddings=True, head_dim=256, sliding_window=4096),
)  # fmt: skip
_GEMMA3 = replace(
    _GEMMA2, qk_norm="head", every=6,
    usual=_usual(
        tie_word_embeddings=True, head_dim=256, sliding_window=4096, vocab_size=262208, num_attention_heads=8,
        num_key_value_heads=4, max_position_embeddings=131072,
    ),
)  # fmt: skip
_CLASSIC = Family(
    norm=LAYER_NORM, gated=False, activation="gelu", qkv_bias=True, out_bias=True, ffn_bias=True, rotary=False,
    usual=_TIED,
)  # fmt: skip
_OLMO2 = Family(norms=2, placement="after", qk_norm="all", qkv_bias="attention_bias", out_bias="attention_bias")
_COHERE = Family(
    norm=Norm(op="layer_norm", weights=1), norms=1, placement="parallel", qkv_bias="attention_bias",
    out_bias="attention_bias", qk_norm_key="use_qk_norm", usual=_TIED,
)  # fmt: skip
_QWEN3_NEXT = replace(
    _QWEN3, gated_attention=True, shared_gate=True, recurrent="delta",
    usual=_usual(head_dim=256, full_attention_interval=4),
)  # fmt: skip
_GRANITE = _LLAMA
_GLM4_MOE = Family(qkv_bias="attention_bias", qk_norm_key="use_qk_norm")

FAMILIES: dict[str, Family] = {
    **dict.fromkeys(("llama", "aquila", "baichuan", "code_llama", "cwm"), _LLAMA),
    **dict.fromkeys(("mistral", "ministral", "ministral3", "mixtral", "yi"), _PLAIN),
    "arcee": replace(_LLAMA, gated=False, activation="relu"),
    "phi3": replace(_PLAIN, stored="joined", ffn_stored="joined"),
    "deci": _LLAMA,
    "qwen2": _QWEN2,
    "qwen2_vl_text": _QWEN2,
    "qwen2_5_vl_text": _QWEN2,
    "qwen2_moe": replace(_QWEN2, qkv_bias="qkv_bias", shared_gate=True, usual=_usual(qkv_bias=True)),
    **dict.fromkeys(("qwen3", "qwen3_vl_text", "qwen3_vl_moe_text"), _QWEN3),
    "qwen3_moe": replace(_QWEN3, usual=_NOTHING),
    "gemma": _GEMMA,
    "gemma2": _GEMMA2,
    **dict.fromkeys(("gemma3", "gemma3_text"), _GEMMA3),
    "phi": replace(_CLASSIC, norms=1, placement="parallel", rotary=True, head_bias=True, usual=_NOTHING),
    "phimoe": replace(
        _PLAIN, norm=LAYER_NORM, qkv_bias="attention_bias", out_bias="attention_bias", head_bias="lm_head_bias",
        usual=_usual(num_experts_per_tok=2),
    ),
    "falcon": replace(
        _CLASSIC, norms=1, placement="parallel", rotary=True, qkv_bias="bias", out_bias="bias", ffn_bias="bias",
        stored="joined",
    ),
    "gptj": replace(
        _CLASSIC, norms=1, placement="parallel", rotary=True, qkv_bias=False, out_bias=False, head_bias=True,
        usual=_NOTHING,
    ),
    "gpt2": replace(_CLASSIC, positions=0, stored="transposed", ffn_stored="transposed", usual=_DROPS),
    "gpt_bigcode": replace(_CLASSIC, positions=0, stored="joined", usual=_DROPS),
    "gpt_neox": replace(
        _CLASSIC, placement="parallel", rotary=True, qkv_bias="attention_bias", out_bias="attention_bias",
        stored="joined", usual=_usual(attention_bias=True),
    ),
    "opt": replace(
        _CLASSIC, activation="relu", positions=2, qkv_bias="enable_bias", out_bias="enable_bias",
        ffn_bias="enable_bias",
        usual=_usual(tie_word_embeddings=True, enable_bias=True, max_position_embeddings=2048, dropout=0.1),
    ),
    "bloom": replace(_CLASSIC, embedding_norm=True, stored="joined"),
    "gpt_oss": Family(
        qkv_bias="attention_bias", out_bias="attention_bias", every=2, sinks=True, expert_bias=True,
        usual=_usual(attention_bias=True, head_dim=64, sliding_window=128),
    ),
    "llama4_text": replace(
        _LLAMA, dense_width="intermediate_size_mlp", usual=_usual(head_dim=128, num_experts_per_tok=1)
    ),
    "glm": replace(_GLM4_MOE, ffn_stored="joined", usual=_usual(attention_bias=True)),
    "glm4": replace(_GLM4_MOE, norms=4, placement="around", ffn_stored="joined", usual=_usual(attention_bias=True)),
    "glm4_moe": replace(_GLM4_MOE, usual=_usual(n_shared_experts=1)),
    "minimax_m2": Family(qk_norm="all"),
    "nemotron": replace(_LLAMA, norm=LAYER_NORM, gated=False, activation="relu"),
    "olmo": Family(norm=Norm(op="layer_norm", weights=0), qkv_bias="attention_bias", out_bias="attention_bias"),
    "olmoe": Family(qk_norm="all", qkv_bias="attention_bias", out_bias="attention_bias"),
    "olmo2": _OLMO2,
    "olmo3": replace(_OLMO2, every=4, usual=_usual(sliding_window=4096)),
    "exaone4": Family(placement="after", qk_norm="head", every=4),
    "starcoder2": replace(
        _CLASSIC, rotary=True, qkv_bias="use_bias", out_bias="use_bias", ffn_bias="use_bias",
        usual=_usual(tie_word_embeddings=True, use_bias=True),
    ),
    "cohere": _COHERE,
    "cohere2": replace(_COHERE, every=4, usual=_usual(tie_word_embeddings=True, sliding_window=4096)),
    **dict.fromkeys(("granite", "granitemoe", "granitemoeshared"), _GRANITE),
    **dict.fromkeys(("internlm2", "internlm3"), Family(qkv_bias="bias", out_bias="bias")),
    "stablelm": Family(norm=LAYER_NORM, qkv_bias="use_qkv_bias"),
    "seed_oss": replace(
        _LLAMA, out_bias="attention_out_bias", usual=_usual(attention_bias=True, head_dim=128)
    ),
    "smollm3": replace(_LLAMA, usual=_TIED),
    "qwen3_next": _QWEN3_NEXT,
    "qwen3_5_text": _QWEN3_NEXT,
    "qwen3_5_moe_text": _QWEN3_NEXT,
    "jamba": Family(rotary=False, recurrent="mamba", usual=_usual(num_experts_per_tok=2, mamba_inner_layernorms=True)),
    "bamba": replace(_LLAMA, recurrent="mamba2", usual=_usual(attn_rotary_emb=64)),
    "granitemoehybrid": replace(_LLAMA, recurrent="mamba2", dense_width="shared_intermediate_size"),
    **dict.fromkeys(("mamba", "falcon_mamba"), Family(recurrent="mamba", usual=_TIED)),
    **dict.fromkeys(("mamba2", "nemotron_h"), Family(recurrent="mamba2")),
    "falcon_h1": replace(_LLAMA, recurrent="mamba2", parallel_mixers=True),
    "ernie4_5": Family(
        qkv_bias="use_bias", out_bias="use_bias", ffn_bias="use_bias",
        usual=_usual(tie_word_embeddings=True, head_dim=128),
    ),
}  # fmt: skip
"""Families by ``model_type``. Learned positions: that many more than ``max_position_embeddings``, -1 for none."""


def plain_layers(keys: Keys, family: Family) -> list[Layer]:
    """Layers of attention and feed-forward, from the first to the last.

    Raises:
        ModelError: values that are missing or contradict each other.
    """
    depth = keys.size("num_hidden_layers")
    mixers, fed, how = _mixers(keys, family, depth), feed_forwards(keys, family, depth), _placement(keys, family)
    return [Layer(attention=mixers[i], feed_forward=fed[i], **how) for i in range(depth)]


def _mixers(keys: Keys, family: Family, depth: int) -> list[Mixer]:
    """Attention, or the recurrent mixer of the family, of each layer.

    Raises:
        ModelError: values that are missing or contradict each other.
    """
    windows, kv_heads = _windows(keys, family, depth), _kv_heads(keys, depth)
    attention = [_attention(keys, family, kv_heads[i], windows[i]) for i in range(depth)]
    if not family.recurrent:
        check_attending(keys, depth)
        return [*attention]
    if family.parallel_mixers:
        recurrent = recurrent_mixer(keys, family.recurrent)
        return [ParallelMixers(parts=(mixer, recurrent)) for mixer in attention]
    attends = attending_layers(keys, depth)
    if not attends:
        raise ModelError(f"{keys.where}: the configuration states no layer_types: add them to its config.json")
    if all(attends):
        return [*attention]
    recurrent = recurrent_mixer(keys, family.recurrent)
    return [mixer if attends[i] else recurrent for i, mixer in enumerate(attention)]


def says(keys: Keys, bias: bool | str) -> bool:
    """A trait that is fixed, or that a key decides."""
    return keys.flag(bias) if isinstance(bias, str) else bias


def _placement(keys: Keys, family: Family) -> dict[str, Any]:
    """Placement of a layer's norms: for Falcon, GPT-NeoX and StableLM by their flags."""
    kind = keys.get("model_type")
    norms, placement = family.norms, family.placement
    if kind == "falcon":
        new = keys.flag("new_decoder_architecture", 1 < keys.size("num_key_value_heads", 1) < _heads(keys))
        if new or not keys.flag("parallel_attn", True):
            norms = keys.size("num_ln_in_parallel_attn", 2)
        placement = "parallel" if new or keys.flag("parallel_attn", True) else "before"
    if kind == "gpt_neox" and not keys.flag("use_parallel_residual", True):
        placement = "before"
    if kind == "stablelm" and keys.flag("use_parallel_residual"):
        norms, placement = 1, "parallel"
    jointly = kind == "falcon" and placement == "parallel"
    return {"norm": family.norm, "norms": norms, "placement": placement, "reduced_jointly": jointly}


def _heads(keys: Keys) -> int:
    return keys.size("num_attention_heads")


def _kv_heads(keys: Keys, depth: int) -> list[int]:
    """Heads of keys in each layer: DeciLM lists them, others share a number."""
    if listed := keys.each("num_key_value_heads_per_layer", depth):
        return [int(count) for count in listed]
    shared = keys.get("num_key_value_heads")
    if keys.flag("multi_query", keys.get("model_type") in ("falcon", "gpt_bigcode")) and shared is None:
        shared = 1
    if keys.get("model_type") == "falcon" and keys.flag("multi_query", shared == 1):
        shared = shared if keys.flag("new_decoder_architecture", (shared or 1) > 1) else 1
    return [_heads(keys) if shared is None else int(shared)] * depth


def _attention(keys: Keys, family: Family, kv_heads: int, window: int) -> SelfAttention:
    heads = _heads(keys)
    if not kv_heads or heads % kv_heads:
        raise ModelError(
            f"{keys.where}: num_attention_heads = {heads} is not a multiple of num_key_value_heads = {kv_heads}: "
            "change one"
        )
    head_dim = keys.head_dim(heads)
    normed = family.qk_norm or ("head" if family.qk_norm_key and keys.flag(family.qk_norm_key) else "")
    # Cohere's norms have weights of their own for every head, so that they count as one row's.
    norm_weights = "all" if normed and family.norm.op == "layer_norm" else normed
    return SelfAttention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        window=window,
        rotary=rotary_width(keys, head_dim) if family.rotary and keys.get("position_embedding_type") != "nope" else 0,
        qkv_bias=says(keys, family.qkv_bias),
        out_bias=says(keys, family.out_bias),
        qk_norm=norm_weights,
        qk_norm_op=family.norm.op if normed else "rms_norm",
        gated=family.gated_attention,
        sinks=family.sinks,
        stored=family.stored,
    )


def rotary_width(keys: Keys, head_dim: int) -> int:
    """Number of values of a head that positions rotate."""
    width = keys.size("rotary_dim", 0)
    return width or int(head_dim * float(keys.get("rotary_factor") or 1.0))


_FULL, _CHUNKED = "full_attention", "chunked_attention"


def _windows(keys: Keys, family: Family, depth: int) -> list[int]:
    """Window of each layer's attention in tokens, 0 for all tokens.

    A chunk of Llama 4 (all tokens of the same 8,192) counts as a window of that length: at most what a chunk holds.
    """
    if keys.get("model_type") == "llama4_text":
        return _chunks(keys, depth)
    window = keys.size("sliding_window", 0)
    if keys.get("use_sliding_window") is False or not window:
        return [0] * depth
    if kinds := keys.each("layer_types", depth):
        return [0 if kind == _FULL else window for kind in kinds]
    if keys.get("use_sliding_window"):
        return [window if i >= keys.size("max_window_layers", 0) else 0 for i in range(depth)]
    every = keys.size("sliding_window_pattern", family.every) if family.every else 0
    return [0 if every and (i + 1) % every == 0 else window for i in range(depth)]


def _chunks(keys: Keys, depth: int) -> list[int]:
    chunk = keys.size("attention_chunk_size", 8192)
    if kinds := keys.each("layer_types", depth):
        return [chunk if kind == _CHUNKED else 0 for kind in kinds]
    rotating = keys.each("no_rope_layers", depth) if keys.get("no_rope_layers") else None
    every = keys.size("no_rope_layer_interval", 4)
    return [chunk if (rotating[i] if rotating else (i + 1) % every) else 0 for i in range(depth)]


def feed_forwards(keys: Keys, family: Family, depth: int) -> list[FeedForward | Experts]:
    """Feed-forward of each layer, dense or a mixture.

    Raises:
        ModelError: values that are missing or contradict each other.
    """
    sparse = _sparse_layers(keys, depth)
    made = {many: experts(keys, family) if many else _dense(keys, family) for many in set(sparse)}
    return [made[many] for many in sparse]


def _sparse_layers(keys: Keys, depth: int) -> list[bool]:
    """Which layers have experts: as listed, or by the rule of the keys that are there.

    Raises:
        ModelError: a list that is shorter than the model is deep.
    """
    many = keys.size("num_experts", 0)
    if not many:
        return [False] * depth
    if listed := keys.each("mlp_layer_types", depth):
        return [kind in ("sparse", "moe", "hash_moe") for kind in listed]
    dense = {int(i) for i in keys.get("mlp_only_layers") or ()}
    if isinstance(moe := keys.get("moe_layers"), list) and moe:
        return [i in moe for i in range(depth)]
    first = keys.size("first_k_dense_replace", 0)
    step = keys.size("decoder_sparse_step", keys.size("interleave_moe_layer_step", 1)) or 1
    every = keys.get("moe_layer_freq", 1)
    if isinstance(every, list):
        return [bool(entry) for entry in every[:depth]]
    period, offset = keys.size("expert_layer_period", 1) or 1, keys.size("expert_layer_offset", 0)
    chosen = [i >= first and i not in dense and i % period == offset for i in range(depth)]
    return [chosen[i] and (i + 1) % step == 0 and (i - first) % every == 0 for i in range(depth)]


def _dense(keys: Keys, family: Family) -> FeedForward:
    """The dense one; four times as wide as the model where older families state nothing."""
    older = 4 * keys.size("hidden_size") if not family.gated else None
    return FeedForward(
        ffn=keys.size(family.dense_width, older),
        gated=family.gated and keys.get("hidden_act") not in ("relu2",),
        bias=says(keys, family.ffn_bias),
        activation=_activation(keys, family),
        squared=keys.get("hidden_act") in ("relu2", "relu_squared"),
        stored=family.ffn_stored,
    )


def _activation(keys: Keys, family: Family) -> str:
    """Name of the activation without its variant: silu, gelu or relu."""
    function = str(keys.get("hidden_act", family.activation)).lower()
    return next(
        (name for name in ("silu", "gelu", "relu") if name in function), "silu" if "swi" in function else "gelu"
    )


def experts(keys: Keys, family: Family) -> Experts:
    """The mixture of sparse layers.

    Raises:
        ModelError: experts of which a token takes none or more than there are.
    """
    many, top_k = keys.size("num_experts"), keys.size("top_k")
    if not 0 < top_k <= many:
        raise ModelError(f"{keys.where}: num_experts_per_tok = {top_k} of {many} experts: correct one of them")
    width = keys.size("moe_intermediate_size" if keys.get("moe_intermediate_size") else "intermediate_size")
    expert = FeedForward(ffn=width, gated=family.gated, bias=family.expert_bias, activation=_activation(keys, family))
    return Experts(
        expert=expert,
        experts=many,
        top_k=top_k,
        shared=_shared_expert(keys, expert),
        shared_gate=family.shared_gate,
        router_bias=family.expert_bias,
    )


def _shared_expert(keys: Keys, expert: FeedForward) -> FeedForward | None:
    """Shared experts as one expert: as wide as recorded, else their number times the routed ones' width. Llama 4 has
    one.
    """
    count = 1 if keys.get("model_type") == "llama4_text" else keys.size("n_shared_experts", 0)
    recorded = keys.size("shared_expert_intermediate_size", keys.size("shared_intermediate_size", 0))
    width = keys.size("moe_shared_expert_intermediate_size", recorded) or count * expert.ffn
    return replace(expert, ffn=width, bias=False) if width and (count or recorded) else None
