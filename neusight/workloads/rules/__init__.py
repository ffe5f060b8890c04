"""Rules: which kernels a GPU runs for an ATen operator. One module a family; importing the package registers all."""

from neusight.workloads.rules import (
    conv,
    distance,
    elementwise,
    gemm,
    linalg,
    memory,
    recurrent,
    reduction,
    resampling,
    sorting,
)
from neusight.workloads.rules.registry import covered, fallback, kernels_of, rule

__all__ = [
    "conv",
    "covered",
    "distance",
    "elementwise",
    "fallback",
    "gemm",
    "kernels_of",
    "linalg",
    "memory",
    "recurrent",
    "reduction",
    "resampling",
    "rule",
    "sorting",
]
