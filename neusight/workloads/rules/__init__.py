"""Rules: which kernels a GPU runs for an ATen operator. One module a family; importing the package registers all."""

from neusight.workloads.rules import (
    attention,
    conv,
    elementwise,
    gemm,
    memory,
    optimizer,
    reduction,
    views,
)
from neusight.workloads.rules.registry import covered, fallback, kernels_of, rule

__all__ = [
    "attention",
    "conv",
    "covered",
    "elementwise",
    "fallback",
    "gemm",
    "kernels_of",
    "memory",
    "optimizer",
    "reduction",
    "rule",
    "views",
]
