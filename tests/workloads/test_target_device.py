"""Modules traced as on the device that they are asked for: ``torch.cuda``, devices of tensors, autocast."""

import json
import sys
from collections import Counter

import pytest
import torch
from torch import nn

from neusight.devices import load_device
from neusight.errors import ModelError
from neusight.requests import Request
from neusight.workloads import functions, load_workload
from neusight.workloads.target import TargetDevice, TargetReader
from neusight.workloads.trace.target_device import on_target
from neusight.workloads.trace.tracing import trace

A100, H100, T4, MI300X, TPU = (
    TargetDevice.of(load_device(name)) for name in ("a100-sxm-80gb", "h100-sxm-80gb", "t4", "mi300x", "tpu-v5e")
)
ROWS, WIDTH = 64, 32


class Layer(nn.Module):
    """A layer whose forward pass is a function of it and its input."""

    def __init__(self, forward):
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.function = forward

    def forward(self, x):
        return self.function(self.layer, x)


def step(forward, target=A100, mode="inference", **options):
    inputs = (torch.randn(ROWS, WIDTH),)
    return trace(Layer(forward), inputs, Request.of("layer", mode=mode, **options), reader=TargetReader(target))


def kernels(workload):
    return Counter(kernel for node in workload.nodes for kernel in node.kernels for _ in range(node.copies))


def under(context):
    """A forward pass under a context of autocast."""

    def forward(layer, x):
        with context(x):
            return layer(x)

    return forward


@pytest.mark.parametrize(
    "context",
    [
        lambda x: torch.autocast("cuda", torch.bfloat16),
        lambda x: torch.autocast(x.device.type, torch.bfloat16),
        lambda x: torch.cuda.amp.autocast(dtype=torch.bfloat16),
        lambda x: torch.amp.autocast(device_type="cuda", dtype=torch.bfloat16),
    ],
)
@pytest.mark.parametrize("mode", ["inference", "training"])
def test_autocast_runs_as_the_precision_of_its_dtype(context, mode):
    expected = step(lambda layer, x: layer(x), mode=mode, dtype="amp_bf16")
    assert kernels(step(under(context), mode=mode)) == kernels(expected)


def test_autocast_takes_the_dtype_of_cuda_by_default():
    narrow = step(under(lambda x: torch.autocast("cuda")))
    assert {k.dtype for k in kernels(narrow) if k.family == "gemm"} == {"float16"}


@pytest.mark.parametrize(
    "context",
    [
        lambda x: torch.autocast("cuda", torch.bfloat16, enabled=False),
        lambda x: torch.autocast("cpu", torch.bfloat16),
    ],
)
def test_autocast_of_another_device_casts_nothing(context):
    assert kernels(step(under(context))) == kernels(step(lambda layer, x: layer(x)))


def test_autocast_shows_its_state():
    def forward(layer, x):
        assert not torch.is_autocast_enabled("cuda")
        with torch.autocast("cuda", torch.bfloat16):
            assert torch.is_autocast_enabled("cuda")
            assert torch.get_autocast_dtype("cuda") == torch.bfloat16
            assert not torch.is_autocast_enabled("cpu")
        return layer(x)

    step(forward)
    assert torch.get_autocast_dtype("cpu") == torch.bfloat16


@pytest.mark.parametrize(
    "move",
    [
        lambda x: x.cuda(),
        lambda x: x.cuda(non_blocking=True),
        lambda x: x.to("cuda"),
        lambda x: x.to("cuda:0", non_blocking=True),
        lambda x: x.to(device=torch.device("cuda", 0)),
        lambda x: x.pin_memory().cuda(),
    ],
)
def test_moves_to_the_target_cost_nothing(move):
    plain = step(lambda layer, x: layer(x), mode="training")
    assert kernels(step(lambda layer, x: layer(move(x)).cuda(), mode="training")) == kernels(plain)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: torch.zeros(ROWS, WIDTH, device="cuda"),
        lambda x: torch.zeros_like(x, device="cuda"),
        lambda x: x.new_zeros(ROWS, WIDTH, device=x.device),
        lambda x: torch.zeros(ROWS, WIDTH, device=torch.device("cuda")),
        lambda x: torch.zeros(ROWS, WIDTH).to(x.device),
    ],
)
def test_tensors_are_made_on_the_target(make):
    made = step(lambda layer, x: layer(x) + make(x))
    assert kernels(made)[next(k for k in kernels(made) if k.family == "gemm")] == 1


