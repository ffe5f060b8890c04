"""Products, convolutions and norms of channels in the precision and layout in which a step's engine runs them."""

from __future__ import annotations

from dataclasses import replace

from neusight.kernels.families import Conv2d, Gemm, Kernel, RowReduction
from neusight.workloads.workload import Workload

OF_CHANNELS = ("batch_norm", "batch_norm_backward")
"""Reductions whose rows are the channels of images."""

TF32 = "convolutions of float32 run in TF32, as PyTorch has it unless told; --dtype float32_ieee keeps them in float32"


def as_computed(workload: Workload, tf32: bool) -> Workload:
    """The step with its float32 products and convolutions in the precision of its request, and convolutions and norms
    of the channels of images in the layout of its engine; the same workload where all are as traced.

    Args:
        workload: the step.
        tf32: whether the device has matrix units for TF32; convolutions that PyTorch would run in it stay in float32
            elsewhere.
    """
    precision, layout = workload.request.precision, workload.request.engine.layout
    narrow: dict[type, str] = {Gemm: precision.products, Conv2d: precision.convolutions if tf32 else precision.products}
    if not any(narrow.values()) and layout == "nchw":
        return workload

    def convert(kernel: Kernel) -> Kernel:
        if isinstance(kernel, Conv2d | Gemm) and kernel.dtype == "float32":
            kernel = replace(kernel, dtype=narrow[type(kernel)] or kernel.dtype)
        if isinstance(kernel, Conv2d) or (isinstance(kernel, RowReduction) and kernel.op in OF_CHANNELS):
            return replace(kernel, image_layout=layout)
        return kernel

    nodes = tuple(replace(node, kernels=tuple(map(convert, node.kernels))) for node in workload.nodes)
    convolutions = {kernel.dtype for node in nodes for kernel in node.kernels if kernel.family == "conv2d"}
    chosen = not precision.products and "tf32" in convolutions
    return replace(workload, nodes=nodes, warnings=(*workload.warnings, *((TF32,) if chosen else ())))
