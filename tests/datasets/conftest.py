from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

DEFAULTS: dict[str, dict[str, Any]] = {
    "linear": {"family": "gemm", "batch": 1, "m": 4096, "n": 4096, "k": 4096, "latency_ms": 20.0},
    "bmm": {"family": "gemm", "batch": 8, "m": 512, "n": 512, "k": 512, "latency_ms": 1.0},
    "add": {"family": "elementwise", "rows": 4096, "cols": 4096, "latency_ms": 1.0},
    "softmax": {"family": "row_reduction", "rows": 4096, "cols": 4096, "latency_ms": 1.0},
    "conv2d": {
        "family": "conv2d",
        **{"batch": 16, "in_channels": 64, "out_channels": 128, "kernel_size": 3, "input_size": 56},
        **{"stride": 1, "padding": 1, "latency_ms": 5.0},
    },
}


def measured_rows(*rows: dict[str, Any]) -> pd.DataFrame:
    """Rows given by what matters to the test; the rest comes from ``DEFAULTS`` of the op and a v100."""
    common = {"gpu": "v100-pcie-32gb", "op": "linear", "dtype": "float32", "split": "train", "kernel_name": "k"}
    fill = {**{f"grid_{a}": 1 for a in "xyz"}, **{f"block_{a}": 1 for a in "xyz"}, "block_x": 128}
    return pd.DataFrame([common | fill | DEFAULTS[row.get("op", "linear")] | row for row in rows])


@pytest.fixture
def rows() -> Callable[..., pd.DataFrame]:
    return measured_rows


@pytest.fixture
def parquet(tmp_path: Path) -> Callable[..., Path]:
    """Write a frame as parquet below ``tmp_path`` and give its path."""

    def write(frame: pd.DataFrame, name: str = "rows.parquet") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        frame.drop(columns="family", errors="ignore").to_parquet(path)
        return path

    return write


@pytest.fixture(scope="session")
def data() -> Path:
    folder = os.environ.get("NEUSIGHT_DATA")
    if not folder:
        pytest.skip("NEUSIGHT_DATA is not set: the measured data are not here")
    return Path(folder)
