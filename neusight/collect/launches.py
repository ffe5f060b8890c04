"""From a kernel to the operator that runs it: the inverse of the tracing rules, which a test holds it to.

A launch is the operator with a recipe for its operands. Whatever the tracing rules would say about that operator is
the kernel it came from, so that what is measured is what is predicted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from neusight.collect.tasks import Unmeasurable
from neusight.kernels import DTYPE_BYTES, Kernel, KernelBatch
from neusight.kernels.work import work_of

TORCH_DTYPES: dict[str, torch.dtype] = {
    "float64": torch.float64,
    "float32": torch.float32,
    "tf32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float8": torch.float8_e4m3fn,
    "int64": torch.int64,
    "int32": torch.int32,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "bool": torch.bool,
}
Operands = tuple[Any, ...]


class Source:
    """Random operands on one device, from one seed: zeros draw less power and run faster than data do."""

    def __init__(self, device: str, seed: int = 0) -> None:
        self.device = torch.device(device)
        self.generator = torch.Generator(self.device).manual_seed(seed)

    def normal(self, *shape: int, dtype: str) -> torch.Tensor:
        """Standard normal numbers; small whole numbers for integers."""
        kind = TORCH_DTYPES[dtype]
        if dtype == "bool":
            return self.mask(*shape)
        if not kind.is_floating_point:
            return torch.randint(1, 100, shape, generator=self.generator, device=self.device, dtype=kind)
        if kind.itemsize == 1:
            return self.normal(*shape, dtype="bfloat16").to(kind)
        return torch.randn(shape, generator=self.generator, device=self.device, dtype=kind)

    def positive(self, *shape: int, dtype: str) -> torch.Tensor:
        """Numbers between one and two: safe under a root, a logarithm or a division."""
        kind = TORCH_DTYPES[dtype]
        if not kind.is_floating_point:
            return self.normal(*shape, dtype=dtype)
        return torch.rand(shape, generator=self.generator, device=self.device, dtype=kind) + 1.0

    def indices(self, high: int, *shape: int) -> torch.Tensor:
        """Whole numbers from 0 to ``high`` - 1, as 64-bit indices."""
        return torch.randint(0, max(1, high), shape, generator=self.generator, device=self.device)

    def mask(self, *shape: int) -> torch.Tensor:
        """True and False, evenly."""
        return torch.rand(shape, generator=self.generator, device=self.device) > 0.5


@dataclass(frozen=True, kw_only=True)
class Launch:
    """``run(*operands(source))`` launches ``kernel``; ``setting`` holds while it runs (TF32, a backend)."""

    kernel: Kernel
    operands: Callable[[Source], Operands]
    run: Callable[..., Any]
    setting: Callable[[], AbstractContextManager[Any]] = nullcontext

    @property
    def bytes(self) -> int:
        """What one launch reads and writes."""
        return int(work_of(KernelBatch.of([self.kernel])).bytes[0])


Launcher = Callable[[Any], Launch]
_LAUNCHERS: dict[str, Launcher] = {}


def launcher(family: str) -> Callable[[Launcher], Launcher]:
    """Register how the kernels of a family are launched."""

    def register(function: Launcher) -> Launcher:
        _LAUNCHERS[family] = function
        return function

    return register


def prepare(kernel: Kernel) -> Launch:
    """The launch of a kernel.

    Raises:
        Unmeasurable: no operator is known that runs such a kernel alone.
    """
    from neusight.collect import (  # noqa: F401 - each registers its families
        launch_attention,
        launch_memory,
        launch_optimizer,
        launch_pointwise,
        launch_products,
        launch_rows,
    )

    if kernel.family not in _LAUNCHERS:
        raise Unmeasurable(f"no operator is known for {kernel.family} kernels: leave the family out")
    launch = _LAUNCHERS[kernel.family](kernel)
    return Launch(kernel=kernel, operands=launch.operands, run=launch.run, setting=lambda: _settings(kernel, launch))


@contextmanager
def _settings(kernel: Kernel, launch: Launch) -> Iterator[None]:
    """float32 means float32: TF32 is a dtype of its own here, whatever the library's default."""
    allowed = kernel.dtype == "tf32"
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed
    try:
        with torch.no_grad(), launch.setting():
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def size_of(kernel: Any) -> int:
    """Bytes of one element of the kernel's dtype."""
    return DTYPE_BYTES[kernel.dtype]


def factors(elements: int, most: int) -> tuple[int, int]:
    """``elements`` as a product whose second factor is its largest divisor up to ``most``."""
    return next((elements // d, d) for d in range(min(most, elements), 0, -1) if elements % d == 0)


def unmeasurable(kernel: Any) -> Unmeasurable:
    """The outcome for a kernel that no single operator runs."""
    return Unmeasurable(f"no single operator runs {kernel.family} '{kernel.op}' in {kernel.dtype} with this shape")


def parts(total: int, groups: int, largest: int) -> np.ndarray:
    """``total`` rows over ``groups``: the first has ``largest``, the others share the rest evenly."""
    first = largest if largest else -(-total // groups)
    rest = np.diff(np.linspace(0, total - first, groups).round().astype(int)) if groups > 1 else np.array([], int)
    return np.concatenate([[first], rest])
