"""No interval of a time begins below what physics allows, whatever is in doubt, and doubts make up each interval."""

from __future__ import annotations

from math import exp

import pytest

from neusight import Predictor
from neusight.devices import load_device
from neusight.devices.cluster import cluster_of
from neusight.laws.doubts import NORMAL_90, spread

DEVICES = ("h100-sxm-80gb", "a100-sxm-80gb", "l4", "rtx-4090", "mi300x")
MODEL = "llama-2-7b"


@pytest.mark.parametrize("gpu", DEVICES)
def test_steps_and_kernels_begin_at_their_bound_and_have_the_width_of_their_doubts(predictor: Predictor, gpu: str):
    step = predictor.estimate("gpt2", gpu, batch=1)
    kernel = predictor.kernel("linear", gpu, m=64, n=4096, k=4096)
    for answer in (step, kernel):
        assert answer.bound_s <= answer.low_s < answer.latency_s < answer.high_s
    assert step.high_s == pytest.approx(step.latency_s * exp(NORMAL_90 * spread(step.doubts)))
    assert set(step.errors) <= {"device", "kernel", "launch", "host", "composition"}


@pytest.mark.parametrize("gpu", DEVICES)
def test_training_steps_compute_no_faster_than_the_peak(predictor: Predictor, gpu: str):
    step = predictor.training(MODEL, cluster=cluster_of(gpu, 8), tp=2, shard="zero3", global_batch_size=64)
    assert step.low_s >= step.flop / (step.devices * step.peak_flops_per_s)
    assert step.high_s == pytest.approx(step.latency_s * exp(NORMAL_90 * spread(step.doubts)))


@pytest.mark.parametrize("gpu", DEVICES)
def test_answers_read_their_weights_no_faster_than_memory_gives_them(predictor: Predictor, gpu: str):
    answer = predictor.serving(MODEL, gpu, concurrency=1, isl=64, osl=16, tp=2)
    least_s = answer.memory.weights / load_device(gpu).dram_bandwidth_bytes_per_s
    assert answer.tpot_s.low >= 0.9 * least_s  # Embeddings are looked up, not read.
    for metric in ("ttft", "tpot", "e2e"):
        time = answer.latency(metric)
        assert time.high <= time.mean * exp(NORMAL_90 * spread(answer.doubts_of(metric))) * 1.001
    rates = answer.doubts_of("throughput")
    assert all(rates[key] * size <= 0.0 for key, size in answer.doubts.items())
