"""Products in tf32 and images in NHWC: what changes, and what does not."""

from dataclasses import replace

import pytest

from neusight.requests import Request
from neusight.transforms.precision import as_computed
from neusight.workloads import load_workload


def families(workload):
    return [k for n in workload.nodes for k in n.kernels]


@pytest.mark.parametrize(
    ("dtype", "on_units", "products", "convolutions"),
    [
        ("tf32", True, "tf32", "tf32"),
        ("float32", True, "float32", "tf32"),
        ("float32", False, "float32", "float32"),
        ("float32_ieee", True, "float32", "float32"),
    ],
)
def test_products_and_convolutions_run_in_tf32_each_where_pytorch_lets_them(dtype, on_units, products, convolutions):
    step = load_workload("alexnet", dtype=dtype, batch=2)
    assert (step.request.dtype, {k.dtype for k in families(step)}) == (dtype, {"float32"})
    found = as_computed(step, on_units)
    assert {k.dtype for k in families(found) if k.family == "gemm"} == {products}
    assert {k.dtype for k in families(found) if k.family == "conv2d"} == {convolutions}
    assert {k.dtype for k in families(found) if k.family not in ("gemm", "conv2d")} == {"float32"}
    assert any("float32_ieee" in line for line in found.warnings) == (products != convolutions)


def test_convolutions_know_the_layout_of_their_images():
    step = load_workload("alexnet", batch=2)
    engine = replace(step.request.engine, layout="nhwc")
    found = as_computed(replace(step, request=replace(step.request, engine=engine)), False)
    assert {k.image_layout for k in families(found) if k.family == "conv2d"} == {"nhwc"}
    assert [k for k in families(found) if k.family != "conv2d"] == [k for k in families(step) if k.family != "conv2d"]


def test_norms_of_channels_know_the_layout_and_other_reductions_do_not():
    step = load_workload("resnet-18", batch=2, mode="training")
    engine = replace(step.request.engine, layout="nhwc")
    found = as_computed(replace(step, request=replace(step.request, engine=engine)), False)
    layouts = {(k.op, k.image_layout) for k in families(found) if k.family == "row_reduction"}
    assert {("batch_norm", "nhwc"), ("batch_norm_backward", "nhwc")} <= layouts
    assert {layout for op, layout in layouts if not op.startswith("batch_norm")} == {"nchw"}


def test_a_step_as_traced_stays_as_it_is():
    step = load_workload("alexnet", batch=2)
    assert step.request == Request.of("alexnet", batch=2, dtype="float32", attention="eager")
    assert as_computed(step, False) is step
