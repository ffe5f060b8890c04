"""Names of inputs, and the shapes that they come in: several where models of one name differ.

What is right is what the model runs with: the ways of a name are tried in order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from neusight.workloads.inputs.sizes import Sizes
from neusight.workloads.tensors import TensorSpec

Ways = Sequence[Any]
"""Alternatives for one input: a ``TensorSpec``, ``Known`` values, or anything that is passed on."""


_MAKERS: dict[str, Callable[[Sizes], Ways]] = {}


def layout(*names: str) -> Callable[[Callable[[Sizes], Ways]], Callable[[Sizes], Ways]]:
    """Register what makes the inputs of these names."""

    def entered(maker: Callable[[Sizes], Ways]) -> Callable[[Sizes], Ways]:
        _MAKERS.update(dict.fromkeys(names, maker))
        return maker

    return entered


def makers() -> Mapping[str, Callable[[Sizes], Ways]]:
    """By the name of the input."""
    from neusight.workloads.inputs import images, others, series, sounds, text

    assert images and others and series and sounds and text
    return _MAKERS


def floats(*shape: int) -> TensorSpec:
    """A floating input, in the dtype of the request."""
    return TensorSpec(tuple(int(size) for size in shape))


def integers(*shape: int) -> TensorSpec:
    """Ids or positions."""
    return TensorSpec(tuple(int(size) for size in shape), "int64")


def size_of(way: Any) -> int:
    """Elements of a way."""
    return prod(way.shape) if isinstance(way, TensorSpec) else 0
