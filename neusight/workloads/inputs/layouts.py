"""Names of inputs, and the shapes that they come in: several where models of one name differ.

What is right is what the model runs with: the ways of a name are tried in order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from neusight.workloads.inputs.sizes import Sizes
from neusight.workloads.tensors import TensorSpec

Ways = Sequence[Any]
"""Alternatives for one input: a ``TensorSpec``, ``Known`` values, or anything that is passed on."""


MAKERS: dict[str, Callable[[Sizes], Ways]] = {}


def layout(*names: str) -> Callable[[Callable[[Sizes], Ways]], Callable[[Sizes], Ways]]:
    """Register what makes the inputs of these names."""

    def entered(maker: Callable[[Sizes], Ways]) -> Callable[[Sizes], Ways]:
        MAKERS.update(dict.fromkeys(names, maker))
        return maker

    return entered


def floats(*shape: int) -> TensorSpec:
    """A floating input, in the dtype of the request."""
    return TensorSpec(tuple(int(size) for size in shape))


def integers(*shape: int) -> TensorSpec:
    """Ids or positions."""
    return TensorSpec(tuple(int(size) for size in shape), "int64")


def size_of(way: Any) -> int:
    """Elements of a way."""
    return prod(way.shape) if isinstance(way, TensorSpec) else 0
