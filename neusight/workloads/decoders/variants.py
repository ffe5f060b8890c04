"""Families whose layers mix tokens in other ways: latent and compressed attention, linear attention, state spaces."""

from __future__ import annotations

from typing import Any

from neusight.errors import ModelError
from neusight.workloads.decoders.families import FAMILIES, Family, experts, feed_forwards
from neusight.workloads.decoders.layers import (
    CompressedAttention,
    FeedForward,
    Indexer,
    LatentAttention,
    Layer,
    SelfAttention,
    attending,
)
from neusight.workloads.decoders.reading import Keys
from neusight.workloads.decoders.recurrent import recurrent_mixer

LATENT = ("deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "glm_moe_dsa", "glm4_moe_lite", "mistral4")
COMPRESSED = ("deepseek_v4",)
STATE_SPACE = ("nemotron_h", "mamba2", "mamba", "falcon_mamba")
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
    mixer = SelfAttention(heads=heads, kv_heads=heads, head_dim=keys.size("d_kv", 64))
    part = FeedForward(ffn=keys.size("intermediate_size"), gated=form.startswith("gated"), activation=activation)
    encoder, attends = attending(Layer(attention=mixer, feed_forward=part))
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
    return [Layer(attention=_compressed_mixer(keys, int(ratio)), feed_forward=mixture) for ratio in ratios]


def _compressed_mixer(keys: Keys, ratio: int) -> CompressedAttention:
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


_BLOCKS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
"""Letters of ``hybrid_override_pattern``."""
_NAMES = {"linear_attention": "mamba", "full_attention": "attention"}


def state_space_layers(keys: Keys) -> list[Layer]:
    """Each layer is one of Mamba-2, attention, feed-forward or experts, behind a norm of its own (Nemotron-H), or all
    are the recurrent mixer of the family.

    Raises:
        ModelError: values that are missing or contradict each other.
    """
    if (kind := keys.get("model_type")) != "nemotron_h":
        mixer = recurrent_mixer(keys, FAMILIES[str(kind)].recurrent)
        return [Layer(attention=mixer, norms=1)] * keys.size("num_hidden_layers")
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
        return Layer(attention=recurrent_mixer(keys, "mamba2"), norms=1)
    if kind == "attention":
        heads = keys.size("num_attention_heads")
        mixer = SelfAttention(heads=heads, kv_heads=keys.size("num_key_value_heads"), head_dim=keys.head_dim(heads))
        return Layer(attention=mixer, norms=1)
    if kind == "mlp":
        wide = FeedForward(
            ffn=keys.size("intermediate_size"), gated=False, bias=keys.flag("mlp_bias"), activation="relu"
        )
        return Layer(feed_forward=wide, norms=1)
    if kind == "moe" and not keys.get("moe_latent_size"):
        return Layer(feed_forward=experts(keys, plain), norms=1)
    raise ModelError(f"{keys.where}: layers of kind '{kind}' are not built (with moe_latent_size or unknown): trace it")
