"""What a host does for operators, by what they are."""

import pytest

from neusight.kernels import Conv2d, Elementwise, Gemm, RowReduction
from neusight.requests import Request
from neusight.workloads.dispatch import DISPATCHES, dispatches, operator_kinds, step_kinds
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
