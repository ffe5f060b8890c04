"""``decoder_of_columns``: the decoder that a row of a table of training runs describes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from neusight.errors import ModelError, nearest, shown
from neusight.workloads.decoders.architecture import decoder_of
from neusight.workloads.decoders.decoder import Decoder
from neusight.workloads.decoders.families import LAYER_NORM
from neusight.workloads.decoders.known import known_decoder
from neusight.workloads.decoders.layers import Experts, FeedForward, LatentAttention, Layer, Norm, SelfAttention

KINDS: dict[str, dict[str, Any]] = {
    "gelu": {"model_type": "gpt2"},
    "squared_relu": {"model_type": "nemotron", "partial_rotary_factor": 0.5, "hidden_act": "relu2"},
    "swiglu": {"model_type": "llama"},
    "geglu": {"model_type": "llama", "hidden_act": "gelu"},
}
"""What models with an activation usually are, as keys of a configuration: GPT-3 and MPT (learned positions, biases,
layer norm, tied), Nemotron-4 (arXiv:2402.16819, table 1), Llama and Grok-1."""
_SIZES = {
    "layers": "num_hidden_layers", "hidden": "hidden_size", "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads", "head_dim": "head_dim", "ffn": "intermediate_size", "experts": "num_experts",
    "top_k": "num_experts_per_tok", "moe_ffn": "moe_intermediate_size",
    "shared_expert_ffn": "shared_expert_intermediate_size", "first_dense_layers": "first_k_dense_replace",
    "moe_layer_every": "decoder_sparse_step", "q_lora_rank": "q_lora_rank", "kv_lora_rank": "kv_lora_rank",
    "qk_head_dim": "qk_nope_head_dim", "qk_rope_dim": "qk_rope_head_dim", "v_head_dim": "v_head_dim",
}  # fmt: skip
"""Columns that are keys of a configuration under another name."""
_NEEDED = ("layers", "hidden", "heads", "ffn")


def decoder_of_columns(row: Mapping[str, Any]) -> Decoder:
    """The decoder of a row; what a row leaves out is as models with its activation have it.

    Args:
        row: ``layers``, ``hidden``, ``heads``, ``ffn`` and ``vocab`` (or ``vocab_padded``); where known ``activation``
            (gelu unless stated), ``kv_heads``, ``head_dim``, ``seq_len``, ``max_position``, ``experts``, ``top_k``,
            ``moe_ffn``, ``shared_expert_ffn``, ``normalization``, ``bias``, ``tied_embeddings``,
            ``position_embedding``, ``qk_layernorm``, ``mla`` with its ranks. Empty cells count as left out. Where
            ``attention_type`` is ``mla`` and no rank is told, the model is the one that is known by its name.

    Raises:
        ModelError: a column that is needed is empty, an unknown activation, sizes that contradict each other, or latent
            attention of a model that nobody knows.
    """
    columns = {name: value for name, value in row.items() if value is not None and value == value and value != ""}
    name = str(columns.get("model") or columns.get("case") or "the row")
    if missing := [column for column in _NEEDED if column not in columns]:
        raise ModelError(f"{name}: no {', '.join(missing)}: fill in the column")
    if columns.get("attention_type") == "mla" and "kv_lora_rank" not in columns:
        return _known(name, columns)
    config = {
        **_kind(str(columns.get("activation", "gelu")), name),
        **({"model_type": "deepseek_v3"} if columns.get("mla") else {}),
        **{key: _whole(columns, column, name) for column, key in _SIZES.items() if column in columns},
        "vocab_size": _whole(columns, "vocab" if "vocab" in columns else "vocab_padded", name),
        "max_position_embeddings": _whole(columns, "max_position" if "max_position" in columns else "seq_len", name),
    }
    return _as_stated(decoder_of(config, name), columns)


def _known(name: str, columns: Mapping[str, Any]) -> Decoder:
    """The model of that name, if it has the layers and the width of the row."""
    try:
        decoder = known_decoder(name)
    except ModelError:
        raise ModelError(f"{name}: latent attention of a model that is not known by name: give kv_lora_rank") from None
    own = {"layers": decoder.depth, "hidden": decoder.hidden}
    if differ := [column for column, size in own.items() if _whole(columns, column, name) != size]:
        raise ModelError(f"{name}: {', '.join(differ)} differ from those of {decoder.name}: give kv_lora_rank")
    return decoder


def _kind(activation: str, name: str) -> dict[str, Any]:
    if activation not in KINDS:
        hint = nearest(activation, KINDS)
        raise ModelError(f"{name}: unknown activation '{shown(activation)}'{hint}: one of {', '.join(KINDS)}")
    return KINDS[activation]


def _whole(columns: Mapping[str, Any], column: str, name: str) -> int:
    """A whole number, or the one with which a remark begins."""
    number = re.match(r"\d+", str(columns.get(column, "")))
    if not number:
        raise ModelError(f"{name}: {column} = {shown(columns.get(column))} is no whole number: fill in the column")
    return int(number.group())


def _as_stated(decoder: Decoder, columns: Mapping[str, Any]) -> Decoder:
    """The decoder with the traits of which columns say otherwise than its family has them."""
    norm = {"LayerNorm": LAYER_NORM, "RMSNorm": Norm()}.get(str(columns.get("normalization")))
    learned = {"rope": 0, "learned_absolute": decoder.max_len}
    positions = learned.get(str(columns.get("position_embedding")), decoder.positions)
    layers = tuple((_layer(layer, columns, norm), count) for layer, count in decoder.layers)
    return replace(
        decoder,
        layers=layers,
        norm=norm or decoder.norm,
        tied=bool(columns.get("tied_embeddings", decoder.tied)),
        positions=positions,
    )


def _layer(layer: Layer, columns: Mapping[str, Any], norm: Norm | None) -> Layer:
    attention, feed_forward = layer.attention, layer.feed_forward
    if isinstance(attention, SelfAttention):
        attention = _attention(attention, columns, norm or layer.norm)
    if "bias" in columns:
        attention = (
            replace(attention, bias=bool(columns["bias"])) if isinstance(attention, LatentAttention) else attention
        )
        feed_forward = _biased(feed_forward, bool(columns["bias"]))
    return replace(layer, attention=attention, feed_forward=feed_forward, norm=norm or layer.norm)


def _attention(attention: SelfAttention, columns: Mapping[str, Any], norm: Norm) -> SelfAttention:
    if "bias" in columns:
        attention = replace(attention, qkv_bias=bool(columns["bias"]), out_bias=bool(columns["bias"]))
    if columns.get("position_embedding") == "rope":
        attention = replace(attention, rotary=attention.rotary or attention.head_dim)
    if columns.get("qk_layernorm"):
        attention = replace(attention, qk_norm="head", qk_norm_op=norm.op, qk_norm_weights=norm.weights)
    return attention


def _biased(part: FeedForward | Experts | None, bias: bool) -> FeedForward | Experts | None:
    if isinstance(part, FeedForward):
        return replace(part, bias=bias)
    if isinstance(part, Experts):
        shared = part.shared and replace(part.shared, bias=bias)
        return replace(part, expert=replace(part.expert, bias=bias), shared=shared)
    return part
