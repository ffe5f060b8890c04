"""Specification of a tensor for rules: shape, dtype and strides, without any tensor library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from neusight.kernels.precision import stored_bytes

FLOATING = frozenset({"float64", "float32", "float16", "bfloat16"})
REAL_PART = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}
"""Dtype of the real and of the imaginary part."""


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides in elements."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor as seen by a rule or asked for as an input; strides are in elements, row-major unless given."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    strides: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.strides and self.shape:
            object.__setattr__(self, "strides", contiguous_strides(self.shape))

    @property
    def elements(self) -> int:
        """Logical number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes as stored: a dimension with stride 0 is a broadcast and counts once."""
        stored = prod(size for size, stride in zip(self.shape, self.strides, strict=True) if stride)
        return int((stored if self.elements else 0) * stored_bytes(self.dtype))

    @property
    def element_bytes(self) -> int:
        """Bytes of one element."""
        return int(stored_bytes(self.dtype))

    @property
    def complex(self) -> bool:
        """Tell whether the elements are complex numbers."""
        return self.dtype in REAL_PART

    @property
    def floating(self) -> bool:
        """Tell whether the elements are real floating-point numbers."""
        return self.dtype in FLOATING


@dataclass(frozen=True, slots=True)
class Known:
    """A small integer tensor whose values decide shapes, such as the rows and columns of patches."""

    values: Any
    dtype: str = "int64"
    shape: tuple[int, ...] = ()
    """Where all values are alike, ``values`` is the one."""

    @classmethod
    def ones(cls, *shape: int, dtype: str = "int64") -> Known:
        """A mask that hides nothing."""
        return cls(1, dtype, tuple(shape))


@dataclass(frozen=True, slots=True)
class Call:
    """One dispatched operator: ``name`` without namespace ``aten``, ``overload``, arguments and results.

    Tensors among ``args`` and ``kwargs`` are TensorSpec, lists of tensors are tuples of them. The same TensorSpec
    object twice is the same tensor twice, as in ``x * x``: it is read once.
    """

    name: str
    overload: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    outputs: tuple[TensorSpec, ...] = ()

    def arg(self, position: int, name: str, default: Any = None) -> Any:
        """An argument given by position or by name."""
        if position < len(self.args):
            return self.args[position]
        return self.kwargs.get(name, default)

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """Every tensor among the arguments, in order and once; tensors in lists included."""
        tensors: dict[int, TensorSpec] = {}
        for value in (*self.args, *self.kwargs.values()):
            for item in value if isinstance(value, tuple) else (value,):
                if isinstance(item, TensorSpec):
                    tensors.setdefault(id(item), item)
        return tuple(tensors.values())

    @property
    def output(self) -> TensorSpec:
        """The first result."""
        return self.outputs[0]

    @property
    def read_bytes(self) -> int:
        """Bytes of all tensor arguments as stored."""
        return sum(t.nbytes for t in self.inputs)

    @property
    def write_bytes(self) -> int:
        """Bytes of all results."""
        return sum(t.nbytes for t in self.outputs)

    @property
    def dtype(self) -> str:
        """The floating dtype the operator computes in: of its first floating argument, else result; else as stored.

        Complex numbers are computed with in that of their parts.
        """
        dtypes = [REAL_PART.get(t.dtype, t.dtype) for t in (*self.inputs, *self.outputs)]
        return next((dtype for dtype in dtypes if dtype in FLOATING), dtypes[0] if dtypes else "float32")
