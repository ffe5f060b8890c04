"""Families whose layers mix tokens in other ways: latent and compressed attention, linear attention, state spaces."""

from __future__ import annotations

from typing import Any

from neusight.errors import ModelError
from neusight.workloads.decoders.families import Family, experts, feed_forwards, rotated
from neusight.workloads.decoders.layers import (
    STATE_BYTES,
    CompressedAttention,
    FeedForward,
    Indexer,
    LatentAttention,
    Layer,
    LinearAttention,
    Mixer,
    SelfAttention,
    StateSpace,
    attending,
)
from neusight.workloads.decoders.reading import Keys

LATENT = ("deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "glm_moe_dsa", "mistral4")
COMPRESSED = ("deepseek_v4",)
HYBRID = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
STATE_SPACE = ("nemotron_h", "mamba2")
ENCODER_DECODER = ("t5", "mt5")
SHARED = {kind: 2 if kind == "deepseek_v2" else 1 for kind in (*LATENT, *COMPRESSED)}
"""Shared experts where a configuration does not tell."""


def latent_layers(keys: Keys) -> list[Layer]:
    """DeepSeek's: latent attention, dense layers first, then experts with shared ones.

    Raises:
        ModelError: values that are missing or contradict each other.
    """
    depth = keys.size("num_hidden_layers")
    sizes: dict[str, Any] = keys.sizes(
        heads="num_attention_heads", kv_rank="kv_lora_rank", nope_dim="qk_nope_head_dim", rope_dim="qk_rope_head_dim",
        value_dim="v_head_dim",
    )  # fmt: skip
    rank, bias = keys.size("q_lora_rank", 0), keys.flag("attention_bias")
    attention = LatentAttention(**sizes, q_rank=rank, bias=bias, indexer=_indexer(keys))
    return [Layer(attention=attention, feed_forward=part) for part in feed_forwards(keys, Family(), depth)]


def encoder_decoder_layers(keys: Keys) -> list[Layer]:
    """T5's (Raffel et al. 2020): an encoder, then as many layers that attend to it; RMS norms and no biases.

    Raises:
        ModelError: values that are missing or contradict each other.
    """
    depth, heads, form = (
        keys.size("num_hidden_layers"),
        keys.size("num_attention_heads"),
        str(keys.get("feed_forward_proj", "relu")),
    )
    activation = next((name for name in ("gelu", "silu") if name in form), "relu")
    own = SelfAttention(heads=heads, kv_heads=heads, head_dim=keys.size("d_kv", 64))
    part = FeedForward(ffn=keys.size("intermediate_size"), gated=form.startswith("gated"), activation=activation)
    encoder, attends = attending(Layer(attention=own, feed_forward=part))
    return [encoder] * depth + [attends] * keys.size("num_decoder_layers", depth)


def relative_extra(keys: Keys) -> int:
    """Biases of relative positions: a bucket a head, once for the encoder and once for the decoder."""
    return 2 * keys.size("relative_attention_num_buckets", 32) * keys.size("num_attention_heads")


def _indexer(keys: Keys) -> Indexer | None:
    if not keys.get("index_topk"):
        return None
    return Indexer(**keys.sizes(heads="index_n_heads", head_dim="index_head_dim", selected="index_topk"))


_OVERLAPPING = 4
"""Ratio of DeepSeek-V4's compressed sparse attention, whose keys overlap and are selected; 128 is its dense one."""


def compressed_layers(keys: Keys) -> list[Layer]:
    """DeepSeek-V4's, as its configuration tells: a window, and keys compressed 4 (selected) or 128 times (all seen).

    Raises:
        ModelError: values that are missing or contradict each other.
    """
    depth = keys.size("num_hidden_layers")
    ratios = keys.each("compress_ratios", depth)
    if ratios is None:
        raise ModelError(f"{keys.where}: the configuration states no compress_ratios: add them to its config.json")
    mixture = experts(keys, Family())
    return [Layer(attention=_compressed(keys, int(ratio)), feed_forward=mixture) for ratio in ratios]


def _compressed(keys: Keys, ratio: int) -> CompressedAttention:
    sizes = keys.sizes(
        heads="num_attention_heads", head_dim="head_dim", q_rank="q_lora_rank", window="sliding_window",
        rope_dim="qk_rope_head_dim", groups="o_groups", out_rank="o_lora_rank",
    )  # fmt: skip
    return CompressedAttention(**sizes, ratio=ratio, indexer=_indexer(keys) if ratio == _OVERLAPPING else None)


def compressed_extra(keys: Keys) -> int:
    """Parameters of DeepSeek-V4's hyper-connections: two mixings of hc_mult streams a layer, one before the head."""
    streams, hidden = keys.size("hc_mult", 4), keys.size("hidden_size")
    mixed = (2 + streams) * streams
    layer = mixed * (streams * hidden + 1) + 3
    return 2 * keys.size("num_hidden_layers") * layer + streams * (streams * hidden + 1) + 1


def hybrid_layers(keys: Keys) -> list[Layer]:
    """Qwen3-Next's and Qwen3.5's: gated DeltaNet, and gated attention in every fourth layer.

    Raises:
        ModelError: values that are missing or contradict each other.
    """
    depth = keys.size("num_hidden_layers")
    every = keys.size("full_attention_interval", 4)
    kinds = keys.each("layer_types", depth)
    full = [kind == "full_attention" for kind in kinds] if kinds else [(i + 1) % every == 0 for i in range(depth)]
    fed = feed_forwards(keys, Family(shared_gate=True), depth)
    mixers: dict[bool, Mixer] = {True: _gated(keys), False: _linear(keys)}
    return [Layer(attention=mixers[wide], feed_forward=part) for wide, part in zip(full, fed, strict=True)]


def _gated(keys: Keys) -> SelfAttention:
    head_dim, bias = keys.size("head_dim", 256), keys.flag("attention_bias")
    return SelfAttention(
        heads=keys.size("num_attention_heads"), kv_heads=keys.size("num_key_value_heads"), head_dim=head_dim,
        rotary=rotated(keys, head_dim), qkv_bias=bias, out_bias=bias, qk_norm="head", gated=True,
    )  # fmt: skip


def _linear(keys: Keys) -> LinearAttention:
    sizes = keys.sizes(
        key_heads="linear_num_key_heads", value_heads="linear_num_value_heads", key_dim="linear_key_head_dim",
        value_dim="linear_value_head_dim",
    )  # fmt: skip
    conv = keys.size("linear_conv_kernel_dim", 4)
    return LinearAttention(**sizes, conv=conv, state_dtype=_state_dtype(keys, "mamba_ssm_dtype"))


def _state_dtype(keys: Keys, key: str) -> str:
    """That of recurrent states: as stated, else float32, in which their kernels accumulate."""
    stated = str(keys.get(key, "float32")).removeprefix("torch.")
    return stated if stated in STATE_BYTES else "float32"


_BLOCKS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
"""Letters of ``hybrid_override_pattern``."""
_NAMES = {"linear_attention": "mamba", "full_attention": "attention"}


def state_space_layers(keys: Keys) -> list[Layer]:
    """Each layer is one of Mamba-2, attention, feed-forward or experts, behind a norm of its own (Nemotron-H), or all
    are Mamba-2.

    Raises:
        ModelError: values that are missing or contradict each other.
    """
    if keys.get("model_type") == "mamba2":
        return [_block(keys, "mamba")] * keys.size("num_hidden_layers")
    pattern = keys.get("hybrid_override_pattern")
    kinds = [_BLOCKS.get(letter, letter) for letter in pattern] if pattern else keys.get("layers_block_type")
    if not kinds:
        raise ModelError(
            f"{keys.where}: the configuration states no hybrid_override_pattern: add it to its config.json"
        )
    made = {kind: _block(keys, kind) for kind in {_NAMES.get(str(kind), str(kind)) for kind in kinds}}
    return [made[_NAMES.get(str(kind), str(kind))] for kind in kinds]


def _block(keys: Keys, kind: str) -> Layer:
    plain = Family(gated=False, activation="relu", ffn_bias="mlp_bias")
    if kind == "mamba":
        return Layer(attention=_mamba(keys), norms=1)
    if kind == "attention":
        heads = keys.size("num_attention_heads")
        own = SelfAttention(heads=heads, kv_heads=keys.size("num_key_value_heads"), head_dim=keys.head_dim(heads))
        return Layer(attention=own, norms=1)
    if kind == "mlp":
        wide = FeedForward(
            ffn=keys.size("intermediate_size"), gated=False, bias=keys.flag("mlp_bias"), activation="relu"
        )
        return Layer(feed_forward=wide, norms=1)
    if kind == "moe" and not keys.get("moe_latent_size"):
        return Layer(feed_forward=experts(keys, plain), norms=1)
    raise ModelError(f"{keys.where}: layers of kind '{kind}' are not built (with moe_latent_size or unknown): trace it")


def _mamba(keys: Keys) -> StateSpace:
    """Nemotron-H's keys tell Mamba's sizes from those of its attention; Mamba-2's need not."""
    names = (
        {"heads": "num_heads", "head_dim": "head_dim", "state": "state_size"}
        if keys.get("model_type") == "mamba2"
        else {"heads": "mamba_num_heads", "head_dim": "mamba_head_dim", "state": "ssm_state_size"}
    )
    return StateSpace(
        **keys.sizes(**names, groups="n_groups"),
        conv=keys.size("conv_kernel", 4),
        bias=keys.flag("use_bias"),
        conv_bias=keys.flag("use_conv_bias", True),
        state_dtype=_state_dtype(keys, "mamba_ssm_cache_dtype"),
    )
