"""Decoders from the columns of training tables."""

from __future__ import annotations

from typing import Any

import pytest

from neusight.errors import ModelError
from neusight.workloads.decoders.known import known_decoder
from neusight.workloads.decoders.layers import Experts, FeedForward, LatentAttention, SelfAttention, StateSpace
from neusight.workloads.decoders.table_rows import decoder_of_columns

SMALL: dict[str, Any] = {
    "model": "small", "layers": 2, "hidden": 64, "heads": 4, "ffn": 256, "vocab": 128, "seq_len": 32
}  # fmt: skip


def test_gelu_is_gpt() -> None:
    decoder = decoder_of_columns(SMALL)
    layer = decoder.layers[0][0]
    assert (decoder.tied, decoder.positions, layer.norm.op) == (True, 32, "layer_norm")
    # 12 h² + 13 h a layer, the embedding, positions and the last norm (Radford et al. 2019).
    assert decoder.parameters == 2 * (12 * 64**2 + 13 * 64) + 128 * 64 + 32 * 64 + 2 * 64


def test_squared_relu_is_nemotron() -> None:
    """arXiv:2402.16819, table 1: half of each head rotates, no bias, untied; layer norm."""
    decoder = decoder_of_columns({**SMALL, "activation": "squared_relu", "kv_heads": 2.0})
    layer = decoder.layers[0][0]
    assert isinstance(layer.attention, SelfAttention)
    assert isinstance(layer.feed_forward, FeedForward)
    assert (layer.attention.rotary, layer.attention.kv_heads, layer.attention.qkv_bias) == (8, 2, False)
    assert (layer.feed_forward.gated, layer.norm.op, decoder.tied, decoder.positions) == (False, "layer_norm", False, 0)


@pytest.mark.parametrize(("activation", "function"), [("swiglu", "silu"), ("geglu", "gelu")])
def test_gated_ones_are_llama_with_experts_where_told(activation: str, function: str) -> None:
    told = {**SMALL, "activation": activation, "experts": 8, "top_k": 2, "moe_ffn": 96, "kv_heads": None}
    fed = decoder_of_columns(told).layers[0][0].feed_forward
    assert isinstance(fed, Experts)
    assert (fed.experts, fed.top_k, fed.expert.ffn, fed.expert.activation) == (8, 2, 96, function)
    assert decoder_of_columns(told).layers[0][0].norm.op == "rms_norm"


def test_what_columns_state_goes_before_what_is_usual() -> None:
    told = {"normalization": "RMSNorm", "bias": False, "tied_embeddings": False, "position_embedding": "rope"}
    decoder = decoder_of_columns({**SMALL, **told, "qk_layernorm": True})
    attention = decoder.layers[0][0].attention
    assert isinstance(attention, SelfAttention)
    assert (attention.rotary, attention.qkv_bias, attention.out_bias, attention.qk_norm) == (16, False, False, "head")
    assert (decoder.tied, decoder.positions, decoder.norm) == (False, 0, decoder.layers[0][0].norm)
    assert decoder.parameters == 2 * (12 * 64**2 + 2 * 64 + 2 * 16) + 2 * 128 * 64 + 64


def test_latent_attention_is_deepseek() -> None:
    ranks = {"q_lora_rank": 24, "kv_lora_rank": 32, "qk_head_dim": 16, "qk_rope_dim": 8, "v_head_dim": 16}
    told = {"mla": True, "activation": "swiglu", "experts": 8, "top_k": 2, "moe_ffn": 48, "first_dense_layers": 1}
    decoder = decoder_of_columns({**SMALL, **told, **ranks})
    assert all(isinstance(layer.attention, LatentAttention) for layer, _ in decoder.layers)
    assert [isinstance(layer.feed_forward, Experts) for layer, _ in decoder.layers] == [False, True]


