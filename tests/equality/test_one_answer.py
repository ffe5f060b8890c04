"""One question has one answer: whichever way a step is asked for, and whether a pass is served or trained."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from neusight import Predictor
from neusight.devices import cluster_of
from neusight.distributed.space import Space
from neusight.engines import engine_named, server_named
from neusight.questions import Training
from neusight.requests import Plan
from neusight.workloads.decoders.build import step_program, units_of
from neusight.workloads.decoders.known import known_decoder
from neusight.workloads.decoders.quantisation import ServingPrecision
from neusight.workloads.decoders.shares import Local, Steps
from neusight.workloads.program import Program

GPU = "h100-sxm-80gb"
STEP: dict[str, Any] = {"seq_len": 1024, "dtype": "bfloat16", "optimizer": "adamw"}
SHARES: dict[str, dict[str, Any]] = {
    "tp": {"tp": 2},
    "pp": {"pp": 2},
    "dp": {},
    "ZeRO": {"shard": "zero1"},
}


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("engine", ["torch-eager", "torch-compiled"])
@pytest.mark.parametrize("gpu", [GPU, "l4"])
def test_a_traced_step_is_the_same_asked_as_an_estimate_and_as_training(
    predictor: Predictor, gpu: str, engine: str, share: str
) -> None:
    options = {**STEP, **SHARES[share], "global_batch_size": 8, "micro_batch_size": 2}
    run = Training.named(
        {"model": "llama-3.2-1b", "cluster": cluster_of(gpu, 2), **options, "engine": engine}
    ).resolve()
    launch = engine_named(engine).launch
    plan = replace(run.plan, gradient_dtype="float32")  # What a plan has unless told; the module's is taken.
    estimate = predictor.estimate("llama-3.2-1b", gpu, mode="training", plan=plan, launch=launch, **STEP)
    step = predictor.training(run)
    assert step.latency_s == pytest.approx(estimate.latency_s, rel=1e-12)
    assert step.fits == estimate.fits


@pytest.mark.parametrize("engine", ["megatron-te", "torch-compiled"])
def test_the_first_of_all_plans_takes_what_training_says_of_it(predictor: Predictor, engine: str) -> None:
    cluster = cluster_of(GPU, 2)
    run = Training.named(
        {"model": "llama-3.2-1b", "cluster": cluster, **STEP, "global_batch_size": 16, "engine": engine}
    ).resolve()
    space = Space(schedules=("1f1b",), recomputes=("none",), longest_micro_batch=1, most_cp=1)
    first = predictor.plans(run, space, count=1).best[0]
    again = predictor.training(first.run)
    assert first.latency_s == again.latency_s
    assert first.memory == again.memory


def test_a_pass_over_prompts_runs_the_products_and_attention_of_a_forward_pass() -> None:
    """But for the head, which a serving engine runs for the last token of each sequence alone, and copies of keys."""
    decoder, local = known_decoder("llama-3.2-1b"), Local(batch=2, seq_len=1024, tp=2)
    passes = Steps.of(prompts=local.batch, prompt_tokens=local.seq_len)
    precision = ServingPrecision.named("bfloat16")
    served = step_program(decoder, passes, precision, Plan(tp=local.tp), server_named("vllm"))
    trained = units_of(decoder, local, replace(engine_named("fsdp"), repeats_keys=False))
    assert layer_kernels(served) == layer_kernels(trained)


def layer_kernels(program: Program) -> Counter[Any]:
    """Products, attention and collectives of the layers' forward passes, with their runs."""
    found: Counter[Any] = Counter()
    for kind in program.order:
        for part in program.layers[kind].of("forward"):
            runs = int(part.runs if isinstance(part.runs, int | float) else part.runs[0])
            if part.batch.family in ("gemm", "attention", "collective") and runs:
                found[part.batch.kernel(0)] += runs
    return found
