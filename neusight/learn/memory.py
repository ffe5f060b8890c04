"""``neusight fit memory``: constants of training's memory that stand in code, from peaks that allocators measured.

``engines.EXPERT_LOAD`` by rows that constants learn from, ``KEPT`` and ``LIBRARIES`` of ``plans.margins`` by all,
``Engine.memory_spread`` by what processes reserved.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np

from neusight.distributed.sources import memory
from neusight.distributed.training_run import TrainingRun
from neusight.errors import DataError
from neusight.executors.costs import NORMAL_90
from neusight.learn import FoundConstants
from neusight.learn.served import resolved_rows
from neusight.measured.folder import FITTED, hashes, learned_tables
from neusight.measured.table import read_table
from neusight.plans.fits import verdict
from neusight.plans.margins import SOURCES, spread_bytes
from neusight.plans.memory import RankMemory, memory_of
from neusight.workloads.decoders.decoder import Decoder

PEAK = "peak_allocated_bytes"
"""Column of the allocator's peak on the last rank of the pipeline."""
RESERVED = "peak_reserved_bytes"
"""Column of the most that an allocator reserves on any rank."""


@dataclass(frozen=True, kw_only=True)
class MeasuredPeak:
    """A step, what the allocator of its last rank held at most, and whether constants learn from it."""

    run: TrainingRun
    measured_bytes: float
    taught: bool

    def rank(self, expert_load: float | None = None) -> RankMemory:
        """The rank that was measured, with another load of its fullest experts."""
        engine, decoder = self.run.engine, self.run.decoder
        assert isinstance(decoder, Decoder)
        run = self.run if expert_load is None else replace(self.run, engine=replace(engine, expert_load=expert_load))
        return memory_of(decoder, run.plan, run, run.cluster.device)[-1]


def fit_memory(data: Path) -> FoundConstants:
    """Constants of memory from peaks in a folder of measured rows.

    Raises:
        DataError: no peaks there.
    """
    left_out: Counter[str] = Counter()
    trained = learned_tables(data, "training")
    tables = [replace(one, frame=one.frame[one.frame[PEAK].notna()]) for one in trained if PEAK in one.frame]
    peaks = [
        MeasuredPeak(run=run, measured_bytes=row[PEAK], taught=row.get("split") == FITTED)
        for row, run in resolved_rows(tables, left_out)
    ]
    if not peaks:
        raise DataError(f"{data} has no peaks of memory: give the folder of measured rows")
    ranks = [peak.rank() for peak in peaks]
    measured = np.array([peak.measured_bytes for peak in peaks])
    values = {"expert_load": expert_load([peak for peak in peaks if peak.taught])} | spreads(ranks, measured)
    every = [read_table(file) for file in sorted((data / "training").glob("*.parquet"))]
    reserved = [replace(one, frame=one.frame[one.frame[RESERVED].notna()]) for one in every if RESERVED in one.frame]
    rows = ((row[RESERVED], run) for row, run in resolved_rows(reserved, left_out))
    values |= memory_spreads([(run.engine.name, *_reserved(run, measured)) for measured, run in rows])
    off = np.abs(np.array([rank.allocated for rank in ranks]) / measured - 1.0)
    return FoundConstants(
        values={name: float(f"{value:.4g}") for name, value in values.items()},
        gpus=sorted({peak.run.cluster.device.id for peak in peaks}),
        data=hashes(table.path for table in (*tables, *reserved)),
        rows=len(peaks),
        error=round(float(off.mean()), 4),
        skipped=left_out,
    )


def expert_load(peaks: Sequence[MeasuredPeak]) -> float:
    """Tokens of the fullest expert over the mean by least squares of relative errors over steps with experts.

    The peak is linear in it: with x = peak(2) - peak(1) and y = measured - peak(1), the load is 1 + sum(xy) / sum(x²).
    """
    even, double = (np.array([peak.rank(load).total for peak in peaks]) for load in (1.0, 2.0))
    measured = np.array([peak.measured_bytes for peak in peaks])
    x, y = (double - even) / measured, 1 - even / measured
    return float(1 + (x * y).sum() / (x * x).sum())


def spreads(ranks: Sequence[RankMemory], measured_bytes: np.ndarray) -> dict[str, float]:
    """Shares of what a step keeps and of libraries: their ratio by maximum likelihood of normal errors, their size such
    that 90 % of errors lie in their interval.
    """
    errors = measured_bytes - np.array([rank.allocated for rank in ranks])
    named = [names for _, names in SOURCES.values()]
    terms = np.array([[sum(rank.parts.get(name, 0.0) for name in names) for names in named] for rank in ranks])

    def deviations(kept: float, libraries: float) -> np.ndarray:
        fitted = {"kept": kept, "libraries": libraries}
        shares = np.array([fitted.get(source, share) for source, (share, _) in SOURCES.items()])
        return np.asarray(np.sqrt(((terms * shares) ** 2).sum(axis=1)))

    def surprise(shares: tuple[float, float]) -> float:
        return float((np.log(deviations(*shares)) + (errors / deviations(*shares)) ** 2 / 2).sum())

    kept, libraries = min(product(np.geomspace(0.005, 0.1, 60), np.geomspace(0.02, 0.5, 60)), key=surprise)
    size = np.quantile(np.abs(errors) / deviations(kept, libraries), 0.9) / NORMAL_90
    return {"kept": float(kept * size), "libraries": float(libraries * size)}


def _reserved(run: TrainingRun, measured_bytes: float) -> tuple[float, float]:
    """Error of what the fullest rank reserves, and its spread by all sources but the trainer, as shares of it."""
    fit = verdict(memory(run), run.cluster.device)
    expected = fit.needed_bytes - fit.terms["context"]
    return measured_bytes / expected - 1.0, spread_bytes(fit.terms) / expected


def memory_spreads(rows: Sequence[tuple[str, float, float]]) -> dict[str, float]:
    """``Engine.memory_spread`` of trainers by name, and of those without rows (``memory_spread``).

    By how much the squares of their errors exceed those of their spreads; for a trainer without rows it is predicted
    from as many as have some, by Student's t.

    Args:
        rows: name of the engine, whose variants have it before a dash, error and spread.
    """
    from scipy.stats import t as student

    squares: dict[str, list[float]] = {}
    for name, error, spread in rows:
        squares.setdefault(name.partition("-")[0], []).append(error**2 - spread**2)
    excess = {name: max(0.0, float(np.mean(of))) for name, of in squares.items()}
    if not excess:
        return {}
    wider = float(student.ppf(0.95, len(excess))) / NORMAL_90
    unseen = wider * float(np.mean([*excess.values()])) ** 0.5
    return {f"memory_spread.{name}": value**0.5 for name, value in excess.items()} | {"memory_spread": unseen}
