"""The fit of collectives finds constants that made the rows, and tells errors and intervals by what was left out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from neusight.devices import load_device
from neusight.kernels import KernelBatch
from neusight.kernels.conditions import Conditions
from neusight.laws.constants import values, with_values
from neusight.laws.link_constants import PRIOR
from neusight.laws.link_kinds import kinds_by_size
from neusight.laws.links import collective_s
from neusight.learn.evidence import FitOptions
from neusight.learn.links import LINKS, LinkRows
from neusight.learn.physics.problem import Problem
from neusight.measured import KernelPart

TRUE = {"nccl.start_cycles": 14e3, "rates.nvlink_share": 0.65, "own.vllm_cycles": 12e3, "own.rate": 0.4}


def rows_of(gpu: str, engine: str = "torch", op: str = "all_reduce") -> LinkRows:
    sizes, ranks = np.meshgrid(2 ** np.arange(9, 30), [2, 4, 8])
    batch = KernelBatch.from_columns("collective", op=op, ranks=ranks.ravel(), bytes=sizes.ravel())
    conditions, device = Conditions.of(len(batch), timing="graph", engine=engine), load_device(gpu)
    times = collective_s(batch, device, conditions, with_values(PRIOR, TRUE))[0]
    part = KernelPart(device=device, batch=batch, conditions=conditions, rows=np.arange(len(batch)))
    weight = np.full(len(batch), 1.0)
    return LinkRows.of(part, times, kind=kinds_by_size(batch, device, conditions), weight=weight)


def test_constants_that_made_the_rows_are_found() -> None:
    gpus = ("a100-sxm-80gb", "h100-sxm-80gb")
    asked = (("torch", "all_reduce"), ("torch", "all_gather"), ("vllm", "all_reduce"))
    parts = [rows_of(gpu, engine, op) for gpu in gpus for engine, op in asked]
    problem = Problem(parts, PRIOR)
    found = problem.fit(25)
    links = problem.at(found.place)
    assert {name: values(links)[name] for name in TRUE} == pytest.approx(TRUE, rel=0.05)
    assert found.error < 0.03
    kinds = {f"{'nccl' if engine == 'torch' else engine} {op}{size}" for engine, op in asked for size in ("", " short")}
    assert {effect[1:] for effect in problem.effects} == {(gpu, kind) for gpu in gpus for kind in kinds}


def test_fits_without_a_device_use_the_derivatives_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [rows_of(gpu, engine) for gpu in ("a100-sxm-80gb", "h100-sxm-80gb") for engine in ("torch", "vllm")]
    constants = with_values(PRIOR, TRUE)
    Problem(parts, PRIOR).fit(4, None, constants)
    timed, calls = LinkRows.timed, []
    monkeypatch.setattr(LinkRows, "timed", lambda *given: (calls.append(given), timed(*given))[1])
    rest = Problem(parts[2:], PRIOR)
    found = rest.fit(8, None, constants)
    assert len(calls) < len(rest.names)
    assert found.loss < 1.05 * Problem(parts[2:], PRIOR).fit(25).loss


def test_factors_tell_devices_and_sources_apart() -> None:
    gpus, slower = ("a100-sxm-80gb", "h100-sxm-80gb", "l40s"), {"one": 1.0, "other": 1.4}
    parts = [rows_of(gpu) for gpu in gpus]
    parts = [replace(p, measured=by * p.measured, source=source) for p in parts for source, by in slower.items()]
    problem = Problem(parts, PRIOR, factors=("gpu", "source"))
    found = problem.fit(25)
    effects = {effect[1:]: value for effect, value in zip(problem.effects, found.effects, strict=True)}
    apart = effects["other", "nccl all_reduce"] - effects["one", "nccl all_reduce"]
    assert apart == pytest.approx(np.log(1.4), rel=0.2)
    assert max(abs(effects[gpu, "nccl all_reduce"]) for gpu in gpus) < 0.2 * apart
    assert problem.components[-1] == ("source", "") and found.spread[-1] > max(found.spread[:-1])
    assert problem.found_beside_effects(found)["effects"]["nccl all_reduce"].keys() == set(gpus)


def test_variances_name_the_factor_that_rows_differ_by() -> None:
    gpus, slower = ("a100-sxm-80gb", "h100-sxm-80gb", "l40s"), {"one": 0.6, "other": 1.6}
    parts = [replace(rows_of(gpu), measured=by * rows_of(gpu).measured, source=source)
             for gpu in gpus for source, by in slower.items()]  # fmt: skip
    variances = Problem(parts, PRIOR).variances(with_values(PRIOR, TRUE))
    spread = {(row["factor"], row["kind"]): row["spread"] for row in variances}
    assert spread["source", ""] > 2.0 * max(spread[factor, ""] for factor in ("die", "vendor"))
    assert spread["rest", "nccl all_reduce"] < 0.1


def table(gpu: str, slower: float) -> pd.DataFrame:
    part = rows_of(gpu)
    columns = {name: part.batch[name] for name in ("ranks", "bytes")}
    told = {"gpu": gpu, "family": "collective", "op": "all_reduce", "dtype": "float16", "timing": "graph"}
    return pd.DataFrame({**columns, "latency_ms": 1e3 * slower * part.measured}).assign(**told)


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
