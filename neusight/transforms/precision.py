"""Products, convolutions and norms of channels in the precision and layout in which a step's engine runs them."""

from __future__ import annotations

from dataclasses import replace

from neusight.kernels.families import Conv2d, Gemm, Kernel, RowReduction
from neusight.workloads.workload import Workload

OF_CHANNELS = ("batch_norm", "batch_norm_backward")
"""Reductions whose rows are the channels of images."""


def as_computed(workload: Workload) -> Workload:
    """The step with the products of float32 in the precision of its request (tf32), and convolutions and norms of the
    channels of images in the layout of its engine; the same workload where both are as traced.
    """
    request = workload.request
    products, layout = request.precision.products, request.engine.layout
    if not products and layout == "nchw":
        return workload

    def changed(kernel: Kernel) -> Kernel:
        if products and isinstance(kernel, Conv2d | Gemm) and kernel.dtype == "float32":
            kernel = replace(kernel, dtype=products)
        if isinstance(kernel, Conv2d) or (isinstance(kernel, RowReduction) and kernel.op in OF_CHANNELS):
            return replace(kernel, image_layout=layout)
        return kernel

    nodes = tuple(replace(node, kernels=tuple(map(changed, node.kernels))) for node in workload.nodes)
    return replace(workload, nodes=nodes)
