"""The types of operators that the published predictors tell apart, each with a predictor of its own."""

from __future__ import annotations

import numpy as np

from neusight.kernels import KernelBatch
from neusight.kernels.work import by_distinct

TYPES = ("", "linear", "bmm", "conv2d", "elementwise", "softmax", "layer_norm")
"""As in the artifact of Lee et al. (ASPLOS'25), with convolutions; ``""`` is whatever has no predictor."""
COMPUTE_TYPES = ("linear", "bmm", "conv2d")


def operator_types(batch: KernelBatch) -> np.ndarray:
    """The type of each kernel, shape (n,). Gradients count with their forward operator."""
    codes = by_distinct(batch["op"], lambda op: TYPES.index(_type_of(batch.family, op)))
    return np.array(TYPES)[codes.astype(int)]


def _type_of(family: str, op: str) -> str:
    if family == "gemm":
        return "bmm" if op == "bmm" else "linear"
    if family == "row_reduction":
        return "softmax" if "softmax" in op else "layer_norm" if "norm" in op else ""
    return family if family in TYPES else ""
