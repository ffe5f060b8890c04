"""From a kernel to the operator that runs it: the inverse of the tracing rules, which a test holds it to.

Whatever the tracing rules would say about a launched operator is the kernel it came from, so that what is measured is
what is predicted. Needs torch at once: imported by what measures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from neusight.collect.launches.launch import KernelLaunch, Operands, OperandSource, Recipe, float32_precision
from neusight.collect.launches.pointwise import elementwise, optimizer
from neusight.collect.launches.products import attention, conv2d, fused_attention, gemm, grouped_gemm
from neusight.collect.launches.rows import memory, row_reduction
from neusight.errors import UnmeasurableError
from neusight.kernels import Kernel

__all__ = ["KernelLaunch", "OperandSource", "Operands", "prepare"]

_LAUNCHERS: dict[str, Callable[[Any], Recipe]] = {
    "attention": attention,
    "conv2d": conv2d,
    "elementwise": elementwise,
    "gemm": gemm,
    "grouped_gemm": grouped_gemm,
    "memory": memory,
    "optimizer": optimizer,
    "row_reduction": row_reduction,
}


def prepare(kernel: Kernel) -> KernelLaunch:
    """The launch of a kernel.

    Raises:
        UnmeasurableError: no operator is known that runs such a kernel alone.
    """
    if kernel.family not in _LAUNCHERS:
        raise UnmeasurableError(f"no operator is known for {kernel.family} kernels: leave the family out")
    operands, run = _LAUNCHERS[kernel.family](kernel)
    return KernelLaunch(kernel=kernel, operands=operands, run=run, setting=lambda: _settings(kernel))


@contextmanager
def _settings(kernel: Kernel) -> Iterator[None]:
    with float32_precision(kernel.dtype == "tf32"), torch.no_grad(), fused_attention(kernel.dtype):
        yield
