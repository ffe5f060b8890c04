"""Steps under autocast: casts are kernels, lists are those of CUDA."""

from collections import Counter

import pytest
import torch
from torch import nn

from neusight.errors import ModelError
from neusight.kernels.precision import Precision
from neusight.requests import Request
from neusight.workloads.target import TargetReader
from neusight.workloads.tensors import TensorSpec
from neusight.workloads.trace.autocast import _HALF, _WIDEST, cast_operators
from neusight.workloads.trace.target_device import on_target
from neusight.workloads.trace.tracing import trace

WIDTH = 16


class Twice(nn.Module):
    """One weight used twice, a norm and a softmax."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x):
        return torch.softmax(self.norm(self.linear(self.linear(x))), -1)


def step(dtype, mode="inference", **more):
    return trace(Twice, (TensorSpec((8, WIDTH)),), Request.of("twice", dtype=dtype, mode=mode, **more))


def kernels(workload, family):
    return [k for n in workload.nodes for k in n.kernels if k.family == family]


def test_products_run_in_16_bit_and_norms_in_float32():
    workload = step("amp")
    assert {k.dtype for k in kernels(workload, "gemm")} == {"float16"}
    assert {k.op: k.dtype for k in kernels(workload, "row_reduction")} == {
        "layer_norm": "float32",
        "softmax": "float32",
    }


def test_a_weight_is_cast_once_a_step_and_activations_wherever_they_meet_a_product():
    copies = Counter(k.elements for k in kernels(step("amp"), "memory") if k.op == "copy")
    # The weight; its bias; the input of the first product, and the widening before the norm.
    assert copies == {WIDTH * WIDTH: 1, WIDTH: 1, 8 * WIDTH: 2}


def test_float32_casts_nothing():
    assert not [k for k in kernels(step("float32"), "memory") if k.op == "copy"]


def test_gradients_of_weights_are_widened_to_float32():
    workload = step("amp_bf16", "training")
    backward = [n for n in workload.nodes if n.phase == "backward"]
    assert {k.dtype for n in backward for k in n.kernels if k.family == "gemm"} == {"bfloat16"}
    # Uses of the weight add up in 16 bit, and their sum is cast once.
    assert [k.dtype for n in backward for k in n.kernels if k.family == "memory" and k.elements == WIDTH**2] == [
        "float32"
    ]


def test_the_lists_name_operators_that_cuda_casts():
    cast = {name.partition(".")[0] for name in cast_operators("AutocastCUDA")}
    assert cast >= _HALF
    assert cast >= _WIDEST


def test_the_lists_of_the_cpu_come_back():
    before = cast_operators("AutocastCPU")
    with on_target(TargetReader()), torch.autocast("cuda", torch.bfloat16):
        assert cast_operators("AutocastCPU") >= cast_operators("AutocastCUDA")
    assert cast_operators("AutocastCPU") == before


@pytest.mark.parametrize("name", ["amp", "amp_bf16", "tf32", "bf16", "float32"])
def test_a_precision_is_known_by_the_text_it_has(name):
    precision = Precision.named(name)
    assert Precision.named(str(precision)) == precision
    assert Request.from_dict(Request.of("m", dtype=name).to_dict()).precision == precision


def test_channels_last_turns_weights_and_images():
    def convolution():
        return nn.Conv2d(4, 8, 3)

    asked = Request.of("c", layout="nhwc")
    node = next(n for n in trace(convolution, (TensorSpec((2, 4, 9, 9)),), asked).nodes if n.kernels)
    assert not [k for k in node.kernels if k.family == "memory"]


def test_layouts_are_checked():
    with pytest.raises(ModelError, match=r"layout 'nhcw'.*did you mean"):
        Request.of("m", layout="nhcw")


def test_a_scaler_passes_over_gradients_once_before_the_step():
    plain, scaled = (step("amp", "training", optimizer="sgd", **more) for more in ({}, {"grad_scaler": True}))
    unscale = "aten._amp_foreach_non_finite_check_and_unscale_"
    assert not [n for n in plain.nodes if n.operator.startswith(unscale)]
    (kernel,) = next(n for n in scaled.nodes if n.operator.startswith(unscale)).kernels
    assert kernel.read_bytes == kernel.write_bytes == 4 * scaled.parameters


def test_a_scaler_of_one_s_own_step_is_updated_by_one_element():
    def learn(model, optimizer, x):
        scaler = torch.amp.GradScaler("cuda")
        scaler.scale(model(x).sum()).backward()
        scaler.step(optimizer)
        scaler.update()

    request = Request.of("twice", dtype="amp", mode="training", optimizer="sgd")
    scaled = trace(Twice, (TensorSpec((8, WIDTH)),), request, step=learn)
    (kernel,) = next(n for n in scaled.nodes if n.operator.startswith("aten._amp_update_scale_")).kernels
    assert kernel.elements == 1


def test_a_scaler_needs_a_step():
    with pytest.raises(ModelError, match="no optimizer to scale gradients for"):
        Request.of(mode="training", grad_scaler=True)


class Sums(nn.Module):
    """A softmax, a sum and a norm of what a product wrote in 16 bit."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        y = self.linear(x)
        return y.softmax(-1) / y.sum(-1, keepdim=True) / torch.linalg.vector_norm(y, dim=-1, keepdim=True)


def test_what_autocast_widens_as_it_loads_is_not_cast_before():
    workload = trace(Sums, (TensorSpec((8, WIDTH)),), Request.of("sums", dtype="amp"))
    assert {k.op: (k.read_bytes, k.write_bytes) for k in kernels(workload, "row_reduction")} == {
        "softmax": (2 * 8 * WIDTH, 4 * 8 * WIDTH),
        "sum": (2 * 8 * WIDTH, 4 * 8),
        "norm": (2 * 8 * WIDTH, 4 * 8),
    }
    # Weight, bias and input of the product: no result of it.
    assert sum(k.op == "copy" for k in kernels(workload, "memory")) == 3


def test_a_softmax_of_bfloat16_is_widened_first():
    workload = trace(Sums, (TensorSpec((8, WIDTH)),), Request.of("sums", dtype="amp_bf16"))
    assert sum(k.op == "copy" for k in kernels(workload, "memory")) == 4
