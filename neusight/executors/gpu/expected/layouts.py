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

FLOAT_BYTES = 4.0
PASSES = 2.0
"""Each value is read once and written once."""


def turning_s(batch: KernelBatch, device: DeviceSpec, conditions: Conditions, physics: Physics) -> np.ndarray:
    r"""Time [s] of the kernels that turn images from NCHW to NHWC before a convolution, and back after it.

    .. math:: t = \sum_i \left(2 \frac{e X_i}{W} + t_0\right)

    Matrix units take a product's inner extent, the channels, in one piece, so that a library turns the images that a
    convolution reads: one, or for a gradient of filters two. In 16 bit it turns back the image that is written, in
    TF32 its kernels write NCHW. One channel, or one pixel, is the same in both.

    Args:
        batch: images of X_i elements of e bytes that are turned; families other than ``conv2d`` turn nothing.
        device: W, sustained bandwidth [B/s].
        conditions: how kernels are timed, which t_0, the start of one [s], depends on.
        physics: of the start and of memory.

    Source: NVIDIA, cuDNN Developer Guide, "Tensor Transformations" (conversion between NCHW and NHWC); names of its
    kernels on Ampere, ``tf32f32_f32_nhwckrsc_nchw`` and ``f16f16_nhwckrsc_nhwc`` (input, filter, output). Validity:
    convolutions that run on matrix units; a library that has a kernel for NCHW and finds it faster takes that.
    """
    if batch.family != "conv2d":
        return np.zeros(len(batch))
    height, width = conv_output(batch)
    images = batch["batch"].astype(float)
    source = images * batch["in_channels"] * _if_any(batch["in_channels"], batch["height"] * batch["width"])
    target = images * batch["out_channels"] * _if_any(batch["out_channels"], height * width)
    both, op = element_bytes(batch) < FLOAT_BYTES, batch["op"]
    turned = np.stack([source * (both | (op != "input_grad")), target * (both | (op != "forward"))])
    moved_s = PASSES * element_bytes(batch) * turned.sum(axis=0) / sustained_dram_bytes_per_s(device, physics)
    turned_s = moved_s + (turned > 0).sum(axis=0) * start_s(device, conditions, physics)
    return np.where(batch["image_layout"] == "nchw", turned_s, 0.0)


def _if_any(channels: np.ndarray, pixels: np.ndarray) -> np.ndarray:
    """Pixels of an image whose order matters."""
    return np.where((channels > 1) & (pixels > 1), pixels, 0.0)
