"""Convolutions beyond a product: images that change their layout, and those that are streams."""

from __future__ import annotations

import numpy as np

from neusight.devices.spec import GpuSpec
from neusight.executors.gpu.expected.products import is_gathered
from neusight.executors.gpu.expected.times import start_s
from neusight.kernels import KernelBatch
from neusight.kernels.conditions import Conditions
from neusight.kernels.work import conv_output, element_bytes, work_of
from neusight.laws.dram import sustained_dram_bytes_per_s
from neusight.laws.physics import Physics
from neusight.laws.waves import FLOAT_BYTES

LEAST_COPY = 4.0
"""Bytes that a copy from memory to shared memory has at least (cited: PTX ISA, ``cp.async``: 4, 8 or 16)."""
PASSES = 2.0
"""Each value is read once and written once (definition)."""
GROUP_CHANNELS = (1, 4, 8, 16, 32, 64, 128, 256)
"""Channels of a group, as many as its filters, that kernels in NHWC are made for (cited: NVIDIA, cuDNN Support Matrix,
"Supported Convolution Functions": ``C_per_group == K_per_group == {1,4,8,16,32,64,128,256}``)."""


def layout_transform_s(batch: KernelBatch, device: GpuSpec, conditions: Conditions, physics: Physics) -> np.ndarray:
    r"""Time [s] of the kernels that turn images from NCHW to NHWC before a convolution, and back after it.

    .. math:: t = \sum_i \left(2 \frac{e X_i}{W} + t_0\right)

    Matrix units take a product's inner extent, the channels, in one piece, so that a library turns the images that a
    convolution reads: one, or for a gradient of filters two. In 16 bit it turns back the image that is written, in
    TF32 only gradients that are gathered tap by tap: its other kernels write NCHW. One channel, or one pixel, is the
    same in both. In NHWC images are turned for groups of a width that kernels in NHWC lack, see ``GROUP_CHANNELS``.

    Args:
        batch: images of X_i elements of e bytes that are turned; families other than ``conv2d`` turn nothing.
        device: W, sustained bandwidth [B/s].
        conditions: how kernels are timed, which t_0, the start of one [s], depends on.
        physics: of the start and of memory.

    Source: NVIDIA, cuDNN Developer Guide, "Tensor Transformations" (conversion between NCHW and NHWC); names of its
    kernels on Ampere: ``fprop_implicit_gemm_tf32f32_f32_nhwckrsc_nchw`` (input, filter, output),
    ``dgrad_implicit_gemm_tf32f32_f32_nhwckrsc_nhwc`` and ``f16f16_nhwckrsc_nhwc``. Validity: convolutions that run on
    matrix units, but for those that a library finds faster as they lie, see ``is_implicit_nchw``.
    """
    if batch.family != "conv2d":
        return np.zeros(len(batch))
    moved = layout_transform_bytes(batch)
    moved_s = moved.sum(axis=0) / sustained_dram_bytes_per_s(device, physics)
    return moved_s + (moved > 0).sum(axis=0) * start_s(device, conditions, physics)


def layout_transform_bytes(batch: KernelBatch) -> np.ndarray:
    """Bytes that turning a convolution's input and its output moves, shape (2, n); 0 of what stays as it is."""
    height, width = conv_output(batch)
    images = batch["batch"].astype(float)
    source = images * batch["in_channels"] * _if_any(batch["in_channels"], batch["height"] * batch["width"])
    target = images * batch["out_channels"] * _if_any(batch["out_channels"], height * width)
    apart, op = is_apart(batch), batch["op"]
    both = (element_bytes(batch) < FLOAT_BYTES) | apart
    written = (op != "input_grad") | is_gathered(batch)
    turned = np.stack([source * (both | written), target * (both | (op != "forward"))])
    return np.asarray(PASSES * element_bytes(batch) * turned * ((batch["image_layout"] == "nchw") | apart))


