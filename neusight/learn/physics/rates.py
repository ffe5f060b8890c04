"""Rates of large square products on devices that have no kernels of their own: one best figure each, no conditions.

What was measured is the best of several sizes and runs, so that a power limit hardly acts: a short burst. Sizes that
are not told count as the middle of those that were tried.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np

from neusight.datasets.schema import read_parquet
from neusight.devices import load_device
from neusight.devices.spec import DeviceSpec
from neusight.errors import DeviceError
from neusight.kernels import KernelBatch
from neusight.kernels.conditions import Conditions
from neusight.learn.physics.problem import Part

FILE = Path("matmul-rates") / "matmul_rates.parquet"
USUAL_EXTENT = 3072
"""Middle of the sizes 1024 to 10240 of which one best figure is told, as powers go."""
BURST = 3.0
"""Products that run before a rest (assumption)."""
WEIGHT = 2.0
"""Rows that a device and dtype counts as: one figure, whose submitters differ by up to 18 %."""
SHARED_POWER = ("jetson", "laptop")
"""Parts of names of boards whose power limit is not the GPU's alone, or not told."""
EMULATED = "emulated"


def rate_parts(data: Path, hold_out: Collection[str] = ()) -> list[Part]:
    """A part a device and dtype, where the catalogue has the device and the device the dtype; none without the file."""
    if not (data / FILE).is_file():
        return []
    frame = read_parquet(data / FILE).to_pandas()
    frame = frame[(frame["batch"] == 1) & ~frame["note"].fillna("").str.contains(EMULATED)]
    parts = []
    for (gpu, dtype), rows in frame.groupby(["gpu", "dtype"], sort=True):
        device = _known(str(gpu))
        if device is None or gpu in hold_out or not _comparable(device, str(dtype)):
            continue
        extents = {name: rows[name].fillna(USUAL_EXTENT).to_numpy(dtype=np.int64) for name in "mnk"}
        flops = 2.0 * np.prod([extents[name].astype(float) for name in "mnk"], axis=0)
        parts.append(
            Part(
                device=device,
                kind=f"rates/{dtype}".replace("bfloat16", "float16"),
                batch=KernelBatch.from_columns("gemm", dtype=str(dtype), **extents),
                conditions=Conditions.of(len(rows), timing="profiler", burst=BURST),
                latency_s=flops / (rows["tflop_per_s"].to_numpy(dtype=float) * 1e12),
                floor_s=np.zeros(len(rows)),
                weight=np.full(len(rows), WEIGHT / len(rows)),
            )
        )
    return parts


def _known(gpu: str) -> DeviceSpec | None:
    if any(word in gpu for word in SHARED_POWER):
        return None
    try:
        return load_device(gpu)
    except DeviceError:
        return None


def _comparable(device: DeviceSpec, dtype: str) -> bool:
    """Whether the dtype runs on matrix units, or is float32."""
    return dtype == "float32" or dtype in device.matrix_flops_per_s
