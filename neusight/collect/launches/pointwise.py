"""Launches that treat each element alike: arithmetic, activations, dropout, masks, pooling, optimizer steps."""

from __future__ import annotations

from math import isqrt
from typing import Any

import torch

from neusight.collect.launches.launch import (
    Operands,
    OperandSource,
    Recipe,
    Run,
    factors,
    size_of,
    unmeasurable,
    values_beside,
)  # fmt: skip
from neusight.collect.sampling import LISTS
from neusight.kernels import DTYPE_BYTES, Elementwise, Optimizer

aten = torch.ops.aten
_ONE_TENSOR: dict[str, Run] = {
    **{name: getattr(torch, name) for name in ("abs", "neg", "relu", "tanh", "sigmoid", "exp", "log", "sqrt", "rsqrt")},
    **{name: getattr(aten, name) for name in ("cos", "sin", "gelu", "silu")},
    "add_scalar": lambda x: x + 1.5,
    "sub_scalar": lambda x: x - 1.5,
    "rsub": lambda x: torch.rsub(x, 1.5),
    "mul_scalar": lambda x: x * 1.5,
    "div_scalar": lambda x: x / 1.5,
    "pow_scalar": lambda x: torch.pow(x, 2),
    "dropout": lambda x: torch.native_dropout(x, 0.1, True),
}
_TWO_TENSORS: dict[str, Run] = {
    **{name: getattr(torch, name) for name in ("add", "sub", "mul", "div", "pow", "maximum", "minimum")},
    **{name: getattr(torch, name) for name in ("eq", "lt", "le", "gt")},
    **{f"{name}_backward": getattr(aten, f"{name}_backward") for name in ("gelu", "tanh", "sigmoid", "silu")},
    "relu_backward": lambda g, x: aten.threshold_backward(g, x, 0),
    "dropout_backward": lambda g, mask: aten.native_dropout_backward(g, mask, 1.1),
}


def elementwise(kernel: Elementwise) -> Recipe:
    """Dense operands; one that is stored smaller than the result is broadcast along the leading dimension."""
    if kernel.op in _OTHERS:
        return _OTHERS[kernel.op](kernel)
    if kernel.op in _TWO_TENSORS:
        return _two_tensors(kernel, _TWO_TENSORS[kernel.op])
    if kernel.op not in _ONE_TENSOR or kernel.read_bytes != kernel.elements * size_of(kernel):
        raise unmeasurable(kernel)
    root = kernel.op == "pow_scalar" and kernel.flops != 2 * kernel.elements
    run: Run = (lambda x: torch.pow(x, 2.5)) if root else _ONE_TENSOR[kernel.op]
    return lambda source: (source.positive(kernel.elements, dtype=kernel.dtype),), run


