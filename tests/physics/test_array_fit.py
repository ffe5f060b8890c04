"""Constants of systolic accelerators: found again from programs of the law, and how wrong they are on real ones."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from neusight.devices import load_device
from neusight.executors.systolic.times import launch_s, times_of
from neusight.kernels import KernelBatch
from neusight.kernels.conditions import Conditions
from neusight.laws.array_constants import PRIOR
from neusight.laws.constants import with_values
from neusight.learn.arrays import ARRAYS
from neusight.learn.evidence import FitOptions

TRUE = {"products.share": 0.7, "launch.share": 0.9, "vectors.conversion_ops": 30.0}


def programs(folder: Path, gpu: str, dtype: str) -> None:
    """A table of products as JAX programs take by the law with ``TRUE`` constants."""
    m, n, k = (axis.ravel().astype(int) for axis in np.meshgrid(*[2 ** np.arange(5, 13)] * 3))
    batch = KernelBatch.from_columns("gemm", m=m, n=n, k=k, dtype=dtype)
    device, physics = load_device(gpu), with_values(PRIOR, TRUE)
    start_s = launch_s(device, Conditions.of(len(batch)), physics)
    rows = pd.DataFrame({"m": m, "n": n, "k": k, "gpu": gpu, "family": "gemm", "dtype": dtype, "timing": "profiler"})
    rows["latency_ms"] = 1e3 * (start_s + times_of(batch, device, physics).execution_s)
    folder.mkdir(parents=True, exist_ok=True)
    rows.to_parquet(folder / f"{gpu}.parquet")


def test_a_fit_finds_the_constants_of_programs_of_the_law(tmp_path: Path) -> None:
    for gpu, dtype in (("tpu-v4", "float16"), ("tpu-v6e", "bfloat16")):
        programs(tmp_path / "kernels", gpu, dtype)
    fitted = ARRAYS.fitted(FitOptions(data=tmp_path))
    assert fitted.gpus == ["tpu-v4", "tpu-v6e"]
    # As far as the priors let a table of few constants.
    for name, value in TRUE.items():
        assert fitted.values[name] == pytest.approx(value, rel=0.06), name
    assert fitted.error < 0.01
    left_out = {row["gpu"]: row for row in fitted.errors if row["fit"] == "left out"}
    assert left_out["tpu-v6e"]["mean"] < 3
