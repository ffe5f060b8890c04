"""``decoder_of_columns``: the decoder that a row of a table of training runs describes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import repeat
from typing import Any

from neusight.errors import ModelError, nearest, shown
from neusight.workloads.decoders.architecture import decoder_of
from neusight.workloads.decoders.decoder import Decoder, Prediction
from neusight.workloads.decoders.families import LAYER_NORM, USUAL
from neusight.workloads.decoders.known import known_decoder
from neusight.workloads.decoders.layers import (
    Experts,
    FeedForward,
    LatentAttention,
    Layer,
    Norm,
    SelfAttention,
    StateSpace,
    attending,
    counted,
)

_SIZES = {
    "layers": "num_hidden_layers", "hidden": "hidden_size", "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads", "head_dim": "head_dim", "ffn": "intermediate_size", "experts": "num_experts",
    "top_k": "num_experts_per_tok", "moe_ffn": "moe_intermediate_size",
    "shared_expert_ffn": "shared_expert_intermediate_size", "first_dense_layers": "first_k_dense_replace",
    "moe_layer_every": "decoder_sparse_step",
}  # fmt: skip
"""Columns that are keys of a configuration under another name."""
_LATENT = {
    "kv_lora_rank": "kv_rank", "qk_head_dim": "nope_dim", "qk_rope_dim": "rope_dim", "v_head_dim": "value_dim",
}  # fmt: skip
"""Columns that are sizes of latent attention."""
_MAMBA = {"mamba_heads": "heads", "mamba_head_dim": "head_dim", "mamba_state": "state", "mamba_groups": "groups"}
_USUAL_MAMBA = {"mamba_head_dim": 64, "mamba_state": 128, "mamba_groups": 8}
"""Megatron Core's ``mamba_head_dim``, ``mamba_state_dim``, ``mamba_num_groups``; heads fill twice the hidden size."""
PATTERN = re.compile(r"[M*E-]+")
"""Of layers, a letter each: Mamba-2, attention, experts, feed-forward (Megatron Core, ``hybrid_layer_allocation``)."""
_NEEDED = ("layers", "hidden", "heads", "ffn")


def decoder_of_columns(row: Mapping[str, Any]) -> Decoder:
    """The decoder of a row; what a row leaves out is as models with its activation have it.

    Args:
        row: ``layers``, ``hidden``, ``heads``, ``ffn`` and ``vocab`` (or ``vocab_padded``); where known ``activation``
            (gelu unless stated), ``kv_heads``, ``head_dim``, ``seq_len``, ``max_position``, ``experts``, ``top_k``,
            ``moe_ffn``, ``shared_expert_ffn``, ``normalization``, ``bias``, ``tied_embeddings``,
            ``position_embedding``, ``qk_layernorm``, ``mla`` with its ranks, ``moe_layer_freq`` (which layers have
            experts, as Megatron-LM writes it), ``mtp_layers`` (``mtp_repeated``: one for all depths), ``layer_pattern``
            (a letter a layer, stages apart by "|", depths of prediction by "/"), and ``decoder_layers`` where
            ``layers`` are an encoder's. Empty cells count as left out. Where
            ``attention_type`` is ``mla`` and no rank is told, the model is the one that is known by its name.

    Raises:
        ModelError: a column that is needed is empty, an unknown activation, sizes that contradict each other, or latent
            attention of a model that nobody knows.
    """
    columns = {name: value for name, value in row.items() if value is not None and value == value and value != ""}
    name = str(columns.get("model") or columns.get("case") or "the row")
    if not set(_NEEDED) & columns.keys() and "model" in columns:
        return known_decoder(name)
    if missing := [column for column in _NEEDED if column not in columns]:
        raise ModelError(f"{name}: no {', '.join(missing)}: fill in the column")
    if columns.get("attention_type") == "mla" and "kv_lora_rank" not in columns:
        return _known(name, columns)
    config = {
        **_kind(str(columns.get("activation", "gelu")), name),
        **({"moe_layer_freq": _listed(columns, name)} if "moe_layer_freq" in columns else {}),
        **{key: _whole(columns, column, name) for column, key in _SIZES.items() if column in columns},
        "vocab_size": _whole(columns, "vocab" if "vocab" in columns else "vocab_padded", name),
        "max_position_embeddings": _whole(columns, "max_position" if "max_position" in columns else "seq_len", name),
    }
    if "layer_pattern" in columns:
        return _patterned(config, columns, name)
    decoder = _as_stated(decoder_of(config, name), columns)
    if "decoder_layers" in columns:
        return _with_encoder(decoder, columns, name)
    return decoder.predicting(_whole({"mtp_layers": 0, **columns}, "mtp_layers", name))


