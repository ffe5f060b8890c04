"""Products as matrix units run them: plain ones, and those that convolutions are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace

import numpy as np

from neusight.devices.spec import GpuSpec
from neusight.kernels import KernelBatch
from neusight.kernels.columns import ColumnRecord
from neusight.kernels.work import (
    ACCUMULATOR_BYTES,
    among,
    by_distinct,
    conv_gemm,
    conv_output,
    element_bytes,
    result_bytes,
    weight_bytes,
)
from neusight.laws.physics import Physics
from neusight.laws.waves import FLOAT_BYTES
from neusight.quick_dataclasses import dataclass

TAP_CHANNELS = 32.0
"""Channels [elements] that a step of the main loop takes of a filter tap (cited: CUTLASS, implicit_gemm_convolution.md:
an iterator's step along the inner extent stays within one tap; tiles 32 deep)."""
SCALE_ROWS = 128.0
"""Of tiles of operands with a scale for few values, at least: matrix units read those scales in blocks of 128 rows, to
which libraries pad both operands (cited: PTX ISA 8.7, mma with block scaling; vLLM,
nvfp4_scaled_mm_sm120_kernels.cu)."""
GRADIENT_COLUMNS = 64.0
"""Of a tile of a gradient of the input, at least (cited: names of ``dgrad`` kernels of CUTLASS and cuDNN, for 64
channels and more)."""
WIDEST_COPY_BYTES, LEAST_ASYNCHRONOUS_BYTES = 16.0, 4.0
"""Of the widest copy of a thread and of the narrowest that passes no registers (cited: PTX ISA, cp.async: 4, 8 or 16).
cuBLAS has kernels for copies of 16 bytes, of 4, and of an element (their names: align8, align2 and align1 in
bfloat16)."""
MOST_SPLITS, MOST_PIXEL_SPLITS = 16.0, 128.0
"""Parts into which the inner extent of a plain product is cut, and of a gradient of filters, whose inner extent is all
pixels, at most (assumption: as grids of measured kernels have it; grids of longer products would tell)."""


@dataclass(frozen=True)
class Product(ColumnRecord):
    """Products as an SM sees them; columns of shape (n,): extents [elements], bytes of an element of A, B and C, peak
    rate [FLOP/s], the share of a plain product's rate that they sustain, rows and columns of a tile, at least, into
    how many parts a library cuts the inner extent at most, bytes that a thread copies at once, and whether a library
    has tiles of all heights and one width.
    """

    m: np.ndarray
    n: np.ndarray
    k: np.ndarray
    batch: np.ndarray
    a_bytes: np.ndarray
    b_bytes: np.ndarray
    c_bytes: np.ndarray
    flops_per_s: np.ndarray
    share: np.ndarray | float = 1.0
    least_rows: np.ndarray | float = 1.0
    least_columns: np.ndarray | float = 1.0
    most_parts: np.ndarray | float = MOST_SPLITS
    copy_bytes: np.ndarray | float = WIDEST_COPY_BYTES
    all_heights: np.ndarray | bool = False

    def replaced(self, rows: np.ndarray, other: Product) -> Product:
        """With others in these rows."""
        columns = {name: column.copy() for name, column in self._columns().items()}
        for name, column in other._columns().items():
            columns[name][rows] = column
        return Product(**columns)

    def _columns(self) -> dict[str, np.ndarray]:
        return {field.name: np.broadcast_to(getattr(self, field.name), self.m.shape) for field in fields(self)}


def product_of(batch: KernelBatch, device: GpuSpec, physics: Physics) -> Product:
    """Those of a batch of the family ``gemm``, or the implicit ones of ``conv2d``, over the pixels of all images."""
    if batch.family == "conv2d":
        return implicit_product(batch, device, physics)
    rates, size = by_distinct(batch["dtype"], device.gemm_flops_per_s), element_bytes(batch)
    m, n, k, products = (batch[name].astype(float) for name in ("m", "n", "k", "batch"))
    # What is accumulated to is read and written.
    result = np.where(batch["accumulates"], 2.0 * ACCUMULATOR_BYTES, result_bytes(batch))
    least = np.where(batch["scaling"] == "micro", SCALE_ROWS, 1.0)
    b_bytes, copied = weight_bytes(batch), copy_bytes(_row_lengths(batch, m, n, k), size)
    return Product(m, n, k, products, size, b_bytes, result, rates, 1.0, least, least, copy_bytes=copied)


def _row_lengths(batch: KernelBatch, m: np.ndarray, n: np.ndarray, k: np.ndarray) -> tuple[np.ndarray, ...]:
    """Extents along which A, B and C lie in memory, by the layout of B and A; vectors lie in one piece."""
    deep_a, deep_b = among(batch["layout"], ("tn", "nn")), among(batch["layout"], ("tn", "tt"))
    vector = (m == 1.0) | (n == 1.0)
    return np.where(deep_a, k, m), np.where(deep_b, k, n), np.where(vector, k, n)


def copy_bytes(row_lengths: Iterable[np.ndarray], size: np.ndarray) -> np.ndarray:
    """Bytes [B] that a thread copies at once, shape (n,), where all rows of so many elements begin at a multiple."""
    whole = np.maximum(WIDEST_COPY_BYTES / size, 1.0).astype(np.int64)
    together = size * np.min([np.gcd(extent.astype(np.int64), whole) for extent in row_lengths], axis=0)
    narrow = np.where(together >= LEAST_ASYNCHRONOUS_BYTES, np.maximum(LEAST_ASYNCHRONOUS_BYTES, size), size)
    return np.where(together >= whole * size, WIDEST_COPY_BYTES, narrow)


def implicit_product(batch: KernelBatch, device: GpuSpec, physics: Physics) -> Product:
    r"""What matrix units compute of a convolution.

    .. math:: k = k_0 \left(\frac{32}{c} \left\lceil\frac{c}{32}\right\rceil\right)^f z^w

    Where the operand is gathered, taps of few channels fill a step of the main loop in part only, kernels sustain less
    of the peak, and of the zeros that a stride dilates a gradient with they skip some.

    Args:
        batch: convolutions whose product has an inner extent of k_0 without the zeros of a stride, z times as much with
            them, and c channels in a tap.
        device: its rate; where matrix units read shared memory, kernels that do not use that have a share of it.
        physics: f ``fill``, w ``zeros`` and shares of the rate, group ``implicit``.

    Source: CUTLASS, implicit_gemm_convolution.md (taps, ``IteratorAlgorithm``, ``StrideSupport``); constants fitted.
    Validity: images in TF32, 2-d and 3-d, of programs on Ampere, Ada and Hopper whose kernels cuDNN's heuristics chose,
    within 22 % (median); where it tries kernels first it is some percent faster. In 16 bit, with filters of one pixel
    and for gradients of filters convolutions are priced like plain products, as steps of image models have them.
    """
    law, size, op = physics.implicit, element_bytes(batch), batch["op"]
    groups, m, n, k = conv_gemm(batch)
    channels = np.where(op == "input_grad", batch["out_channels"], batch["in_channels"]) / groups
    gathered = (batch["dtype"] == "tf32") & is_gathered(batch)
    whole = np.where(gathered, np.ceil(channels / TAP_CHANNELS) * TAP_CHANNELS / channels, 1.0)
    share = law.share * (law.synchronous if device.facts.reads_shared_memory else 1.0)
    return Product(
        m=m,
        n=n,
        k=k * whole**law.fill * dilation(batch, physics),
        batch=groups,
        a_bytes=size,
        b_bytes=size,
        c_bytes=result_bytes(batch),
        flops_per_s=by_distinct(batch["dtype"], device.gemm_flops_per_s),
        share=np.where(gathered, share, 1.0),
        least_columns=np.where(gathered & (op == "input_grad"), GRADIENT_COLUMNS, 1.0),
        most_parts=np.where(op == "weight_grad", MOST_PIXEL_SPLITS, MOST_SPLITS),
    )


def is_gathered(batch: KernelBatch) -> np.ndarray:
    """Whether an operand of a convolution is gathered tap by tap, shape (n,): those of filters of one pixel lie in
    memory as they are multiplied.
    """
    return np.asarray((batch["kernel_height"] * batch["kernel_width"] > 1) & (batch["op"] != "weight_grad"))


def dilation(batch: KernelBatch, physics: Physics) -> np.ndarray:
    """By how much the inner extent of a gradient of the input is longer for the zeros of its stride that are computed,
    shape (n,): in float32 and TF32, as programs have it.
    """
    height, width = conv_output(batch)
    zeros = np.maximum(batch["height"] * batch["width"] / (height * width), 1.0) ** physics.implicit.zeros
    counts = is_gathered(batch) & (batch["op"] == "input_grad") & (element_bytes(batch) == FLOAT_BYTES)
    return np.where(counts, zeros, 1.0)


def by_image(batch: KernelBatch, device: GpuSpec, physics: Physics) -> Product:
    """Convolutions forward with filters of one pixel as a product for each image in NCHW: filters by channels, times
    channels by pixels. Planes of odd sizes cost no narrow copies here: no measured row says that they do, and cuDNN
    pads what it turns to channels last on the way (7.6.3, release notes).
    """
    height, width = conv_output(batch)
    inputs, outputs, images = (batch[name].astype(float) for name in ("in_channels", "out_channels", "batch"))
    product = product_of(batch, device, physics)
    return replace(product, m=outputs, n=height * width, k=inputs, batch=images, copy_bytes=WIDEST_COPY_BYTES)


def compulsory(p: Product) -> np.ndarray:
    """Bytes of operands and result, each once [B]."""
    return p.batch * (p.m * p.k * p.a_bytes + p.k * p.n * p.b_bytes + p.m * p.n * p.c_bytes)
