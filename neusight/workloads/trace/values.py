"""Which tensors of a trace have values, and what is assumed where a result depends on others.

Tensors with values are real ones: inputs, buffers and constants of up to ``MOST_INTEGERS`` integers or booleans and
``MOST_FLOATS`` numbers, and all results computed from them alone, products of large matrices aside. Random numbers are
drawn with one seed. All others, parameters among them, are fake: their values are not known. A number that the host
reads from those is one, a condition false, a comparison of two tensors and of all elements of one true: the ordinary
case of code that looks for what is wrong (NaN, padding, overflow). Warnings say so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    unset_fake_temporarily,
)
from torch.utils.weak import WeakIdKeyDictionary

from neusight.workloads.trace.expected import ZEROS, Facts, note_expected

aten = torch.ops.aten
MOST_INTEGERS, MOST_FLOATS = 1 << 22, 1 << 20
"""Elements of a tensor that keeps its values."""
_MOST_PRODUCTS = 1 << 24
"""Multiplications of a product whose result is computed: elements of one factor times those of the other."""
_PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "convolution", "_fft_r2c", "_fft_c2c", "_fft_c2r")
_ALL = ("aten.all.", "aten._is_all_true.")
_LIKE = ("zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "empty_like", "new_")
"""Operators that take of their first tensor no more than its shape and dtype."""
UNKNOWN = object()
"""Placeholder for a result whose values are not known."""


def tensors_in(values: Any) -> Iterator[torch.Tensor]:
    """Tensors among arguments or results, those in lists included."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_in(value)


