"""The fit of collectives finds constants that made the rows, and tells errors and intervals by what was left out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from neusight.devices import load_device
from neusight.errors import DataError
from neusight.kernels import KernelBatch
from neusight.kernels.conditions import Conditions
from neusight.laws.constants import with_values
from neusight.laws.link_constants import PRIOR
from neusight.laws.links import collective_s
from neusight.learn.evidence import FitOptions
from neusight.learn.links import LINKS, LinkRows
from neusight.learn.physics.problem import Problem

TRUE = {"nccl.start_cycles": 14e3, "rates.nvlink_share": 0.65, "own.vllm_cycles": 12e3, "own.rate": 0.4}


def rows_of(gpu: str, engine: str = "torch", op: str = "all_reduce") -> LinkRows:
    sizes, ranks = np.meshgrid(2 ** np.arange(9, 30), [2, 4, 8])
    batch = KernelBatch.from_columns("collective", op=op, ranks=ranks.ravel(), bytes=sizes.ravel())
    conditions, device = Conditions.of(len(batch), timing="graph", engine=engine), load_device(gpu)
    times = collective_s(batch, device, conditions, with_values(PRIOR, TRUE))[0]
    return LinkRows.of(device, batch, conditions, times, np.full(len(batch), 1.0))


def test_constants_that_made_the_rows_are_found() -> None:
    gpus = ("a100-sxm-80gb", "h100-sxm-80gb")
    asked = (("torch", "all_reduce"), ("torch", "all_gather"), ("vllm", "all_reduce"))
    parts = [rows_of(gpu, engine, op) for gpu in gpus for engine, op in asked]
    problem = Problem(parts, PRIOR)
    found = problem.fit(25)
    links = problem.at(found.place)
    assert links.nccl.start_cycles == pytest.approx(TRUE["nccl.start_cycles"], rel=0.05)
    assert links.rates.nvlink_share == pytest.approx(TRUE["rates.nvlink_share"], rel=0.05)
    assert links.own.vllm_cycles == pytest.approx(TRUE["own.vllm_cycles"], rel=0.05)
    assert links.own.rate == pytest.approx(TRUE["own.rate"], rel=0.05)
    assert found.error < 0.03
    kinds = {f"{'nccl' if engine == 'torch' else engine} {op}" for engine, op in asked}
    assert set(problem.effects) == {(g, f"{kind}{size}") for g in gpus for kind in kinds for size in ("", " short")}


def table(gpu: str, slower: float) -> pd.DataFrame:
    part = rows_of(gpu)
    columns = {name: part.batch[name] for name in ("ranks", "bytes")}
    told = {"gpu": gpu, "family": "collective", "op": "all_reduce", "dtype": "float16", "timing": "graph"}
    return pd.DataFrame({**columns, "latency_ms": 1e3 * slower * part.latency_s}).assign(**told)


def test_errors_and_intervals_are_of_devices_left_out(tmp_path: Path) -> None:
    path = tmp_path / "kernels" / "llm-serving-collective.parquet"
    path.parent.mkdir()
    rows = [table("a100-sxm-80gb", 1.0), table("h100-sxm-80gb", 1.5)]
    pd.concat(rows).to_parquet(path)
    fitted = LINKS.fitted(FitOptions(data=tmp_path))
    assert fitted.gpus == ["a100-sxm-80gb", "h100-sxm-80gb"] and fitted.rows == 126
    assert fitted.effects["nccl all_reduce"]["h100-sxm-80gb"] > fitted.effects["nccl all_reduce"]["a100-sxm-80gb"]
    means = {(row["fit"], row["gpu"], row["kind"], row["bytes"]): row["mean"] for row in fitted.errors}
    seen = {key[1:]: mean for key, mean in means.items() if key[0] == "seen"}
    assert len(means) == 2 * len(seen) and all(mean < means["left out", *key] for key, mean in seen.items())
    assert {row["bytes"] for row in fitted.errors} == {"< 64 KiB", "64 KiB - 4 MiB", "> 4 MiB"}
    low, high = fitted.intervals["nccl links"]
    # Each of the two is half as fast or slow again as the other tells.
    assert low < 0.85 and high > 1.2
    assert set(fitted.data) == {"kernels/llm-serving-collective.parquet"}


def test_doubted_collectives_tell_nothing_of_links(tmp_path: Path) -> None:
    told = {
        "gpu": "l4",
        "family": "collective",
        "op": "all_reduce",
        "ranks": 4,
        "latency_ms": 1.0,
        "timing": "profiler",
    }
    rows = [told | {"bytes": 2**20, "suspect": None}, told | {"bytes": 2**12, "suspect": "waiting_ranks: they wait"}]
    rows.append(rows[1] | {"gpu": "a100-sxm-80gb"})  # Of which nothing is left.
    pd.DataFrame(rows).to_parquet(tmp_path / "collective.parquet")
    (read,) = LINKS.read(FitOptions(data=tmp_path), None).rows
    assert read.batch["bytes"].tolist() == [2**20]
    with pytest.raises(DataError, match="is not there"):
        LINKS.read(FitOptions(data=tmp_path / "nowhere"), None)
