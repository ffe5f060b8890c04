"""The models of MLPerf Tiny, and steps in integers alone."""

from dataclasses import replace

import pytest

from neusight.errors import InapplicableError
from neusight.kernels import KernelBatch
from neusight.kernels.precision import Precision
from neusight.kernels.work import work_of
from neusight.steps.questions import Setting, step_request, workload_of
from neusight.transforms.narrowed import wholly_in_int8
from neusight.workloads import load_workload
from neusight.workloads.catalogue import list_traced
from neusight.workloads.target import TargetDevice


def integers_of(model, **words):
    request, _ = step_request(model, words)
    return workload_of(model, request, Setting(cache=False), TargetDevice())


def macs_of(step):
    kernels = [k for node in step.nodes for k in node.kernels if k.family in ("conv2d", "gemm")]
    return sum(int(work_of(KernelBatch.of([kernel])).flops[0]) // 2 for kernel in kernels)


SEPARABLE = 25 * 5 * 64 * (9 + 64)


@pytest.mark.parametrize(
    ("task", "macs"),
    [
        ("kws", 25 * 5 * 64 * 40 + 4 * SEPARABLE + 64 * 12),
        ("ad", 2 * 640 * 128 + 6 * 128 * 128 + 2 * 128 * 8),
        # 7.5 and 12.5 million: Banbury et al. 2021, MicroNets, section 5, and MLPerf Tiny's reference code.
        ("vww", 7_489_664),
        ("ic", 12_501_632),
    ],
)
def test_the_reference_models_multiply_as_often_as_published(task, macs):
    step = integers_of(f"mlperf-tiny-{task}")
    assert macs_of(step) == macs
    (info,) = (one for one in list_traced() if one.name == f"mlperf-tiny-{task}")
    assert step.parameters == info.parameters


def test_integers_have_one_kernel_a_layer_and_the_bytes_of_their_tensors():
    traced = load_workload("mlperf-tiny-ic", dtype="float32_ieee", cache=False)
    step = wholly_in_int8(traced, Precision.named("int8"))
    kernels = [kernel for node in step.nodes for kernel in node.kernels]
    assert [k.family for k in kernels].count("conv2d") == 9
    # Norms and clamps are part of layers, additions are not; pooling and softmax stay.
    assert sorted(k.op for k in kernels if k.family not in ("conv2d", "gemm")) == ["add"] * 3 + [
        "avg_pool2d",
        "softmax",
    ]
    assert {k.dtype for k in kernels} == {"int8"}
    weights = 9 * 16 * (3 + 16 + 16) + 9 * 32 * (16 + 32) + 9 * 64 * (32 + 64) + 16 * 32 + 32 * 64 + 64 * 10
    assert step.memory.weights == weights + 4 * (3 * 16 + 3 * 32 + 3 * 64 + 10)
    # Two results of the first stage are read while a third is written.
    assert step.memory.temporary == 3 * 32 * 32 * 16


def test_integers_do_not_train():
    traced = load_workload("mlperf-tiny-ad", dtype="float32_ieee", cache=False)
    training = replace(traced, request=replace(traced.request, mode="training"))
    with pytest.raises(InapplicableError, match="integers take no gradients"):
        wholly_in_int8(training, Precision.named("int8"))
