"""What a host does for operators, by what they are."""

import pytest

from neusight.engines import engine_named
from neusight.kernels import Attention, Conv2d, Elementwise, Gemm, RowReduction
from neusight.kernels.families import Collective, KernelBatch
from neusight.requests import Request
from neusight.workloads.decoders.build import units_of
from neusight.workloads.decoders.known import known_decoder
from neusight.workloads.decoders.shares import Local
from neusight.workloads.dispatch import (
    DISPATCHES,
    dispatches,
    exchange_dispatches,
    node_dispatches,
    operator_kinds,
    part_dispatches,
    step_kinds,
    trained_dispatches,
)
from neusight.workloads.program import Part
from neusight.workloads.workload import Node, Workload

RELU = Elementwise(op="relu", elements=10, read_bytes=40, write_bytes=40, flops=10)
PRODUCT = Gemm(m=2, n=3, k=4)
CONVOLUTION = Conv2d(batch=1, in_channels=4, out_channels=4, height=8, width=8, kernel_height=3, kernel_width=3)


def reduction(op: str) -> RowReduction:
    return RowReduction(op=op, rows=2, cols=8, read_bytes=64, write_bytes=8, flops=16)


@pytest.mark.parametrize(
    ("kernels", "kind"),
    [
        ((), "view"),
        ((RELU,), "pointwise"),
        ((reduction("softmax"),), "reduction"),
        ((reduction("batch_norm"),), "library"),
        ((PRODUCT,), "library"),
        ((CONVOLUTION, RELU), "library"),
        ((RELU, reduction("sum")), "reduction"),
    ],
)
def test_an_operator_counts_as_its_costliest_kernel_and_its_further_ones_beside_it(kernels, kind):
    counts = operator_kinds(kernels)
    assert counts == {kind: 1, "further": max(0, len(kernels) - 1)}
    assert dispatches(counts) == pytest.approx(DISPATCHES[kind] + DISPATCHES["further"] * counts["further"])


def test_a_described_operator_of_two_kernels_counts_as_its_traced_one():
    program = units_of(known_decoder("gpt2"), Local(batch=1, seq_len=64), engine_named("torch-eager"))
    parts = program.layers[0].parts
    attention = [part for part in parts if part.phase == "backward" and part.name in ("delta", "attention")]
    traced = operator_kinds((reduction("sum"), Attention(batch=1, heads=1, kv_heads=1, q_len=8, kv_len=8, head_dim=64)))
    assert sum(map(part_dispatches, attention)) == pytest.approx(dispatches(traced))
    (weights,) = {part_dispatches(part) for part in parts if part.name.endswith("norm weight gradient")}
    assert weights == DISPATCHES["further"]


@pytest.mark.parametrize(
    ("launch", "expected"), [("eager", DISPATCHES["view"] + 3 * DISPATCHES["library"]), ("graph", 1.0)]
)
def test_a_step_adds_up_its_copies_and_a_graph_starts_once(launch, expected):
    nodes = (
        Node(id=0, operator="view", phase="forward"),
        Node(id=1, operator="mm", phase="forward", kernels=(PRODUCT,), copies=3, stride=1),
    )
    workload = Workload(request=Request.of("m", seq_len=8, launch=launch), nodes=nodes, tensors=(), parameters=0)
    assert dispatches(step_kinds(workload)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("kernel", "group"), [(Collective(ranks=2, bytes=64), "tp"), (PRODUCT, ""), (reduction("sum"), ""), (RELU, "")]
)
def test_node_dispatches_of_compiled_code_are_those_of_the_described_part(kernel, group):
    part = Part(name="described", phase="backward", batch=KernelBatch.of([kernel]), group=group)
    node = Node(id=0, operator="traced", phase="backward", kernels=(kernel,))
    described = trained_dispatches(part, engine_named("torch-compiled"))
    assert node_dispatches(node, "compiled") == pytest.approx(described)


def test_node_dispatches_counts_kernels_written_by_hand_as_steps_do():
    node = Node(id=0, operator="triton.add", phase="forward", kernels=(RELU, RELU))
    assert node_dispatches(node, "eager") == pytest.approx(2 * DISPATCHES["hand_written"])


@pytest.mark.parametrize(
    ("operator", "kernels", "tables"),
    [
        ("aten._embedding_bag.default", (Collective(op="all_to_all", ranks=8, bytes=64), RELU), 1),
        ("aten._embedding_bag.default", (Collective(op="all_to_all", ranks=8, bytes=64),) * 2, 2),
        ("aten._embedding_bag.default", (Collective(op="host_copy", ranks=2, bytes=64), RELU), 0),
        ("aten.all_to_all.default", (Collective(op="all_to_all", ranks=8, bytes=64),), 0),
    ],
)
@pytest.mark.parametrize("launch", ["eager", "compiled"])
def test_node_dispatches_of_shared_tables_count_what_surrounds_each_exchange(operator, kernels, tables, launch):
    node = Node(id=0, operator=operator, phase="forward", kernels=kernels)
    assert node_dispatches(node, launch) == pytest.approx(exchange_dispatches(launch) + tables * DISPATCHES["bags"])
