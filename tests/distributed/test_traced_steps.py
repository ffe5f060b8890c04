"""Traced steps that devices share: layers as segments, stages, replicas, recomputation, and what a step takes."""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from neusight import Predictor
from neusight.devices import cluster_of, load_device
from neusight.distributed.sources import balanced
from neusight.engines import engine_named
from neusight.errors import ModelError
from neusight.plans.memory import RankMemory, program_memory
from neusight.plans.stages import Stage
from neusight.plans.states import States, TrainingStep
from neusight.plans.trace_layers import blocks_of
from neusight.plans.traced import TracedProgram
from neusight.questions import Training
from neusight.requests import Plan
from neusight.transforms.recompute import recomputed
from neusight.transforms.unrolled import unroll
from neusight.workloads import Workload, load_workload

STEP: dict[str, Any] = {"mode": "training", "optimizer": "adam", "seq_len": 64}
LONG = STEP | {"seq_len": 1024}
"""So long that the host has time."""
GPU = "a100-sxm-40gb"


@cache
def workload(name: str = "gpt2") -> Workload:
    return load_workload(name, batch=2, **STEP)


@cache
def traced(name: str = "gpt2") -> TracedProgram:
    return TracedProgram.of(workload(name))


def test_stretches_have_the_least_largest_sum() -> None:
    random = np.random.default_rng(0)
    for parts in (1, 2, 3):
        costs = random.random(7)
        bounds = balanced(costs, parts)
        largest = max(costs[a:b].sum() for a, b in pairwise(bounds))
        cuts = np.array(np.meshgrid(*[np.arange(1, 7)] * (parts - 1))).reshape(parts - 1, -1).T if parts > 1 else [[]]
        tried = [[0, *cut, 7] for cut in cuts if list(cut) == sorted(set(cut))]
        best = min(max(costs[a:b].sum() for a, b in pairwise(t)) for t in tried)
        assert largest == pytest.approx(best)
        assert (np.diff(bounds) > 0).all()


@pytest.mark.parametrize("name", ["gpt2", "bert-base", "t5-small"])
def test_segments_hold_every_kernel_of_the_passes_and_every_parameter(name: str) -> None:
    program = traced(name).program
    counts: Counter[Any] = Counter()
    layers = map(program.order.count, range(len(program.layers)))
    for segment, times in zip(program.segments, (1, *layers, 1), strict=True):
        for part in segment.parts:
            counts[part.batch.kernel(0), part.name, part.phase] += round(times * part.runs)
    whole = {(one.kernel, one.operator, one.phase): one.count for one in workload(name).launches}
    assert counts == {key: count for key, count in whole.items() if key[2] != "optimizer"}
    assert {(part.batch.kernel(0), part.name): part.runs for part in traced(name).update} == {
        key[:2]: count for key, count in whole.items() if key[2] == "optimizer"
    }
    assert sum(traced(name).parameters) == workload(name).parameters


def test_equal_layers_are_told_once_and_stages_send_the_residual_stream() -> None:
    program = traced()
    assert program.depth == 12 and program.program.order == (0, *(1,) * 11)
    hidden = 4 * 2 * 64 * 768
    assert program.sent_bytes[1:12].tolist() == [hidden] * 11
    assert program.tied_parameters == 50257 * 768


def test_encoder_and_decoder_blocks_are_layers_in_the_order_of_the_forward_pass() -> None:
    step = unroll(workload("t5-small"))
    at = dict(
        zip((node.layer.name().split(".layer.")[0] for node in step.nodes), blocks_of(step).tolist(), strict=True)
    )
    blocks = [at[f"{side}.block.{i}"] for side in ("encoder", "decoder") for i in range(6)]
    assert blocks == list(range(1, 13))


def test_replicas_exchange_gradients_once_a_step(predictor: Predictor) -> None:
    one = predictor.estimate("gpt2", GPU, plan=Plan(micro_batch_size=2, global_batch_size=6), **LONG)
    many = predictor.estimate("gpt2", GPU, plan=Plan(dp=4, micro_batch_size=2, global_batch_size=24), **LONG)
    assert many.latency_s - one.latency_s == pytest.approx(many.by_phase["link"])
    sharded = predictor.estimate(
        "gpt2", GPU, plan=Plan(dp=4, micro_batch_size=2, global_batch_size=24, shard="zero1"), **LONG
    )
    assert sharded.by_phase["optimizer"] < many.by_phase["optimizer"] / 3
    assert sharded.memory.optimizer == pytest.approx(many.memory.optimizer / 4, abs=1)


def test_fully_sharded_weights_take_a_share_and_what_is_gathered(predictor: Predictor) -> None:
    whole, shared = (
        predictor.estimate("gpt2", GPU, plan=Plan(dp=4, micro_batch_size=2, global_batch_size=8, shard=shard), **LONG)
        for shard in ("none", "zero3")
    )
    assert shared.memory.weights == pytest.approx(whole.memory.weights / 4, abs=1)
    assert shared.memory.peak_bytes < whole.memory.peak_bytes


