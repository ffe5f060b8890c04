"""Rules: which kernels a GPU runs for an ATen operator. One module a family; importing the package registers all."""

from neusight.workloads.rules import (
    attention,
    boxes,
    conv,
    distance,
    elementwise,
    fourier,
    gemm,
    linalg,
    memory,
    optimizer,
    recurrent,
    reduction,
    resampling,
    sorting,
    views,
)
from neusight.workloads.rules.registry import covered, fallback, kernels_of, rule

__all__ = [
    "attention",
    "boxes",
    "conv",
    "covered",
    "distance",
    "elementwise",
    "fallback",
    "fourier",
    "gemm",
    "kernels_of",
    "linalg",
    "memory",
    "optimizer",
    "recurrent",
    "reduction",
    "resampling",
    "rule",
    "sorting",
    "views",
]
