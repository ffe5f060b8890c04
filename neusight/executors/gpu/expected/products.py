"""Products as matrix units run them: plain ones, and those that convolutions are."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from neusight.devices.spec import DeviceSpec
from neusight.kernels import KernelBatch
from neusight.kernels.work import (
    ACCUMULATOR_BYTES,
    by_distinct,
    conv_gemm,
    conv_output,
    element_bytes,
    result_bytes,
    weight_bytes,
)

MOST_SPLITS, MOST_PIXEL_SPLITS = 16.0, 128.0
"""Parts into which the inner extent of a plain product is cut, and of a gradient of filters, whose inner extent is all
pixels, at most."""


@dataclass(frozen=True)
class Product:
    """Products as an SM sees them; columns of shape (n,): extents [elements], bytes of an element of A, B and C, peak
    rate [FLOP/s], and into how many parts a library cuts the inner extent at most.
    """

    m: np.ndarray
    n: np.ndarray
    k: np.ndarray
    batch: np.ndarray
    a_bytes: np.ndarray
    b_bytes: np.ndarray
    c_bytes: np.ndarray
    flops_per_s: np.ndarray
    most_parts: np.ndarray | float = MOST_SPLITS

    def take(self, rows: np.ndarray) -> Product:
        """Some of them."""
        return Product(*(column[rows] for column in self._columns().values()))

    def replaced(self, rows: np.ndarray, other: Product) -> Product:
        """With others in these rows."""
        columns = {name: column.copy() for name, column in self._columns().items()}
        for name, column in other._columns().items():
            columns[name][rows] = column
        return Product(**columns)

    def _columns(self) -> dict[str, np.ndarray]:
        return {field.name: np.broadcast_to(getattr(self, field.name), self.m.shape) for field in fields(self)}


def product_of(batch: KernelBatch, device: DeviceSpec) -> Product:
    """Those of a batch of the family ``gemm``, or the implicit ones of ``conv2d``, over the pixels of all images."""
    rates, size = by_distinct(batch["dtype"], device.gemm_flops_per_s), element_bytes(batch)
    if batch.family == "conv2d":
        groups, m, n, k = conv_gemm(batch)
        parts = np.where(batch["op"] == "weight_grad", MOST_PIXEL_SPLITS, MOST_SPLITS)
        return Product(m, n, k, groups, size, size, result_bytes(batch), rates, parts)
    m, n, k, products = (batch[name].astype(float) for name in ("m", "n", "k", "batch"))
    # What is accumulated to is read and written.
    result = np.where(batch["accumulates"], 2.0 * ACCUMULATOR_BYTES, result_bytes(batch))
    return Product(m, n, k, products, size, weight_bytes(batch), result, rates)


def by_image(batch: KernelBatch, device: DeviceSpec) -> Product:
    """Convolutions forward with filters of one pixel as a product for each image in NCHW: filters by channels, times
    channels by pixels.
    """
    height, width = conv_output(batch)
    inputs, outputs, images = (batch[name].astype(float) for name in ("in_channels", "out_channels", "batch"))
    return replace(product_of(batch, device), m=outputs, n=height * width, k=inputs, batch=images)


def compulsory(p: Product) -> np.ndarray:
    """Bytes of operands and result, each once [B]."""
    return p.batch * (p.m * p.k * p.a_bytes + p.k * p.n * p.b_bytes + p.m * p.n * p.c_bytes)
