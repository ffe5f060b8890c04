"""torch.compile: what is left of a chain is what enters it, once, and what somebody outside reads."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from neusight import Predictor
from neusight.kernels import Collective, Elementwise, Gemm, Kernel, RowReduction
from neusight.requests import Request
from neusight.transforms.fusion import fuse
from neusight.transforms.optimizer import fuse_optimizer
from neusight.transforms.unrolled import unroll
from neusight.workloads import Workload, load_workload
from neusight.workloads.workload import KEPT, Node, Reference, Tensor

N = 1024 * 256
"""Elements of a tensor: 1024 rows of 256 columns."""
SIZE = 4 * N


def pointwise(op: str, operands: int = 1) -> Elementwise:
    return Elementwise(op=op, elements=N, read_bytes=operands * SIZE, write_bytes=SIZE, flops=N)


SOFTMAX = RowReduction(op="softmax", rows=1024, cols=256, read_bytes=SIZE, write_bytes=SIZE, flops=20 * N)
SUM_OF_ROWS = RowReduction(op="sum", rows=1024, cols=256, read_bytes=SIZE, write_bytes=4 * 1024, flops=N)
SUM_OF_COLUMNS = RowReduction(op="sum", rows=256, cols=1024, read_bytes=SIZE, write_bytes=4 * 256, flops=N)
LINEAR = Gemm(m=1024, n=256, k=256)


def step(*nodes: tuple[Kernel, list[int], int], kept: set[int] | None = None, phases: str = "") -> Workload:
    """Nodes as (kernel, tensors read, tensor written); tensor 0 is there before the step."""
    count = 1 + max(written for _, _, written in nodes)
    born = {written: place for place, (_, _, written) in enumerate(nodes)}
    last = {t: place for place, (_, read, _) in enumerate(nodes) for t in read}
    tensors = [
        Tensor(
            shape=(1024, 256), dtype="float32", kind="intermediate", nbytes=SIZE, touched_bytes=SIZE,
            born=born.get(t, -1), died=KEPT if t in (kept or set()) else last.get(t, len(nodes) - 1),
        )
        for t in range(count)
    ]  # fmt: skip
    named: dict[str, Any] = {"f": "forward", "b": "backward"}
    made = [
        Node(
            id=place, operator=f"aten.{getattr(kernel, 'op', kernel.family)}.default",
            phase=named[phases[place] if phases else "f"], kernels=(kernel,),
            reads=tuple(map(Reference, read)), writes=(Reference(written),),
        )
        for place, (kernel, read, written) in enumerate(nodes)
    ]  # fmt: skip
    return Workload(request=Request.of("mine"), nodes=tuple(made), tensors=tuple(tensors), parameters=1)


def kernels(workload: Workload) -> list[Any]:
    return [kernel for node in workload.nodes for kernel in node.kernels]


def test_a_chain_reads_its_input_once_and_writes_its_last_result() -> None:
    chain = step((pointwise("mul"), [0], 1), (pointwise("tanh"), [1], 2), (pointwise("add", 2), [2, 0], 3), kept={3})
    (kernel,) = kernels(fuse(chain))
    assert (kernel.read_bytes, kernel.write_bytes) == (SIZE, SIZE)
    assert kernel.flops == 3 * N
    assert kernel.elements == N


def test_what_somebody_outside_reads_is_still_written() -> None:
    nodes = ((pointwise("mul"), [0], 1), (pointwise("tanh"), [1], 2), (LINEAR, [1], 3))
    chain, product = kernels(fuse(step(*nodes, kept={2, 3})))
    assert chain.write_bytes == 2 * SIZE
    assert product == LINEAR


def test_a_reduction_takes_pointwise_work_before_and_after_it() -> None:
    nodes = ((pointwise("mul"), [0], 1), (SOFTMAX, [1], 2), (pointwise("mul"), [2], 3))
    (kernel,) = kernels(fuse(step(*nodes, kept={3})))
    assert (kernel.op, kernel.rows, kernel.cols) == ("softmax", 1024, 256)
    assert (kernel.read_bytes, kernel.write_bytes) == (SIZE, SIZE)
    assert kernel.flops == 22 * N


@pytest.mark.parametrize(
    "nodes",
    [
        ((pointwise("mul"), [0], 1), (LINEAR, [1], 2), (pointwise("mul"), [2], 3)),
        ((SOFTMAX, [0], 1), (SUM_OF_COLUMNS, [1], 3)),
    ],
    ids=["a product between", "reductions along different dimensions"],
)
def test_what_cannot_run_in_one_loop_stays_apart(nodes: Any) -> None:
    assert len(kernels(fuse(step(*nodes, kept={3})))) == len(nodes)


def test_a_third_kernel_between_two_keeps_them_apart() -> None:
    # The addition needs the product, which needs the multiplication.
    nodes = ((pointwise("mul"), [0], 1), (LINEAR, [1], 2), (pointwise("add", 2), [1, 2], 3))
    assert kernels(fuse(step(*nodes, kept={3}))) == [k for k, _, _ in nodes]


def test_a_pointwise_result_is_computed_in_every_kernel_that_reads_it() -> None:
    nodes = ((pointwise("mul"), [0], 1), (SUM_OF_ROWS, [1], 2), (SUM_OF_COLUMNS, [1], 3))
    rows, columns = kernels(fuse(step(*nodes, kept={2, 3})))
    assert rows.read_bytes == columns.read_bytes == SIZE
    assert rows.flops == columns.flops == 2 * N


def test_two_results_of_the_same_operands_are_written_by_one_kernel() -> None:
    nodes = ((LINEAR, [0], 1), (pointwise("mul"), [1], 2), (pointwise("tanh"), [1], 3))
    _, kernel = kernels(fuse(step(*nodes, kept={2, 3})))
    assert (kernel.read_bytes, kernel.write_bytes) == (SIZE, 2 * SIZE)


def test_what_the_backward_pass_reads_pointwise_is_computed_again_there() -> None:
    """The partitioner keeps the one product's result, not the two that are made of it."""
    nodes = (
        (LINEAR, [0], 1), (pointwise("mul"), [1], 2), (pointwise("tanh"), [2], 3), (LINEAR, [3], 4),
        (pointwise("add", 3), [2, 1, 4], 5),
    )  # fmt: skip
    _, forward, _, backward = kernels(fuse(step(*nodes, kept={5}, phases="ffffb")))
    assert (forward.read_bytes, forward.write_bytes) == (SIZE, SIZE)
    assert (backward.read_bytes, backward.write_bytes) == (2 * SIZE, SIZE)