def _listed(columns: Mapping[str, Any], name: str) -> list[int]:
    """Whether each layer has experts: of ``([0]*3+[1]*5)``, or of a number, each so manieth from the first on."""
    words, depth = str(columns["moe_layer_freq"]).replace(" ", ""), _whole(columns, "layers", name)
    if words.isdecimal() and int(words):
        return [int(at % int(words) == 0) for at in range(depth)]
    if not re.fullmatch(r"\(?\[[01]\](\*\d+)?(\+\[[01]\](\*\d+)?)*\)?", words):
        raise ModelError(f"{name}: moe_layer_freq = {shown(words)} is not read: write it like ([0]*3+[1]*5)")
    runs = re.findall(r"\[([01])\](?:\*(\d+))?", words)
    listed = [int(sparse) for sparse, count in runs for _ in range(int(count or 1))]
    if len(listed) != depth:
        raise ModelError(f"{name}: moe_layer_freq lists {len(listed)} layers, and the model has {depth}: correct one")
    return listed


def _patterned(config: dict[str, Any], columns: Mapping[str, Any], name: str) -> Decoder:
    """Layers of one branch each, by the letters of a pattern, with the parts of a model of the same columns."""
    letters, *predicted = str(columns["layer_pattern"]).replace("|", "").split("/")
    if not all(map(PATTERN.fullmatch, (letters, *predicted))) or len(set(predicted)) > 1:
        written = shown(str(columns["layer_pattern"]))
        raise ModelError(f"{name}: layer_pattern = {written} is not read: letters of M, *, E and - are")
    both = {"num_hidden_layers": 2, "moe_layer_freq": [0, 1]}
    decoder = _as_stated(decoder_of(config | both, name), columns)
    (dense, _), (sparse, _) = decoder.layers[0], decoder.layers[-1]
    made = {
        "M": Layer(attention=_mamba(columns, name), norms=1, norm=dense.norm),
        "*": Layer(attention=dense.attention, norms=1, norm=dense.norm),
        "-": Layer(feed_forward=dense.feed_forward, norms=1, norm=dense.norm),
        "E": Layer(feed_forward=sparse.feed_forward, norms=1, norm=dense.norm),
    }
    model = _of_layers(decoder, [made[letter] for letter in letters])
    if not predicted:
        return model
    inside = tuple(made[letter] for letter in predicted[0])
    repeated = bool(columns.get("mtp_repeated"))
    return replace(model, prediction=Prediction(layers=inside, depths=len(predicted), repeated=repeated))


def _mamba(columns: Mapping[str, Any], name: str) -> StateSpace:
    sizes = {**_USUAL_MAMBA, **columns}
    heads = 2 * _whole(columns, "hidden", name) // _whole(sizes, "mamba_head_dim", name)
    made: dict[str, Any] = {field: _whole({"mamba_heads": heads, **sizes}, at, name) for at, field in _MAMBA.items()}
    return StateSpace(**made)


def _with_encoder(decoder: Decoder, columns: Mapping[str, Any], name: str) -> Decoder:
    """``layers`` of an encoder, which see the whole source, then those of the decoder, which attend to it too."""
    (layer, count), *others = decoder.layers
    if others:
        raise ModelError(f"{name}: an encoder of layers that differ is not built: leave decoder_layers out")
    encoder, attends = attending(layer)
    return _of_layers(decoder, [*repeat(encoder, count), *repeat(attends, _whole(columns, "decoder_layers", name))])


def _of_layers(decoder: Decoder, each: list[Layer]) -> Decoder:
    kinds = counted(each)
    return replace(decoder, layers=kinds, order=tuple([kind for kind, _ in kinds].index(layer) for layer in each))


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
    if activation not in USUAL:
        hint = nearest(activation, USUAL)
        raise ModelError(f"{name}: unknown activation '{shown(activation)}'{hint}: one of {', '.join(USUAL)}")
    return dict(USUAL[activation])


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
        if columns.get("mla"):
            attention = _latent(attention, columns)
    if "bias" in columns:
        feed_forward = _biased(feed_forward, bool(columns["bias"]))
    return replace(layer, attention=attention, feed_forward=feed_forward, norm=norm or layer.norm)


def _latent(attention: SelfAttention, columns: Mapping[str, Any]) -> LatentAttention:
    """As wide in heads. Megatron Core's flag for norms of queries and keys is that of its latents' norms."""
    sizes: dict[str, Any] = {field: _whole(columns, column, "latent attention") for column, field in _LATENT.items()}
    return LatentAttention(
        heads=attention.heads,
        q_rank=_whole(columns, "q_lora_rank", "latent attention") if "q_lora_rank" in columns else 0,
        bias=attention.out_bias,
        normed=bool(columns.get("qk_layernorm", True)),
        **sizes,
    )


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
