"""What is measured is what is predicted: each launch, traced by the project's own rules, is the kernel it came from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from neusight.collect.launches import OperandSource, prepare
from neusight.collect.launches.launch import factors, parts
from neusight.collect.plan import Limits, plan
from neusight.collect.tasks import KernelTask
from neusight.devices import load_device
from neusight.errors import UnmeasurableError
from neusight.kernels import (  # fmt: skip
    KERNEL_CLASSES,
    Attention,
    Conv2d,
    Elementwise,
    Gemm,
    GroupedGemm,
    Kernel,
    Memory,
    Optimizer,
    RowReduction,
)
from neusight.kernels.families import COMPOSED
from neusight.workloads.target import TargetReader
from neusight.workloads.trace.gpu_forms import gpu_forms
from neusight.workloads.trace.memory import Ledger
from neusight.workloads.trace.recorder import Recorder
from neusight.workloads.trace.sizes import Shares

WITHOUT_RULE = {("gemm", "float8"), ("grouped_gemm", "bfloat16")}
"""PyTorch's scaled and grouped products are private operators, which no model is traced with."""


def traced(kernel: Kernel) -> list[Kernel]:
    launch = prepare(kernel)
    with FakeTensorMode():
        with gpu_forms("flash", TargetReader()):
            operands = launch.operands(OperandSource("cpu"))
        recorder = Recorder(Ledger(), allow_fallback=False, shares=Shares({}))
        with gpu_forms("flash", TargetReader()), recorder, recorder.during("forward"), launch.setting():
            launch.run(*operands)
    return [k for node in recorder.nodes for k in node.kernels]


def planned(count: int) -> Iterator[KernelTask]:
    device = load_device("h200-sxm-141gb")
    return islice(plan(device, (), (), 0, Limits(bytes=4e8, seconds=0.01)), count)


def test_planned_kernels_are_what_their_launches_trace_to() -> None:
    checked = set()
    for task in planned(400):
        kernel = task.kernel
        if (kernel.family, kernel.dtype) in WITHOUT_RULE or task.repeat:
            continue
        found = [replace(k, dtype=kernel.dtype) if kernel.dtype == "tf32" else k for k in traced(kernel)]
        # The gradients of attention, of embeddings and of softmax come with a kernel before them.
        assert found[-1] == kernel
        two = kernel.op == "softmax_backward" or ("backward" in kernel.op and kernel.family in ("attention", "memory"))
        assert len(found) == (2 if two else 1)
        checked.add((kernel.family, kernel.dtype))
    assert {family for family, _ in checked} == {*KERNEL_CLASSES} - COMPOSED - {"grouped_gemm"}
    assert {dtype for _, dtype in checked} == {"float32", "tf32", "float16", "bfloat16"}


SMALL: list[Kernel] = [
    Gemm(m=48, n=32, k=64, layout="nt"),
    Gemm(m=48, n=32, k=64, bias=True, dtype="bfloat16"),
    Gemm(op="bmm", batch=3, m=8, n=16, k=32, layout="tn"),
    Gemm(m=48, n=32, k=64, dtype="float8"),
    GroupedGemm(groups=4, tokens=20, largest=14, n=16, k=32, dtype="bfloat16"),
    Conv2d(batch=2, in_channels=8, out_channels=4, height=9, width=9, kernel_height=3, kernel_width=3, padding=1),
    Attention(batch=2, heads=4, kv_heads=2, q_len=1, kv_len=33, head_dim=16),
    Attention(op="backward", batch=2, heads=4, kv_heads=4, q_len=16, kv_len=16, head_dim=16, causal=True),
    Elementwise(op="gelu", elements=64, read_bytes=256, write_bytes=256, flops=1),
    RowReduction(op="softmax", rows=4, cols=8, read_bytes=128, write_bytes=128, flops=1),
    Memory(op="embedding", elements=64, read_bytes=256 + 16, write_bytes=256),
    Optimizer(op="adamw_fused", elements=70, tensors=3, read_bytes=1120, write_bytes=840, flops=1),
]


def test_every_family_runs_on_real_operands_that_are_not_constant() -> None:
    for kernel in SMALL:
        launch = prepare(kernel)
        with launch.setting():
            operands = launch.operands(OperandSource("cpu"))
            tensors = [tensor for tensor in flat(operands) if tensor.numel() > 8]
            assert tensors
            assert all(tensor.float().std() > 0 for tensor in tensors), kernel
            launch.run(*operands)


def flat(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value.detach()
    elif isinstance(value, list | tuple):
        for item in value:
            yield from flat(item)


@pytest.mark.parametrize("layout", ["nn", "tn", "nt"])
def test_gemm_stores_its_factors_by_layout(layout: str) -> None:
    a, b = prepare(Gemm(m=5, n=7, k=11, layout=layout)).operands(OperandSource("cpu"))
    assert (a.shape, b.shape) == ((5, 11), (11, 7))
    assert [b.stride(0) == 1, a.stride(0) == 1] == [order == "t" for order in layout]


def test_grouped_rows_go_to_their_experts() -> None:
    launch = prepare(GroupedGemm(groups=3, tokens=12, largest=6, n=8, k=16, dtype="bfloat16"))
    tokens, weights, ends = launch.operands(OperandSource("cpu"))
    assert ends.tolist() == [6, 9, 12]
    torch.testing.assert_close(launch.run(tokens, weights, ends)[6:9], tokens[6:9] @ weights[1], rtol=0.05, atol=0.1)


def test_what_no_single_operator_runs_is_said() -> None:
    for kernel in (
        Elementwise(op="fallback", elements=8, read_bytes=32, write_bytes=32, flops=8),
        Elementwise(op="add", elements=8, read_bytes=32 + 12, write_bytes=32, flops=8),
        Attention(batch=1, heads=1, kv_heads=1, q_len=8, kv_len=8, head_dim=8, window=4),
        Memory(op="gather", elements=9, read_bytes=36 + 16, write_bytes=36),
        RowReduction(op="topk", rows=2, cols=2, read_bytes=16, write_bytes=16, flops=4),
        Optimizer(op="lion", elements=8, tensors=1, read_bytes=32, write_bytes=32, flops=8),
    ):
        with pytest.raises(UnmeasurableError, match=f"no single operator runs {kernel.family} '{kernel.op}'"):
            prepare(kernel)


@pytest.mark.parametrize(("dtype", "allowed"), [("float32", False), ("tf32", True)])
def test_setting_allows_tf32_to_its_dtype(dtype: str, allowed: bool) -> None:
    with prepare(Gemm(m=2, n=2, k=2, dtype=dtype)).setting():
        assert torch.backends.cuda.matmul.allow_tf32 is torch.backends.cudnn.allow_tf32 is allowed


def test_factors_and_parts() -> None:
    assert (factors(64, 16), factors(7, 4)) == ((4, 16), (7, 1))
    assert parts(10, 4, 0).tolist() == [3, 2, 3, 2]
    for total, groups, largest in ((100, 8, 40), (8, 8, 0), (9, 8, 2)):
        counts = parts(total, groups, largest)
        assert (counts.sum(), len(counts), counts.max()) == (total, groups, largest or -(-total // groups))
        assert np.all(counts >= 0)
