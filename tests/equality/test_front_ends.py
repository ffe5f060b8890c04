"""A decoder's module, traced, and its description are the same step: kernels, time, memory, limiter.

Both go through one engine, ``torch.compile`` of the whole module in bfloat16, and one price.
"""

from __future__ import annotations

from functools import cache
from itertools import cycle

import pytest
from front_ends import FRONT_ENDS, Comparison, compared, forward_step, reasons, run_of

from neusight import Predictor
from neusight.distributed.estimate import TrainingEstimate
from neusight.distributed.factors import PRIOR
from neusight.requests import Plan

DECODERS = ("llama-3.2-1b", "llama-2-7b", "mistral-7b", "gpt2-large", "opt-1.3b")
"""Norms with and without means, biases, grouped and other heads, tied and other heads of words, rotated and learned
positions, dropout, matrices apart, joined and transposed."""
DEVICES = ("a100-sxm-80gb", "h100-sxm-80gb", "b200")
PLANS = {
    "1 GPU": Plan(micro_batch_size=1, global_batch_size=1),
    "tp 2": Plan(tp=2, micro_batch_size=1, global_batch_size=1),
    "pp 2": Plan(pp=2, micro_batch_size=1, global_batch_size=8),
    "dp 2, ZeRO-1": Plan(dp=2, micro_batch_size=1, global_batch_size=2, shard="zero1"),
    "tp 2, by tokens": Plan(tp=2, micro_batch_size=1, global_batch_size=1, sequence_parallel=True),
    "selective, tp 2, by tokens": Plan(
        tp=2, micro_batch_size=4, global_batch_size=4, sequence_parallel=True, recompute="selective"
    ),
    "operators": Plan(micro_batch_size=4, global_batch_size=4, recompute="operators"),
    "full": Plan(micro_batch_size=4, global_batch_size=4, recompute="full"),
}
PLACES = [*zip(DECODERS, cycle(DEVICES))]
"""Each decoder on one of the devices, each device with one decoder at least."""
TIME, MEMORY = 0.04, 0.03
KERNELS = [
    (mode, plan) for mode in ("inference", "training") for plan in ("1 GPU", "tp 2", "tp 2, by tokens")
]  # Stages and replicas have the kernels of these.


@cache
def comparison(predictor: Predictor, model: str, device: str, plan: str, mode: str) -> Comparison:
    return compared(predictor, model, device, PLANS[plan], mode)


@pytest.mark.parametrize(("mode", "plan"), KERNELS)
@pytest.mark.parametrize("model", DECODERS)
def test_each_kernel_that_one_front_end_has_alone_has_its_reason(
    predictor: Predictor, model: str, plan: str, mode: str
) -> None:
    assert comparison(predictor, model, DEVICES[0], plan, mode).differences == []


def test_each_reason_is_that_of_some_kernel(predictor: Predictor) -> None:
    cases = [comparison(predictor, model, DEVICES[0], plan, mode) for model in DECODERS for mode, plan in KERNELS]
    assert set(reasons()) == set().union(*(case.reasons for case in cases))


def needs(step: TrainingEstimate) -> float:
    """Memory of all ranks [B]: where stages take the same time, they may be cut a layer apart."""
    return float(sum(rank.total for rank in step.memory))


def limiters(step: TrainingEstimate) -> set[str]:
    """What limits most of a step's time, and what limits as much of it as two front ends may lie apart."""
    most = max(step.limited_s.values())
    return {name for name, seconds in step.limited_s.items() if seconds >= most - TIME * step.latency_s}


@pytest.mark.parametrize("plan", ["1 GPU", "tp 2", "tp 2, by tokens"])
@pytest.mark.parametrize(("model", "device"), PLACES)
def test_forward_passes_take_the_same_time(predictor: Predictor, model: str, device: str, plan: str) -> None:
    found = comparison(predictor, model, device, plan, "inference")
    assert found.seconds("described") == pytest.approx(found.seconds("traced"), rel=TIME)


@pytest.mark.parametrize("plan", [name for name, plan in PLANS.items() if plan.recompute == "none"])
@pytest.mark.parametrize(("model", "device"), PLACES)
def test_inference_agrees(predictor: Predictor, model: str, device: str, plan: str) -> None:
    """Stages pass micro-batches on, and may be cut a layer apart; replicas exchange nothing."""
    traced, described = (forward_step(predictor, name, model, device, PLANS[plan]) for name in FRONT_ENDS)
    assert described.latency_s == pytest.approx(traced.latency_s, rel=TIME)
    assert needs(described) == pytest.approx(needs(traced), rel=MEMORY)
    assert described.limiter in limiters(traced)
    assert traced.limiter in limiters(described)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize(("model", "device"), PLACES)
def test_training_steps_agree(predictor: Predictor, model: str, device: str, plan: str) -> None:
    traced, described = (predictor.training(run_of(name, model, device, PLANS[plan]), PRIOR) for name in FRONT_ENDS)
    assert described.latency_s == pytest.approx(traced.latency_s, rel=TIME)
    assert needs(described) == pytest.approx(needs(traced), rel=MEMORY)
    if PLANS[plan].pp == 1:
        assert described.peak_bytes == pytest.approx(traced.peak_bytes, rel=MEMORY)
    assert described.limiter in limiters(traced)
    assert traced.limiter in limiters(described)
