"""What the order of an image's channels in memory costs convolutions on matrix units."""

from __future__ import annotations

import numpy as np

from neusight.devices.spec import DeviceSpec
from neusight.executors.gpu.expected.times import start_s
from neusight.kernels import KernelBatch
from neusight.kernels.conditions import Conditions
from neusight.kernels.work import conv_output, element_bytes
from neusight.laws.dram import sustained_dram_bytes_per_s
from neusight.laws.physics import Physics

TURNED = 2.0
"""Images of a convolution that are turned: of input and output, or of what takes their place in a gradient."""
PASSES = 2.0
"""Each value is read once and written once."""


def turning_s(batch: KernelBatch, device: DeviceSpec, conditions: Conditions, physics: Physics) -> np.ndarray:
    r"""Time [s] of the kernels that turn images from NCHW to NHWC before a convolution, and back after it.

    .. math:: t = 2 \frac{e (X + Y)}{W} + 2 t_0

    Matrix units take a product's inner extent, the channels, in one piece, so that a library turns images that lie in
    NCHW. One channel, or one pixel, is the same in both.

    Args:
        batch: X and Y elements of input and output of e bytes; families other than ``conv2d`` turn nothing.
        device: W, sustained bandwidth [B/s].
        conditions: how kernels are timed, which t_0, the start of one [s], depends on.
        physics: of the start and of memory.

    Source: NVIDIA, cuDNN Developer Guide, "Tensor Transformations" (conversion between NCHW and NHWC). Validity:
    convolutions that run on matrix units; a library that has a kernel for NCHW and finds it faster takes that.
    """
    if batch.family != "conv2d":
        return np.zeros(len(batch))
    height, width = conv_output(batch)
    images = batch["batch"].astype(float)
    source = images * batch["in_channels"] * _if_any(batch["in_channels"], batch["height"] * batch["width"])
    target = images * batch["out_channels"] * _if_any(batch["out_channels"], height * width)
    moved_s = PASSES * element_bytes(batch) * (source + target) / sustained_dram_bytes_per_s(device, physics)
    turned_s = moved_s + TURNED * start_s(device, conditions, physics)
    return np.where((batch["image_layout"] == "nchw") & (source + target > 0), turned_s, 0.0)


def _if_any(channels: np.ndarray, pixels: np.ndarray) -> np.ndarray:
    """Pixels of an image whose order matters."""
    return np.where((channels > 1) & (pixels > 1), pixels, 0.0)