def is_apart(batch: KernelBatch) -> np.ndarray:
    """Whether images in NHWC have groups of a width that kernels in NHWC lack, shape (n,): steps of image models then
    take what turning them to NCHW and back takes more.
    """
    inputs, outputs = (batch[name] // np.maximum(batch["groups"], 1) for name in ("in_channels", "out_channels"))
    fit = (inputs == outputs) & np.isin(inputs, GROUP_CHANNELS)
    return np.asarray((batch["groups"] > 1) & (batch["image_layout"] == "nhwc") & ~fit)


def is_implicit_nchw(batch: KernelBatch) -> np.ndarray:
    """Whether images in NCHW are operands as they lie, shape (n,): filters of one pixel multiply channels by pixels,
    where neighbours along the pixels can be copied together.

    Source: cuDNN API, ``cudnnConvolutionFwdAlgo_t`` has explicit and implicit products of NCHW; of its algorithms for
    gradients none is a plain product.
    """
    pixels = batch["height"] * batch["width"]
    one = (batch["kernel_height"] == 1) & (batch["kernel_width"] == 1) & (batch["stride"] == 1) & (batch["groups"] == 1)
    copied = (pixels * element_bytes(batch)) % LEAST_COPY == 0
    alike = one & (batch["padding"] == 0) & (pixels > 1) & copied & (batch["op"] == "forward")
    return np.asarray(alike & (batch["image_layout"] == "nchw"))


def _if_any(channels: np.ndarray, pixels: np.ndarray) -> np.ndarray:
    """Pixels of an image whose order matters."""
    return np.where((channels > 1) & (pixels > 1), pixels, 0.0)


WINDOWS = {"forward": "depthwise", "input_grad": "depthwise_input_grad", "weight_grad": "depthwise_weight_grad"}
"""Names of the streams, by what they compute."""
PAIRED = "_nhwc"
"""What follows the name where windows are of two neighbouring channels, side by side in NHWC."""

MMA_GROUP_CHANNELS = (4, 8, 16)
"""Channels of a group of which a matrix instruction, 16 elements deep, holds whole ones (cited: PTX ISA,
``mma.m16n8k16``)."""


def is_depthwise(batch: KernelBatch) -> np.ndarray:
    """Whether each of a batch of convolutions has groups of one input channel, shape (n,)."""
    return (batch["groups"] > 1) & (batch["groups"] == batch["in_channels"])


def is_direct(batch: KernelBatch) -> np.ndarray:
    """Whether kernels take each multiplication of a convolution by itself, shape (n,): depthwise ones, but those in
    NHWC and TF32 whose filters are not square, and in NHWC gradients of grouped filters but those whose groups a matrix
    instruction holds whole.

    Source: PyTorch, ``Convolution.cpp``: in NHWC ``use_cudnn_depthwise`` takes cuDNN's, which is made for square
    filters (``check_cudnn_depthwise_workload_with_filter``) and has grouped products for others; cuDNN's
    ``wgrad2d_grouped_direct_kernel<__half, float, float, ...>`` (pytorch/pytorch#34977). Validity: steps of image
    models in training with PyTorch 1.10 to 1.12, compiled programs in TF32.
    """
    channels = batch["in_channels"] // np.maximum(batch["groups"], 1)
    grouped = (batch["groups"] > 1) & (batch["image_layout"] == "nhwc") & (batch["op"] == "weight_grad")
    square = batch["kernel_height"] == batch["kernel_width"]
    products = (batch["image_layout"] == "nhwc") & (batch["dtype"] == "tf32") & ~square
    return np.asarray((is_depthwise(batch) & ~products) | (grouped & ~np.isin(channels, MMA_GROUP_CHANNELS)))


def as_streams(batch: KernelBatch) -> KernelBatch:
    """Convolutions as pointwise kernels over what they write, or read for a gradient of filters, with their own bytes
    and operations; a batch of another family as it is.
    """
    if batch.family != "conv2d":
        return batch
    work, (height, width) = work_of(batch), conv_output(batch)
    images = batch["batch"].astype(float)
    inputs = images * batch["in_channels"] * batch["height"] * batch["width"]
    outputs = images * batch["out_channels"] * height * width
    names = np.array([WINDOWS[op] for op in batch["op"]])
    return KernelBatch.from_columns(
        "elementwise",
        op=np.where(batch["image_layout"] == "nhwc", np.char.add(names, PAIRED), names),
        elements=np.where(batch["op"] == "input_grad", inputs, outputs).astype(np.int64),
        read_bytes=work.read_bytes.astype(np.int64),
        write_bytes=work.write_bytes.astype(np.int64),
        flops=work.flops.astype(np.int64),
        dtype=batch["dtype"],
    )
