"""An estimate is a sum over its kernels: algebra, errors by source, derived figures, planning and serialisation."""

import json
from dataclasses import replace
from math import exp, hypot
from typing import Any

import pytest

from neusight.errors import DataError, DeviceError
from neusight.estimates import Estimate, KernelEstimate, MemoryEstimate, Provenance
from neusight.estimates.report import report


def kernel(operator: str, phase: str, count: float, latency_s: float, **fields: Any) -> KernelEstimate:
    values: dict[str, Any] = {
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


def estimate(*kernels: KernelEstimate, **fields: Any) -> Estimate:
    values: dict[str, Any] = {
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
GRAD = kernel("linear", "backward", 4, 4.0, kernel="linear 2048", limiter="compute", source="gemm", family="gemm")


def with_errors(row: KernelEstimate, **errors_s: float) -> KernelEstimate:
    keys = {"kernel": "own:t4", "device": "device:tu104"}
    return replace(row, errors_s=tuple((keys.get(name, f"{name}:"), size_s) for name, size_s in errors_s.items()))


def test_sums_over_kernels() -> None:
    step = estimate(LINEAR, GELU, GRAD)
    assert step.latency_s == 2 * 3.0 + 4 * 0.5 + 4 * 4.0
    assert step.bound_s == 12.0
    assert step.limiter == "compute"
    assert step.by_phase == {"forward": 8.0, "backward": 16.0}


def test_errors_add_by_source_and_sources_in_quadrature() -> None:
    step = estimate(with_errors(LINEAR, device=0.3, kernel=0.6), with_errors(GRAD, device=0.8, kernel=0.5, launch=0.1))
    # What rows share adds up, launches of one kernel are wrong alike, two kernels each in its own way.
    expected = {"device": 2 * 0.3 + 4 * 0.8, "kernel": hypot(2 * 0.6, 4 * 0.5), "launch": 4 * 0.1}
    assert step.errors == pytest.approx({source: size / 22.0 for source, size in expected.items()})
    factor = exp(1.645 * hypot(*expected.values()) / 22.0)
    assert step.interval == pytest.approx((max(22.0 / factor, step.bound_s), 22.0 * factor))
    # However little is known, nothing is faster than physics; what is certain has no width.
    wide = estimate(with_errors(LINEAR, device=15.0))
    assert wide.interval[0] == wide.bound_s
    assert (estimate(LINEAR).interval, estimate().interval) == ((6.0, 6.0), (0.0, 0.0))


def test_a_wait_for_the_host_cancels_what_it_hides() -> None:
    hidden = with_errors(LINEAR, device=0.3, kernel=0.1)
    wait = with_errors(kernel("host", "host", 1, 4.0, bound_s=0.0, limiter="host", source=""), device=-0.6, host=2.0)
    step = estimate(hidden, wait)
    assert step.errors == pytest.approx({"kernel": 0.02, "host": 0.2}, abs=1e-12)


def test_errors_of_sums_and_products() -> None:
    first = estimate(with_errors(LINEAR, device=0.3, kernel=0.6))
    second = estimate(with_errors(GRAD, device=0.8, kernel=0.5))
    errors_s = {s: [e.errors[s] * e.latency_s for e in (first, second)] for s in ("device", "kernel")}
    total = first + 3 * second
    assert total.errors["device"] * total.latency_s == pytest.approx(errors_s["device"][0] + 3 * errors_s["device"][1])
    assert total.errors["kernel"] * total.latency_s == pytest.approx(
        hypot(errors_s["kernel"][0], 3 * errors_s["kernel"][1])
    )
    # A thousand times the same step is as wrong as the step itself.
    assert (1000 * first).errors == pytest.approx(first.errors)


def test_operators_costliest_first_with_shares_that_sum_to_one() -> None:
    rows = estimate(GELU, LINEAR, GRAD).by_operator
    assert [(r.operator, r.phase, r.count) for r in rows] == [
        ("linear", "backward", 4),
        ("linear", "forward", 2),
        ("gelu", "forward", 4),
    ]
    assert sum(r.share for r in rows) == pytest.approx(1)
    assert rows[0].share == pytest.approx(16 / 24)
    (row,) = estimate(kernel("linear", "forward", 1, 0.1, limiter="launch"), LINEAR).by_operator
    assert (row.count, row.latency_s, row.limiter) == (3, pytest.approx(6.1), "compute")


def test_addition_is_one_step_after_the_other() -> None:
    large = MemoryEstimate(weights=30, capacity_bytes=20.0)
    first = estimate(LINEAR, GELU)
    second = estimate(GRAD, GELU, samples=8, model="n", memory=large, warnings=("w",))
    total = first + second
    assert total.latency_s == first.latency_s + second.latency_s
    assert total.bound_s == first.bound_s + second.bound_s
    assert total.samples == 12
    # the GELU of both is the same kernel: one row with both counts
    assert [k.count for k in total.by_kernel if k.operator == "gelu"] == [8]
    assert (total.model, total.gpu, total.fits, total.warnings) == ("m + n", "l4", False, ("w",))


def test_multiplication_equals_repeated_addition() -> None:
    step = estimate(LINEAR, GELU)
    assert 3 * step == step * 3 == step + step + step
    assert (3 * step).memory == step.memory
    assert (3 * step).samples_per_s == pytest.approx(step.samples_per_s)
    for wrong in (lambda: estimate(GELU) + 1, lambda: estimate(GELU) * "2"):
        with pytest.raises(TypeError):
            wrong()
    with pytest.raises(ValueError, match="cannot run -1 times"):
        -1 * step


def test_coverage_shares() -> None:
    transferred = kernel("sum", "forward", 1, 1.0, source="row_reduction (transferred)")
    bare = kernel("roll", "forward", 1, 2.0, source="roofline")
    ruleless = kernel("aten.foo.default", "forward", 1, 1.0, source="memory")
    host = kernel("host", "host", 1, 100.0, source="", limiter="host")
    coverage = estimate(LINEAR, transferred, bare, ruleless, host, uncovered=("aten.foo",)).coverage
    assert coverage == {"trained": 0.6, "transferred": 0.1, "fallback": pytest.approx(0.3)}


def test_in_domain_is_a_share_of_the_latency_of_trained_kernels() -> None:
    above = "waves above the range of training"
    transferred = kernel("sum", "forward", 1, 50.0, outside=above, source="row_reduction (transferred)")
    step = estimate(LINEAR, kernel("big", "forward", 1, 2.0, outside=above), transferred)
    assert (step.in_domain, step.outside) == (0.75, {above: 0.25})
    assert estimate(transferred).in_domain == 1.0


def test_memory_verdict_counts_the_reserve() -> None:
    parts = {"weights": 5, "gradients": 5, "optimizer": 5, "activations": 4, "temporary": 1}
    full = MemoryEstimate(**parts, capacity_bytes=20.0)
    assert full.peak_bytes == 20
    assert full.fits
    assert not MemoryEstimate(**parts, reserve=1, capacity_bytes=20.0).fits


def test_planning_from_a_step_of_half_an_hour() -> None:
    # 4 samples in 1800 s: 8 an hour, so 80 samples take 10 GPU-hours
    step = estimate(kernel("linear", "forward", 1, 1800.0), usd_per_hour=2.0)
    assert step.samples_per_s == 4 / 1800
    assert step.tokens_per_s == pytest.approx(4 * 128 / 1800)
    assert replace(step, seq_len=None).tokens_per_s is None
    assert step.gpu_hours(80) == pytest.approx(10)
    assert step.cost_usd(80) == pytest.approx(20)
    assert step.cost_usd(80, usd_per_hour=0.5) == pytest.approx(5)
    assert (7 * step).gpu_hours(80) == pytest.approx(10)
    with pytest.raises(DeviceError, match=r"no price of l4 is known.*usd_per_hour"):
        estimate(GELU).cost_usd(1)


def test_json_round_trip_is_exact() -> None:
    rows = (with_errors(LINEAR, device=0.1, kernel=1 / 3), kernel("gelu", "forward", 3, 0.1 + 0.2))
    step = estimate(*rows, warnings=("a",), uncovered=("b",))
    again = Estimate.from_json(step.to_json())
    assert again == step
    assert (again.latency_s, again.interval) == (step.latency_s, step.interval)


def test_what_is_no_estimate_is_refused() -> None:
    foreign = json.dumps(estimate(GELU).to_dict() | {"colour": "red"})
    for text in ("{", "{}", "[]", '{"model": 1}', foreign):
        with pytest.raises(DataError, match="not an estimate") as caught:
            Estimate.from_json(text)
    assert "colour" in str(caught.value)


def test_a_sum_of_estimates_is_an_estimate() -> None:
    step = estimate(LINEAR, GELU)
    assert sum([step, step]) == step + step
    with pytest.raises(TypeError):
        _ = 1 + step


def test_it_is_short_on_a_prompt_and_a_table_in_a_notebook() -> None:
    step = estimate(LINEAR, GELU, GRAD, model="<gpt>", warnings=("a & b",))
    assert repr(step) == (
        "<Estimate <gpt> on l4, training, batch 4, float32: 24.00 s (90 %: 24.00 s to 24.00 s), "
        "limited by compute, fits>"
    )
    page = step._repr_html_()
    assert "&lt;gpt&gt; on l4" in page and "a &amp; b" in page
    # 16 of 24 s are backward: a bar of two thirds of 120 pixels
    assert "backward</td><td>16.00 s</td><td>66.7%" in page and "width:80px" in page


def test_names_of_the_json_are_those_of_the_attributes() -> None:
    step = estimate(LINEAR, GELU, GRAD)
    found = report(step)
    assert all(hasattr(step, name) for name in found)
    assert all(hasattr(step.by_kernel[0], name) for name in found["by_kernel"][0])
    assert all(hasattr(step.by_operator[0], name) for name in found["by_operator"][0])
    assert all(hasattr(step.memory, name) for name in found["memory"])
    assert (found["latency_s"], found["low_s"], found["high_s"]) == (step.latency_s, *step.interval)
    json.dumps(found)
