"""The host of a training step: dispatches of layers, collectives and recomputation, and steps that wait for them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from neusight import Predictor
from neusight.engines import ENGINES, engine_named
from neusight.engines.torch import TORCH
from neusight.kernels.families import Elementwise, Gemm, KernelBatch, RowReduction
from neusight.questions import Training
from neusight.workloads.dispatch import CHECKPOINT, DISPATCHES, FUNCTION, VIEWS, WRAPPER, trained_dispatches
from neusight.workloads.program import Part

SMALL = {
    "model": "gpt3-small", "cluster": "dgx-a100-320gb", "global_batch_size": 256, "seq_len": 2048,
    "micro_batch_size": 2, "tp": 2, "pp": 2, "shard": "zero1", "recompute": "full", "sequence_parallel": False,
}  # fmt: skip
"""So small that kernels wait for the host: 2.5 s a step with FlashAttention, 3.2 s without (Megatron-DeepSpeed,
examples_deepspeed/rebase)."""

FLASH = '{"attention": "flash", "attention_generation": 1}'


def step(predictor: Predictor, **changes: Any) -> Any:
    return predictor.timed(Training.named({**SMALL, **changes}).resolve())


MOVED: dict[str, Any] = {"read_bytes": 8192, "write_bytes": 8192, "flops": 4096, "dtype": "bfloat16"}
GEMM = KernelBatch.of([Gemm(op="mm", layout="nn", batch=1, m=64, n=64, k=64, dtype="bfloat16")])
NORM = KernelBatch.of([RowReduction(op="layer_norm", rows=64, cols=64, **MOVED)])
SUM = KernelBatch.of([Elementwise(op="add", elements=4096, **MOVED)])


@pytest.mark.parametrize(
    ("part", "kernel", "functions"),
    [
        (Part(name="qkv", phase="forward", batch=GEMM), DISPATCHES["library"], 1),
        (Part(name="norm", phase="backward", batch=NORM), DISPATCHES["reduction"], 1),
        (Part(name="qkv", phase="weights", batch=GEMM), DISPATCHES["library"], 1),
        (Part(name="qkv bias gradient", phase="weights", batch=NORM), DISPATCHES["reduction"], 0),
        (Part(name="delta", phase="backward", batch=NORM, further=True), DISPATCHES["further"], 0),
        (Part(name="reduce", phase="forward", batch=SUM, group="tp"), DISPATCHES["library"] + WRAPPER, 1),
    ],
    ids=lambda value: value.name if isinstance(value, Part) else "",
)
def test_trained_dispatches_counts_functions_of_python(part: Part, kernel: float, functions: int) -> None:
    views = VIEWS * DISPATCHES["view"]
    assert trained_dispatches(part, TORCH) == pytest.approx(kernel + views)
    in_python = replace(TORCH, autograd_functions=True)
    assert trained_dispatches(part, in_python) == pytest.approx(kernel + views + functions * FUNCTION)
    compiled = kernel - (WRAPPER if part.group else 0.0)
    assert trained_dispatches(part, ENGINES["torch-compiled"]) == pytest.approx(compiled)


SMALL_STEPS = [
    ({"engine": "megatron-te"}, 2.48),
    ({"engine": "megatron-deepspeed", "engine_options": FLASH}, 2.48),
    ({"engine": "megatron-local"}, 3.18),
    ({"engine": "megatron-deepspeed"}, 3.18),
]
UNKNOWN = "what numbers of unknown trainers have by themselves is as large as the doubt of a host"


@pytest.mark.parametrize(("changes", "measured_s"), SMALL_STEPS)
def test_small_step_takes_what_its_host_takes(predictor: Predictor, changes: dict[str, Any], measured_s: float) -> None:
    timed = step(predictor, **changes)
    estimate = predictor.training(timed.run)
    host_s = max(sum(timed.host.host_s[name][at] for name in ("forward", "backward")) for at in (0, 1))
    assert estimate.latency_s > SMALL["global_batch_size"] / 4 * host_s
    assert estimate.latency_s == pytest.approx(measured_s, rel=1 / 3)
    assert estimate.errors["host"] > max(estimate.errors[cause] for cause in ("kernel", "device", "links"))
    assert estimate.host_share > 0.5


@pytest.mark.parametrize(
    ("changes", "measured_s"),
    [
        *SMALL_STEPS[:3],
        pytest.param(*SMALL_STEPS[3], marks=pytest.mark.xfail(reason=UNKNOWN, strict=True)),
    ],
)
def test_small_step_is_within_an_interval_that_is_mostly_of_its_host(
    predictor: Predictor, changes: dict[str, Any], measured_s: float
) -> None:
    estimate = predictor.training(step(predictor, **changes).run)
    assert estimate.interval[0] < measured_s < estimate.interval[1]
    assert max(estimate.errors, key=lambda source: estimate.errors[source]) == "host"


def test_step_that_waits_for_its_host_gains_nothing_from_a_faster_device(predictor: Predictor) -> None:
    slow, fast = (step(predictor, cluster=name).schedule.step_s for name in ("dgx-a100-320gb", "dgx-h100"))
    assert 0.9 * slow < fast <= slow


def test_recomputation_waits_for_the_host(predictor: Predictor) -> None:
    timed, kept = step(predictor), step(predictor, recompute="none")
    assert timed.host.slowdown("recompute").min() > 1.0
    engine = timed.run.engine
    forward, again = (timed.passes.dispatched(name, engine) for name in ("forward", "recompute"))
    assert again[1] == pytest.approx(forward[1] + CHECKPOINT)
    assert not kept.passes.dispatched("recompute", engine).any()
    assert kept.schedule.step_s < timed.schedule.step_s


def test_tensor_parallel_ranks_add_the_dispatches_of_their_collectives(predictor: Predictor) -> None:
    alone, shared = (
        timed.passes.dispatched("forward", timed.run.engine)[1] for timed in (step(predictor, tp=tp) for tp in (1, 2))
    )
    each = DISPATCHES["library"] + WRAPPER + FUNCTION + VIEWS * DISPATCHES["view"]
    assert shared - alone == pytest.approx(2 * each)


def test_ranks_that_share_sequences_exchange_within_functions_of_products(predictor: Predictor) -> None:
    shared = step(predictor, sequence_parallel=True)
    exchanged = [part for part in shared.program.segments[1].parts if part.group == "tp"]
    each = DISPATCHES["library"] + WRAPPER + VIEWS * DISPATCHES["view"]
    assert {part.batch["op"][0] for part in exchanged} == {"all_gather", "reduce_scatter"}
    assert [trained_dispatches(part, engine_named("megatron-te")) for part in exchanged] == pytest.approx(
        [each] * len(exchanged)
    )
    local = [trained_dispatches(part, engine_named("megatron-local")) - each for part in exchanged]
    assert local == pytest.approx([0.0 if part.overlapped else FUNCTION for part in exchanged])


def test_large_step_does_not_wait_for_its_host(predictor: Predictor) -> None:
    large = step(predictor, model="gpt3-13b", nodes=4, tp=4, micro_batch_size=4)
    assert large.host_share < 0.02
    assert engine_named("megatron-te").autograd_functions
    assert not engine_named("torchtitan").autograd_functions
