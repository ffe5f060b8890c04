"""Kernels that a device runs: by family and as columns, with their precision, their work and their names."""

from neusight.kernels.conditions import Conditions
from neusight.kernels.families import (
    KERNEL_CLASSES,
    Attention,
    Collective,
    Conv2d,
    Elementwise,
    Gemm,
    GroupedGemm,
    Kernel,
    KernelBatch,
    Memory,
    Moe,
    Optimizer,
    RowReduction,
    group_by_family,
)
from neusight.kernels.precision import DTYPE_BYTES, Precision, dtype_named
from neusight.kernels.work import Work, work_of

__all__ = [
    "DTYPE_BYTES",
    "KERNEL_CLASSES",
    "Attention",
    "Collective",
    "Conditions",
    "Conv2d",
    "Elementwise",
    "Gemm",
    "GroupedGemm",
    "Kernel",
    "KernelBatch",
    "Memory",
    "Moe",
    "Optimizer",
    "Precision",
    "RowReduction",
    "Work",
    "dtype_named",
    "group_by_family",
    "work_of",
]
