"""``neusight fit`` on a few kernels whose constants are known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from neusight.devices import load_device
from neusight.errors import DataError
from neusight.executors.gpu.expected.times import launch_s
from neusight.executors.gpu.features import situate
from neusight.executors.gpu.tiling.library import shipped_choice
from neusight.laws.constants import priors, values, with_values
from neusight.laws.fitted import FittedPhysics
from neusight.laws.physics import PRIOR
from neusight.learn.evidence import FitOptions
from neusight.learn.fits import FITS, fit_constants
from neusight.learn.physics.fit import PHYSICS
from neusight.measured import kernel_part

GPUS = ("a100-sxm-80gb", "h100-sxm-80gb", "l40s")
TRUTH = {"matrix.half": 30.0}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of one table: large 16-bit products under other constants than the priors' centres."""
    folder = tmp_path_factory.mktemp("measured") / "kernels"
    folder.mkdir()
    rng, physics, parts = np.random.default_rng(0), with_values(PRIOR, TRUTH), []
    for gpu in GPUS:
        extents = {name: 128 * rng.integers(8, 64, 40) for name in ("m", "n", "k")}
        told = {"family": "gemm", "op": "linear", "dtype": "bfloat16", "gpu": gpu, "timer": "profiler"}
        rows = pd.DataFrame({**told, **extents})
        part = kernel_part(rows, load_device(gpu), "gemm", np.arange(len(rows)))
        s = situate(part.batch, load_device(gpu), shipped_choice(), physics=physics, conditions=part.conditions)
        seconds = (s.expected_s + launch_s(part.conditions, physics)) * np.exp(rng.normal(0, 0.01, len(rows)))
        parts.append(rows.assign(latency_ms=1e3 * seconds))
    pd.concat(parts, ignore_index=True).to_parquet(folder / "toy-gemm.parquet")
    return folder.parent


def test_constants_move_to_what_the_kernels_say(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "physics.json"
    fit_constants("physics", FitOptions(data=data, each=40), out, lambda *_: None)
    found = FittedPhysics.load(out)
    assert (found.gpus, found.rows, list(found.data)) == (sorted(GPUS), 120, ["kernels/toy-gemm.parquet"])
    assert found.values.keys() == priors(PRIOR).keys()
    assert found.error < 0.03
    for name, truth in TRUTH.items():
        before, after = (abs(np.log(known[name] / truth)) for known in (values(PRIOR), found.values))
        assert after < 0.8 * before, name
    # Of what no kernel tells, nothing is learned.
    assert found.values["stream.follow"] == pytest.approx(PRIOR.stream.follow, rel=1e-4)
    assert found.deviations["stream.follow"] == pytest.approx(priors(PRIOR)["stream.follow"].spread, rel=1e-2)


def test_devices_that_are_held_out_say_nothing(data: Path) -> None:
    found = PHYSICS.fitted(FitOptions(data=data, hold_out=("l40s",), each=10, steps=1))
    assert (found.gpus, found.held_out, found.rows) == (["a100-sxm-80gb", "h100-sxm-80gb"], ["l40s"], 20)


@pytest.mark.parametrize("name", FITS)
def test_a_folder_without_rows_to_learn_from_is_named(tmp_path: Path, name: str) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(DataError, match=str(tmp_path)):
            FITS[name].fitted(FitOptions(data=folder))


def test_rows_that_tell_nothing_are_counted_by_reason(data: Path, tmp_path: Path) -> None:
    rows = pd.read_parquet(data / "kernels" / "toy-gemm.parquet").head(9)
    faulty = rows.head(7).assign(
        dtype=["bfloat16"] * 3 + ["float8"] * 4, suspect=["source: above the peak"] * 3 + [None] * 4
    )
    path = tmp_path / "measured" / "kernels" / "toy-gemm.parquet"
    path.parent.mkdir(parents=True)
    pd.concat([rows, faulty], ignore_index=True).to_parquet(path)
    options = FitOptions(data=tmp_path / "measured", each=5, steps=1)
    content, _, lines = fit_constants("physics", options, tmp_path / "physics.json", lambda *_: None)
    found = FittedPhysics.load(tmp_path / "physics.json")
    assert (found.rows, sorted(found.skipped.values()), found.values) == (5, [3, 4], content)
    assert "7 rows were left out: a100-sxm-80gb does not compute in float8" in lines[-1]
