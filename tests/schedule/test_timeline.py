"""One stream against formulas: launches, the host, distinct bytes, errors by source, and what a reader is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import exp, hypot, log
from typing import Any

import numpy as np
import pytest

from neusight.devices import DeviceSpec, load_device
from neusight.engines import Host, Libraries
from neusight.engines.torch import torch_engine
from neusight.estimates import Estimate, Provenance
from neusight.estimates.build import estimate_of, lone_kernels
from neusight.executors import Costs
from neusight.kernels import Elementwise, Gemm, Kernel, KernelBatch
from neusight.kernels.describe import describe
from neusight.plans import TracedStep, single
from neusight.requests import Engine, Request
from neusight.schedule.timeline import COMPOSITION_SPREAD, in_stream, one_stream
from neusight.workloads import MemoryProfile, Node, Workload

GEMM = Gemm(m=1000, n=1000, k=1000)
RELU = Elementwise(op="relu", elements=1000, read_bytes=4000, write_bytes=4000, flops=1000)
L4, ENGINE, PROVENANCE = load_device("l4"), Engine(), Provenance(neusight="0")
OVERHEAD_S, SPREAD = 5e-6, 0.1
OWN_SPREAD = (((log(1.2) - log(0.8)) / 3.29) ** 2 - SPREAD**2) ** 0.5
RUN = ((GEMM, "linear", "forward", 3), (RELU, "relu", "forward", 2), (GEMM, "linear", "backward", 6))
Cost = Callable[[KernelBatch], Costs]


def by_formula(batch: KernelBatch) -> Costs:
    """Execution takes 1 ms for a GEMM and 1 µs for anything else, launches ``OVERHEAD_S``, error -20 % to +20 %."""
    n = len(batch)
    execution_s = np.full(n, 1e-3 if batch.family == "gemm" else 1e-6)
    return Costs(
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
        spread=np.full(n, SPREAD),
        cause=np.full(n, f"device:ad104/{batch.family}"),
    )


def program(*run: tuple[Kernel, str, Any, int], operators: int = 0, **fields: Any) -> TracedStep:
    """Kernels with operator, phase and count; figures that a workload of tensors would give are given as ``fields``."""
    said = {name: fields.pop(name) for name in ("warnings", "uncovered") if name in fields}
    nodes = tuple(
        Node(id=i, operator=operator, phase=phase, kernels=(kernel,), copies=count)
        for i, (kernel, operator, phase, count) in enumerate(run or RUN)
    )
    request = Request.of("m", mode="training", seq_len=8)
    workload = Workload(request=request, nodes=nodes, tensors=(), parameters=10, **said)
    given = {"memory": MemoryProfile(weights=2**30), "traffic_bytes": ()} | fields
    return replace(single(workload), dispatches=operators, **given)


def estimated(of: TracedStep, device: DeviceSpec = L4, cost: Cost = by_formula) -> Estimate:
    timeline = one_stream(of, [cost(batch) for batch, _ in of.batches], device, ENGINE)
    return estimate_of(timeline, device, replace(PROVENANCE, hypothetical=device.hypothetical))


def host_operators(seconds: float) -> int:
    return round(seconds / ENGINE.host_s_per_operator)


def test_a_launch_hides_behind_execution_and_shows_in_short_kernels() -> None:
    step = estimated(program())
    assert step.latency_s == pytest.approx(9 * 1e-3 + 2 * max(1e-6, L4.launch_overhead_s))
    assert {k.operator: k.limiter for k in step.by_kernel} == {"linear": "compute", "relu": "launch"}
    assert {(k.kernel, k.phase, k.count) for k in step.by_kernel} == {
        (describe(GEMM), "forward", 3),
        (describe(GEMM), "backward", 6),
        (describe(RELU), "forward", 2),
    }
    (alone,) = lone_kernels(KernelBatch.of([GEMM]), by_formula(KernelBatch.of([GEMM])))
    assert alone.latency_s == pytest.approx(1e-3 + OVERHEAD_S)
    assert (alone.kernel, alone.tile, alone.count) == ("linear 1000x1000x1000 tn", "128x64", 1)


def test_neither_a_graph_nor_a_host_that_is_known_spaces_short_kernels() -> None:
    of = program((RELU, "relu", "forward", 100))
    costs = [by_formula(batch) for batch, _ in of.batches]
    spaced, graph, hosted = (
        sum(float(c.latency_s[0]) for c in one_stream(of, costs, L4, engine, host).costs)
        for engine, host in (
            (ENGINE, None),
            (torch_engine(launch="graph"), None),
            (ENGINE, Host(call_s=0.0, operator_s=1e-6, spread=0.2)),
        )
    )
    assert spaced == pytest.approx(L4.launch_overhead_s)
    assert graph == hosted == pytest.approx(1e-6)


def test_in_stream_never_below_the_bound_or_out_of_order() -> None:
    for kernel, interval_s in ((k, i) for k in (GEMM, RELU) for i in (0.0, 1e-6, 1e-3)):
        stream = in_stream(by_formula(KernelBatch.of([kernel] * 3)), interval_s)
        assert (stream.latency_s >= stream.bound_s).all()
        assert (stream.low_s <= stream.latency_s).all()
        assert (stream.latency_s <= stream.high_s).all()


def test_the_host_floors_a_step_of_tiny_kernels_and_is_as_uncertain_as_the_host() -> None:
    step, host_s = estimated(program(operators=10_000)), 10_000 * ENGINE.host_s_per_operator
    assert step.latency_s == pytest.approx(host_s)
    doubt = exp(1.645 * ENGINE.host_spread)
    assert step.interval == (pytest.approx(host_s / doubt, rel=0.01), pytest.approx(host_s * doubt, rel=0.01))
    assert (step.limiter, step.coverage["trained"]) == ("host", pytest.approx(1))
    # What the host hides does not matter: all that is left is the host's own error.
    assert step.errors["host"] == pytest.approx(ENGINE.host_spread, rel=0.01)
    assert all(step.errors.get(source, 0.0) < 0.01 for source in ("device", "launch", "composition"))


def test_launches_of_a_step_that_waits_for_the_host_count_as_the_host() -> None:
    small = (RELU, "relu", "forward", 100)
    waiting = host_operators(1.5 * 100 * L4.launch_overhead_s)
    assert estimated(program(small)).limiter == "launch"
    assert estimated(program(small, operators=waiting)).limiter == "host"


def test_a_host_that_may_decide_widens_the_interval_and_lengthens_nothing() -> None:
    free, certain = estimated(program()), estimated(program(operators=11))
    assert (certain, "host" in certain.by_phase) == (free, False)
    near = estimated(program(operators=host_operators(0.95 * free.latency_s)))
    assert near.latency_s == pytest.approx(free.latency_s)
    assert near.errors["host"] > 0.05
    assert 0 < near.errors["device"] < free.errors["device"]


def test_every_row_lies_in_its_own_interval_whatever_it_waits_for() -> None:
    def uncertain(batch: KernelBatch) -> Costs:
        known = by_formula(batch)
        return replace(known, low_s=known.overhead_s + known.bound_s, high_s=3 * known.latency_s)

    wrong = []
    for cost in (by_formula, uncertain):
        for share in (0.5, 0.9, 0.99, 1.0, 1.01, 1.2, 2.0, 10.0):
            step = estimated(program(operators=host_operators(share * 9e-3)), cost=cost)
            rows = [row for row in step.by_kernel if not row.low_s <= row.latency_s <= row.high_s]
            wrong += [(cost.__name__, share, row.kernel, row.low_s, row.latency_s, row.high_s) for row in rows]
    assert wrong == []


def test_errors_of_a_step_are_those_of_its_kernels_by_source() -> None:
    """What kernels share adds up, and so do errors of one kernel in two rows: nine products of 1 ms."""
    step = estimated(program(*(row for row in RUN if row[0] is GEMM)))
    assert step.latency_s == pytest.approx(9e-3)
    said = {"device": SPREAD, "kernel": OWN_SPREAD, "launch": 0.0, "composition": COMPOSITION_SPREAD}
    assert {"launch": 0.0, **step.errors} == pytest.approx(said, abs=1e-6)
    total = hypot(*step.errors.values())
    assert step.interval == (pytest.approx(9e-3 / exp(1.645 * total)), pytest.approx(9e-3 * exp(1.645 * total)))


def test_the_bound_of_a_step_is_that_of_its_kernels_or_of_its_distinct_bytes() -> None:
    l2, kernels_s = L4.l2_capacity_bytes, 9 * 0.5e-3 + 2 * 0.5e-6
    for traffic in ((), (int(l2),), (10**9,), (10**9, 10**9), (3 * 10**9, int(l2) // 2), (10**10,)):
        memory_s = sum(max(0.0, size - l2) for size in traffic) / L4.dram_bandwidth_bytes_per_s
        step = estimated(program(traffic_bytes=traffic))
        assert step.bound_s == pytest.approx(max(kernels_s, memory_s)), traffic
        # Kernels that would take less than the bytes wait for these.
        assert step.latency_s == pytest.approx(max(estimated(program()).latency_s, memory_s)), traffic
        assert step.bound_s <= step.interval[0] <= step.latency_s <= step.interval[1], traffic
    wide = L4.model_copy(update={"dram_bandwidth_bytes_per_s": 2 * L4.dram_bandwidth_bytes_per_s})
    bytes_alone = program(traffic_bytes=(10**10,))
    assert estimated(bytes_alone, wide).bound_s == pytest.approx(estimated(bytes_alone).bound_s / 2)


def warnings(device: DeviceSpec = L4, cost: Cost = by_formula, **fields: Any) -> str:
    return " | ".join(estimated(program(**fields), device, cost).warnings)


def test_warnings_say_what_does_not_fit_and_what_was_changed() -> None:
    assert warnings() == ""
    capacity = L4.dram_capacity_bytes
    assert "does not fit: needs" in warnings(memory=MemoryProfile(activations=int(capacity) + 1))
    assert "tight fit" in warnings(memory=MemoryProfile(activations=int(capacity * 0.92)))
    assert "no rule for relu" in warnings(uncovered=("relu",))
    assert "hypothetical device: l4 with sm_count=60" in warnings(load_device("l4", ["sm_count=60"]))
    assert warnings(warnings=("from the trace",)) == "from the trace"


def test_warnings_say_when_the_models_know_little_of_it() -> None:
    def outside(batch: KernelBatch) -> Costs:
        return replace(by_formula(batch), outside=np.full(len(batch), "GPUs of amd"))

    def foreign(batch: KernelBatch) -> Costs:
        return replace(outside(batch), source=np.full(len(batch), "gemm (transferred)"))

    assert "100% of the latency is of operators or dtypes" in warnings(cost=foreign)
    expected = "100% of the latency is of kernels unlike those of the tile models' training, mostly: GPUs of amd"
    assert warnings(cost=outside) == expected


@pytest.mark.parametrize("operators", [0, 5000])
def test_a_step_that_is_called_by_itself_begins_with_its_call(operators):
    host = Host(call_s=4e-5, operator_s=2e-6, spread=0.3, copied_bytes=7000, copy_bytes_per_s=7e9)
    of = program(operators=operators)
    costs = [by_formula(batch) for batch, _ in of.batches]
    idle = estimate_of(one_stream(of, costs, L4, ENGINE, replace(host, call_s=0.0, operator_s=0.0)), L4, PROVENANCE)
    called = estimate_of(one_stream(of, costs, L4, ENGINE, host), L4, PROVENANCE)
    kernels_s = idle.latency_s - 1e-6
    assert called.latency_s == pytest.approx(4e-5 + 1e-6 + max(kernels_s, operators * 2e-6))
    assert called.low_s < called.latency_s < called.high_s
    assert called.errors["host"] >= 4.1e-5 * 0.3 / called.latency_s * 0.999


def test_a_call_of_compiled_code_costs_the_host_its_guards_where_the_host_decides() -> None:
    of = program(operators=5000)
    costs = [by_formula(batch) for batch, _ in of.batches]
    plain, guarded = (
        estimate_of(one_stream(of, costs, L4, replace(ENGINE, host_s_per_call=call_s)), L4, PROVENANCE)
        for call_s in (0.0, 6e-5)
    )
    assert guarded.latency_s - plain.latency_s == pytest.approx(6e-5)
    assert torch_engine(launch="compiled").host_s_per_call > torch_engine().host_s_per_call


def test_kernels_of_other_libraries_take_longer_and_their_launches_do_not() -> None:
    of = program()
    costs = [by_formula(batch) for batch, _ in of.batches]
    step = estimate_of(one_stream(of, costs, L4, ENGINE, libraries=Libraries(factor=1.5, spread=0.2)), L4, PROVENANCE)
    assert step.latency_s == pytest.approx(9 * 1.5e-3 + 2 * max(1.5e-6, L4.launch_overhead_s))
    assert step.errors["libraries"] == pytest.approx(0.2 * 9 * 1.5e-3 / step.latency_s, rel=0.01)
    # No version beats the bound, which is half of the time here.
    faster = [part.times(0.1) for part in costs]
    assert all(
        (part.execution_s == pytest.approx(part.bound_s)) and (part.low_s <= part.high_s).all() for part in faster
    )
