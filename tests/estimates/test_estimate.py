"""An estimate is a sum over its kernels: algebra, derived figures, planning and serialisation."""

from dataclasses import replace
from math import exp, hypot

import pytest

from neusight.errors import DataError, DeviceError
from neusight.estimates import Estimate, KernelEstimate, MemoryEstimate, Provenance


def kernel(operator: str, phase: str, count: int, latency_s: float, **fields: object) -> KernelEstimate:
    values = {
        "kernel": f"{operator} 1024",
        "family": "elementwise",
        "low_s": latency_s * 0.75,
        "high_s": latency_s * 1.5,
        "bound_s": latency_s * 0.5,
        "utilisation": 0.5,
        "limiter": "dram",
        "source": "elementwise",
        **fields,
    }
    return KernelEstimate(operator=operator, phase=phase, count=count, latency_s=latency_s, **values)


def estimate(*kernels: KernelEstimate, **fields: object) -> Estimate:
    values = {
        "model": "m",
        "gpu": "l4",
        "mode": "training",
        "batch": 4,
        "seq_len": 128,
        "dtype": "float32",
        "optimizer": "none",
        "attention": "eager",
        "samples": 4,
        "memory": MemoryEstimate(weights=3, gradients=3, activations=4, capacity_bytes=20.0),
        "provenance": Provenance(neusight="0.1.0", tile_models={"name": "default"}, training_gpus=("t4",)),
        **fields,
    }
    return Estimate(by_kernel=kernels, **values)


LINEAR = kernel("linear", "forward", 2, 3.0, limiter="compute", source="gemm", family="gemm")
GELU = kernel("gelu", "forward", 4, 0.5)
GRAD = kernel("linear", "backward", 4, 4.0, limiter="compute", source="gemm", family="gemm")


def test_sums_over_kernels() -> None:
    step = estimate(LINEAR, GELU, GRAD)
    assert step.latency_s == 2 * 3.0 + 4 * 0.5 + 4 * 4.0
    assert step.bound_s == 12.0
    assert step.limiter == "compute"
    assert step.by_phase == {"forward": 8.0, "backward": 16.0}


def test_the_interval_holds_what_kernels_share_and_what_composing_misses() -> None:
    certain = estimate(LINEAR, GELU, GRAD).interval
    assert certain == pytest.approx((24.0 / exp(0.1645), 24.0 * exp(0.1645)))
    # Two thirds of the step share an error of 0.3, the rest one of 0.15.
    linear, other = replace(GRAD, spread=0.3), replace(LINEAR, spread=0.15)
    low, high = estimate(linear, other, replace(GELU, spread=0.15)).interval
    assert high == pytest.approx(24.0 * exp(1.645 * hypot(0.25, 0.1)))
    assert low == pytest.approx(24.0**2 / high)
    # However little is known, nothing is faster than physics.
    wide = estimate(replace(LINEAR, spread=5.0))
    assert wide.interval[0] == wide.bound_s


def test_operators_costliest_first_with_shares_that_sum_to_one() -> None:
    rows = estimate(GELU, LINEAR, GRAD).by_operator
    assert [(r.operator, r.phase, r.count) for r in rows] == [
        ("linear", "backward", 4),
        ("linear", "forward", 2),
        ("gelu", "forward", 4),
    ]
    assert sum(r.share for r in rows) == pytest.approx(1)
    assert rows[0].share == pytest.approx(16 / 24)


def test_same_operator_and_phase_is_one_row_with_the_costlier_limiter() -> None:
    small = kernel("linear", "forward", 1, 0.1, limiter="launch")
    (row,) = estimate(small, LINEAR).by_operator
    assert (row.count, row.latency_s, row.limiter) == (3, pytest.approx(6.1), "compute")


def test_addition_is_one_step_after_the_other() -> None:
    first, second = estimate(LINEAR, GELU), estimate(GRAD, GELU, samples=8)
    total = first + second
    assert total.latency_s == first.latency_s + second.latency_s
    assert total.bound_s == first.bound_s + second.bound_s
    assert total.samples == 12
    # the GELU of both is the same kernel: one row with both counts
    assert [k.count for k in total.by_kernel if k.operator == "gelu"] == [8]


