"""Launches of pointwise operators, data movement and optimizer steps."""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt
from typing import Any

import torch

from neusight.collect.launches import (
    TORCH_DTYPES,
    Launch,
    Operands,
    Source,
    factors,
    launcher,
    size_of,
    unmeasurable,
)
from neusight.kernels import DTYPE_BYTES, Elementwise, Memory, Optimizer

aten = torch.ops.aten
_WIDTH = 64
"""Elements that lie together when a copy turns dimensions round: a head of attention."""
_TABLE_ROWS = 1024
"""Rows of a table that is read by index, at least."""
_SHARED = 32
"""Tokens to a row of the table whose gradient an embedding adds to: clearing so small a table costs nothing."""

_ONE_TENSOR: dict[str, Callable[..., Any]] = {
    "abs": torch.abs,
    "neg": torch.neg,
    "relu": torch.relu,
    "gelu": aten.gelu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "silu": aten.silu,
    "exp": torch.exp,
    "log": torch.log,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "cos": torch.cos,
    "sin": torch.sin,
    "add_scalar": lambda x: x + 1.5,
    "sub_scalar": lambda x: x - 1.5,
    "rsub": lambda x: torch.rsub(x, 1.5),
    "mul_scalar": lambda x: x * 1.5,
    "div_scalar": lambda x: x / 1.5,
    "pow_scalar": lambda x: torch.pow(x, 2),
    "dropout": lambda x: torch.native_dropout(x, 0.1, True),
}
_TWO_TENSORS: dict[str, Callable[..., Any]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "pow": torch.pow,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "relu_backward": lambda g, x: aten.threshold_backward(g, x, 0),
    "gelu_backward": aten.gelu_backward,
    "tanh_backward": aten.tanh_backward,
    "sigmoid_backward": aten.sigmoid_backward,
    "silu_backward": aten.silu_backward,
    "dropout_backward": lambda g, mask: aten.native_dropout_backward(g, mask, 1.1),
    "eq": torch.eq,
    "lt": torch.lt,
    "le": torch.le,
    "gt": torch.gt,
}


@launcher("elementwise")
def elementwise(kernel: Elementwise) -> Launch:
    """Dense operands; one that is stored smaller than the result is broadcast along the leading dimension."""
    if kernel.op in _OTHERS:
        return _OTHERS[kernel.op](kernel)
    if kernel.op in _ONE_TENSOR:
        if kernel.op == "pow_scalar" and kernel.flops != 2 * kernel.elements:
            return _one_tensor(kernel, lambda x: torch.pow(x, 2.5))
        return _one_tensor(kernel, _ONE_TENSOR[kernel.op])
    if kernel.op in _TWO_TENSORS:
        return _two_tensors(kernel, _TWO_TENSORS[kernel.op])
    raise unmeasurable(kernel)


def _one_tensor(kernel: Elementwise, run: Callable[..., Any]) -> Launch:
    if kernel.read_bytes != kernel.elements * size_of(kernel):
        raise unmeasurable(kernel)
    return Launch(
        kernel=kernel, operands=lambda source: (source.positive(kernel.elements, dtype=kernel.dtype),), run=run
    )


