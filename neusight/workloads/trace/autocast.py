"""``torch.autocast`` as CUDA does it, on tensors of a trace, which are on the CPU.

PyTorch's autocast for the CPU casts operands and keeps casts of weights for the length of a step as that for CUDA does,
but it has other lists of operators. Which operators CUDA casts is read off PyTorch's own registrations; what it casts
them to follows PyTorch's documentation, "Autocast Op Reference".
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

_CPU = "AutocastCPU"
_TYPE = "cpu"
_is_enabled = torch.is_autocast_enabled
_dtype_of = torch.get_autocast_dtype
"""PyTorch's own functions, which a trace exchanges."""
_BELOW = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
_HALF_TEXT = """
    _convolution _scaled_dot_product_flash_attention _thnn_fused_gru_cell _thnn_fused_lstm_cell addbmm addmm addmv addr
    baddbmm bmm chain_matmul conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d
    convolution cudnn_convolution cudnn_convolution_transpose einsum gru_cell linalg_multi_dot linalg_vecdot linear
    lstm_cell matmul mm mv prelu rnn_relu_cell rnn_tanh_cell scaled_dot_product_attention
"""
_WIDEST_TEXT = "addcdiv addcmul atan2 bilinear cross dot grid_sampler index_put scatter_add tensordot vdot"
_WIDENING_TEXT = """
    softmax.int log_softmax.int sum sum.dim_IntList prod prod.dim_int cumsum cumprod linalg_vector_norm
"""
_WIDENING = frozenset(_WIDENING_TEXT.split())
"""Operators that CUDA's autocast asks for a result in float32 instead of casting what they read: their kernels widen
each value as they load it (PyTorch, ``autocast_mode.h``, ``fp32_set_opt_dtype``)."""
_FUSED_SOFTMAX = {"softmax.int": "_softmax", "log_softmax.int": "_log_softmax"}
"""Operators that a GPU runs as one kernel from float16 to float32 (``half_to_float``)."""
_HALF = frozenset(_HALF_TEXT.split())
"""Operators that run in the 16-bit dtype ("CUDA Ops that can autocast to float16")."""
_WIDEST = frozenset(_WIDEST_TEXT.split())
"""Operators that run in the widest dtype of their operands ("that promote to the widest input type")."""


@contextmanager
def cuda_casts() -> Iterator[None]:
    """Cast operators on the CPU under its autocast as CUDA's autocast does."""
    with torch.library._scoped_library("aten", "IMPL") as library, warnings.catch_warnings():
        # PyTorch says of each that an operator's cast on the CPU gives way.
        warnings.simplefilter("ignore")
        for name, cast in _other_casts().items():
            library.impl(name, cast, _CPU)
        yield


def autocast_dtype() -> torch.dtype | None:
    """The 16-bit dtype that operators of a trace are cast to; None without autocast."""
    return _dtype_of(_TYPE) if _is_enabled(_TYPE) else None


def _other_casts() -> dict[str, Callable[..., Any]]:
    """Operators that the CPU's autocast leaves alone or casts otherwise, with CUDA's casts."""
    cuda, cpu = cast_operators("AutocastCUDA"), cast_operators(_CPU)
    changed = dict.fromkeys(cpu - cuda, torch.library.fallthrough_kernel)
    for name in _WIDENING & cuda:
        changed[name] = _widening(name)
    for name in cuda - cpu - _WIDENING:
        kind = name.partition(".")[0]
        cast_to = autocast_dtype if kind in _HALF else _no_dtype if kind in _WIDEST else _float32
        changed[name] = _casting(name, cast_to)
    return changed


def _no_dtype() -> None:
    return None


def _float32() -> torch.dtype:
    return torch.float32


def cast_operators(key: str) -> set[str]:
    """ATen's operators, with their overloads, for which PyTorch has a cast under a dispatch key."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    names = (name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::"))
    return {name.removeprefix("aten::") for name in names if has(name, key)}


def _casting(name: str, cast_to: Callable[[], torch.dtype | None]) -> Callable[..., Any]:
    """The operator with its floating tensors cast first; to the widest among them where ``cast_to`` returns None."""
    operator = _operator(name)

    def cast(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_BELOW):
            target = cast_to() or _widest((*args, *kwargs.values()))
            return operator(*in_dtype(args, target), **{key: in_dtype(value, target) for key, value in kwargs.items()})

    return cast


def _widening(name: str) -> Callable[..., Any]:
    """The operator with a result in float32, unless its caller says in what."""
    operator = _operator(name)

    def widen(x: Any, *args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_BELOW):
            has_dtype = kwargs.get("dtype") is not None or any(isinstance(value, torch.dtype) for value in args)
            if has_dtype or not _narrow(x):
                return operator(x, *args, **kwargs)
            if name in _FUSED_SOFTMAX and x.dtype == torch.float16:
                return getattr(torch.ops.aten, _FUSED_SOFTMAX[name])(x, args[0] if args else kwargs["dim"], True)
            return operator(x, *args, **kwargs | {"dtype": torch.float32})

    return widen


def _narrow(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.dtype in (torch.float16, torch.bfloat16)


def _operator(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def in_dtype(value: Any, dtype: torch.dtype) -> Any:
    """A value whose floating tensors, but those in float64, are in a dtype."""
    if isinstance(value, torch.Tensor):
        floating = value.is_floating_point() and value.dtype != torch.float64
        return value.to(dtype) if floating else value
    if isinstance(value, list | tuple):
        return type(value)(in_dtype(item, dtype) for item in value)
    return value


def _widest(values: tuple[Any, ...]) -> torch.dtype:
    dtypes = {value.dtype for value in values if isinstance(value, torch.Tensor) and value.is_floating_point()}
    return torch.float32 if torch.float32 in dtypes or len(dtypes) != 1 else dtypes.pop()