def test_device_contexts_and_streams_run_in_order():
    def forward(layer, x):
        stream, event = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True)
        with torch.cuda.stream(stream), torch.device("cuda"):
            y = layer(x) + torch.zeros(WIDTH)
        event.record()
        torch.cuda.current_stream().wait_stream(stream)
        y.record_stream(stream)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        assert not torch.cuda.is_current_stream_capturing()
        return y * event.elapsed_time(event)

    assert len([k for k in kernels(step(forward)) if k.family == "gemm"]) == 1


def test_tensors_say_that_they_are_on_the_target():
    def forward(layer, x):
        assert x.is_cuda
        assert not x.is_cpu
        assert x.get_device() == 0
        assert str(x.device) == str(layer.weight.device) == str(torch.zeros(2).device) == "cuda:0"
        return layer(x)

    step(forward, mode="training")


class Doubled(torch.autograd.Function):
    """A function whose backward pass names the GPU."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        assert gradient.is_cuda
        return gradient * torch.full((1,), 2.0, device="cuda")


def test_backward_passes_meet_the_target_as_well():
    step(lambda layer, x: Doubled.apply(layer(x)), mode="training")


@pytest.mark.parametrize(
    ("target", "capability", "wide"), [(A100, (8, 0), True), (T4, (7, 5), False), (MI300X, (9, 4), True)]
)
def test_facts_of_the_target_are_those_of_its_file(target, capability, wide):
    def forward(layer, x):
        properties = torch.cuda.get_device_properties(0)
        assert torch.cuda.is_available()
        assert torch.cuda.device_count() == 1
        assert torch.cuda.get_device_capability() == capability == (properties.major, properties.minor)
        assert torch.cuda.get_device_name() == target.name
        assert properties.total_memory == target.memory_bytes
        assert properties.multi_processor_count == target.cores
        assert torch.cuda.is_bf16_supported(including_emulation=False) == wide
        return layer(x)

    step(forward, target)
    assert not torch.cuda.is_available()


def test_other_devices_have_no_cuda():
    def forward(layer, x):
        assert not torch.cuda.is_available()
        assert torch.cuda.device_count() == 0
        assert not x.is_cuda
        assert x.device.type == "cpu"
        return layer(x)

    step(forward, TPU)


@pytest.mark.parametrize(
    "use",
    [
        lambda x: x.cuda(),
        lambda x: x.to("cuda"),
        lambda x: torch.zeros(WIDTH, device="cuda"),
        lambda x: torch.cuda.get_device_capability(),
    ],
)
def test_other_devices_refuse_what_needs_cuda(use):
    with pytest.raises(ModelError, match=r"asks for CUDA, which TPU v5e does not have: let it use"):
        step(lambda layer, x: (use(x), layer(x))[1], TPU)


def test_unknown_facts_are_named():
    with pytest.raises(ModelError, match="asks PyTorch for the capability of the GPU, of which none is named"):
        step(lambda layer, x: (torch.cuda.get_device_capability(), layer(x))[1], TargetDevice())


def test_further_devices_are_noted():
    reader = TargetReader(A100)
    inputs = (torch.randn(ROWS, WIDTH),)
    trace(Layer(lambda layer, x: layer(x.to("cuda:1"))), inputs, Request.of("layer"), reader=reader)
    assert list(reader.notes) == ["the module uses cuda:1 as well: all of it is priced on one device"]


def test_words_of_libraries_are_not_shown(capfd, recwarn):
    import logging
    import warnings

    def forward(layer, x):
        warnings.warn("one\ntwo", stacklevel=1)
        logging.getLogger("library").warning("three")
        return layer(x)

    step(forward)
    assert not recwarn.list
    assert capfd.readouterr().err == ""
    assert logging.root.manager.disable == logging.NOTSET


BY_CAPABILITY = """
import torch
from torch import nn

NARROW = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 0)

class Several(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8, dtype=torch.bfloat16 if NARROW else torch.float32)

    def forward(self, x):
        for _ in range(3 if torch.cuda.is_available() else 1):
            x = self.layer(x)
        return x

def build():
    return Several(), (torch.randn(4, 8),)

"""
MOVED = """
import torch
from torch import nn

