"""Read measurements: parquet to checked pandas frames, and frames to the columns that predictors compute on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.datasets.schema import (
    KERNEL_TABLES,
    MODEL_TABLE,
    TABLE_OF_OP,
    TWO_TENSOR_OPS,
    check_columns,
    read_parquet,
    table_without_op,
)
from neusight.errors import DataError, nearest
from neusight.kernels import DTYPE_BYTES, KernelBatch
from neusight.op_costs import FLOPS_PER_ELEMENT
from neusight.paths import data_dir

if TYPE_CHECKING:
    import pandas as pd

DTYPE_NAMES = {"fp8": "float8", "fp8_block": "float8", "fp8_static": "float8", "fp16": "float16", "bf16": "bfloat16"}
