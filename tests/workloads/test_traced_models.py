"""Every kind of model of the catalogue traces in both modes and precisions without a fallback."""

from __future__ import annotations

from itertools import product

from small_models import BATCH, CAPACITY, EXPERTS, FUSED, LENGTH, MODELS, builder, inputs_of, kernels, traced

from neusight.kernels import Attention, Gemm, work_of
from neusight.plans import single
from neusight.requests import MODES, Request
from neusight.workloads.tensors import TensorSpec
from neusight.workloads.trace.tracing import trace

BOTH_OF_T5 = 15
"""Layers with attention: one each in five encoder layers, two in each of five decoder layers."""


def test_every_model_is_covered_in_its_dtype() -> None:
    wrong = []
    for name, (mode, dtype) in product(MODELS, (*((mode, "float32") for mode in MODES), ("training", "bfloat16"))):
        optimizer = "adamw" if mode == "training" else "none"
        workload = traced(name, mode=mode, dtype=dtype, optimizer=optimizer)
        run = [launch.kernel for launch in workload.launches]
        heavy = {k.dtype for k in run if k.family in ("gemm", "conv2d")}
        # Switch routes in float32 whatever the model's precision.
        allowed = {dtype, "float32"} if name == "switch" else {dtype}
        if workload.uncovered or any(k.op == "fallback" for k in run) or not heavy or not heavy <= allowed:
            wrong.append((name, mode, dtype, workload.uncovered, heavy))
    assert wrong == []


def test_distinct_bytes_are_fewer_than_those_that_kernels_move() -> None:
    wrong = []
    for name, mode in product(MODELS, MODES):
        workload = traced(name, mode=mode, dtype="float32", optimizer="adamw" if mode == "training" else "none")
        program = single(workload)
        moved = sum(float((work_of(batch).bytes * program.counts[at]).sum()) for batch, at in program.batches)
        if not 0 < sum(workload.traffic_bytes) < 0.5 * moved:
            wrong.append((name, mode, workload.traffic_bytes, moved))
    assert wrong == []


def test_models_with_fused_attention_write_no_scores() -> None:
    wrong = []
    for name, mode in product(FUSED, MODES):
        run = kernels(traced(name, mode=mode, attention="sdpa", dtype="bfloat16"))
        fused = sum(isinstance(k, Attention) and k.op == "forward" for k in run)
        if fused != (BOTH_OF_T5 if name == "t5" else 2) or any(k.op == "softmax" for k in run):
            wrong.append((name, mode, fused))
    assert wrong == []


def test_grouped_queries_keep_their_heads_in_flash_attention() -> None:
    run = kernels(traced("llama", attention="sdpa", dtype="bfloat16"))
    heads = {(k.heads, k.kv_heads) for k in run if isinstance(k, Attention)}
    assert len(heads) == 1 and heads <= {(4, 2), (4, 4)}


def test_a_batch_with_nothing_padded_needs_no_mask() -> None:
    for name in ("bert", "opt", "llama"):
        masked = inputs_of(name) | {"attention_mask": TensorSpec((BATCH, LENGTH), "int64")}
        workload = trace(builder(name, "sdpa"), masked, Request.of(name, dtype="bfloat16", attention="sdpa"))
        # With a mask, the memory-efficient kernel would run instead, and kernels before it that build the mask.
        flash = sum(n.copies for n in workload.nodes if n.operator.startswith("aten._scaled_dot_product_flash"))
        assert (name, flash) == (name, 2)
        assert not {"where", "masked_fill"} & {k.op for k in kernels(workload)}, name


def test_every_switch_expert_runs_on_a_padded_buffer() -> None:
    for mode in MODES:
        run = kernels(traced("switch", mode=mode), "forward", layer=".experts.expert_")
        # Two sparse layers, every expert, up and down projection, on batch x capacity tokens.
        assert [k.m for k in run if isinstance(k, Gemm)] == [BATCH * CAPACITY] * (2 * EXPERTS * 2), mode


def test_hugging_face_functions_are_restored() -> None:
    from transformers import masking_utils

    before = masking_utils.is_tracing
    trace(builder("opt"), inputs_of("opt"), Request.of("opt"))
    assert masking_utils.is_tracing is before
