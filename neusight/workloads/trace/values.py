"""The few tensors of a trace that have values: integers that follow from numbers, and masks, which decide shapes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod
from typing import Any

import torch
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensor, unset_fake_temporarily

aten = torch.ops.aten
_FACTORIES = {
    *(aten.arange.default, aten.arange.start, aten.arange.start_step, aten.full.default, aten.zeros.default),
    *(aten.ones.default, aten.empty.memory_format, aten.scalar_tensor.default),
}
_FEW = 64
"""Elements of a mask over the images of a batch; masks over tokens have more."""
_MANY = 1 << 24
"""Elements that are not computed."""


def tensors_in(values: Any) -> Iterator[torch.Tensor]:
    """Tensors among arguments or results, those in lists included."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_in(value)


def known(values: Iterable[Any]) -> bool:
    """Whether all tensors among these have values, as few small inputs do that decide shapes."""
    tensors = list(tensors_in(values))
    return bool(tensors) and not any(isinstance(tensor, FakeTensor) for tensor in tensors)


def kept(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor | None:
    """Integers that follow from numbers alone, with their values; None for all else."""
    if func not in _FACTORIES or any(True for _ in tensors_in((*args, *kwargs.values()))):
        return None
    with unset_fake_temporarily():
        made: torch.Tensor = func(*args, **kwargs)
    return made if not made.is_floating_point() else None


def small(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether to compute what decides shapes, which is never large: a product over all pairs of pixels would be."""
    if prod(max(1, tensor.numel()) for tensor in tensors_in((*args, *kwargs.values()))) <= _MANY:
        return True
    try:
        result = func(*args, **kwargs)
    except DynamicOutputShapeException:
        return True
    return all(t.numel() <= _MANY for t in tensors_in(result if isinstance(result, list | tuple) else (result,)))


def computed(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run on tensors that have values."""
    with unset_fake_temporarily():
        return func(*args, **kwargs)


def places(indices: Iterable[Any]) -> list[Any]:
    """Masks as the places that they choose, which have a shape: those of known values, and those over few images, all
    of which are there.
    """
    found: list[Any] = []
    for index in indices:
        if not isinstance(index, torch.Tensor) or index.dtype != torch.bool:
            found.append(index)
        elif known((index,)):
            with unset_fake_temporarily():
                found.extend(index.nonzero(as_tuple=True))
        elif index.numel() <= _FEW:
            with unset_fake_temporarily():
                found.extend(torch.ones(index.shape).nonzero(as_tuple=True))
        else:
            found.append(index)
    return found
