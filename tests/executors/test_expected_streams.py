"""Kernels that stream through memory: formulas at both ends, invariants between them."""

from __future__ import annotations

import numpy as np
import pytest

from neusight.devices import load_device
from neusight.executors.gpu.expected.streams import issue_slots, stream_shape, stream_times
from neusight.executors.gpu.expected.times import Times
from neusight.kernels import KernelBatch
from neusight.kernels.conditions import Conditions
from neusight.kernels.named import kernel_named
from neusight.laws.constants import priors
from neusight.laws.dram import sustained_dram_bytes_per_s
from neusight.laws.fitted import shipped_physics

PHYSICS = shipped_physics().physics

ROWS = np.array([1, 8, 64, 512, 4096, 32768, 262144])
GPUS = ("a100-sxm-80gb", "h100-sxm-80gb", "rtx-3090", "l40s", "t4", "p100-pcie-16gb", "mi100")
POINTWISE = ("add", "gelu", "silu_and_mul", "rope")
REDUCTIONS = ("layer_norm", "rms_norm", "add_rms_norm", "softmax")


def pointwise(op: str = "add", dtype: str = "float16", size: int = 2) -> KernelBatch:
    elements = ROWS * 4096
    return KernelBatch.from_columns(
        "elementwise", op=op, elements=elements, read_bytes=2 * size * elements, write_bytes=size * elements,
        flops=elements, dtype=dtype,
    )  # fmt: skip


def reduction(op: str) -> KernelBatch:
    moved = ROWS * 4096 * 2
    return KernelBatch.from_columns(
        "row_reduction",
        op=op,
        rows=ROWS,
        cols=4096,
        read_bytes=moved,
        write_bytes=moved,
        flops=4 * moved,
        dtype="float16",
    )


BATCHES = [pointwise(op) for op in POINTWISE] + [reduction(op) for op in REDUCTIONS]


def cold() -> Conditions:
    return Conditions.of(len(ROWS))


def hot() -> Conditions:
    return Conditions.of(len(ROWS), cycled_bytes=1.0)


def total_s(times: Times) -> np.ndarray:
    return times.unlimited_s + times.fixed_overhead_s


@pytest.mark.parametrize("gpu", GPUS)
def test_more_is_never_faster_nor_hot_slower(gpu: str) -> None:
    device = load_device(gpu)
    faster = device.model_copy(update={"dram_bandwidth_bytes_per_s": 2 * device.dram_bandwidth_bytes_per_s})
    for batch in BATCHES:
        usual = total_s(stream_times(batch, device, cold(), PHYSICS))
        assert (np.diff(usual) >= 0).all()
        assert (total_s(stream_times(batch, device, hot(), PHYSICS)) <= usual).all()
        assert (total_s(stream_times(batch, faster, cold(), PHYSICS)) <= usual).all()


@pytest.mark.parametrize("gpu", GPUS)
def test_pooling_takes_instructions_for_each_value_of_its_window(gpu: str) -> None:
    elements, taps, device = 2**26, np.array([4, 16, 64]), load_device(gpu)
    windows = KernelBatch.from_columns(
        "elementwise", op="max_pool2d", elements=elements, read_bytes=4 * elements, write_bytes=4 * elements,
        flops=taps * elements, dtype="float32",
    )  # fmt: skip
    issued = stream_times(windows, device, Conditions.of(3), PHYSICS).compute_s
    constants, arithmetic = PHYSICS.stream, taps * (PHYSICS.stream.flop_instructions)
    each = arithmetic + taps * constants.input_tap_instructions + constants.window_instructions
    assert np.diff(issued) == pytest.approx(
        np.diff(each) * elements / (device.cuda_cores_per_sm * device.sm_count * device.boost_clock_hz)
    )


@pytest.mark.parametrize("gpu", GPUS)
def test_an_engines_own_gelu_takes_an_element_at_a_time_and_pytorchs_several(gpu: str) -> None:
    batch, device = pointwise("gelu"), load_device(gpu)
    engines = (("torch", ""), ("torch", "sarathi"), ("vllm", ""))
    torch, sarathi, vllm = (
        total_s(stream_times(batch, device, Conditions.of(len(ROWS), engine=engine, variant=variant), PHYSICS))
        for engine, variant in engines
    )
    assert (sarathi == vllm).all()
    assert (torch <= vllm).all() and torch[-1] < vllm[-1]