def _two_tensors(kernel: Elementwise, run: Run) -> Recipe:
    """The second operand has what the first leaves of the bytes read; a dropout's mask has a byte an element."""
    second = "bool" if kernel.op == "dropout_backward" else kernel.dtype
    rest = values_beside(kernel, DTYPE_BYTES[second])

    def operands(source: OperandSource) -> Operands:
        first = source.positive(kernel.elements // rest, rest, dtype=kernel.dtype)
        return first, source.mask(1, rest) if second == "bool" else source.positive(1, rest, dtype=second)

    return operands, run


def _masked_fill(kernel: Elementwise) -> Recipe:
    """A mask as large as the result, or broadcast, chooses between a tensor and a number."""
    masked = values_beside(kernel, 1)

    def operands(source: OperandSource) -> Operands:
        return source.normal(kernel.elements // masked, masked, dtype=kernel.dtype), source.mask(1, masked)

    return operands, lambda x, mask: torch.masked_fill(x, mask, 0.0)


def _max_pool2d(kernel: Elementwise) -> Recipe:
    """The window follows from the work, the stride from the bytes, for square images with an even output side."""
    window = isqrt(kernel.flops // kernel.elements)
    stride = isqrt(round(kernel.read_bytes / (kernel.elements * size_of(kernel))))
    side = next((s for s in (56, 28, 14, 112, 7) if kernel.elements % (s * s) == 0), 0)
    exact = kernel.read_bytes == kernel.elements * size_of(kernel) * stride**2
    if not side or window < stride or not exact:
        raise unmeasurable(kernel)
    planes, image, padding = kernel.elements // side**2, side * stride, (window - stride + 1) // 2

    def operands(source: OperandSource) -> Operands:
        return (source.normal(1, planes, image, image, dtype=kernel.dtype),)

    return operands, lambda x: aten.max_pool2d_with_indices(x, [window] * 2, [stride] * 2, [padding] * 2)


def _batch_norm(kernel: Elementwise) -> Recipe:
    """Batch norm in evaluation, a scale and a shift: four values a channel are read in addition to the images."""
    channels = values_beside(kernel, 4 * size_of(kernel))
    pixels, images = factors(kernel.elements // channels, 64)

    def operands(source: OperandSource) -> Operands:
        statistics = [source.positive(channels, dtype=kernel.dtype) for _ in range(4)]
        return (source.normal(images, channels, pixels, dtype=kernel.dtype), *statistics)

    return operands, lambda *operands: aten.native_batch_norm(*operands, False, 0.1, 1e-5)


_OTHERS = {"masked_fill": _masked_fill, "max_pool2d": _max_pool2d, "batch_norm": _batch_norm}


def _fused_adamw(params: Any, grads: Any, averages: Any, squares: Any, steps: Any) -> Any:
    options = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.01, "eps": 1e-8}
    return aten._fused_adamw_(params, grads, averages, squares, [], steps, amsgrad=False, maximize=False, **options)


def _fused_sgd(params: Any, grads: Any, momenta: Any, steps: Any) -> Any:
    options = {"weight_decay": 0.0, "momentum": 0.9, "lr": 1e-3, "dampening": 0.0}
    return aten._fused_sgd_(params, grads, momenta, nesterov=False, maximize=False, is_first_step=False, **options)


# A fused step also takes the step's number, one a tensor.
_STEPS: dict[str, Run] = {
    "foreach_add": lambda a, _: torch._foreach_add_(a, 1e-8),
    "foreach_mul": lambda a, _: torch._foreach_mul_(a, 0.999),
    "foreach_div": lambda a, _: torch._foreach_div_(a, 1.001),
    "foreach_sqrt": lambda a, _: torch._foreach_sqrt(a),
    "foreach_lerp": lambda a, b, _: torch._foreach_lerp_(a, b, 0.1),
    # Adam squares the gradient: one list multiplied with itself.
    "foreach_addcmul": lambda a, b, _: torch._foreach_addcmul_(a, b, b, value=1e-3),
    "foreach_addcdiv": lambda a, b, c, _: torch._foreach_addcdiv_(a, b, c, -1e-3),
    "adamw_fused": _fused_adamw,
    "sgd_fused": _fused_sgd,
}


def optimizer(kernel: Optimizer) -> Recipe:
    """A foreach operator, or a fused update, on parameters of equal size; all lists are as long as theirs."""
    lists, _ = LISTS.get(kernel.op, (0, 0))
    if not lists or kernel.elements < kernel.tensors or kernel.read_bytes != lists * kernel.elements * size_of(kernel):
        raise unmeasurable(kernel)
    size, longer = divmod(kernel.elements, kernel.tensors)
    sizes = [size + (i < longer) for i in range(kernel.tensors)]

    def operands(source: OperandSource) -> Operands:
        made = tuple([source.positive(s, dtype=kernel.dtype) for s in sizes] for _ in range(lists))
        return (*made, [torch.ones((), device=source.device) for _ in sizes])

    return operands, _STEPS[kernel.op]
