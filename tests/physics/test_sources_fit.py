"""Components of variance between sources: the likelihood, what it finds again, and kinds of rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import multivariate_t

from neusight.laws.doubts import spread
from neusight.laws.fitted import FittedSources, shipped
from neusight.laws.source_doubts import ALONE, Components, SourceDoubts
from neusight.learn.evidence import Evidence, FitOptions
from neusight.learn.sources import (
    FREEDOM,
    LEAST,
    SOURCES,
    EvaluatedRow,
    evaluated_rows,
    interval_rows,
    kind_of,
    read_sources,
    solve_sources,
    surprise_of,
)  # fmt: skip
from neusight.learn.sums import students_widening

OPTIONS = FitOptions(data=Path())


def test_surprise_of_is_that_of_multivariate_t() -> None:
    seeded = np.random.default_rng(0)
    off, stated, source = seeded.normal(0, 0.2, 7), seeded.uniform(0.05, 0.3, 7), np.array([0, 1, 1, 0, 1, 2, 1])

    def dense(sizes: tuple[float, float, float]) -> float:
        between, within, share = sizes
        own = (share * stated) ** 2 + within**2 + LEAST**2
        parts = [np.flatnonzero(source == one) for one in range(3)]
        shapes = [np.diag(own[rows]) + between**2 for rows in parts]
        return -sum(
            multivariate_t(shape=s, df=FREEDOM).logpdf(off[rows]) for rows, s in zip(parts, shapes, strict=True)
        )

    first, second = (0.1, 0.05, 0.7), (0.3, 0.02, 0.4)
    found = surprise_of(np.array(first), off, stated, source) - surprise_of(np.array(second), off, stated, source)
    assert found == pytest.approx(dense(first) - dense(second))


def rows_of(between: float, within: float, sources: int = 60, each: int = 8) -> list[EvaluatedRow]:
    seeded = np.random.default_rng(1)
    rows = []
    for source in range(sources):
        tail = (FREEDOM / seeded.chisquare(FREEDOM)) ** 0.5
        shared = seeded.normal(0, between)
        for _ in range(each):
            stated = float(seeded.choice([0.05, 0.3]))
            off = float(shared + seeded.normal(0, within) + seeded.normal(0, 0.5 * stated))
            rows.append(EvaluatedRow(gpu="l4", source=str(source), kind="step", off=tail * off, stated=stated))
    return rows


@pytest.mark.parametrize(("between", "within"), [(0.3, 0.05), (0.05, 0.2), (0.15, 0.15)])
def test_solve_sources_finds_components_again(between: float, within: float) -> None:
    found = solve_sources(Evidence(rows=rows_of(between, within), files=[]), OPTIONS)
    step = found.physics.step
    ends = students_widening(FREEDOM)
    assert (step.between, step.within) == pytest.approx((ends * between, ends * within), rel=0.3)
    assert found.deviations["step.between"] < 0.4 < found.deviations["ttft.between"]


def test_solve_sources_gives_kinds_without_rows_those_of_all() -> None:
    physics = solve_sources(Evidence(rows=rows_of(0.2, 0.05), files=[]), OPTIONS).physics
    assert physics.ttft == physics.tpot != SourceDoubts().ttft
    assert physics.ttft.between == pytest.approx(physics.step.between, rel=0.2)


def test_interval_rows_hold_of_errors_that_are_as_stated() -> None:
    seeded = np.random.default_rng(2)
    rows = [replace(row, off=float(seeded.normal(0, row.stated))) for row in rows_of(0.1, 0.1)]
    step, every = interval_rows(rows, np.array([row.stated for row in rows]))
    assert step == {**every, "kind": "step"}
    assert 87 < step["inside"] < 93 and step["chance"] > 0.05
    assert step["inside"] == step["alone_inside"] and step["crps"] == step["alone_crps"]


def test_a_fit_of_sources_keeps_stated_doubts_that_hold_alone() -> None:
    seeded = np.random.default_rng(3)
    alike = [replace(row, off=float(seeded.normal(0, row.stated))) for row in rows_of(0.1, 0.1, sources=8)]
    apart = [replace(row, kind="ttft") for row in rows_of(0.4, 0.1, sources=8)]
    evidence = Evidence(rows=alike + apart, files=[])
    physics = SOURCES.judged(evidence, solve_sources(evidence, OPTIONS), OPTIONS).physics
    assert physics.step == ALONE
    assert physics.ttft.between > 0.2


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        ({"kind": "kernel", "quantity": "latency_ms", "family": "gemm"}, ""),
        ({"kind": "serving", "quantity": "energy_per_token_j"}, ""),
        ({"kind": "predict", "quantity": "latency_ms"}, "step"),
        ({"kind": "training", "quantity": "step_ms", "engine": "deepspeed", "gpu": "a100-sxm-80gb"}, "training"),
        ({"kind": "training", "quantity": "step_ms", "engine": "fsdp", "gpu": "a100-sxm-80gb"}, "trained"),
        ({"kind": "training", "quantity": "step_ms", "engine": "fsdp", "gpu": "mi300x"}, "training"),
        ({"kind": "training", "quantity": "peak_reserved_bytes"}, "memory"),
        ({"kind": "gains", "quantity": "gain", "metric": "memory"}, ""),
        ({"kind": "gains", "quantity": "gain", "metric": "time"}, ""),
        ({"kind": "serving", "quantity": "ttft_p99_ms"}, "ttft"),
        ({"kind": "serving", "quantity": "itl_p50_ms"}, "tpot"),
        ({"kind": "serving", "quantity": "tokens_per_s"}, "throughput"),
        ({"kind": "serving", "quantity": "e2e_ms"}, "throughput"),
    ],
)
def test_kind_of_is_one_of_quantity_and_kind(cells: dict[str, Any], kind: str) -> None:
    assert kind_of(cells) == kind


def test_evaluated_rows_take_out_what_ships() -> None:
    ttft = shipped(FittedSources).physics.ttft
    whole = spread(ttft.beside({"device:gh100/gemm": 0.12, "host:": 0.16}, "ttft", "a"))
    cells = {"kind": "serving", "source": "a", "gpu": "l4", "quantity": "ttft_ms", "predicted": 10.0, "measured": 12.0}
    ends = {"low": 10.0 * np.exp(-1.645 * whole), "high": 10.0 * np.exp(1.645 * whole)}
    nothing = {"low": None, "high": None}
    (row,) = evaluated_rows(pd.DataFrame([cells | ends, cells | nothing, cells | ends | {"quantity": "fits"}]))
    assert (row.stated, row.off) == pytest.approx((0.2, np.log(1.2)))


def test_read_sources_reads_evaluated_rows(tmp_path: Path) -> None:
    header = "source,kind,gpu,engine,family,quantity,predicted,low,high,measured\n"
    (tmp_path / "rows.csv").write_text(f"{header}one,predict,l4,,,latency_ms,2,1,4,3\n")
    (tmp_path / "more.csv").write_text(
        f"{header}two,training,l4,,,step_ms,2,1,4,1\nthree,kernel,l4,,gemm,latency_ms,2,1,4,1\n"
    )
    rows = read_sources(FitOptions(data=tmp_path)).rows
    assert [(row.source, row.kind) for row in rows] == [("two", "training"), ("one", "step")]


def test_components_beside_scale_stated_doubts_and_name_the_source() -> None:
    known = Components(between=0.3, within=0.1, stated=0.5)
    found = known.beside({"device:ad102/gemm": -0.2}, "step", "gpt2")
    assert found == {"device:ad102/gemm": -0.1, "source:step": 0.3, "composition:step/gpt2": 0.1}
    assert ALONE.beside({"host:": 0.2}, "step", "gpt2") == {"host:": 0.2}