def _two_tensors(kernel: Elementwise, run: Callable[..., Any]) -> Launch:
    """The second operand has what the first leaves of the bytes read; a dropout's mask has a byte an element."""
    second = "bool" if kernel.op == "dropout_backward" else kernel.dtype
    rest, odd = divmod(kernel.read_bytes - kernel.elements * size_of(kernel), DTYPE_BYTES[second])
    if odd or rest <= 0 or kernel.elements % rest:
        raise unmeasurable(kernel)

    def operands(source: Source) -> Operands:
        first = source.positive(kernel.elements // rest, rest, dtype=kernel.dtype)
        return first, source.mask(1, rest) if second == "bool" else source.positive(1, rest, dtype=second)

    return Launch(kernel=kernel, operands=operands, run=run)


def _masked_fill(kernel: Elementwise) -> Launch:
    """A mask as large as the result, or broadcast, chooses between a tensor and a number."""
    values = kernel.elements * size_of(kernel)
    masked = kernel.read_bytes - values
    if masked <= 0 or kernel.elements % masked:
        raise unmeasurable(kernel)

    def operands(source: Source) -> Operands:
        shape = (kernel.elements // masked, masked)
        return source.mask(1, masked), source.normal(*shape, dtype=kernel.dtype)

    return Launch(kernel=kernel, operands=operands, run=lambda mask, x: torch.masked_fill(x, mask, 0.0))


def _max_pool2d(kernel: Elementwise) -> Launch:
    """The window follows from the work, the stride from the bytes, for square images with an even output side."""
    window = isqrt(kernel.flops // kernel.elements)
    stride = isqrt(round(kernel.read_bytes / (kernel.elements * size_of(kernel))))
    side = next((s for s in (56, 28, 14, 112, 7) if kernel.elements % (s * s) == 0), 0)
    exact = kernel.read_bytes == kernel.elements * size_of(kernel) * stride**2
    if not side or window < stride or not exact:
        raise unmeasurable(kernel)
    planes, image, padding = kernel.elements // side**2, side * stride, (window - stride + 1) // 2

    def operands(source: Source) -> Operands:
        return (source.normal(1, planes, image, image, dtype=kernel.dtype),)

    def run(x: torch.Tensor) -> Any:
        return aten.max_pool2d_with_indices(x, [window] * 2, [stride] * 2, [padding] * 2)

    return Launch(kernel=kernel, operands=operands, run=run)


def _batch_norm(kernel: Elementwise) -> Launch:
    """In evaluation a scale and a shift: four values a channel are read beside the images."""
    channels, odd = divmod(kernel.read_bytes - kernel.elements * size_of(kernel), 4 * size_of(kernel))
    if odd or channels <= 0 or kernel.elements % channels:
        raise unmeasurable(kernel)
    pixels, images = factors(kernel.elements // channels, 64)

    def operands(source: Source) -> Operands:
        statistics = [source.positive(channels, dtype=kernel.dtype) for _ in range(4)]
        return (source.normal(images, channels, pixels, dtype=kernel.dtype), *statistics)

    def run(*operands: Any) -> Any:
        return aten.native_batch_norm(*operands, False, 0.1, 1e-5)

    return Launch(kernel=kernel, operands=operands, run=run)


_OTHERS = {"masked_fill": _masked_fill, "max_pool2d": _max_pool2d, "batch_norm": _batch_norm}


@launcher("memory")
def memory(kernel: Memory) -> Launch:
    """Copies turn two dimensions round, as attention does with its heads; gathers take whole rows by index."""
    if kernel.op not in _MOVES:
        raise unmeasurable(kernel)
    return _MOVES[kernel.op](kernel)


def _copy(kernel: Memory) -> Launch:
    """Of equal widths: dense to dense with dimensions turned; of different widths: a cast."""
    if kernel.read_bytes != kernel.write_bytes:
        return _cast(kernel)
    heads, width = (1, kernel.elements) if kernel.elements % _WIDTH else (kernel.elements // _WIDTH, _WIDTH)
    rows, together = factors(heads, 16)

    def operands(source: Source) -> Operands:
        return (source.normal(rows, together, width, dtype=kernel.dtype).transpose(0, 1),)

    return Launch(kernel=kernel, operands=operands, run=lambda x: torch.clone(x, memory_format=torch.contiguous_format))


def _cast(kernel: Memory) -> Launch:
    wider = {2 * kernel.elements: "bfloat16", 4 * kernel.elements: "float32"}.get(kernel.read_bytes)
    if wider is None or wider == kernel.dtype or kernel.dtype not in ("float32", "float16", "bfloat16"):
        raise unmeasurable(kernel)
    target = TORCH_DTYPES[kernel.dtype]
    return Launch(
        kernel=kernel,
        operands=lambda source: (source.normal(kernel.elements, dtype=wider),),
        run=lambda x: x.to(target),
    )


def _fill(kernel: Memory) -> Launch:
    return Launch(
        kernel=kernel,
        operands=lambda source: (source.normal(kernel.elements, dtype=kernel.dtype),),
        run=lambda x: x.zero_(),
    )


def _cat(kernel: Memory) -> Launch:
    """Two halves along the last dimension."""
    rows, cols = factors(kernel.elements, 4096)
    if cols < 2 or kernel.read_bytes != kernel.write_bytes:
        raise unmeasurable(kernel)

    def operands(source: Source) -> Operands:
        left = source.normal(rows, cols // 2, dtype=kernel.dtype)
        return left, source.normal(rows, cols - cols // 2, dtype=kernel.dtype)

    return Launch(kernel=kernel, operands=operands, run=lambda a, b: torch.cat((a, b), -1))


def _indexed_rows(kernel: Memory, moved: int) -> tuple[int, int]:
    """(rows, elements a row) of what ``kernel`` moves by index: eight bytes read beyond ``moved`` are one index."""
    rows, odd = divmod(kernel.read_bytes - moved, 8)
    if odd or rows <= 0 or kernel.elements % rows:
        raise unmeasurable(kernel)
    return rows, kernel.elements // rows


def _gather(kernel: Memory) -> Launch:
    """Rows of a table by index: an embedding, or a gather along the first dimension; every row is another."""
    rows, width = _indexed_rows(kernel, kernel.elements * size_of(kernel))

    def operands(source: Source) -> Operands:
        table = source.normal(max(rows, _TABLE_ROWS), width, dtype=kernel.dtype)
        return table, source.indices(len(table), rows)

    run = torch.embedding if kernel.op == "embedding" else lambda table, index: table[index]
    return Launch(kernel=kernel, operands=operands, run=run)


def _scatter(kernel: Memory) -> Launch:
    """Rows to their places, without collisions."""
    rows, width = _indexed_rows(kernel, kernel.elements * size_of(kernel))

    def operands(source: Source) -> Operands:
        places = torch.randperm(rows, generator=source.generator, device=source.device)
        return (*(source.normal(rows, width, dtype=kernel.dtype) for _ in range(2)), places)

    return Launch(
        kernel=kernel, operands=operands, run=lambda target, rows, places: target.index_copy_(0, places, rows)
    )


def _embedding_backward(kernel: Memory) -> Launch:
    """The rows of the gradient added to a small table, which is cleared first."""
    rows, width = _indexed_rows(kernel, 2 * kernel.elements * size_of(kernel))
    table = max(1, min(_TABLE_ROWS, rows // _SHARED))

    def operands(source: Source) -> Operands:
        return source.normal(rows, width, dtype=kernel.dtype), source.indices(table, rows)

    def run(grad: torch.Tensor, indices: torch.Tensor) -> Any:
        return aten.embedding_dense_backward(grad, indices, table, -1, False)

    return Launch(kernel=kernel, operands=operands, run=run)


_MOVES: dict[str, Callable[[Memory], Launch]] = {
    "copy": _copy,
    "fill": _fill,
    "cat": _cat,
    "embedding": _gather,
    "gather": _gather,
    "scatter": _scatter,
    "embedding_backward": _embedding_backward,
}


def _fused_adamw(params: Any, grads: Any, averages: Any, squares: Any, steps: Any) -> Any:
    options = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.01, "eps": 1e-8}
    return aten._fused_adamw_(params, grads, averages, squares, [], steps, amsgrad=False, maximize=False, **options)


def _fused_sgd(params: Any, grads: Any, momenta: Any, steps: Any) -> Any:
    options = {"weight_decay": 0.0, "momentum": 0.9, "lr": 1e-3, "dampening": 0.0}
    return aten._fused_sgd_(params, grads, momenta, nesterov=False, maximize=False, is_first_step=False, **options)


# Lists that are read, and the operator; a fused step also takes the step's number, one a tensor.
_STEPS: dict[str, tuple[int, Callable[..., Any]]] = {
    "foreach_add": (1, lambda a, _: torch._foreach_add_(a, 1e-8)),
    "foreach_mul": (1, lambda a, _: torch._foreach_mul_(a, 0.999)),
    "foreach_div": (1, lambda a, _: torch._foreach_div_(a, 1.001)),
    "foreach_sqrt": (1, lambda a, _: torch._foreach_sqrt(a)),
    "foreach_lerp": (2, lambda a, b, _: torch._foreach_lerp_(a, b, 0.1)),
    # Adam squares the gradient: one list multiplied with itself.
    "foreach_addcmul": (2, lambda a, b, _: torch._foreach_addcmul_(a, b, b, value=1e-3)),
    "foreach_addcdiv": (3, lambda a, b, c, _: torch._foreach_addcdiv_(a, b, c, -1e-3)),
    "adamw_fused": (4, _fused_adamw),
    "sgd_fused": (3, _fused_sgd),
}


@launcher("optimizer")
def optimizer(kernel: Optimizer) -> Launch:
    """Parameters of equal size; every list of operands is as long as that of the parameters."""
    lists, run = _STEPS.get(kernel.op, (0, print))
    if kernel.elements < kernel.tensors or kernel.read_bytes != lists * kernel.elements * size_of(kernel):
        raise unmeasurable(kernel)
    size, longer = divmod(kernel.elements, kernel.tensors)
    sizes = [size + (i < longer) for i in range(kernel.tensors)]

    def operands(source: Source) -> Operands:
        made = tuple([source.positive(s, dtype=kernel.dtype) for s in sizes] for _ in range(lists))
        return (*made, [torch.ones((), device=source.device) for _ in sizes])

    return Launch(kernel=kernel, operands=operands, run=run)
