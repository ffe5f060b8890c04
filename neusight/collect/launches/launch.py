"""A launch: the operator that runs a kernel, with a recipe for its random operands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from neusight.errors import UnmeasurableError
from neusight.kernels import DTYPE_BYTES, Kernel, KernelBatch
from neusight.kernels.work import work_of

_NAMED = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int8", "uint8", "bool")
TORCH_DTYPES: dict[str, torch.dtype] = {
    **{name: getattr(torch, name) for name in _NAMED},
    **{"tf32": torch.float32, "float8": torch.float8_e4m3fn},
}
Operands = tuple[Any, ...]
Run = Callable[..., Any]
"""An operator that takes operands."""


@contextmanager
def float32_precision(tf32: bool) -> Iterator[None]:
    """Allow or forbid TF32 in products and convolutions in float32, a separate dtype here; PyTorch's default allows
    convolutions.
    """
    backends: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [backend.allow_tf32 for backend in backends]
    try:
        for backend in backends:
            backend.allow_tf32 = tf32
        yield
    finally:
        for backend, allowed in zip(backends, before, strict=True):
            backend.allow_tf32 = allowed


def fused_attention(dtype: str) -> AbstractContextManager[Any]:
    """The one form of fused attention that a GPU is allowed for a dtype."""
    fused = SDPBackend.FLASH_ATTENTION if dtype != "float32" else SDPBackend.EFFICIENT_ATTENTION
    return sdpa_kernel([fused]) if torch.cuda.is_available() else nullcontext()


class OperandSource:
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


Recipe = tuple[Callable[[OperandSource], Operands], Callable[..., Any]]
"""Recipe of a launch: the function that makes its operands, and the operator that takes them."""


@dataclass(frozen=True, kw_only=True)
class KernelLaunch:
    """``run(*operands(source))`` launches ``kernel``, within ``setting()``."""

    kernel: Kernel
    operands: Callable[[OperandSource], Operands]
    run: Callable[..., Any]

    @contextmanager
    def setting(self) -> Iterator[None]:
        """Set TF32, disable gradients, and choose the backend of attention."""
        with float32_precision(self.kernel.dtype == "tf32"), torch.no_grad(), fused_attention(self.kernel.dtype):
            yield

    @property
    def bytes(self) -> int:
        """Bytes that one launch reads and writes."""
        return int(work_of(KernelBatch.of([self.kernel])).bytes[0])


def size_of(kernel: Any) -> int:
    """Bytes of one element of the kernel's dtype."""
    return DTYPE_BYTES[kernel.dtype]


def factors(elements: int, most: int) -> tuple[int, int]:
    """``elements`` as a product whose second factor is its largest divisor up to ``most``."""
    return next((elements // d, d) for d in range(min(most, elements), 0, -1) if elements % d == 0)


def values_beside(kernel: Any, size: int, values: int | None = None) -> int:
    """Number of values of ``size`` bytes that a kernel reads in addition to ``values`` of its dtype, default one an
    element; it divides the elements.

    Raises:
        UnmeasurableError: there is no such number.
    """
    read = size_of(kernel) * (kernel.elements if values is None else values)
    count, odd = divmod(kernel.read_bytes - read, size)
    if odd or count <= 0 or kernel.elements % count:
        raise unmeasurable(kernel)
    return count


def unmeasurable(kernel: Any) -> UnmeasurableError:
    """The outcome for a kernel that no single operator runs."""
    return UnmeasurableError(f"no single operator runs {kernel.family} '{kernel.op}' in {kernel.dtype} with this shape")


def parts(total: int, groups: int, largest: int) -> np.ndarray:
    """``total`` rows over ``groups``: the first has ``largest``, the others share the rest evenly."""
    first = largest if largest else -(-total // groups)
    rest = np.diff(np.linspace(0, total - first, groups).round().astype(int)) if groups > 1 else np.array([], int)
    return np.concatenate([[first], rest])
