"""Convolutions of long filters as products of spectra."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from neusight.errors import InapplicableError
from neusight.kernels.families import Conv2d, Gemm, Kernel, KernelBatch, Memory
from neusight.kernels.work import work_of
from neusight.workloads.workload import Workload

TILE = 256
"""Values of a tile, the longest filter that tiles of rows take, and the longest row of which filters have gradients so
(cuDNN API, ``CUDNN_CONVOLUTION_FWD_ALGO_FFT_TILING`` and ``..._BWD_FILTER_ALGO_FFT_TILING``: where one extent is 1, the
other must not exceed 256, the largest tile of one dimension; stride and dilation are 1; images lie in NCHW).
"""
_FREQUENCIES = TILE // 2 + 1
"""Independent frequencies of a real signal; the others follow from them."""
_BYTES = 4
_BLOCK = 32
"""Rows that a product of spectra has at least (cuDNN's kernels ``gcgemm_32x32``)."""


def with_spectra(workload: Workload, flops_per_s: float, bytes_per_s: float) -> Workload:
    """A step whose convolutions along one extent in float32 are products of spectra where these take less time at the
    rates of a device, as cuDNN finds out by timing its algorithms (``torch.backends.cudnn.benchmark``).

    Raises:
        InapplicableError: no convolution is of this kind.
    """
    if not any(_is_row(kernel) for node in workload.nodes for kernel in node.kernels):
        raise InapplicableError("no convolution in float32 has a long filter along one extent")

    def choose(kernel: Kernel) -> Sequence[Kernel]:
        if not isinstance(kernel, Conv2d) or not _is_row(kernel):
            return (kernel,)
        spectra = _Spectra.of(kernel)
        direct_s = float(work_of(KernelBatch.of([kernel])).flops[0]) / flops_per_s
        return spectra.kernels if spectra.time_s(flops_per_s, bytes_per_s) < direct_s else (kernel,)

    nodes = (
        replace(node, kernels=tuple(made for kernel in node.kernels for made in choose(kernel)))
        for node in workload.nodes
    )
    return replace(workload, nodes=tuple(nodes))


def _is_row(kernel: Kernel) -> bool:
    if not isinstance(kernel, Conv2d) or kernel.dtype != "float32" or kernel.image_layout != "nchw":
        return False
    short, long = sorted((kernel.kernel_height, kernel.kernel_width))
    if kernel.op == "weight_grad" and max(kernel.height, kernel.width) + 2 * kernel.padding > TILE:
        return False
    return short == 1 < long <= TILE and kernel.stride == kernel.dilation == kernel.groups == 1


@dataclass(frozen=True)
class _Spectra:
    """A convolution by tiles of ``TILE`` values along its filter: the transforms of both tensors that are read, each
    turned so that all signals of a frequency lie together, a complex product a frequency, and the way back for what is
    written.

    Source: Vasilache et al. 2014, Fast convolutional nets with fbfft, section 3.
    """

    convolution: Conv2d
    tiles: int
    sizes: tuple[int, int, int]
    """Values of the operand, of the filters or second images, and of the result."""
    spectra: tuple[int, int, int]
    """Their signals, each of ``_FREQUENCIES`` complex values."""

    @classmethod
    def of(cls, kernel: Conv2d) -> _Spectra:
        height = kernel.output_height or kernel.height + 2 * kernel.padding - kernel.kernel_height + 1
        width = kernel.output_width or kernel.width + 2 * kernel.padding - kernel.kernel_width + 1
        along, across = (width, height) if kernel.kernel_width > 1 else (height, width)
        long = max(kernel.kernel_height, kernel.kernel_width)
        tiles = kernel.batch * across * -(-along // (TILE - long + 1))
        pairs = kernel.in_channels * kernel.out_channels
        pixels = kernel.batch * kernel.height * kernel.width, kernel.batch * height * width
        inputs = (pixels[0] * kernel.in_channels, tiles * kernel.in_channels)
        outputs = (pixels[1] * kernel.out_channels, tiles * kernel.out_channels)
        filters = (pairs * long, pairs)
        three = {
            "forward": (inputs, filters, outputs),
            "input_grad": (outputs, filters, inputs),
            "weight_grad": (inputs, outputs, filters),
        }[kernel.op]
        sizes, spectra = zip(*three, strict=True)
        return cls(kernel, tiles, sizes, spectra)

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        (first, second, written), spectra = self.sizes, [_FREQUENCIES * 2 * signals for signals in self.spectra]
        turned = [_move("transpose", size, size) for size in spectra]
        read = (_move("copy", first, spectra[0]), turned[0], _move("copy", second, spectra[1]), turned[1])
        return (*read, self.product, turned[2], _move("copy", spectra[2], written))

    @property
    def product(self) -> Gemm:
        """Complex products of all frequencies as real ones: four multiplications each."""
        c, k = self.convolution.in_channels, self.convolution.out_channels
        m, n, inner = {
            "forward": (self.tiles, k, c),
            "input_grad": (self.tiles, c, k),
            "weight_grad": (k, c, self.tiles),
        }[self.convolution.op]
        return Gemm(op="bmm", batch=_FREQUENCIES, m=2 * m, n=n, k=2 * inner, layout="nn")

    def time_s(self, flops_per_s: float, bytes_per_s: float) -> float:
        """Duration of the convolution at the rates of a device [FLOP/s, B/s]."""
        rows = -(-self.product.m // _BLOCK) * _BLOCK
        flops = 2.0 * self.product.batch * rows * self.product.n * self.product.k
        moved = sum(k.read_bytes + k.write_bytes for k in self.kernels if isinstance(k, Memory))
        return flops / flops_per_s + moved / bytes_per_s


def _move(op: str, values: int, made: int) -> Memory:
    """Data movement that reads ``values`` in float32 and writes ``made``."""
    return Memory(op=op, elements=made, read_bytes=_BYTES * values, write_bytes=_BYTES * made)
