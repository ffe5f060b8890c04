"""The few tensors of a trace that have values, and what is taken for granted where a result depends on others.

Integers that follow from numbers, and masks, which decide shapes, keep their values. Fake tensors have none: as much as
there can be is selected, every element of a mask, every value distinct, every sequence at its full length. A value that
the host reads is one, a condition false, a comparison of two tensors and of all elements of one true: the ordinary case
of code that looks for what is wrong (NaN, padding, overflow). Warnings say so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
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
    indexed: list[Any] = []
    for index in indices:
        if not isinstance(index, torch.Tensor) or index.dtype != torch.bool:
            indexed.append(index)
        elif known((index,)):
            with unset_fake_temporarily():
                indexed.extend(index.nonzero(as_tuple=True))
        elif index.numel() <= _FEW:
            with unset_fake_temporarily():
                indexed.extend(torch.ones(index.shape).nonzero(as_tuple=True))
        else:
            indexed.append(index)
    return indexed


def _places(x: torch.Tensor) -> torch.Tensor:
    return torch.empty(x.numel(), x.dim(), dtype=torch.long)


def _chosen(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return x.new_empty(torch.broadcast_shapes(x.shape, mask.shape).numel())


def _indexed(x: torch.Tensor, indices: list[torch.Tensor | None]) -> torch.Tensor:
    """Masks become the places of all their elements, one index a dimension."""
    places: list[torch.Tensor | None] = []
    for index in indices:
        mask = index is not None and index.dtype in (torch.bool, torch.uint8)
        places += _every(index) if mask and index is not None else [index]
    return torch.empty_like(aten.index.Tensor(x, places))


def _every(mask: torch.Tensor) -> list[torch.Tensor | None]:
    return [torch.empty(mask.numel(), dtype=torch.long) for _ in range(mask.dim())]


def _distinct(x: torch.Tensor, *flags: Any, **_: Any) -> tuple[torch.Tensor, ...]:
    count = x.numel()
    inverse = torch.empty(x.shape, dtype=torch.long)
    return x.new_empty(count), inverse, torch.empty(count, dtype=torch.long)


def _distinct_along(x: torch.Tensor, dim: int, *_: Any, **__: Any) -> tuple[torch.Tensor, ...]:
    places = torch.empty(x.shape[dim], dtype=torch.long)
    return torch.empty_like(x), places, torch.empty_like(places)


def _counts(x: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0) -> torch.Tensor:
    """As many bins as are asked for, else one for each value."""
    return torch.empty(minlength or x.numel(), dtype=torch.long if weights is None else weights.dtype)


def _repeated(repeats: torch.Tensor, output_size: int | None = None) -> torch.Tensor:
    return torch.empty(output_size or repeats.numel(), dtype=torch.long)


def _aligned(log_probs: torch.Tensor, targets: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Losses and forward variables of connectionist temporal classification, [N] and [N, T, 2 S + 1]."""
    steps, batch = log_probs.shape[:2]
    length = targets.shape[1] if targets.dim() == 2 else -(-targets.numel() // batch)
    return log_probs.new_empty(batch), log_probs.new_empty(batch, steps, 2 * length + 1)


def _solved(a: torch.Tensor, b: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, ...]:
    batch, (m, n) = a.shape[:-2], a.shape[-2:]
    return (
        b.new_empty(*batch, n, b.shape[-1]),
        b.new_empty(*batch, b.shape[-1]),
        torch.empty(batch, dtype=torch.long),
        a.new_empty(*batch, min(m, n)),
    )


def _packed(x: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Every sequence has full length, so that all steps have all of them."""
    steps, batch = (x.shape[1], x.shape[0]) if batch_first else x.shape[:2]
    return x.new_empty(steps * batch, *x.shape[2:]), torch.empty(steps, dtype=torch.long)


def _kept(boxes: torch.Tensor, *_: Any) -> torch.Tensor:
    return torch.empty(boxes.shape[0], dtype=torch.long)


def even_sizes(x: torch.Tensor, sizes: list[int], dim: int = 0) -> list[int] | None:
    """Shares of a tensor that was to be split by assumed values, all one, that do not add up to it; else None."""
    total, count = x.shape[dim], len(sizes)
    if sum(sizes) == total or set(sizes) != {1}:
        return None
    return [total // count + (i < total % count) for i in range(count)]


RESULTS: dict[Any, Callable[..., Any]] = {
    aten.nonzero.default: _places,
    aten.masked_select.default: _chosen,
    aten.index.Tensor: _indexed,
    aten._unique2.default: _distinct,
    aten.unique_consecutive.default: _distinct,
    aten.unique_dim.default: _distinct_along,
    aten.bincount.default: _counts,
    aten.repeat_interleave.Tensor: _repeated,
    aten._ctc_loss.default: _aligned,
    aten._ctc_loss.Tensor: _aligned,
    aten.linalg_lstsq.default: _solved,
    aten._pack_padded_sequence.default: _packed,
}
"""Results of the largest shape there can be, on fake tensors, by operator."""


OTHERS: dict[str, Callable[..., Any]] = {"torchvision::nms": _kept}
"""The same of operators that other libraries define, by name."""
_ALL = ("aten.all.", "aten._is_all_true.")


def result(func: Any) -> Callable[..., Any] | None:
    """What makes the largest result of an operator; None where nobody knows how large that is."""
    return RESULTS.get(func) or OTHERS.get(func._schema.name)


def value(func: Any, args: tuple[Any, ...], maker: str = "") -> Any:
    """What the host is taken to read: a condition is false, a number one, two tensors are equal.

    Args:
        func: the operator that reads.
        args: what it reads.
        maker: the operator that made that; whether all elements of a tensor hold is taken as true.
    """
    if func in (aten.equal.default, aten.allclose.default) or maker.startswith(_ALL):
        return True
    first: torch.Tensor = args[0]
    if first.dtype == torch.bool or func is aten.is_nonzero.default:
        return False
    return 1.0 if first.is_floating_point() else 1
