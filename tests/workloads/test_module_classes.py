"""All of ``torch.nn``, and what models call beside it, is traced forward and backward and gets a plausible time."""

from collections.abc import Callable
from math import prod
from typing import Any

import pytest
import torch
from module_classes import FUNCTIONS, MODULES, NOTHING
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from neusight import Predictor
from neusight.devices import load_device
from neusight.workloads import load_workload
from neusight.workloads.tensors import TensorSpec

GPU = "h100-sxm-80gb"
SHORTEST_S = 0.5e-6
"""No kernel of a stream is shorter on any GPU: an empty one takes more than a microsecond."""
CASES = {**MODULES, **{name: (lambda f=function: f, given) for name, (function, given) in FUNCTIONS.items()}}


class Learnt(nn.Module):
    """What is called, behind a factor that has a gradient."""

    def __init__(self, called: Callable[..., Any]) -> None:
        super().__init__()
        self.called = called
        self.factor = nn.Parameter(torch.ones(()))

    def forward(self, *given: torch.Tensor) -> Any:
        return self.called(*(x * self.factor if x.is_floating_point() else x for x in given))


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    return Predictor.load()


def test_no_class_is_left_out() -> None:
    shown = {name.split(",")[0].split()[-1] for name in MODULES}
    named = {name for name in nn.modules.__all__ if not name.startswith("Lazy")}
    assert named - shown - NOTHING == set()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize("name", CASES)
def test_everything_runs_and_takes_time(predictor: Predictor, name: str, mode: str) -> None:
    build, given = CASES[name]
    inputs = [each if isinstance(each, TensorSpec) else TensorSpec(each) for each in given]
    found = predictor.estimate(Learnt(build()), GPU, inputs=inputs, mode=mode)
    assert ("backward" in found.by_phase) == (mode == "training")
    size = sum(prod(spec.shape) * spec.element_bytes for spec in inputs if spec.floating)
    assert found.latency_s >= 2 * size / load_device(GPU).dram_bandwidth_bytes_per_s  # each is scaled: read and written
    assert found.latency_s >= SHORTEST_S * sum(row.count for row in found.by_kernel)


class Masked(nn.Module):
    """Flexible attention under a mask that the module holds."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(16, 16)
        self.mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, 256, 256, device="cpu")

    def forward(self, x: torch.Tensor) -> Any:
        return flex_attention(self.project(x), x, x, block_mask=self.mask)


@pytest.mark.parametrize(("attention", "products"), [("eager", 3), ("sdpa", 1)])
def test_flexible_attention_is_one_kernel_or_written_out(attention: str, products: int) -> None:
    step = load_workload(Masked(), inputs=[TensorSpec((2, 3, 256, 16))], attention=attention, dtype="bfloat16")
    families = [kernel.family for node in step.nodes for kernel in node.kernels]
    assert families.count("gemm") == products
    assert families.count("attention") == (1 if attention == "sdpa" else 0)
