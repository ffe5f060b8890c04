"""``neusight fit memory``: constants of training's memory that stand in code, from peaks that allocators measured.

``engines.EXPERT_LOAD`` by rows that constants learn from, ``KEPT`` and ``LIBRARIES`` of ``plans.margins`` by all,
``Engine.memory_spread`` by what processes reserved.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from neusight.distributed.sources import memory
from neusight.distributed.training_run import TrainingRun
from neusight.laws.doubts import spread
from neusight.learn.evidence import ConstantsFit, Evidence, FitOptions, FoundConstants, Report, grouped, significant
from neusight.learn.sums import fit_shares, students_widening
from neusight.measured.folder import FITTED, learned_tables
from neusight.measured.table import MeasuredTable, read_table
from neusight.plans.fits import verdict
from neusight.plans.margins import SOURCES, doubts_of
from neusight.plans.memory import RankMemory, memory_of
from neusight.workloads.decoders.decoder import Decoder

PEAK = "peak_allocated_bytes"
"""Column of the allocator's peak on the last rank of the pipeline."""
RESERVED = "peak_reserved_bytes"
"""Column of the most that an allocator reserves on any rank."""
FIRST = {"kept": 0.02, "libraries": 0.1}
"""Shares of sources from which the likeliest are sought."""


@dataclass(frozen=True, kw_only=True)
class MeasuredPeak:
    """A step, its measured ``PEAK`` or ``RESERVED`` bytes, and whether constants learn from it."""

    run: TrainingRun
    quantity: str
    measured_bytes: float
    taught: bool

    @property
    def gpu(self) -> str:
        """Id of the device."""
        return self.run.cluster.device.id

    def rank(self, expert_load: float | None = None) -> RankMemory:
        """The rank that was measured, with another load of its fullest experts."""
        engine, decoder = self.run.engine, self.run.decoder
        assert isinstance(decoder, Decoder)
        run = self.run if expert_load is None else replace(self.run, engine=replace(engine, expert_load=expert_load))
        return memory_of(decoder, run.plan, run, run.cluster.device)[-1]


def read_memory(options: FitOptions, report: Report | None = None) -> Evidence[MeasuredPeak]:
    """Peaks of memory in a folder of measured rows."""
    allocated = [*_with(PEAK, learned_tables(options.data, "training"))]
    every = map(read_table, sorted((options.data / "training").glob("*.parquet"))) if allocated else ()
    return Evidence.of([*allocated, *_with(RESERVED, every)], _peak)


def _with(column: str, tables: Iterable[MeasuredTable]) -> Iterator[MeasuredTable]:
    """Rows of tables that measured a column, without the other one of peaks."""
    for table in tables:
        if column in table.frame:
            others = table.frame.columns.intersection([PEAK, RESERVED]).drop(column)
            yield replace(table, frame=table.frame[table.frame[column].notna()].drop(columns=others))


def _peak(row: Mapping[Any, Any], question: Any) -> MeasuredPeak:
    (quantity,) = row.keys() & {PEAK, RESERVED}
    run, taught = question.resolve(), row.get("split") == FITTED
    return MeasuredPeak(run=run, quantity=quantity, measured_bytes=row[quantity], taught=taught)


def solve_memory(evidence: Evidence[MeasuredPeak], options: FitOptions, report: Report | None = None) -> FoundConstants:
    """The load of experts by rows that constants learn from, how far off peaks are by all, and what trainers reserve
    beyond that.
    """
    reserved, allocated = ([one for one in evidence.rows if one.quantity == name] for name in (RESERVED, PEAK))
    ranks = [peak.rank() for peak in allocated]
    measured = np.array([peak.measured_bytes for peak in allocated])
    found = {"expert_load": expert_load([peak for peak in allocated if peak.taught])} | spreads(ranks, measured)
    found |= memory_spreads([(one.run.engine.name, *_reserved(one.run, one.measured_bytes)) for one in reserved])
    off = np.abs(np.array([rank.allocated for rank in ranks]) / measured - 1.0)
    about = replace(evidence, rows=allocated).about()
    return FoundConstants(**about, values=significant(found), error=round(float(off.mean()), 4))


def expert_load(peaks: Sequence[MeasuredPeak]) -> float:
    """Tokens of the fullest expert over the mean by least squares of relative errors over steps with experts.

    The peak is linear in it: with x = peak(2) - peak(1) and y = measured - peak(1), the load is 1 + sum(xy) / sum(x²).
    """
    even, double = (np.array([peak.rank(load).total for peak in peaks]) for load in (1.0, 2.0))
    measured = np.array([peak.measured_bytes for peak in peaks])
    x, y = (double - even) / measured, 1 - even / measured
    return float(1 + (x * y).sum() / (x * x).sum())


def spreads(ranks: Sequence[RankMemory], measured_bytes: np.ndarray) -> dict[str, float]:
    """Shares of what a step keeps and of libraries that make 90 % of errors lie in their intervals."""
    errors = measured_bytes - np.array([rank.allocated for rank in ranks])
    sizes = {
        source: np.array([sum(rank.parts.get(name, 0.0) for name in names) for rank in ranks])
        for source, (_, names) in SOURCES.items()
    }
    known = [SOURCES[source][0] * size for source, size in sizes.items() if source not in FIRST]
    terms = np.stack([sizes[source] for source in FIRST], axis=1)
    found = fit_shares(errors, terms, np.sqrt(np.square(known).sum(axis=0)), [*FIRST.values()])
    return dict(zip(FIRST, found.tolist(), strict=True))


def _reserved(run: TrainingRun, measured_bytes: float) -> tuple[float, float]:
    """Error of what the fullest rank reserves, and its spread by all sources but the trainer, as shares of it."""
    fit = verdict(memory(run), run.cluster.device)
    expected = fit.needed_bytes - fit.terms["context"]
    return measured_bytes / expected - 1.0, spread(doubts_of(fit.terms)) * fit.needed_bytes / expected


def memory_spreads(rows: Sequence[tuple[str, float, float]]) -> dict[str, float]:
    """``Engine.memory_spread`` of trainers by name, and of those without rows (``memory_spread``).

    By how much the squares of their errors exceed those of their spreads; for a trainer without rows it is predicted
    from as many as have some, by Student's t.

    Args:
        rows: name of the engine, whose variants have it before a dash, error and spread.
    """
    of_trainer = grouped(rows, lambda row: row[0].partition("-")[0])
    squares = {name: [error**2 - spread**2 for _, error, spread in several] for name, several in of_trainer.items()}
    excess = {name: max(0.0, float(np.mean(of))) for name, of in squares.items()}
    if not excess:
        return {}
    unseen = students_widening(len(excess)) * float(np.mean([*excess.values()])) ** 0.5
    return {f"memory_spread.{name}": value**0.5 for name, value in excess.items()} | {"memory_spread": unseen}


MEMORY = ConstantsFit(read=read_memory, solve=solve_memory, rows="peaks of memory")