@pytest.mark.parametrize("name", ["gpt2", "bert-base"])
@pytest.mark.parametrize("launch", ["eager", "compiled"])
def test_a_plan_for_one_device_is_the_step_on_it(predictor: Predictor, name: str, launch: str) -> None:
    plan = Plan(micro_batch_size=2, global_batch_size=2)
    assert predictor.estimate(name, GPU, plan=plan, launch=launch, **STEP) == predictor.estimate(
        name, GPU, batch=2, launch=launch, **STEP
    )


def test_micro_batches_on_one_device_repeat_its_passes_and_update_once(predictor: Predictor) -> None:
    one = predictor.estimate("gpt2", GPU, batch=4, **LONG)
    three = predictor.estimate("gpt2", GPU, plan=Plan(micro_batch_size=4, global_batch_size=12), **LONG)
    passes = ("forward", "backward")
    assert [three.by_phase[name] for name in passes] == pytest.approx([3 * one.by_phase[name] for name in passes])
    assert three.by_phase["optimizer"] == pytest.approx(one.by_phase["optimizer"])
    assert three.latency_s == pytest.approx(sum(three.by_phase[name] for name in (*passes, "optimizer")))


PLANS = [
    Plan(dp=4, micro_batch_size=2, global_batch_size=8),
    Plan(dp=4, micro_batch_size=2, global_batch_size=8, overlap_grad_reduce=True),
    Plan(dp=4, micro_batch_size=2, global_batch_size=8, shard="zero3", overlap_grad_reduce=True),
    Plan(tp=4, micro_batch_size=8, global_batch_size=8),
    Plan(pp=4, micro_batch_size=2, global_batch_size=8),
    Plan(pp=4, vp=3, micro_batch_size=2, global_batch_size=8),
    Plan(dp=2, tp=2, pp=2, micro_batch_size=2, global_batch_size=8),
]


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_faster_links_never_slow_a_shared_step(predictor: Predictor, plan: Plan) -> None:
    from neusight.devices import load_device

    device = load_device(GPU)
    times = []
    for factor in (1.0, 1.5, 4.0):
        links = [
            one.model_copy(update={"bandwidth_bytes_per_s": factor * one.bandwidth_bytes_per_s}) for one in device.links
        ]
        times.append(
            predictor.estimate("gpt2", device.model_copy(update={"links": links}), plan=plan, **STEP).latency_s
        )
    assert all(faster <= slower * (1 + 1e-9) for slower, faster in pairwise(times))


@pytest.mark.parametrize("mode", ["training", "inference"])
@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_a_shared_step_is_the_sum_of_its_rows_and_of_all_samples(predictor: Predictor, plan: Plan, mode: str) -> None:
    step = STEP | {"mode": mode, "optimizer": "adam" if mode == "training" else "none"}
    estimate = predictor.estimate("gpt2", GPU, plan=plan, **step)
    assert (estimate.samples, estimate.batch, estimate.devices) == (8, 8, plan.world)
    low_s, high_s = estimate.interval
    assert estimate.bound_s <= low_s <= estimate.latency_s <= high_s
    assert estimate.gpu_hours(8) == pytest.approx(plan.world * estimate.latency_s / 3600)


def test_one_micro_batch_passes_the_stages_one_after_another(predictor: Predictor) -> None:
    whole = predictor.estimate("gpt2", GPU, batch=4, **LONG)
    piped = predictor.estimate("gpt2", GPU, plan=Plan(pp=4, micro_batch_size=4, global_batch_size=4), **LONG)
    # All passes of all stages, and each updates a part; sends are short.
    assert piped.latency_s == pytest.approx(whole.latency_s, rel=0.05)
    assert piped.by_phase["optimizer"] < whole.by_phase["optimizer"] / 2


