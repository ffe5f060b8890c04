"""Sizes of what a kernel multiplies on the PEs: what compression saves."""

from __future__ import annotations

import numpy as np

from neusight.kernels.families import KernelBatch
from neusight.kernels.work import conv_output, element_bytes
from neusight.transforms.sparsity import DIRECTIONS


def operand_bytes(batch: KernelBatch) -> tuple[np.ndarray, np.ndarray]:
    """Bytes of the first and the second operand, each of shape (n,)."""
    size = element_bytes(batch)
    if batch.family == "gemm":
        b, m, n, k = (batch[name].astype(float) for name in ("batch", "m", "n", "k"))
        return b * m * k * size, b * k * n * size
    height, width = conv_output(batch)
    images, inputs, outputs = (batch[name].astype(float) for name in ("batch", "in_channels", "out_channels"))
    activations = images * inputs * batch["height"] * batch["width"]
    gradients = images * outputs * height * width
    weights = outputs * inputs / batch["groups"] * batch["kernel_height"] * batch["kernel_width"]
    named = {"activations": activations * size, "gradients": gradients * size, "weights": weights * size}
    first, second = (
        np.select([batch["op"] == op for op in DIRECTIONS], [named[names[side]] for names in DIRECTIONS.values()])
        for side in (0, 1)
    )
    return first, second