@pytest.mark.parametrize("gpu", GPUS)
def test_a_long_stream_takes_its_bytes_over_the_bandwidth(gpu: str) -> None:
    device, batch = load_device(gpu), pointwise(dtype="float32", size=4)
    found = stream_times(batch, device, cold(), PHYSICS)
    long_s = 12 * ROWS[-1] * 4096 / (PHYSICS.stream.dram_gain * sustained_dram_bytes_per_s(device, PHYSICS))
    assert found.dram_s[-1] == pytest.approx(long_s, rel=0.01)
    assert long_s <= found.unlimited_s[-1] * 1.01 <= 1.2 * long_s


@pytest.mark.parametrize("gpu", ["b200-sxm-180gb", "gb200-186gb", "h20", "h200-sxm-141gb", "mi300x", "mi355x"])
def test_wide_memories_are_kept_busy_by_copies(gpu: str) -> None:
    """As microbenchmarks keep narrower ones: gpu-benches, 0.86 to 0.95 of the peak on nine GPUs."""
    device, elements = load_device(gpu), 2**28
    for op, tensors in (("copy", 2), ("add", 3)):
        batch = kernel_named(op, {"elements": elements, "dtype": "float32"})
        found = stream_times(batch, device, Conditions.of(1), PHYSICS)
        share = 4.0 * tensors * elements / device.dram_bandwidth_bytes_per_s / found.unlimited_s
        assert 0.8 < share[0] < 0.95
        assert max(found.compute_s[0], found.serial_s[0]) < found.dram_s[0]


def test_threads_that_carry_more_have_more_under_way() -> None:
    """Little's law: from 10.0 on PyTorch's threads take twice the elements, and float32 is twice the bytes."""
    b200, one, half = load_device("b200-sxm-180gb"), pointwise("add", "float32", 4), pointwise("add")
    older = b200.model_copy(update={"compute_capability": "9.0"})
    waits = [stream_times(one, d, cold(), PHYSICS).serial_s[-1] for d in (b200, older)]
    assert waits[1] == pytest.approx(2 * waits[0])
    assert stream_times(half, b200, cold(), PHYSICS).serial_s[-1] == pytest.approx(waits[0], rel=1e-3)


def test_a_tensor_just_written_is_found_in_l2_while_it_fits() -> None:
    device = load_device("l40s")
    found = stream_times(pointwise(), device, cold(), PHYSICS)
    bytes_per_s = PHYSICS.stream.dram_gain * sustained_dram_bytes_per_s(device, PHYSICS)
    share = found.dram_s * bytes_per_s / (6.0 * ROWS * 4096)
    assert share[3] < 0.1
    assert share[-1] > 0.99


def test_what_outgrows_l2_is_found_in_a_cache_before_dram_while_it_fits() -> None:
    device = load_device("mi300x")
    without = device.model_copy(
        update={"memory_cache_capacity_bytes": None, "memory_cache_bandwidth_bytes_per_s": None}
    )
    near, far = (total_s(stream_times(pointwise(), d, cold(), PHYSICS)) for d in (device, without))
    megabytes = 6e-6 * ROWS * 4096
    np.testing.assert_allclose((near / far)[(megabytes < 2) | (megabytes > 1000)], 1.0, rtol=0.02)
    assert (near / far)[(megabytes > 50) & (megabytes < 150)].max() < 0.7


def test_passes_start_one_by_one() -> None:
    device, one = load_device("a100-sxm-80gb"), pointwise()
    twelve = KernelBatch(one.family, {**one.columns, "passes": np.full(len(ROWS), 12)})
    started = [stream_times(batch, device, cold(), PHYSICS).fixed_overhead_s for batch in (one, twelve)]
    assert started[1] == pytest.approx(12 * started[0])


