"""Collected data sets made on the spot: seeded kernels of every family, with latencies of a law and seeded noise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from kernel_grids import MAKERS, grid

from neusight.datasets.schema import COLLECTED_TABLES
from neusight.devices import DeviceSpec, load_device, to_toml
from neusight.kernels import KernelBatch
from neusight.kernels.work import work_of
from neusight.laws.bounds import bound_of

LAUNCH_S = 6e-6
STAND_IN = load_device("l4").model_copy(update={"id": "stand-in", "name": "Stand-in", "vendor": "other", "aliases": ()})
"""A device that the catalogue lacks."""
DTYPES = {"memory": ("float32", "int64"), "gemm": ("float32", "bfloat16", "float8")}
USUAL_DTYPES = ("float32", "bfloat16")


def execution_s(batch: KernelBatch, device: DeviceSpec) -> np.ndarray:
    """Twice the bound: half of what the device could."""
    return 2.0 * bound_of(batch, work_of(batch), device).bound_s


def rows_of(
    batch: KernelBatch, name: str, device: DeviceSpec = STAND_IN, repeat: int = 0, seed: int = 0
) -> pd.DataFrame:
    """Rows of a batch as a collection writes them, within 2 % of the law; ``name`` begins the samples."""
    noise = 1 + 0.02 * np.random.default_rng(seed + repeat).uniform(-1, 1, len(batch))
    execution_ms = 1e3 * noise * execution_s(batch, device)
    measured: dict[str, Any] = {
        "latency_ms": execution_ms + 1e3 * LAUNCH_S,
        "execution_ms": execution_ms,
        "launches": 9,
    }
    state = {"clock_mhz": 1980.0, "power_w": 310.0, "temperature_c": 50.0, "throttle": "sw_power_cap", "stable": True}
    told = {"gpu": device.id, "family": batch.family, "split": "train", "repeat": repeat, "framework": "torch 2.13"}
    told |= {"measured_at": "2026-11-21T10:00:00+00:00", "worker": "host/0"}
    sample = [f"{name}-{row}-{repeat}" for row in range(len(batch))]
    return pd.DataFrame({"sample": sample, **batch.columns, **measured, **state, **told})


def family_rows(family: str, n: int = 24, device: DeviceSpec = STAND_IN) -> pd.DataFrame:
    """Rows of a family in several dtypes; every fourth kernel is there a second time."""
    parts = []
    for number, dtype in enumerate(DTYPES.get(family, USUAL_DTYPES)):
        batch, name = grid(family, n, dtype, seed=number), f"{family}-{dtype}"
        parts += [rows_of(batch, name, device), rows_of(batch.take(np.arange(0, n, 4)), f"{name}-again", device, 1)]
    return pd.concat(parts, ignore_index=True)


def write_rows(path: Path, rows: pd.DataFrame) -> Path:
    """One file in the types of its table; columns that the rows lack are there and empty."""
    path.parent.mkdir(parents=True, exist_ok=True)
    schema = COLLECTED_TABLES[rows["family"].iloc[0]].arrow()
    records = rows.dropna(axis=1, how="all").to_dict("records")
    pq.write_table(pa.Table.from_pylist(records, schema=schema), path)
    return path


def write_set(folder: Path, device: DeviceSpec = STAND_IN, n: int = 24) -> Path:
    """A whole set: a file of each family, one in parts, the device's file, what was asked and what was skipped."""
    for family in MAKERS:
        write_rows(folder / "kernels" / f"{family}.parquet", family_rows(family, n, device))
    whole = folder / "kernels" / "gemm.parquet"
    rows = pd.read_parquet(whole)
    for part, name in enumerate(("gemm-part-0001", "gemm-part-0002")):
        write_rows(folder / "kernels" / f"{name}.parquet", rows.iloc[part::2])
    whole.unlink()
    (folder / "devices").mkdir()
    (folder / "devices" / f"{device.id}.toml").write_text(to_toml(device))
    (folder / "collection.json").write_text(json.dumps({"minutes": 20, "versions": {"torch": "2.13"}, "dtypes": ["a"]}))
    reasons = {"sample": ["x", "y"], "table": ["attention", "models"], "family": ["attention", None]}
    pd.DataFrame({**reasons, "op": "forward", "dtype": "float32", "reason": "out of memory"}).to_parquet(
        folder / "skipped.parquet"
    )
    return folder