def plain():
    torch.set_default_dtype(torch.bfloat16)
    torch.set_default_device("cuda")
    return nn.Linear(8, 8).cuda(), (torch.randn(4, 8, device="cuda"),)
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    monkeypatch.setenv("NEUSIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "by_capability.py").write_text(BY_CAPABILITY)
    (tmp_path / "moved.py").write_text(MOVED)
    yield "by_capability"
    for name in ("by_capability", "moved"):
        sys.modules.pop(name, None)
        functions._IMPORTS.pop(name, None)


def products(name, target):
    workload = load_workload(name, target=target)
    return workload.request.dtype, sum(n.copies for n in workload.nodes for k in n.kernels if k.family == "gemm")


@pytest.mark.parametrize("order", [(TPU, T4, A100), (A100, TPU, T4), (T4, A100, TPU)])
def test_load_workload_is_of_its_target_in_any_order(module, order):
    expected = {TPU: ("float32", 1), T4: ("float32", 3), A100: ("bfloat16", 3)}
    for target in (*order, *order):
        assert products(f"{module}:build", target) == expected[target]


def test_load_workload_traces_once_for_targets_that_agree(module, monkeypatch):
    from neusight.workloads import load

    count = Counter()
    original = load.trace_source
    monkeypatch.setattr(load, "trace_source", lambda *given: count.update(("traced",)) or original(*given))
    for target in (A100, T4, H100):
        products("moved:plain", target)
    assert count["traced"] == 1
    for target in (A100, H100, T4):
        products(f"{module}:build", target)
    assert count["traced"] == 4


def test_defaults_of_pytorch_come_back(module):
    assert products("moved:plain", A100) == products("moved:plain", T4) == ("bfloat16", 1)
    assert torch.get_default_dtype() == torch.float32
    assert torch.zeros(1).device.type == "cpu"


def test_facts_are_kept_with_a_stored_workload(module):
    from neusight.workloads.serialise import from_json, to_json

    workload = load_workload(f"{module}:build", target=A100)
    assert dict(workload.target) == {"cuda": True, "capability": "8.0"}
    again = from_json(to_json(workload))
    assert again.target == workload.target
    assert A100.agrees(json.loads(json.dumps(again.target)))
    assert not H100.agrees(again.target)


def test_exchanged_functions_come_back_after_a_failure():
    before = torch.cuda.is_available, torch.autocast, torch.Tensor.record_stream
    with pytest.raises(RuntimeError), on_target(TargetReader()):
        raise RuntimeError
    assert before == (torch.cuda.is_available, torch.autocast, torch.Tensor.record_stream)


def attention_operators(gpu, width):
    """Operators of attention over heads of a width in float16, forward and backward."""

    def forward(layer, x):
        heads = layer(x).view(1, 1, -1, width).half()
        return nn.functional.scaled_dot_product_attention(heads, heads, heads).float()

    workload = step(forward, TargetDevice.of(load_device(gpu)), mode="training")
    return {
        node.operator.split(".")[1].removesuffix("_backward")
        for node in workload.nodes
        if "dot_product" in node.operator
    }


@pytest.mark.parametrize(
    ("gpu", "width", "operator"),
    [
        *[(gpu, 32, "_scaled_dot_product_efficient_attention") for gpu in ("v100-sxm2-16gb", "t4", "p100-pcie-16gb")],
        *[(gpu, 32, "_scaled_dot_product_flash_attention") for gpu in ("a100-sxm-80gb", "l4", "mi300x", "tpu-v5e")],
        ("a100-sxm-80gb", 4, "_scaled_dot_product_flash_attention"),
    ],
)
def test_attention_runs_the_kernel_that_pytorch_has_for_the_target(gpu, width, operator):
    assert attention_operators(gpu, width) == {operator}


def test_rows_of_heads_below_16_bytes_have_no_fused_kernel_before_ampere():
    assert attention_operators("v100-sxm2-16gb", 4) == set()


def test_traces_without_attention_agree_with_any_capability():
    readers = TargetReader(A100), TargetReader(A100)
    attend = Layer(
        lambda layer, x: nn.functional.scaled_dot_product_attention(*[layer(x).view(1, 1, ROWS, WIDTH).half()] * 3)
    )
    for reader, module in zip(readers, (Layer(lambda layer, x: layer(x)), attend), strict=True):
        trace(module, (torch.randn(ROWS, WIDTH),), Request.of("layer"), reader=reader)
    assert [T4.agrees(reader.read_facts) for reader in readers] == [True, False]
