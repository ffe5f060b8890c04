"""Decoders that are built from a configuration are the modules that transformers builds from it.

Fusions that tell a built step from a traced forward pass, undone here:

- Engines keep query, key and value in one matrix, gate and up, and the two latent projections: their products are split
  into the parts that a family keeps apart (``Projection.stored`` and ``FUSED`` tell what is one there, too).
- Logits: of every position there, of the last one of each sequence here.
- Experts: a row of every token-expert pair there (``batched_mm``), one kernel here; Llama 4 runs every expert on all
  tokens there.
- A window or a cache of several heads a key is handed to attention as a mask there, so that all scores are computed.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import numpy as np
import pytest
from small_decoders import CONFIGS, config_of, module_class, parsed

from neusight.kernels import Attention, Gemm
from neusight.kernels.work import attention_pairs, work_of
from neusight.requests import Plan, Request
from neusight.workloads.decoders.architecture import decoder_of
from neusight.workloads.decoders.build import step_program
from neusight.workloads.decoders.decoder import Decoder
from neusight.workloads.decoders.layers import Experts, Projection, SelfAttention
from neusight.workloads.decoders.quantisation import ServingPrecision
from neusight.workloads.decoders.shares import Steps
from neusight.workloads.program import Program
from neusight.workloads.tensors import TensorSpec
from neusight.workloads.trace.tracing import trace

SEQUENCES, LENGTH = 2, 32
TOKENS = SEQUENCES * LENGTH
Shape = tuple[int, int, int]

FUSED: dict[str, frozenset[str]] = {
    "qwen3_next": frozenset({"qkvz", "decay"}),
    "nemotron_h": frozenset({"input"}),
    "granitemoe": frozenset({"gate up"}),
    "granitemoehybrid": frozenset({"gate up", "input"}),
    "jamba": frozenset({"input", "scan inputs"}),
    "mamba": frozenset({"input", "scan inputs"}),
    **dict.fromkeys(("bamba", "falcon_h1"), frozenset({"input"})),
}
"""Products that transformers has as one, too, beside those of which ``Projection.stored`` says so."""
TRACED = (
    *("llama", "llama biased", "mistral", "mixtral", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "qwen3_moe mixed"),
    *("gemma", "gemma2", "gemma3_text", "phi", "phi3", "falcon", "falcon new", "gpt_oss", "deepseek_v2", "deepseek_v3"),
    *("llama4_text", "glm4", "glm4_moe", "gptj", "gpt2", "gpt_neox", "opt", "opt narrow", "bloom", "minimax_m2"),
    *("olmo2", "olmo3", "starcoder2", "cohere", "granite", "stablelm", "nemotron", "qwen3_next"),
    *("ministral3", "arcee", "olmoe", "glm4_moe_lite", "jamba", "bamba", "granitemoehybrid", "falcon_h1", "mamba"),
)
EAGER = ("gptj", "gpt_oss", "gemma2", "bloom", "mamba")
"""Their attention is written out in transformers: two products of all scores; Mamba has none."""
WRITTEN_OUT = ("qwen3_next", "jamba", "bamba", "granitemoehybrid", "falcon_h1", "mamba")
"""Linear attention there is dozens of small products in float32, which are no projections."""


WINDOWED = (
    *("qwen2", "qwen2 windowed", "qwen3", "gemma2", "gemma3_text", "gpt_oss", "llama4_text", "olmo3", "exaone4"),
    *("cohere2", "qwen3_next"),
)
"""Whose configurations in transformers tell what each layer sees."""


@cache
def traced(name: str) -> tuple[tuple[Any, int], ...]:
    """Kernels of a forward pass over all positions, with how often each runs."""
    how = "eager" if name.split()[0] in EAGER else "sdpa"
    kind, config = module_class(name), parsed(name)
    asked = Request.of(name, batch=SEQUENCES, seq_len=LENGTH, dtype="bfloat16", attention=how)
    found = trace(
        lambda: kind._from_config(config, attn_implementation=how, experts_implementation="batched_mm"),
        {"input_ids": TensorSpec((SEQUENCES, LENGTH), "int64")},
        asked,
        allow_fallback=name in WRITTEN_OUT,
    )
    return tuple(Counter(kernel for node, _ in found.expanded() for kernel in node.kernels).items())


@cache
def built(name: str) -> tuple[Decoder, Program]:
    """A pass over the same tokens, all of them prompts."""
    decoder = decoder_of(config_of(name))
    steps = Steps.of(prompts=SEQUENCES, prompt_tokens=LENGTH)
    return decoder, step_program(decoder, steps, ServingPrecision(), Plan())


def projections(decoder: Decoder, layer: int) -> dict[str, tuple[int, ...]]:
    """Parts of every fused matrix of a kind of layers."""
    own, _ = decoder.layers[layer]
    every = list(own.attention.projections(decoder.hidden)) if own.attention else []
    fed = own.feed_forward
    if isinstance(fed, Experts):
        shared = fed.shared.projections(decoder.hidden) if fed.shared else ()
        return {p.name: parts(p) for p in every} | {f"shared {p.name}": parts(p) for p in shared}
    return {p.name: parts(p) for p in (*every, *(fed.projections(decoder.hidden) if fed else ()))}


def parts(projection: Projection) -> tuple[int, ...]:
    """Widths of the products that its module runs."""
    return projection.parts if projection.stored == "apart" else (projection.n,)


def built_products(name: str) -> Counter[Shape]:
    decoder, program = built(name)
    fused = FUSED.get(name.split()[0], frozenset())
    found: Counter[Shape] = Counter()
    layers = [segment.layer for segment in program.segments for _ in segment.parts]
    for layer, part in zip(layers, program.counted_parts, strict=True):
        runs = int(part.runs[0])
        if part.batch.family == "gemm" and runs and part.batch["op"][0] == "linear":
            m, n, k = (int(part.batch[field][0]) for field in ("m", "n", "k"))
            known = projections(decoder, layer).get(part.name, (n,)) if layer >= 0 else (n,)
            rows = TOKENS if part.name in ("head", "embedding down") else m
            for width in (n,) if part.name.removeprefix("shared ") in fused else known:
                found[rows, width, k] += runs
    return found


def built_experts(name: str) -> Counter[Shape]:
    """Rows of pairs of token and expert, through both matrices."""
    found: Counter[Shape] = Counter()
    for part in built(name)[1].counted_parts:
        if part.batch.family == "moe":
            pairs, runs = TOKENS * int(part.batch["top_k"][0]), int(part.runs[0])
            hidden, ffn = int(part.batch["hidden"][0]), int(part.batch["ffn"][0])
            found[pairs, (2 if part.batch["gated"][0] else 1) * ffn, hidden] += runs
            found[pairs, hidden, ffn] += runs
    return found


def traced_products(name: str, op: str) -> Counter[Shape]:
    """``linear`` as they are; of batches those of one row each, which are experts', as so many rows."""
    found: Counter[Shape] = Counter()
    for kernel, count in traced(name):
        if isinstance(kernel, Gemm) and kernel.op == op:
            if op == "linear":
                found[kernel.m, kernel.n, kernel.k] += count
            elif 1 in (kernel.m, kernel.n) and kernel.batch >= TOKENS:
                found[kernel.batch, max(kernel.m, kernel.n), kernel.k] += count
    return found