def test_what_a_library_reads_in_the_backward_pass_is_kept() -> None:
    nodes = ((pointwise("mul"), [0], 1), (pointwise("tanh"), [1], 2), (LINEAR, [1], 3))
    forward, backward = kernels(fuse(step(*nodes, kept={2, 3}, phases="ffb")))
    assert forward.write_bytes == 2 * SIZE
    assert backward == LINEAR


@pytest.mark.parametrize("dtype", ["float32", "amp"])
def test_norms_after_the_residual_sum_read_no_layer_but_their_own_in_the_backward_pass(dtype: str) -> None:
    """Nothing is computed again across a product (``ban_recompute_used_far_apart`` of the partitioner)."""
    step = fuse(load_workload("bert-base", mode="training", dtype=dtype, attention="eager"))
    read = [
        len(node.reads)
        for node in step.nodes
        if any(getattr(kernel, "op", "") == "layer_norm_backward" for kernel in node.kernels)
    ]
    assert len(read) == 26
    assert max(read) <= 10


def test_a_collective_stays_a_kernel_of_its_own() -> None:
    """What follows it is joined as it would be without it."""
    nodes = ((LINEAR, [0], 1), (pointwise("mul"), [1], 2), (pointwise("tanh"), [2], 3))
    chain = step(*nodes, kept={3})
    reduce = Collective(op="all_reduce", ranks=2, bytes=SIZE)
    product, first, *rest = chain.nodes
    summed = replace(chain, nodes=(product, replace(first, kernels=(reduce, *first.kernels)), *rest))
    _, collective, kernel = kernels(fuse(summed))
    assert collective == reduce
    assert (kernel.read_bytes, kernel.write_bytes, kernel.flops) == (SIZE, SIZE, 2 * N)