def is_small(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor has so few elements that it keeps its values."""
    return tensor.numel() <= (MOST_FLOATS if tensor.is_floating_point() or tensor.is_complex() else MOST_INTEGERS)


def has_values(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor was given with values, and is small enough to keep them."""
    real = not isinstance(tensor, FakeTensor) and tensor.device.type == "cpu" and tensor.layout is torch.strided
    return real and is_small(tensor)


def copy_of(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Contiguous copy of another dtype with the same values; without values, if the tensor keeps none."""
    if not has_values(tensor):
        return torch.empty(tensor.shape, dtype=dtype)
    with unset_fake_temporarily(), torch.no_grad():
        return tensor.detach().to(dtype, copy=True).contiguous()


class Values:
    """Facts about the values of a trace's tensors, which share facts where they share a storage."""

    def __init__(self) -> None:
        self._facts: WeakIdKeyDictionary = WeakIdKeyDictionary()

    def of(self, tensor: torch.Tensor) -> Facts:
        """Facts about a tensor's elements."""
        return Facts() if tensor.is_sparse else self._facts.get(tensor.untyped_storage()) or Facts()

    def note(self, tensor: torch.Tensor, facts: Facts) -> None:
        """Remember what is known of a tensor, as long as its storage lives."""
        if facts != Facts() and not tensor.is_sparse:
            overwritten = facts.overwritten or self.of(tensor).overwritten
            self._facts[tensor.untyped_storage()] = replace(facts, overwritten=overwritten)

    def known(self, tensor: torch.Tensor) -> bool:
        """Tell whether a tensor has values that nothing unknown was written to."""
        return has_values(tensor) and not self.of(tensor).overwritten

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """An input whose values are assumed."""
        with unset_fake_temporarily():
            tensor = torch.zeros(shape, dtype=dtype)
        self.note(tensor, Facts(assumed=ZEROS))
        return tensor

    def assumption(self, *values: Any) -> str:
        """Assumption behind the values of tensors; '' where they are real."""
        return next((assumed for tensor in tensors_in(values) if (assumed := self.of(tensor).assumed)), "")

    def compute(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of an operator with its values, or ``UNKNOWN``."""
        if func.__name__.startswith(_LIKE) and isinstance(args[0], FakeTensor):
            args = (_stand_in(args[0], func.__name__.startswith("new_")), *args[1:])
        tensors = list(tensors_in((*args, *kwargs.values())))
        if not all(map(self.known, tensors)):
            if func.is_view and not any(isinstance(tensor, FakeTensor) for tensor in tensors):
                return with_values(func, args, kwargs)
            return UNKNOWN
        if not (tensors or _makes_tensors(func)) or not _is_cheap(func, args, kwargs):
            return UNKNOWN
        try:
            result = with_values(func, args, kwargs)
        except Exception:
            # The CPU has no such kernel, or the values are wrong, which a GPU would not tell either.
            return UNKNOWN
        if args and result is args[0] and not func._schema.is_mutable:
            # A constant that enters a trace is a tensor of its own, as a fake one would be.
            result = with_values(aten.clone.default, (result,), {})
        if assumed := self.assumption(*tensors):
            for tensor in tensors_in((result,)):
                self.note(tensor, Facts(assumed=assumed))
        return result

    def learn(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> Any:
        """Result of an operator on fake tensors, which is what it writes to, or has the values that are expected of
        it.
        """
        named = {spec.name: value for spec, value in zip(func._schema.arguments, args, strict=False)} | dict(kwargs)
        returns_written = any(spec.alias_info for spec in func._schema.returns)
        for argument in func._schema.arguments:
            if argument.is_write:
                for tensor in tensors_in((written := named.get(argument.name),)):
                    self._facts[tensor.untyped_storage()] = Facts(overwritten=True)
                result = written if returns_written and isinstance(result, torch.Tensor) else result
        return note_expected(func, named, result, self)

    def places(self, indices: Any) -> list[Any]:
        """Indices, masks of known values among them as the places that they choose."""
        indexed: list[Any] = []
        for index in indices:
            if isinstance(index, torch.Tensor) and index.dtype == torch.bool and self.known(index):
                indexed.extend(with_values(aten.nonzero.default, (index,), {}).unbind(1))
            else:
                indexed.append(index)
        return indexed


def with_values(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run on real tensors. Random numbers are those of one seed for all; memory that is not set holds zeros."""
    with unset_fake_temporarily():
        result = func(*args, **(kwargs | {"generator": None} if "generator" in kwargs else kwargs))
        return result.zero_() if func.__name__.startswith(("empty", "new_empty")) else result


def _stand_in(tensor: torch.Tensor, of_any_shape: bool) -> torch.Tensor:
    """A tensor with values that do not count; without, if it would be large."""
    if not (of_any_shape or is_small(tensor)):
        return tensor
    with unset_fake_temporarily():
        return torch.empty(() if of_any_shape else tensor.shape, dtype=tensor.dtype)


def _makes_tensors(func: Any) -> bool:
    return any(str(result.type) == "Tensor" for result in func._schema.returns)


def _is_cheap(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Tell whether a result is cheap enough to be computed for its values."""
    if func.is_view or func._schema.is_mutable:
        return True
    if func.__name__.partition(".")[0] in _PRODUCTS and prod(t.numel() for t in tensors_in(args)) > _MOST_PRODUCTS:
        return False
    try:
        result = func(*args, **kwargs)
    except (DynamicOutputShapeException, DataDependentOutputException):
        return True
    except Exception:
        return False
    return all(map(is_small, tensors_in((result,))))


def even_sizes(x: torch.Tensor, sizes: list[int], dim: int = 0) -> list[int] | None:
    """Shares of a tensor that was to be split by assumed values, all one, that do not add up to it; else None."""
    total, count = x.shape[dim], len(sizes)
    if sum(sizes) == total or set(sizes) != {1}:
        return None
    return [total // count + (i < total % count) for i in range(count)]


def assumed_value(func: Any, args: tuple[Any, ...], maker: str, share: float | None) -> Any:
    """Value that the host is assumed to read: a condition is false, a number one, two tensors are equal.

    Args:
        func: the operator that reads.
        args: what it reads.
        maker: the operator that made that; whether all elements of a tensor hold is taken as true.
        share: how often a condition is expected to be true, if that is known.
    """
    if func in (aten.equal.default, aten.allclose.default) or maker.startswith(_ALL):
        return True
    first: torch.Tensor = args[0]
    if share is not None:
        return share >= 0.5
    if first.dtype == torch.bool or func is aten.is_nonzero.default:
        return False
    return 1.0 if first.is_floating_point() else 1
