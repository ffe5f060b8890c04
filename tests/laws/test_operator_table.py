"""A trace, a named kernel and a training row of the same operator and shape carry the same FLOP and bytes."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from neusight.collect import sampling
from neusight.errors import CoverageError
from neusight.kernels import Kernel
from neusight.kernels.named import kernel_named
from neusight.kernels.operators import (
    ELEMENTWISE,
    OPERATORS,
    SERVING_ELEMENTWISE,
    SERVING_ROWS,
    TRAINING_ELEMENTWISE,
    operator,
    operator_bytes,
)
from neusight.measured.kernels import kernel_parts
from neusight.workloads.rules import kernels_of
from neusight.workloads.rules.registry import _RULES
from neusight.workloads.tensors import Call, TensorSpec
from neusight.workloads.trace.memory import Ledger
from neusight.workloads.trace.recorder import Recorder
from neusight.workloads.trace.sizes import Shares

ROWS, COLS = 6, 40
aten = torch.ops.aten


def traced(family: str, op: str, dtype: torch.dtype) -> list[Kernel]:
    """The kernels of a PyTorch call of the operator on fake tensors, as a trace records them."""
    recorder = Recorder(Ledger(), allow_fallback=False, shares=Shares({}))
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        x, y, z = (torch.empty(ROWS, COLS, dtype=dtype) for _ in range(3))
        with recorder, recorder.during("forward"):
            run_operator(family, op, x, y, z)
    return [k for node in recorder.nodes for k in node.kernels if (k.family, k.op) == (family, op)]


def run_operator(family: str, op: str, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> object:
    column, row, index = x.new_empty(COLS), x.new_empty(ROWS, 1), torch.empty(ROWS, dtype=torch.int64)
    mask = torch.empty(ROWS, COLS, dtype=torch.bool)
    images = x.view(1, ROWS, COLS)
    of_row = [x.new_empty(ROWS) for _ in range(4)]
    lists = [[x], [y], [z], [torch.empty_like(x)]]
    step = {"lr": 1e-3, "weight_decay": 0.01, "maximize": False}
    adam = {**step, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "amsgrad": False}
    special = {
        "rsub": lambda: torch.rsub(x, 1.0),
        "clamp": lambda: x.clamp(0, 1),
        "lerp": lambda: torch.lerp(x, y, 0.1),
        "where": lambda: torch.where(mask, x, y),
        "masked_fill": lambda: x.masked_fill(mask, 0.0),
        "dropout": lambda: torch.native_dropout(x, 0.1, True),
        "dropout_backward": lambda: aten.native_dropout_backward(x, mask, 1.1),
        "random": lambda: torch.rand_like(x),
        "addcmul": lambda: torch.addcmul(x, y, z),
        "addcdiv": lambda: torch.addcdiv(x, y, z),
        "relu_backward": lambda: aten.threshold_backward(x, y, 0.0),
        "leaky_relu_backward": lambda: aten.leaky_relu_backward(x, y, 0.1, False),
        "hardtanh_backward": lambda: aten.hardtanh_backward(x, y, -1.0, 1.0),
        "elu_backward": lambda: aten.elu_backward(x, 1.0, 1.0, 1.0, False, y),
        "softplus_backward": lambda: aten.softplus_backward(x, y, 1.0, 20.0),
        "glu": lambda: functional.glu(torch.cat([x, y], 1)),
        "softmax_backward": lambda: aten._softmax_backward_data(x, y, -1, x.dtype),
        "log_softmax_backward": lambda: aten._log_softmax_backward_data(x, y, -1, x.dtype),
        "layer_norm": lambda: torch.native_layer_norm(x, [COLS], column, column.clone(), 1e-5),
        "layer_norm_backward": lambda: aten.native_layer_norm_backward(
            x, y, [COLS], row, row.clone(), column, None, [True, False, False]
        ),
        # A kernel of as many rows as the layer has columns.
        "layer_norm_weight_backward": lambda: aten.native_layer_norm_backward(
            x.t(), y.t(), [ROWS], x.new_empty(COLS, 1), x.new_empty(COLS, 1), of_row[0], None, [False, True, True]
        ),
        "batch_norm": lambda: torch.native_batch_norm(images, *of_row, True, 0.1, 1e-5),
        "batch_norm_backward": lambda: aten.native_batch_norm_backward(
            images, y.view_as(images), *of_row, of_row[0], True, 1e-5, [True] * 3
        ),
        "group_norm": lambda: torch.native_group_norm(images, None, None, 1, ROWS, COLS, ROWS, 1e-5),
        "group_norm_backward": lambda: aten.native_group_norm_backward(
            images, y.view_as(images), x.new_empty(1, ROWS), x.new_empty(1, ROWS), None, 1, ROWS, COLS, ROWS,
            [True, False, False],
        ),
        "norm": lambda: torch.linalg.vector_norm(x, dim=1),
        "prod": lambda: torch.prod(x, 1),
        "nll_loss": lambda: aten.nll_loss_forward(x, torch.empty(ROWS, dtype=torch.int64), None, 1, -100),
        "sort": lambda: aten.sort(x, -1),
        "copy": lambda: x.clone(),
        "fill": lambda: x.zero_(),
        "cat": lambda: torch.cat([x[:2], y[:4]]),
        "embedding": lambda: functional.embedding(index, x.new_empty(1000, COLS)),
        "embedding_backward": lambda: aten.embedding_dense_backward(x, index, 1000, -1, False),
        "gather": lambda: x.new_empty(1000, COLS).index_select(0, index),
        "scatter": lambda: x.new_empty(1000, COLS).index_copy_(0, index, y),
        "adam_fused": lambda: aten._fused_adam_(*lists, [], [torch.empty(())], **adam),
        "adamw_fused": lambda: aten._fused_adamw_(*lists, [], [torch.empty(())], **adam),
        "sgd_fused": lambda: aten._fused_sgd_(
            *lists[:3], **step, momentum=0.9, dampening=0.0, nesterov=False, is_first_step=False
        ),
    }  # fmt: skip
    if op in special:
        return special[op]()
    if op.endswith("_scalar"):
        return getattr(torch, op.removesuffix("_scalar"))(x, 2.0)
    read = OPERATORS[family][op].read
    if family == "row_reduction":
        function = getattr(torch, op)
        return function(x, -1)
    function = getattr(aten, op)
    return function(*[x, y, z][: read[0]]) if not op.startswith("clamp_") else function(x, 0.5)


UNTRACED = (
    *("transpose", "copy_in", "rms_norm", "rms_norm_backward", "rms_norm_weight_backward"),
    *("adagrad_fused", "lion_fused", *SERVING_ELEMENTWISE, *SERVING_ROWS, *TRAINING_ELEMENTWISE),
)
"""A view of PyTorch's, what its CPU backend has no fused form of, and what engines and frameworks fuse themselves."""