@cache
def workload(name: str, mode: str) -> Workload:
    options = {"optimizer": "adam"} if mode == "training" else {}
    return load_workload(name, mode=mode, batch=2, seq_len=128, **options)


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize("name", ["gpt2", "bert-base", "llama-3.2-1b", "t5-small"])
def test_fusion_keeps_arithmetic_and_products_and_moves_fewer_bytes(name: str, mode: str) -> None:
    before = workload(name, mode)
    after = fuse(before)
    for family in ("gemm", "conv2d", "optimizer"):
        assert sorted(map(repr, of(before, family))) == sorted(map(repr, of(after, family)))
    assert flops(before) <= flops(after) < 1.3 * flops(before)  # Some of it in several kernels.
    # Both reductions over a norm's gradients read again all that was added up to what they take: BERT has most of them.
    most = 0.85 if (name, mode) == ("bert-base", "training") else 0.8
    assert bytes_of(after) < most * bytes_of(before)
    assert after.length < before.length / 2
    assert after.memory.peak <= before.memory.peak
    assert sum(after.traffic_bytes) <= sum(before.traffic_bytes)


def of(step: Workload, family: str) -> list[Kernel]:
    return [launch.kernel for launch in step.launches for _ in range(launch.count) if launch.kernel.family == family]


def flops(step: Workload) -> int:
    return sum(getattr(one.kernel, "flops", 0) * one.count for one in step.launches)


def bytes_of(step: Workload) -> int:
    """Of kernels that state them, without the optimizer's."""
    launches = (one for one in step.launches if one.phase != "optimizer")
    kernels = ((one.kernel, one.count) for one in launches if hasattr(one.kernel, "read_bytes"))
    return sum((k.read_bytes + k.write_bytes) * count for k, count in kernels)  # type: ignore[union-attr]


def test_every_node_runs_after_what_it_reads() -> None:
    after = fuse(workload("gpt2", "training"))
    waiting = {w.tensor for node in after.nodes for w in node.writes if after.tensors[w.tensor].born >= 0}
    for node in after.nodes:
        waiting -= {w.tensor for w in node.writes}
        assert not waiting & {r.tensor for r in node.reads}, node.operator


def test_a_plain_workload_is_the_same_step() -> None:
    before = workload("gpt2", "training")
    after = unroll(before)
    assert all(node.copies == 1 for node in after.nodes)
    assert (after.memory, after.traffic_bytes, after.length) == (before.memory, before.traffic_bytes, before.length)
    assert set(after.launches) == set(before.launches)


def test_a_fused_optimizer_reads_and_writes_each_value_once() -> None:
    before = workload("gpt2", "training")
    (kernel,) = of(fuse_optimizer(before), "optimizer")
    size = 4 * before.parameters
    # Adam: parameter, gradient and two moments in; all but the gradient out.
    assert (kernel.read_bytes, kernel.write_bytes) == (4 * size, 3 * size)  # type: ignore[union-attr]
    assert fuse_optimizer(fuse_optimizer(before)) == fuse_optimizer(before)
    assert fuse_optimizer(workload("gpt2", "inference")) is workload("gpt2", "inference")


def test_a_compiled_step_is_faster_and_its_graph_keeps_the_host_out(predictor: Predictor) -> None:
    sizes = {"batch": 1, "seq_len": 64}
    eager, compiled, graph = (
        predictor.estimate("gpt2", "h100", launch=launch, **sizes) for launch in ("eager", "compiled", "graph")
    )
    assert eager.limiter == "host"
    copies_s = sum(row.latency_s for row in graph.by_operator if row.operator == "aten.copy_.default")
    assert graph.latency_s - copies_s <= 1.000001 * compiled.latency_s < eager.latency_s
    assert "host" not in graph.by_phase
