"""Zeros of what a kernel multiplies: how many, and how much they keep together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from neusight.errors import DataError, nearest
from neusight.kernels.families import KernelBatch
from neusight.quick_dataclasses import dataclass

CLUSTERS = ("stream", "step", "lane", "slot")
"""Unit within which zeros are clustered: a reduction's stream, a row of it, a lane of it, or a place through all
streams."""
SIDES = ("first", "second")


@dataclass(frozen=True)
class OperandSparsity:
    """Zeros of one tensor.

    ``sparsity`` in [0, 1]: share of values that are exactly zero. ``clustering`` in [0, 1]: correlation of the zeros
    within a group, 0 independent, 1 groups of zeros alone or of none. ``cluster``: what a group is, one of
    ``CLUSTERS``.

    Raises:
        DataError: a share outside [0, 1], or an unknown kind of group.
    """

    sparsity: float
    clustering: float = 0.0
    cluster: str = "stream"

    def __post_init__(self) -> None:
        for name in ("sparsity", "clustering"):
            share = getattr(self, name)
            if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
                raise DataError(f"{name} is a number between 0 and 1, not {share!r}: correct it")
        if self.cluster not in CLUSTERS:
            hint = nearest(str(self.cluster), CLUSTERS)
            raise DataError(f"unknown cluster {self.cluster!r}{hint}: one of {', '.join(CLUSTERS)}")


DENSE = OperandSparsity(0.0)
"""No zeros (definition)."""
Zeros = tuple[OperandSparsity, OperandSparsity]
"""Sparsity of the first and the second operand of a product."""
MAPPED = ("conv2d", "gemm")
"""Families whose operands are tensors of a layer."""
DIRECTIONS: Mapping[str, tuple[str, str]] = {
    "forward": ("activations", "weights"),
    "input_grad": ("gradients", "weights"),
    "weight_grad": ("gradients", "activations"),
}
"""First and second operand of a layer's products. Batched products multiply two tensors that are no layer's input as
it came: they count as dense."""


@dataclass(frozen=True)
class LayerSparsity:
    """Zeros of a layer's operands: ``activations`` it is given, ``gradients`` of its output, its ``weights``."""

    activations: OperandSparsity
    gradients: OperandSparsity
    weights: OperandSparsity

    def of_kernel(self, kernel: Any, phase: str) -> Zeros | None:
        """Zeros of both operands of a kernel that the layer runs in a phase; None where they are none of its tensors.

        They follow from the kernel, so that they stay right when a transform adds, drops or replaces kernels.
        """
        names = operand_names(kernel, phase)
        return None if names is None else (getattr(self, names[0]), getattr(self, names[1]))


def operand_names(kernel: Any, phase: str) -> tuple[str, str] | None:
    """Names of both operands, None where they are no layer's tensors."""
    if kernel.family == "conv2d":
        return DIRECTIONS[kernel.op]
    if kernel.family != "gemm" or kernel.op == "bmm":
        return None
    if phase != "backward":
        return DIRECTIONS["forward"]
    return DIRECTIONS["weight_grad" if kernel.layout == "nt" else "input_grad"]


def with_zeros(batch: KernelBatch, zeros: Sequence[Zeros | None]) -> KernelBatch:
    """The batch with columns ``{first,second}_{sparsity,clustering,cluster}``; None is dense."""
    pairs = [pair or (DENSE, DENSE) for pair in zeros]
    columns = {
        f"{side}_{f.name}": np.array([getattr(pair[place], f.name) for pair in pairs])
        for place, side in enumerate(SIDES)
        for f in fields(OperandSparsity)
    }
    return KernelBatch(batch.family, {**batch.columns, **columns})


def has_zeros(batch: KernelBatch) -> bool:
    """Tell whether a batch specifies the sparsity of its operands."""
    return "first_sparsity" in batch.columns