def regular() -> Iterator[tuple[str, str]]:
    """Operators whose operands follow from the shape and that a trace can have."""
    for family, table in OPERATORS.items():
        yield from ((family, op) for op, found in table.items() if found.read is not None and op not in UNTRACED)


def work(kernel: Kernel) -> tuple[int, int, int]:
    return kernel.read_bytes, kernel.write_bytes, getattr(kernel, "flops", 0)


def named_like(kernel: Kernel) -> Kernel:
    """The kernel that a person asks for by the operator and shape of another one."""
    shape: dict[str, object] = {"rows": ROWS, "cols": COLS}
    if kernel.family == "row_reduction":
        shape = {"rows": kernel.rows, "cols": kernel.cols}
    elif kernel.family == "optimizer":
        shape = {"elements": kernel.elements}
    # Named by family: elementwise and row-wise operators share a few names.
    return kernel_named(kernel.family, {"op": kernel.op, "dtype": kernel.dtype, **shape}).kernel(0)


def test_a_trace_has_the_work_of_the_kernel_that_a_name_and_a_shape_stand_for(subtests: pytest.Subtests) -> None:
    for dtype in [torch.float32, torch.bfloat16]:
        with subtests.test(dtype=dtype):
            differing = {}
            for family, op in regular():
                traces = traced(family, op, dtype)
                named = [named_like(kernel) for kernel in traces]
                if len(traces) != 1 or work(traces[0]) != work(named[0]):
                    differing[op] = (traces, named)
            assert not differing


