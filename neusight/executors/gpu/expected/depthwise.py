"""Convolutions as streams: a filter of its own for each channel leaves no inner extent for a product.

PyTorch and cuDNN compute one output a thread on the ordinary pipelines, from a window of one channel, as pooling does
(PyTorch, ``aten/src/ATen/native/cuda/DepthwiseConv2d.cu``). Images stay in the layout that they have. Where cuDNN has
no kernel on matrix units for filters of groups, theirs run so as well.
"""

from __future__ import annotations

import numpy as np

from neusight.kernels import KernelBatch
from neusight.kernels.work import conv_output, work_of

WINDOWS = {"forward": "depthwise", "input_grad": "depthwise_input_grad", "weight_grad": "depthwise_weight_grad"}
"""Names of the streams, by what they compute."""
PAIRED = "_nhwc"
"""What follows the name where windows are of two neighbouring channels, side by side in NHWC."""

MMA_GROUP_CHANNELS = (4, 8, 16)
"""Channels of a group of which a matrix instruction, 16 elements deep, holds whole ones (PTX ISA, ``mma.m16n8k16``)."""


def is_depthwise(batch: KernelBatch) -> np.ndarray:
    """Whether each of a batch of convolutions has groups of one input channel, shape (n,)."""
    return (batch["groups"] > 1) & (batch["groups"] == batch["in_channels"])


def is_direct(batch: KernelBatch) -> np.ndarray:
    """Whether kernels take each multiplication of a convolution by itself, shape (n,): depthwise ones, and in NHWC
    gradients of grouped filters but those whose groups a matrix instruction holds whole.

    Source: cuDNN's ``wgrad2d_grouped_direct_kernel<__half, float, float, ...>`` (pytorch/pytorch#34977). Validity:
    steps of image models in training with PyTorch 1.10 to 1.12; later versions were not measured.
    """
    channels = batch["in_channels"] // np.maximum(batch["groups"], 1)
    grouped = (batch["groups"] > 1) & (batch["image_layout"] == "nhwc") & (batch["op"] == "weight_grad")
    return np.asarray(is_depthwise(batch) | (grouped & ~np.isin(channels, MMA_GROUP_CHANNELS)))


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
