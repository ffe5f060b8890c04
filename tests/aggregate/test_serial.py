"""Serial composition against formulas: streams, the host's floor, warnings."""

from dataclasses import replace

import numpy as np
import pytest

from neusight.devices import DeviceSpec, load_device
from neusight.estimates import Provenance
from neusight.executors.gpu.predictor import KernelEstimates
from neusight.kernels import (
    Attention,
    Conv2d,
    Elementwise,
    Gemm,
    GroupedGemm,
    KernelBatch,
    Memory,
    Optimizer,
    RowReduction,
)
from neusight.kernels.describe import describe
from neusight.schedule.serial import kernel_rows, prepare, serial
from neusight.schedule.stream import HOST_DISPATCH_S, host_gap_s, in_stream
from neusight.workloads.graph import FoldedGraph, FoldedKernel, MemoryProfile

GEMM = Gemm(m=1000, n=1000, k=1000)
RELU = Elementwise(op="relu", elements=1000, read_bytes=4000, write_bytes=4000, flops=1000)
PROVENANCE = Provenance(neusight="0")
OVERHEAD_S = 5e-6


def by_formula(batch: KernelBatch, device: DeviceSpec) -> KernelEstimates:
    """Execution takes 1 ms for a GEMM and 1 µs for anything else, launches ``OVERHEAD_S``, error -20 % to +20 %."""
    n = len(batch)
    execution_s = np.full(n, 1e-3 if batch.family == "gemm" else 1e-6)
    return KernelEstimates(
        latency_s=execution_s + OVERHEAD_S,
        low_s=0.8 * execution_s + OVERHEAD_S,
        high_s=1.2 * execution_s + OVERHEAD_S,
        bound_s=execution_s / 2,
        overhead_s=np.full(n, OVERHEAD_S),
        utilisation=np.full(n, 0.5),
        limiter=np.full(n, "compute" if batch.family == "gemm" else "dram"),
        tile=np.full(n, "128x64"),
        tile_count=np.full(n, 10),
        waves=np.full(n, 1.0),
        outside=np.full(n, ""),
        source=np.full(n, batch.family),
        spread=np.full(n, 0.1),
    )


def graph(**fields: object) -> FoldedGraph:
    kernels = (
        FoldedKernel(kernel=GEMM, operator="linear", phase="forward", count=3),
        FoldedKernel(kernel=RELU, operator="relu", phase="forward", count=2),
        FoldedKernel(kernel=GEMM, operator="linear", phase="backward", count=6),
    )
    values = {
        "model": "m",
        "mode": "training",
        "batch": 1,
        "seq_len": 8,
        "dtype": "float32",
        "optimizer": "none",
        "attention": "eager",
        "parameters": 10,
        "kernels": kernels,
        "memory": MemoryProfile(weights=2**30),
        **fields,
    }
    return FoldedGraph(**values)


def test_a_launch_hides_behind_execution_and_shows_in_short_kernels() -> None:
    device = load_device("l4")
    step = serial(prepare(graph()), device, by_formula, PROVENANCE)
    interval_s = device.launch_overhead_s
    assert step.latency_s == pytest.approx(9 * 1e-3 + 2 * max(1e-6, interval_s))
    assert {k.operator: k.limiter for k in step.by_kernel} == {"linear": "compute", "relu": "launch"}


def test_every_row_keeps_its_own_kernel_count_and_phase() -> None:
    step = serial(prepare(graph()), load_device("l4"), by_formula, PROVENANCE)
    found = {(k.kernel, k.phase, k.count) for k in step.by_kernel}
    assert found == {
        (describe(GEMM), "forward", 3),
        (describe(GEMM), "backward", 6),
        (describe(RELU), "forward", 2),
    }


def test_in_stream_never_below_the_bound_or_out_of_order() -> None:
    single = by_formula(KernelBatch.of([RELU] * 3), load_device("l4"))
    for interval_s in (0.0, 1e-6, 1e-3):
        stream = in_stream(single, interval_s)
        assert (stream.latency_s >= stream.bound_s).all()
        assert (stream.low_s <= stream.latency_s).all()
        assert (stream.latency_s <= stream.high_s).all()


def test_the_host_floors_a_step_of_tiny_kernels() -> None:
    step = serial(prepare(graph(host_operators=10_000)), load_device("l4"), by_formula, PROVENANCE)
    assert step.latency_s == pytest.approx(10_000 * HOST_DISPATCH_S)
    assert step.interval == (pytest.approx(10_000 * HOST_DISPATCH_S), pytest.approx(10_000 * HOST_DISPATCH_S))
    assert step.limiter == "host"
    assert step.coverage["trained"] == pytest.approx(1)


def test_launches_of_a_step_that_waits_for_the_host_count_as_the_host() -> None:
    small = FoldedKernel(kernel=RELU, operator="relu", phase="forward", count=100)
    device = load_device("l4")
    launches_s = 100 * device.launch_overhead_s
    waiting = graph(kernels=(small,), host_operators=round(1.5 * launches_s / HOST_DISPATCH_S))
    assert serial(prepare(graph(kernels=(small,))), device, by_formula, PROVENANCE).limiter == "launch"
    assert serial(prepare(waiting), device, by_formula, PROVENANCE).limiter == "host"