def test_fused_rms_norms_have_the_work_of_the_named_kernels() -> None:
    x, weight, deviation = TensorSpec((ROWS, COLS)), TensorSpec((COLS,)), TensorSpec((ROWS, 1))
    forward = Call("_fused_rms_norm", "default", (x, (COLS,), weight, 1e-5), {}, (TensorSpec(x.shape), deviation))
    gradient = (TensorSpec(x.shape), x, (COLS,), deviation, weight, (True, True))
    backward = Call("_fused_rms_norm_backward", "default", gradient, {}, (x, weight))
    kernels = (*kernels_of(forward), *kernels_of(backward))
    assert [k.op for k in kernels] == ["rms_norm", "rms_norm_backward", "rms_norm_weight_backward"]
    for kernel in kernels:
        assert work(kernel) == work(named_like(kernel))


def test_a_measured_row_has_the_work_of_the_named_kernel() -> None:
    for family in ("elementwise", "row_reduction"):
        ops = [op for op, found in OPERATORS[family].items() if found.read is not None]
        frame = pd.DataFrame({"op": ops, "rows": ROWS, "cols": COLS, "dtype": "bfloat16"}).assign(
            gpu="l4", family=family
        )
        for part in kernel_parts(frame, []):
            named = kernel_named(family, {"op": ops[part.rows[0]], "rows": ROWS, "cols": COLS, "dtype": "bf16"})
            assert work(part.batch.kernel(0)) == work(named.kernel(0)), ops[part.rows[0]]


def test_a_planned_measurement_has_the_work_of_the_named_kernel() -> None:
    checked = set()
    for stratum in sampling.STRATA:
        if stratum.family not in OPERATORS:
            continue
        for point, _ in zip(sampling.points(stratum.axes, seed=0), range(400), strict=False):
            kernel = stratum.make(point, "bfloat16")
            found = operator(kernel.family, kernel.op)
            if hasattr(kernel, "flops"):
                elements = kernel.rows * kernel.cols if kernel.family == "row_reduction" else kernel.elements
                assert kernel.flops == found.flops * elements
            if kernel.family == "row_reduction":
                extents = (kernel.rows * kernel.cols, kernel.rows, kernel.cols)
                assert operator_bytes(found, extents, 2) == (kernel.read_bytes, kernel.write_bytes), kernel
            checked.add((kernel.family, kernel.op))
    assert len(checked) > 45


def test_every_reduction_of_a_rule_is_in_the_table() -> None:
    """One FLOP for whatever the table lacks would be an estimate that is silently too small."""
    with pytest.raises(CoverageError, match="unknown operator 'softmin'; did you mean softmax"):
        operator("row_reduction", "softmin")
    reductions = [name for name, made in _RULES.items() if getattr(made, "__name__", "") in ("reduced", "scanned")]
    x = TensorSpec((ROWS, COLS))
    for name in reductions:
        (kernel,) = kernels_of(Call(name, "default", (x,), {}, (TensorSpec((ROWS,)),)))
        assert kernel.flops == OPERATORS["row_reduction"][kernel.op].flops * ROWS * COLS


def test_special_functions_cost_more_than_arithmetic() -> None:
    assert ELEMENTWISE["add"].flops == ELEMENTWISE["add_scalar"].flops == 1
    assert ELEMENTWISE["gelu"].flops > ELEMENTWISE["sqrt"].flops > ELEMENTWISE["addcmul"].flops
