"""Modules on fake tensors: built without initialisation, copied without weights, and watched for the running layer."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from neusight.graphs.recorder import Recorder

_FILLS = ("normal_", "uniform_", "fill_", "zero_", "trunc_normal_", "random_", "bernoulli_", "exponential_", "erfinv_")


class _SkipFills(TorchDispatchMode):
    """In-place initialisers return at once: fake weights have no values."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__.startswith(_FILLS):
            return args[0]
        return func(*args, **(kwargs or {}))


def skip_initialisation() -> TorchDispatchMode:
    """A context in which in-place random numbers and fills do nothing."""
    return _SkipFills()


def copy_as_fake(module: torch.nn.Module, dtype: torch.dtype) -> torch.nn.Module:
    """A deep copy whose parameters and buffers are fake, floating ones of ``dtype``; tied weights stay tied."""
    memo: dict[int, Any] = {}
    for tensor in (*module.parameters(), *module.buffers()):
        kind = dtype if tensor.is_floating_point() else tensor.dtype
        fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=kind)
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        memo[id(tensor)] = torch.nn.Parameter(fake, tensor.requires_grad) if is_parameter else fake
    return copy.deepcopy(module, memo)


@contextmanager
def track_layers(module: torch.nn.Module, recorder: Recorder) -> Iterator[None]:
    """Tell the recorder which submodule's forward is running."""
    handles = []
    for path, part in module.named_modules():
        handles.append(part.register_forward_pre_hook(lambda *_, path=path: recorder.layers.append(path)))
        handles.append(part.register_forward_hook(lambda *_: _left(recorder), always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _left(recorder: Recorder) -> None:
    recorder.layers.pop()
