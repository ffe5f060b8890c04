"""Every kind of model of the catalogue traces in both modes and precisions without a fallback."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from neusight.kernels import Attention, Gemm
from neusight.workloads.graph import Graph
from neusight.workloads.tensors import TensorSpec
from neusight.workloads.trace.tracing import trace

BATCH, LENGTH, CAPACITY, EXPERTS = 2, 32, 8, 4
TOKENS = {"input_ids": TensorSpec((BATCH, LENGTH), "int64")}
BOTH = TOKENS | {"decoder_input_ids": TensorSpec((BATCH, LENGTH), "int64")}
IMAGE = {"pixel_values": TensorSpec((BATCH, 3, 32, 32))}


def bert(**options: Any) -> Any:
    from transformers import BertConfig, BertForPreTraining

    config = BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, vocab_size=99)
    return BertForPreTraining._from_config(config, **options)


def opt(**options: Any) -> Any:
    from transformers import OPTConfig, OPTForCausalLM

    config = OPTConfig(hidden_size=32, num_hidden_layers=2, ffn_dim=64, num_attention_heads=4, vocab_size=99,
                       word_embed_proj_dim=32, use_cache=False)  # fmt: skip
    return OPTForCausalLM._from_config(config, **options)


def llama(**options: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(hidden_size=32, num_hidden_layers=2, intermediate_size=64, num_attention_heads=4,
                         num_key_value_heads=2, vocab_size=99, use_cache=False)  # fmt: skip
    return LlamaForCausalLM._from_config(config, **options)


def t5(**options: Any) -> Any:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(d_model=32, num_layers=3, d_ff=64, num_heads=4, d_kv=8, vocab_size=99, use_cache=False)
    return T5ForConditionalGeneration._from_config(config, **options)


def switch(**options: Any) -> Any:
    from transformers import SwitchTransformersConfig, SwitchTransformersForConditionalGeneration

    config = SwitchTransformersConfig(
        d_model=32, d_ff=64, d_kv=8, num_heads=4, num_layers=2, num_sparse_encoder_layers=1, num_decoder_layers=2,
        num_sparse_decoder_layers=1, num_experts=EXPERTS, expert_capacity=CAPACITY, vocab_size=99, use_cache=False,
    )  # fmt: skip
    return SwitchTransformersForConditionalGeneration._from_config(config, **options)


def vit(**options: Any) -> Any:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, image_size=32,
                       patch_size=8)  # fmt: skip
    return ViTForImageClassification._from_config(config, **options)


def resnet(**options: Any) -> Any:
    from transformers import ResNetConfig, ResNetForImageClassification

    return ResNetForImageClassification._from_config(
        ResNetConfig(embedding_size=8, hidden_sizes=[16, 32], depths=[1, 2])
    )


MODELS: dict[str, tuple[Callable[..., Any], dict[str, TensorSpec]]] = {
    "bert": (bert, TOKENS),
    "opt": (opt, TOKENS),
    "llama": (llama, TOKENS),
    "t5": (t5, BOTH),
    "switch": (switch, BOTH),
    "vit": (vit, IMAGE),
    "resnet": (resnet, IMAGE),
}
FUSED = ["bert", "opt", "llama", "t5", "vit"]


def traced(name: str, attention: str = "eager", **options: Any) -> Graph:
    build, inputs = MODELS[name]
    return trace(lambda: build(attn_implementation=attention), inputs, name=name, attention=attention, **options)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_model_is_covered(name: str, mode: str, dtype: str) -> None:
    graph = traced(name, mode=mode, dtype=dtype, optimizer="adamw")
    assert not graph.uncovered and not any(k.kernel.op == "fallback" for k in graph.fold().kernels)
    heavy = [k for n in graph.nodes for k in n.kernels if k.family in ("gemm", "conv2d")]
    # Switch routes in float32 whatever the model's precision.
    assert all(k.dtype == dtype or (name == "switch" and k.dtype == "float32") for k in heavy) and heavy


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("mode", ["inference", "training"])
def test_model_with_fused_attention_writes_no_scores(name: str, mode: str) -> None:
    graph = traced(name, "sdpa", mode=mode, dtype="bfloat16")
    found = [k for n in graph.nodes for k in n.kernels]
    assert sum(isinstance(k, Attention) and k.op == "forward" for k in found) == (9 if name == "t5" else 2)
    assert not any(k.op == "softmax" for k in found)


def test_grouped_queries_keep_their_heads_in_flash_attention() -> None:
    graph = traced("llama", "sdpa", dtype="bfloat16")
    found = {(k.heads, k.kv_heads) for n in graph.nodes for k in n.kernels if isinstance(k, Attention)}
    assert len(found) == 1 and found <= {(4, 2), (4, 4)}


@pytest.mark.parametrize("name", ["bert", "opt", "llama"])
def test_batch_with_nothing_padded_needs_no_mask(name: str) -> None:
    build, inputs = MODELS[name]
    masked = inputs | {"attention_mask": TensorSpec((BATCH, LENGTH), "int64")}
    graph = trace(lambda: build(attn_implementation="sdpa"), masked, name=name, dtype="bfloat16", attention="sdpa")
    # With a mask, the memory-efficient kernel would run instead, and kernels before it that build the mask.
    assert sum(n.operator.startswith("aten._scaled_dot_product_flash") for n in graph.nodes) == 2
    assert not {"where", "masked_fill"} & {k.op for n in graph.nodes for k in n.kernels}


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_every_switch_expert_runs_on_a_padded_buffer(mode: str) -> None:
    graph = traced("switch", mode=mode)
    experts = [
        k
        for n in graph.nodes
        if n.phase == "forward" and ".experts.expert_" in n.layer
        for k in n.kernels
        if isinstance(k, Gemm)
    ]
    # Two sparse layers, every expert, up and down projection, on batch x capacity tokens.
    assert [k.m for k in experts] == [BATCH * CAPACITY] * (2 * EXPERTS * 2)


def test_encoder_and_decoder_layers_of_t5_repeat() -> None:
    graph = traced("t5")
    # The first layer of each stack also computes the position bias that the others reuse.
    assert [r.count for r in graph.repeats] == [2, 2]


def test_hugging_face_functions_are_restored() -> None:
    from transformers import masking_utils

    before = masking_utils.is_tracing
    traced("opt")
    assert masking_utils.is_tracing is before
