"""No step is faster than the distinct bytes that it must touch, nor surer on a device that nobody measured."""

from __future__ import annotations

from typing import Any

import pytest

from neusight import Estimate, Predictor, load_device
from neusight.estimates.records import KernelEstimate
from neusight.plans import single
from neusight.workloads import load_workload

TOKEN: dict[str, Any] = {"dtype": "bfloat16", "seq_len": 1}
STEPS: list[tuple[str, str, dict[str, Any]]] = [
    ("llama-2-7b", "h100-sxm-80gb", TOKEN),
    ("gpt2", "l4", {"batch": 2, "mode": "training", "optimizer": "adamw"}),
    ("gpt2", "p4", {"batch": 4}),
    ("alexnet", "h100-sxm-80gb", {"batch": 32, "mode": "training"}),
    ("alexnet", "tensordash", {"batch": 2}),
]


def kernels_of(step: Estimate) -> list[KernelEstimate]:
    """Rows of kernels, without those of waits."""
    return [row for row in step.by_kernel if row.phase in ("forward", "backward", "optimizer")]


def test_one_token_reads_all_weights_but_the_table(predictor: Predictor) -> None:
    """13.2 GB of weights in bfloat16; L2 may keep 50 MB of them from one token to the next."""
    device, vocabulary, hidden = load_device("h100-sxm-80gb"), 32_000, 4096
    step = predictor.estimate("llama-2-7b", "h100-sxm-80gb", **TOKEN)
    weights = 2 * (6_738_415_616 - vocabulary * hidden)
    assert step.bound_s >= (weights - device.l2_capacity_bytes) / 3.35e12 > 3.9e-3
    # All of them and the table could take no longer.
    assert step.bound_s < 2 * 6_738_415_616 / 3.35e12
    assert sum(row.count * row.bound_s for row in kernels_of(step)) < 0.5 * step.bound_s


def test_the_bound_of_a_step_is_the_larger_of_its_kernels_and_its_distinct_bytes(predictor: Predictor) -> None:
    wrong = []
    for model, gpu, options in STEPS:
        device, step = load_device(gpu), predictor.estimate(model, gpu, **options)
        traffic = single(load_workload(model, **options)).traffic_bytes
        beyond = sum(max(0.0, size - device.l2_capacity_bytes) for size in traffic)
        kernels_s = sum(row.count * row.bound_s for row in kernels_of(step))
        expected = max(kernels_s, beyond / device.dram_bandwidth_bytes_per_s)
        if step.bound_s != pytest.approx(expected) or step.bound_s > step.latency_s:
            wrong.append((model, gpu, options, step.bound_s, expected, step.latency_s))
    assert wrong == []


def test_more_bandwidth_never_raises_a_bound(predictor: Predictor) -> None:
    for model, gpu, options in STEPS[:4]:
        speeds = [load_device(gpu).dram_bandwidth_bytes_per_s * factor / 1e9 for factor in (0.5, 1.0, 2.0, 8.0)]
        changed = [[f"dram_bandwidth={speed:.6g}GB/s"] for speed in speeds]
        bounds = [predictor.estimate(model, gpu, overrides=change, **options).bound_s for change in changed]
        assert bounds == sorted(bounds, reverse=True), (model, gpu)
        assert bounds[0] > bounds[-1], (model, gpu)


def width(step: Estimate | KernelEstimate) -> float:
    low_s, high_s = step.interval if isinstance(step, Estimate) else (step.low_s, step.high_s)
    return high_s / low_s


def test_a_variant_of_a_training_device_keeps_its_bias_and_is_the_less_known_the_further_it_lies(
    predictor: Predictor,
) -> None:
    options: dict[str, Any] = {"batch": 8, "mode": "training"}
    twin = load_device("l4").model_copy(update={"id": "x"})
    real, near, far, unknown = (
        predictor.estimate("gpt2", gpu, overrides=changes, **options)
        for gpu, changes in (("l4", []), ("l4", ["tdp=71W"]), ("l4", ["tdp=200W"]), (twin, []))
    )
    assert width(real) < width(near) < width(far)
    assert near.latency_s == pytest.approx(real.latency_s, rel=0.02)
    assert far.latency_s < real.latency_s < near.latency_s
    # The bias of the board is more than one watt: a twin that nobody measured has none.
    assert abs(unknown.latency_s / real.latency_s - 1) > 0.005


def test_memory_changes_no_time_of_a_step(predictor: Predictor) -> None:
    options: dict[str, Any] = {"batch": 8}
    real, roomy = (predictor.estimate("bert-large", "l4", overrides=o, **options) for o in ([], ["dram_capacity=48GB"]))
    assert roomy.latency_s == pytest.approx(real.latency_s, rel=1e-9)
    assert roomy.interval == pytest.approx(real.interval, rel=1e-9)


def test_the_launch_of_a_device_moves_a_lone_kernel(predictor: Predictor) -> None:
    overheads_us = (2, 5, 20, 80)
    latencies = [
        predictor.kernel("gemm", "h100-sxm-80gb", [f"launch_overhead={us}us"], m=64, n=64, k=64).latency_s
        for us in overheads_us
    ]
    assert latencies == sorted(latencies)
    assert latencies[-1] - latencies[0] > 0.5 * (overheads_us[-1] - overheads_us[0]) * 1e-6