@pytest.mark.parametrize("name", TRACED)
def test_products_are_those_of_the_traced_forward(name: str) -> None:
    assert built_products(name) == traced_products(name, "linear")
    if name != "llama4_text":
        assert built_experts(name) == traced_products(name, "bmm")


def test_experts_of_llama_4_hold_the_same_weights() -> None:
    every = [(k, count) for k, count in traced("llama4_text") if isinstance(k, Gemm) and k.op == "bmm"]
    assert {(k.batch, k.n, k.k) for k, _ in every} == {(8, 192, 64), (8, 64, 96)}
    assert {shape[1:] for shape in built_experts("llama4_text")} == {(192, 64), (64, 96)}


@pytest.mark.parametrize("name", [n for n in TRACED if n not in EAGER and n not in WRITTEN_OUT])
def test_attention_has_the_pairs_of_the_traced_one(name: str) -> None:
    """All pairs where a mask hides some; FLOP too, unless values are padded to the width of keys there."""
    theirs = [(k, count) for k, count in traced(name) if isinstance(k, Attention)]
    ours = [p for p in built(name)[1].counted_parts if p.name == "attention of prompts"]
    assert sum(count for _, count in theirs) == sum(int(p.runs[0]) for p in ours)
    shapes = {(k.batch, k.heads, k.q_len, k.kv_len, k.head_dim) for k, _ in theirs}
    fields = ("batch", "heads", "q_len", "kv_len", "head_dim")
    assert shapes == {tuple(int(p.batch[field][0]) for field in fields) for p in ours}
    if all(k.causal for k, _ in theirs):
        pairs = sum(count * k.q_len * (k.q_len + 1) / 2 for k, count in theirs)
        assert sum(float(attention_pairs(p.batch)[0] * p.runs[0]) for p in ours) == pairs
        own = sum(float(work_of(p.batch).flops[0] * p.runs[0]) for p in ours)
        assert own <= sum(
            count * 4 * k.batch * k.heads * k.head_dim * k.q_len * (k.q_len + 1) / 2 for k, count in theirs
        )
        if not name.startswith(("deepseek", "glm4_moe_lite")):
            assert own == pytest.approx(4 * pairs * ours[0].batch["batch"][0] * np.prod(next(iter(shapes))[1::3]))


@pytest.mark.parametrize("name", EAGER[:-1])
def test_attention_that_is_written_out_has_the_same_heads(name: str) -> None:
    scores = [(k, n) for k, n in traced(name) if isinstance(k, Gemm) and k.op == "bmm" and k.m == k.n == LENGTH]
    (attention,) = {layer.attention for layer, _ in built(name)[0].layers if layer.attention.window == 0}
    assert isinstance(attention, SelfAttention)
    assert {(k.batch, k.k) for k, _ in scores} == {(SEQUENCES * attention.heads, attention.head_dim)}
    assert sum(n for _, n in scores) == built(name)[0].depth


@pytest.mark.parametrize("name", CONFIGS)
def test_parameters_are_those_of_the_module(name: str) -> None:
    import torch

    with torch.device("meta"):
        module = module_class(name)(parsed(name))
    assert decoder_of(config_of(name)).parameters == sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize("name", WINDOWED)
def test_the_same_layers_have_a_window(name: str) -> None:
    decoder = decoder_of(config_of(name))
    own = [decoder.layers[kind][0].attention for kind in decoder.order]
    windows = [isinstance(part, SelfAttention) and part.window > 0 for part in own]
    kinds = parsed(name).layer_types or ["full_attention"] * decoder.depth
    assert windows == [kind in ("sliding_attention", "chunked_attention") for kind in kinds]