def test_more_micro_batches_or_chunks_leave_a_smaller_share_to_the_bubble(predictor: Predictor) -> None:
    def share(**plan: int) -> float:
        step = predictor.estimate("gpt2", GPU, plan=Plan(pp=4, micro_batch_size=1, **plan), **LONG)
        return step.by_phase["pipeline"] / step.latency_s

    shares = [share(global_batch_size=n) for n in (1, 4, 32)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.6 > 0.2 > shares[2]
    assert share(global_batch_size=8, vp=3) < share(global_batch_size=8)


def test_recomputed_layers_keep_their_inputs_and_run_forward_twice(predictor: Predictor) -> None:
    kept, again = (
        predictor.estimate("gpt2", GPU, plan=Plan(micro_batch_size=4, global_batch_size=8, recompute=how), **LONG)
        for how in ("none", "full")
    )
    assert again.memory.activations < kept.memory.activations / 4
    assert again.memory.peak_bytes < kept.memory.peak_bytes
    longer_s = again.latency_s - kept.latency_s
    assert 0.7 * kept.by_phase["forward"] < longer_s < kept.by_phase["forward"]


CORES = {
    "sdpa": {"aten._scaled_dot_product_flash_attention.default": 1},
    # Keys and values of 8 heads for 32, their product with queries, scale, mask, outputs and their transposition.
    "eager": {"aten.clone.default": 3, "aten.bmm.default": 2, "aten.mul.Tensor": 1, "aten.add.Tensor": 1,
              "aten._softmax.default": 1},
}  # fmt: skip


@pytest.mark.parametrize("attention", CORES)
def test_the_core_of_attention_runs_twice_where_it_is_selected(attention: str) -> None:
    step = load_workload("llama-3.2-1b", batch=2, dtype="bfloat16", attention=attention, **STEP)
    again: Counter[str] = Counter()
    for part in recomputed(TracedProgram.of(step).program.layers[1], "selective", step.request.engine):
        again[part.name] += round(part.runs)
    casts = {name for name in again if "_to_copy" in name}
    assert {name: count for name, count in again.items() if name not in casts} == CORES[attention]


def test_less_is_kept_the_more_is_computed_again() -> None:
    step = TracedProgram.of(load_workload("gpt2", batch=2, attention="eager", **STEP))
    stage = Stage(index=0, of=2, chunks=(step.program.order,))
    nothing = States(weights=0.0, gradients=0.0, optimizer=0.0, cast=0.0)
    training, device = TrainingStep(seq_len=STEP["seq_len"], engine=engine_named("torch-eager")), load_device(GPU)

    def memory(plan: Plan) -> RankMemory:
        return program_memory(step.program, [(stage, nothing)], plan, training, device)[0]

    peaks = [
        memory(Plan(pp=2, global_batch_size=4, schedule="gpipe", recompute=how, recompute_layers=layers)).activations
        for how, layers in (("none", 0), ("selective", 0), ("operators", 0), ("full", 6), ("full", 0))
    ]
    assert peaks[0] > peaks[1] > peaks[2] > peaks[4]
    assert peaks[0] > peaks[3] > peaks[4]


REFUSED = [
    (Plan(pp=13, global_batch_size=1), "13 stages of 1 chunks need as many layers: gpt2 has 12"),
    (Plan(cp=2, global_batch_size=1), "cp 2 of a traced model is not estimated"),
    (Plan(dp=2, global_batch_size=2, shard="hsdp"), "shard hsdp of a traced model is not estimated"),
]


@pytest.mark.parametrize(("plan", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_is_not_estimated_is_refused(predictor: Predictor, plan: Plan, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        predictor.estimate("gpt2", GPU, plan=plan, **STEP)


def test_a_batch_with_a_plan_is_refused(predictor: Predictor) -> None:
    with pytest.raises(ModelError, match="batch 3, but the plan has 4 samples a step"):
        predictor.estimate("gpt2", GPU, batch=3, plan=Plan(global_batch_size=4, dp=4), **STEP)


def test_a_training_step_of_any_model_is_the_estimate_of_its_plan(predictor: Predictor) -> None:
    cluster = cluster_of(GPU, 4)
    options = {"global_batch_size": 8, "micro_batch_size": 2, "tp": 2, "seq_len": 1024, "dtype": "float32"}
    run = Training.named({"model": "gpt2", "cluster": cluster, **options, "engine": "torch-eager"}).resolve()
    step = predictor.training(run)
    estimate = predictor.estimate("gpt2", GPU, plan=run.plan, **LONG)
    assert step.latency_s == pytest.approx(estimate.latency_s, rel=1e-12)
    assert {name: step.memory_terms[name] for name in estimate.memory_terms} == estimate.memory_terms
    assert step.fits == estimate.fits
    options = {"global_batch_size": 64, "optimizer": "sgd", "dtype": "bfloat16"}
    images = Training.named({"model": "resnet-18", "cluster": cluster, **options, "engine": "torch-eager"}).resolve()
    assert (images.unit, images.tokens) == ("samples", 64)
    assert 0.0 < predictor.training(images).mfu < 1.0


@pytest.mark.parametrize(
    ("model", "asked", "named", "computed"),
    [
        ("gpt2", "amp_bf16", "amp_bfloat16", "bfloat16"),
        ("gpt2", "amp", "amp_float16", "float16"),
        ("gpt2", "tf32", "tf32", "tf32"),
        ("gpt2", "fp32", "float32", "float32"),
        ("gpt2", "bf16", "bfloat16", "bfloat16"),
        ("resnet-18", "fp32", "float32", "tf32"),
    ],
)
def test_utilisation_is_of_the_dtype_that_products_run_in(
    predictor: Predictor, model: str, asked: str, named: str, computed: str
) -> None:
    words = {"model": model, "gpu": GPU, "per_node": 2, "global_batch_size": 16, "dtype": asked}
    run = Training.named({**words, "engine": "torch-compiled"}).resolve()
    step = predictor.training(run)
    assert run.precision == named
    assert step.peak_flops_per_s == load_device(GPU).gemm_flops_per_s(computed)
    assert 0.0 < step.mfu < 1.0


def test_a_configuration_is_traced_under_engines_that_trace_modules() -> None:
    config = '{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 2, "n_embd": 64, "n_head": 2}'
    words = {"model": "tiny", "config": config, "gpu": GPU, "global_batch_size": 8, "seq_len": 64, "dtype": "amp_bf16"}
    run = Training.named({**words, "engine": "torch-compiled"}).resolve()
    assert (run.decoder.depth, run.precision, run.dtype) == (2, "amp_bfloat16", "float32")
