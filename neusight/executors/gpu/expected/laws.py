"""Which kernels have a law of their own, and what it says of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from neusight.devices.spec import DeviceSpec
from neusight.executors.gpu.expected.matrix import Product, matrix_times, product_tiling
from neusight.executors.gpu.expected.times import Times
from neusight.executors.gpu.tiling.decompose import Tiling
from neusight.kernels import KernelBatch
from neusight.kernels.conditions import Conditions
from neusight.laws.physics import Physics


@dataclass(frozen=True)
class Law:
    """``tile`` cuts kernels into blocks, ``times`` says how long those keep the resources of a device busy."""

    tile: Callable[[KernelBatch, DeviceSpec, Physics], Tiling]
    times: Callable[[KernelBatch, DeviceSpec, Conditions, Physics, Tiling], Times]


LAWS: dict[str, Law] = {
    "matrix": Law(lambda batch, device, physics: product_tiling(Product.of(batch, device), device, physics), matrix_times),
}
"""Laws by name, which is also the name of the tile model that corrects them."""


def law_names(batch: KernelBatch, device: DeviceSpec) -> np.ndarray:
    """Name of the law of each kernel, shape (n,); "" for those of the ordinary pipelines, which have their families'."""
    if batch.family in ("gemm", "conv2d"):
        units = {name for name in device.matrix_flops_per_s if name != "float64"}
        return np.where(np.isin(batch["dtype"], list(units)), "matrix", "")
    return np.full(len(batch), "")
