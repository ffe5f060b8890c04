"""``neusight fit memory``: constants of training's memory that stand in code, from peaks that allocators measured.

``engines.EXPERT_LOAD`` by rows that constants learn from, ``KEPT`` and ``LIBRARIES`` of ``plans.margins`` by all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np

from neusight.distributed.training_run import TrainingRun
from neusight.errors import DataError
from neusight.executors.costs import NORMAL_90
from neusight.learn import FoundConstants
from neusight.learn.served import resolved_rows
from neusight.measured.folder import FITTED, hashes, learned_tables
from neusight.plans.margins import SOURCES
from neusight.plans.memory import RankMemory, memory_of
from neusight.workloads.decoders.decoder import Decoder

PEAK = "peak_allocated_bytes"
"""Column of the allocator's peak on the last rank of the pipeline."""


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
    tables = [table for table in learned_tables(data, "training") if PEAK in table.frame]
    tables = [replace(table, frame=table.frame[table.frame[PEAK].notna()]) for table in tables]
    peaks = [
        MeasuredPeak(run=run, measured_bytes=row[PEAK], taught=row.get("split") == FITTED)
        for row, run in resolved_rows(tables, left_out)
    ]
    if not peaks:
        raise DataError(f"{data} has no peaks of memory: give the folder of measured rows")
    ranks = [peak.rank() for peak in peaks]
    measured = np.array([peak.measured_bytes for peak in peaks])
    values = {"expert_load": expert_load([peak for peak in peaks if peak.taught])} | spreads(ranks, measured)
    off = np.abs(np.array([rank.allocated for rank in ranks]) / measured - 1.0)
    return FoundConstants(
        values={name: float(f"{value:.4g}") for name, value in values.items()},
        gpus=sorted({peak.run.cluster.device.id for peak in peaks}),
        data=hashes(table.path for table in tables),
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
