"""Operators that run given kernels: the inverse of the tracing rules, as a test checks.

The tracing rules map a launched operator to the kernel it came from, so that measured and predicted kernels are the
same. Needs torch at once: imported only for measurements.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from neusight.collect.launches.launch import KernelLaunch, Operands, OperandSource, Recipe
from neusight.collect.launches.pointwise import elementwise, optimizer
from neusight.collect.launches.products import attention, conv2d, gemm, grouped_gemm
from neusight.collect.launches.rows import memory, row_reduction
from neusight.errors import UnmeasurableError
from neusight.kernels import Kernel

__all__ = ["KernelLaunch", "OperandSource", "Operands", "prepare"]

_FUNCTIONS = (attention, conv2d, elementwise, gemm, grouped_gemm, memory, optimizer, row_reduction)
_LAUNCHERS: dict[str, Callable[[Any], Recipe]] = {function.__name__: function for function in _FUNCTIONS}
"""Recipes of launches, by family of kernels."""


def prepare(kernel: Kernel) -> KernelLaunch:
    """The launch of a kernel.

    Raises:
        UnmeasurableError: no operator is known that runs such a kernel alone.
    """
    if kernel.family not in _LAUNCHERS:
        raise UnmeasurableError(f"no operator is known for {kernel.family} kernels: leave the family out")
    operands, run = _LAUNCHERS[kernel.family](kernel)
    return KernelLaunch(kernel=kernel, operands=operands, run=run)
