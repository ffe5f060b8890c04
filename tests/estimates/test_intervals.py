"""Real estimates: low ≤ latency ≤ high and bound ≤ latency, for any sum, product or mixture of anything."""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import Any

import numpy as np
import pytest

from neusight import Estimate, Predictor

ZEROS = {"sparsity": "activations=0.6,gradients=0.5"}
STEPS: list[tuple[str, str, dict[str, Any]]] = [
    ("llama-2-7b", "h100-sxm-80gb", {"dtype": "bfloat16", "seq_len": 1}),  # waits for its host
    ("gpt2", "h100-sxm-80gb", {"seq_len": 1}),  # launches and host
    ("gpt2", "p4", {"batch": 4}),
    ("gpt2", "l4", {"mode": "training", "optimizer": "adamw", "batch": 2}),
    ("gpt2", "l4", {"mode": "training", "optimizer": "adamw", "batch": 2, "overrides": ["dram_bandwidth=30GB/s"]}),
    ("gpt2", "mi300x", {"dtype": "bfloat16", "attention": "flash"}),
    ("alexnet", "t4", {"batch": 32, "mode": "training"}),
    ("alexnet", "tensordash", {"batch": 2, "mode": "training", **ZEROS}),
    ("alexnet", "tensordash-dense", {"batch": 2}),
]


@pytest.fixture(scope="module")
def steps(predictor: Predictor) -> list[Estimate]:
    return [predictor.estimate(model, gpu, **options) for model, gpu, options in STEPS]


def faults(found: Estimate) -> list[str]:
    (low_s, high_s), latency_s, bound_s = found.interval, found.latency_s, found.bound_s
    slack = 1e-12 * latency_s  # sums in another order
    rows = all(row.low_s <= row.latency_s <= row.high_s and row.bound_s >= 0.0 for row in found.by_kernel)
    held = {
        "low <= latency <= high": low_s <= latency_s <= high_s,
        "bound <= latency": bound_s <= latency_s + slack,
        "bound <= low": bound_s <= low_s + slack,
        "an interval has a width": low_s < high_s or latency_s == 0.0,
        "rows lie in their own intervals": rows,
    }
    return [name for name, holds in held.items() if not holds]


def test_steps_lie_in_their_intervals(steps: list[Estimate]) -> None:
    wrong = [(STEPS[i], faults(step)) for i, step in enumerate(steps) if faults(step)]
    assert wrong == []
    # Of a step that only waits for its host, the host is what is not known.
    assert steps[0].limiter == "host"
    assert max(steps[0].errors, key=lambda source: steps[0].errors[source]) == "host"
    assert steps[0].interval[1] / steps[0].interval[0] > 1.5


def test_sums_products_and_mixtures_lie_in_theirs(steps: list[Estimate]) -> None:
    rng = np.random.default_rng(11)
    wrong = []
    for _ in range(150):
        chosen = rng.choice(len(steps), size=rng.integers(1, 5))
        times = rng.choice([0, 0.25, 1, 3, 100, 10_000], size=len(chosen))
        total = reduce(add, (float(n) * steps[i] for i, n in zip(chosen, times, strict=True)))
        if faults(total):
            wrong.append(([STEPS[i] for i in chosen], times.tolist(), faults(total)))
        expected = sum(n * steps[i].latency_s for i, n in zip(chosen, times, strict=True))
        assert total.latency_s == pytest.approx(expected)
        assert total.bound_s == pytest.approx(sum(n * steps[i].bound_s for i, n in zip(chosen, times, strict=True)))
    assert wrong == []


def test_prefill_and_a_hundred_tokens_lie_in_their_interval(predictor: Predictor) -> None:
    options: dict[str, Any] = {"dtype": "bfloat16"}
    prefill, decode = (predictor.estimate("llama-2-7b", "h100-sxm-80gb", seq_len=s, **options) for s in (512, 1))
    answer = prefill + 100 * decode
    low_s, high_s = answer.interval
    assert low_s < answer.latency_s < high_s
    assert answer.latency_s == pytest.approx(prefill.latency_s + 100 * decode.latency_s)
    # Hosts of all steps are one host: their doubt does not average out.
    assert answer.errors["host"] > 0.9 * decode.errors["host"] * 100 * decode.latency_s / answer.latency_s


def test_an_estimate_reads_back_with_its_interval(steps: list[Estimate]) -> None:
    for step in steps:
        again = Estimate.from_json(step.to_json())
        assert (again, again.interval, again.errors) == (step, step.interval, step.errors)