def test_kernels_of_one_element_a_thread_go_by_threads_and_clock() -> None:
    """Twice the clock, half the time that threads wait for each other's elements."""
    device, batch = load_device("a100-sxm-80gb"), pointwise("silu_and_mul")
    doubled = device.model_copy(update={"boost_clock_hz": 2 * device.boost_clock_hz})
    slow, fast = (stream_times(batch, d, hot(), PHYSICS).serial_s for d in (device, doubled))
    assert fast[-1] == pytest.approx(slow[-1] / 2)


def test_schedulers_issue_four_warps_a_clock() -> None:
    assert issue_slots(load_device("a100-sxm-80gb")) == pytest.approx(128)
    assert issue_slots(load_device("h100-sxm-80gb")) == pytest.approx(128, rel=0.02)
    assert issue_slots(load_device("p100-pcie-16gb")) == pytest.approx(64, rel=0.05)


def test_ecc_within_gddr_is_told_by_the_capacity_that_it_leaves() -> None:
    # GeForce boards have none, however much of a small memory the driver keeps for itself.
    assert [load_device(gpu).inline_ecc for gpu in ("rtx-5060", "rtx-5060-ti", "rtx-5060-ti-16gb")] == [False] * 3
    assert load_device("t4", ["dram_usable=16GB"]).inline_ecc
    assert [load_device(gpu).inline_ecc for gpu in ("t4", "a40", "l4", "l40s")] == [True] * 4
    assert [load_device(gpu).inline_ecc for gpu in ("rtx-3090", "rtx-a6000", "rtx-4090", "a100-sxm-80gb")] == [
        False
    ] * 4


def test_shape_is_finite() -> None:
    for gpu in GPUS:
        for batch in BATCHES:
            found = stream_shape(batch, load_device(gpu), cold(), PHYSICS)
            assert all(np.isfinite(column).all() and column.shape == ROWS.shape for column in found.values())


def test_other_families_that_stream_have_times() -> None:
    moved = {"read_bytes": ROWS * 8192, "write_bytes": ROWS * 8192}
    memory = KernelBatch.from_columns("memory", op="embedding", elements=ROWS * 4096, dtype="float16", **moved)
    step = KernelBatch.from_columns("optimizer", op="adamw_fused", elements=ROWS, tensors=1, flops=ROWS, **moved)
    for batch in (memory, step):
        assert (total_s(stream_times(batch, load_device("a100-sxm-80gb"), cold(), PHYSICS)) > 0).all()


def test_constants_say_where_their_prior_comes_from() -> None:
    stated = [prior for name, prior in priors(PHYSICS).items() if name.startswith("stream.")]
    assert len(stated) == 16
    assert all(prior.why and prior.spread > 0 for prior in stated)


def test_the_norm_of_a_vector_reads_it_once_as_a_sum_does() -> None:
    size = {"rows": [4096] * 3, "cols": [65536] * 3, "read_bytes": [2**30] * 3, "write_bytes": [2**14] * 3}
    batch = KernelBatch.from_columns("row_reduction", op=["sum", "norm", "group_norm"], flops=[2**28] * 3, **size)
    plain, vector, normalised = stream_times(batch, load_device("h100-sxm-80gb"), Conditions.of(3), PHYSICS).dram_s
    assert vector == plain < normalised


def test_a_broadcast_operand_comes_from_dram_again_unless_l2_keeps_it() -> None:
    elements = 2**28
    # A mask that 16 heads share, 64 MiB, and a bias of 4,096 values.
    stored = np.array([4 * elements, 4 * elements // 16, 4 * 4096, 2 * elements])
    batch = KernelBatch.from_columns(
        "elementwise", op="add", elements=np.full(4, elements), read_bytes=4 * elements + stored,
        write_bytes=4 * elements, flops=elements, dtype="float32",
    )  # fmt: skip
    device = load_device("a100-sxm-80gb")
    times = stream_times(batch, device, Conditions.of(4), PHYSICS)
    _, mask, bias, narrow = times.dram_s * 3 / times.dram_s[0]
    assert mask == pytest.approx(3.0, rel=0.02)
    assert bias == pytest.approx(2.0, rel=0.02)
    # Half of an operand's bytes is a narrower dtype.
    assert narrow == pytest.approx(2.5)
    # Whose place is computed takes more instructions.
    assert times.compute_s[1] == times.compute_s[2] > times.compute_s[0] == times.compute_s[3]