def test_what_is_missing_or_unknown_is_told_in_a_line() -> None:
    with pytest.raises(ModelError, match="small: no hidden, ffn: fill in the column"):
        decoder_of_columns({**SMALL, "hidden": None, "ffn": float("nan")})
    with pytest.raises(ModelError, match="small: unknown activation 'swigloo'; did you mean swiglu"):
        decoder_of_columns({**SMALL, "activation": "swigloo"})
    with pytest.raises(ModelError, match="small: vocab_padded = None is no whole number"):
        decoder_of_columns({name: value for name, value in SMALL.items() if name != "vocab"})
    with pytest.raises(ModelError, match="layers = many is no whole number"):
        decoder_of_columns({**SMALL, "layers": "many"})


def test_latent_attention_without_ranks_is_that_of_the_model_of_that_name() -> None:
    row = {"model": "deepseek-v3", "layers": 61, "hidden": 7168, "heads": 128, "ffn": 18432, "vocab": 129280}
    row |= {"seq_len": 4096, "attention_type": "mla", "activation": "swiglu"}
    assert decoder_of_columns(row) == known_decoder("deepseek-ai/DeepSeek-V3")
    with pytest.raises(ModelError, match="layers differ from those of deepseek-ai/DeepSeek-V3: give kv_lora_rank"):
        decoder_of_columns(row | {"layers": 60})
    with pytest.raises(ModelError, match="latent attention of a model that is not known by name"):
        decoder_of_columns(row | {"model": "mine"})


@pytest.mark.parametrize(
    ("written", "sparse"),
    [("([0]*3+[1]*5)", [0, 0, 0, 1, 1, 1, 1, 1]), ("[1]+[0]*7", [1] + [0] * 7), ("4", [1, 0, 0, 0] * 2)],
)
def test_layers_with_experts_are_listed_as_megatron_lists_them(written: str, sparse: list[int]) -> None:
    told = {**SMALL, "layers": 8, "activation": "swiglu", "experts": 8, "top_k": 2, "moe_ffn": 48}
    decoder = decoder_of_columns({**told, "moe_layer_freq": written})
    assert [isinstance(decoder.layers[kind][0].feed_forward, Experts) for kind in decoder.order] == list(
        map(bool, sparse)
    )


def test_a_pattern_has_a_letter_a_layer() -> None:
    """Mamba-2 fills twice the hidden size, in heads of 64 with states of 128 (Megatron Core's defaults)."""
    told = {**SMALL, "hidden": 256, "head_dim": 64, "activation": "swiglu", "experts": 8, "top_k": 2, "moe_ffn": 48}
    decoder = decoder_of_columns({**told, "layer_pattern": "M-|M*|ME"})
    layers = [decoder.layers[kind][0] for kind in decoder.order]
    assert [type(layer.branches[0]) for layer in layers] == [
        StateSpace, FeedForward, StateSpace, SelfAttention, StateSpace, Experts
    ]  # fmt: skip
    assert layers[0].attention == StateSpace(heads=8, head_dim=64, state=128, groups=8)
    assert {(layer.norms, len(layer.branches)) for layer in layers} == {(1, 1)}


def test_an_encoder_goes_before_layers_that_attend_to_it() -> None:
    """4 h² more, and a norm, for attention over the encoder; the encoder has a last norm of its own."""
    one, h = decoder_of_columns({**SMALL, "bias": False}), 64
    both = decoder_of_columns({**SMALL, "bias": False, "decoder_layers": 3})
    assert [both.layers[kind][0].encodes for kind in both.order] == [True] * 2 + [False] * 3
    assert both.parameters - one.parameters == 3 * (16 * h**2 + 3 * 2 * h) + 2 * h


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"moe_layer_freq": "[0]*x"}, r"moe_layer_freq = \[0\]\*x is not read: write it like"),
        ({"moe_layer_freq": "[0]*3"}, "moe_layer_freq lists 3 layers, and the model has 2"),
        ({"layer_pattern": "MX"}, "layer_pattern = MX is not read: letters of M"),
        ({"mla": True}, "kv_lora_rank = None is no whole number"),
    ],
)
def test_arrangements_that_cannot_be_read_are_told(columns: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        decoder_of_columns({**SMALL, "experts": 4, "top_k": 2, "activation": "swiglu", **columns})