def test_the_host_does_not_matter_to_long_kernels() -> None:
    step = serial(prepare(graph(host_operators=11)), load_device("l4"), by_formula, PROVENANCE)
    assert "host" not in step.by_phase


def test_only_the_low_end_may_wait_for_the_host() -> None:
    """Between low and expected latency the host floors the interval alone."""
    operators = round(8.5e-3 / HOST_DISPATCH_S)
    step = serial(prepare(graph(host_operators=operators)), load_device("l4"), by_formula, PROVENANCE)
    free = serial(prepare(graph()), load_device("l4"), by_formula, PROVENANCE)
    assert step.latency_s == pytest.approx(free.latency_s)
    assert step.interval[0] == pytest.approx(operators * HOST_DISPATCH_S)
    assert step.interval[0] > free.interval[0]


def test_host_gap_is_what_is_missing() -> None:
    assert host_gap_s(0.0, 100) == pytest.approx(100 * HOST_DISPATCH_S)
    assert host_gap_s(1.0, 100) == 0.0


def test_single_kernels_pay_their_launch() -> None:
    (row,) = kernel_rows(KernelBatch.of([GEMM]), by_formula(KernelBatch.of([GEMM]), load_device("l4")))
    assert row.latency_s == pytest.approx(1e-3 + OVERHEAD_S)
    assert (row.kernel, row.tile, row.count) == ("linear 1000x1000x1000 tn", "128x64", 1)


def warnings(device: DeviceSpec | None = None, **fields: object) -> str:
    provenance = replace(PROVENANCE, hypothetical=device.hypothetical if device else ())
    return " | ".join(serial(prepare(graph(**fields)), device or load_device("l4"), by_formula, provenance).warnings)


def test_a_step_that_fits_needs_no_warning() -> None:
    assert warnings() == ""


def test_warning_when_it_does_not_fit_or_only_just() -> None:
    capacity = load_device("l4").dram_capacity_bytes
    assert "does not fit: needs" in warnings(memory=MemoryProfile(activations=int(capacity) + 1))
    assert "tight fit" in warnings(memory=MemoryProfile(activations=int(capacity * 0.95)))


def test_warning_when_the_models_know_little_of_it() -> None:
    def foreign(batch: KernelBatch, device: DeviceSpec) -> KernelEstimates:
        known = by_formula(batch, device)
        return replace(
            known, source=np.full(len(batch), "gemm (transferred)"), outside=np.full(len(batch), "GPUs of amd")
        )

    def large(batch: KernelBatch, device: DeviceSpec) -> KernelEstimates:
        return replace(by_formula(batch, device), outside=np.full(len(batch), "GPUs of amd"))

    device = load_device("l4")
    assert (
        "100% of the latency is of operators or dtypes"
        in serial(prepare(graph()), device, foreign, PROVENANCE).warnings[0]
    )
    (said,) = serial(prepare(graph()), device, large, PROVENANCE).warnings
    assert said == "100% of the latency is outside of what the tile models were trained on: mostly GPUs of amd"


def test_warning_names_operators_without_a_rule_and_hypothetical_figures() -> None:
    assert "no rule for relu" in warnings(uncovered=("relu",))
    assert "hypothetical device: l4 with sm_count=60" in warnings(load_device("l4", ["sm_count=60"]))
    assert warnings(warnings=("from the trace",)) == "from the trace"


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        (Gemm(op="bmm", batch=12, m=8, n=16, k=32, layout="nn"), "bmm 12x8x16x32 nn"),
        (Gemm(m=8, n=16, k=32, bias=True), "linear 8x16x32 tn +bias"),
        (
            Conv2d(
                batch=2, in_channels=3, out_channels=64, height=9, width=9, kernel_height=7, kernel_width=7, stride=2
            ),
            "conv2d forward 2x3x9x9 to 64, 7x7/2",
        ),
        (
            Attention(batch=2, heads=8, kv_heads=4, q_len=16, kv_len=32, head_dim=64, causal=True),
            "attention forward 2x8/4x16x32x64 causal",
        ),
        (
            GroupedGemm(groups=8, tokens=64, n=16, k=32, largest=20),
            "grouped_gemm forward 64 in 8, 16x32 largest 20",
        ),
        (RowReduction(op="softmax", rows=4, cols=8, read_bytes=1, write_bytes=1, flops=1), "softmax 4x8"),
        (RELU, "relu 1000"),
        (Memory(op="copy", elements=7, read_bytes=1, write_bytes=1), "copy 7"),
        (Optimizer(op="sgd_fused", elements=7, tensors=2, read_bytes=1, write_bytes=1, flops=1), "sgd_fused 7 in 2"),
    ],
)
def test_every_family_has_words(kernel: object, words: str) -> None:
    assert describe(kernel) == words
