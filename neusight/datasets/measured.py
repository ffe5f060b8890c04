"""Which rows a device can be asked for."""

from __future__ import annotations

from neusight.datasets.columns import DTYPE_NAMES
from neusight.devices import DeviceSpec
from neusight.errors import DeviceError
from neusight.kernels.precision import PRODUCT_DTYPES
from neusight.laws.bounds import GEMM_FAMILIES, peak_flops_per_s

_PRODUCTS = (
    *GEMM_FAMILIES,
    *("attention_context", "attention_generation", "attention_mla", "attention_sparse"),
)
MIXED = "attention_mixed"
"""Table of attention over prompts and decoding sequences in one launch."""


def unable(device: DeviceSpec, family: str, dtype: str) -> str:
    """Why rows of a family in a dtype of a data set cannot be compared with a device's limits; '' where they can."""
    if family == MIXED:
        return "prompts and decoding in one launch are not estimated as one kernel"
    name = DTYPE_NAMES.get(dtype, dtype)
    if name not in PRODUCT_DTYPES:
        return f"dtype '{dtype}' is not estimated"
    try:
        peak_flops_per_s(device, name, product=family in _PRODUCTS)
    except DeviceError as error:
        return str(error)
    return ""