def test_addition_names_both_models_and_keeps_the_larger_memory() -> None:
    large = MemoryEstimate(weights=30, capacity_bytes=20.0)
    total = estimate(GELU) + estimate(GELU, model="n", memory=large, warnings=("w",))
    assert (total.model, total.gpu, total.fits, total.warnings) == ("m + n", "l4", False, ("w",))


def test_multiplication_equals_repeated_addition() -> None:
    step = estimate(LINEAR, GELU)
    assert 3 * step == step * 3 == step + step + step
    assert (3 * step).memory == step.memory
    assert (3 * step).samples_per_s == pytest.approx(step.samples_per_s)


def test_sum_with_a_number_is_refused() -> None:
    with pytest.raises(TypeError):
        estimate(GELU) + 1
    with pytest.raises(TypeError):
        estimate(GELU) * "2"


def test_coverage_shares() -> None:
    transferred = kernel("sum", "forward", 1, 1.0, source="row_reduction (transferred)")
    bare = kernel("roll", "forward", 1, 2.0, source="roofline")
    ruleless = kernel("aten.foo.default", "forward", 1, 1.0, source="memory")
    host = kernel("host", "host", 1, 100.0, source="", limiter="host")
    coverage = estimate(LINEAR, transferred, bare, ruleless, host, uncovered=("aten.foo",)).coverage
    assert coverage == {"trained": 0.6, "transferred": 0.1, "fallback": pytest.approx(0.3)}


def test_in_domain_is_a_share_of_latency() -> None:
    transferred = kernel(
        "sum", "forward", 1, 50.0, outside="log2_waves above all in training", source="row_reduction (transferred)"
    )
    assert (
        estimate(
            LINEAR, kernel("big", "forward", 1, 2.0, outside="log2_waves above all in training"), transferred
        ).in_domain
        == 0.75
    )
    assert estimate(transferred).in_domain == 1.0


def test_memory_verdict() -> None:
    memory = MemoryEstimate(weights=5, gradients=5, optimizer=5, activations=4, temporary=1, capacity_bytes=20.0)
    assert memory.peak_bytes == 20
    assert memory.fits
    assert not MemoryEstimate(weights=21, capacity_bytes=20.0).fits


def test_planning_from_a_step_of_half_an_hour() -> None:
    # 4 samples in 1800 s: 8 an hour, so 80 samples take 10 GPU-hours
    step = estimate(kernel("linear", "forward", 1, 1800.0), usd_per_hour=2.0)
    assert step.samples_per_s == 4 / 1800
    assert step.tokens_per_s == pytest.approx(4 * 128 / 1800)
    assert step.gpu_hours(80) == pytest.approx(10)
    assert step.cost_usd(80) == pytest.approx(20)
    assert step.cost_usd(80, usd_per_hour=0.5) == pytest.approx(5)
    assert (7 * step).gpu_hours(80) == pytest.approx(10)


def test_cost_without_a_price_asks_for_one() -> None:
    with pytest.raises(DeviceError, match=r"l4 has no price.*usd_per_hour"):
        estimate(GELU).cost_usd(1)


def test_an_image_model_has_no_tokens() -> None:
    assert estimate(GELU, seq_len=None).tokens_per_s is None


def test_json_round_trip_is_exact() -> None:
    step = estimate(LINEAR, kernel("gelu", "forward", 3, 0.1 + 0.2), warnings=("a",), uncovered=("b",))
    again = Estimate.from_json(step.to_json())
    assert again == step
    assert again.latency_s == step.latency_s


@pytest.mark.parametrize("text", ["{", "{}", "[]", '{"model": 1}'])
def test_what_is_no_estimate_is_refused(text: str) -> None:
    with pytest.raises(DataError, match="not an estimate"):
        Estimate.from_json(text)


def test_a_foreign_field_is_refused() -> None:
    data = estimate(GELU).to_dict() | {"colour": "red"}
    with pytest.raises(DataError, match="colour"):
        Estimate.from_dict(data)
