"""``neusight fit sources``: what numbers of sources miss beyond the doubts that answers state.

Components of variance (``laws.source_doubts``) of each kind of figure by maximum likelihood of Student's t, since some
sources are far off: of all times and rates together first, then of each kind around those, so that a kind of few
sources has about what all have. Peaks of memory are counted, not timed: theirs are found by themselves. Each source is
left out in turn to see how intervals hold on the numbers of others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.devices.load import load_device
from neusight.distributed.factors import shipped_factors
from neusight.laws.constants import priors
from neusight.laws.doubts import NORMAL_90, spread
from neusight.laws.fitted import FittedSources, shipped
from neusight.laws.source_doubts import ALONE, KINDS, Components, SourceDoubts
from neusight.learn.evidence import ConstantsFit, Evidence, FitOptions, Report, SolvedFold, grouped, significant
from neusight.learn.physics.solve import likeliest
from neusight.learn.sums import students_widening
from neusight.measured.errors import crps
from neusight.measured.table import STATISTIC, TRUTH, read_frame

if TYPE_CHECKING:
    import pandas as pd

WORTH = 12.0
"""Numbers that a source counts as, at most: more of them differ in their batch or length alone."""
FREEDOM = 3.0
"""Degrees of freedom of the t distribution."""
OWN_KIND = 0.7
"""Standard deviation of the logarithm of a kind's component around that of all kinds."""
COUNTED = "memory"
"""Kind of figure that is no time, and errs less."""
LIKELY = 0.05
"""Chance from which on intervals are taken to hold."""
EVERY = "all"
"""Name of all kinds together."""
LEAST = 3e-3
"""Standard deviation of any number."""


@dataclass(frozen=True, kw_only=True)
class EvaluatedRow:
    """log(measured / predicted) of a number, and the standard deviation of its doubts beside those of its source."""

    gpu: str
    source: str
    kind: str
    off: float
    stated: float


def read_sources(options: FitOptions, report: Report | None = None) -> Evidence[EvaluatedRow]:
    """Rows of the CSV files of a folder, as ``neusight evaluate --format csv`` wrote them."""
    files = sorted(options.data.glob("*.csv"))
    return Evidence(rows=[row for file in files for row in evaluated_rows(read_frame(file))], files=files)


def evaluated_rows(lines: pd.DataFrame) -> list[EvaluatedRow]:
    """Rows of lines that have an interval, without the doubts between sources that ship."""
    rows = []
    stated = lines[(lines["low"] > 0) & (lines["high"] > lines["low"]) & ~lines["quantity"].isin(TRUTH)]
    for row in stated.to_dict("records"):
        if not (kind := kind_of(row)):
            continue
        of_sources: Components = getattr(shipped(FittedSources).physics, kind)
        # No interval of a time begins below its bound: its other end has the width.
        spread = max(np.log(row["high"] / row["predicted"]), np.log(row["predicted"] / row["low"])) / NORMAL_90
        beside = max(spread**2 - of_sources.between**2 - of_sources.within**2, 0.0) ** 0.5 / of_sources.stated
        off = float(np.log(row["measured"] / row["predicted"]))
        rows.append(EvaluatedRow(gpu=str(row["gpu"]), source=str(row["source"]), kind=kind, off=off, stated=beside))
    return rows


def kind_of(row: dict[Any, Any]) -> str:
    """The kind of figure of an evaluated row, a field of ``SourceDoubts``; "" of kernels, gains and energies, whose
    doubts are fitted to sources and devices that were left out.
    """
    quantity = STATISTIC.sub("", row["quantity"], count=1).removesuffix("_ms")
    if quantity.startswith("peak_"):
        return COUNTED
    kind = "" if row["kind"] == "kernel" else KINDS.get(quantity, "")
    return shipped_factors().kind_of_steps(row["engine"], load_device(row["gpu"])) if kind == "training" else kind


def solve_sources(evidence: Evidence[EvaluatedRow], options: FitOptions, report: Report | None = None) -> FittedSources:
    """Components of all kinds of figures."""
    kinds = {kind: _columns(rows) for kind, rows in grouped(evidence.rows, lambda row: row.kind).items()}
    known = priors(SourceDoubts())
    centre, width = np.transpose([(one.value, one.spread) for one in known.values()])[:, : len(fields(Components))]
    every, spread = _likeliest([rows for kind, rows in kinds.items() if kind != COUNTED], centre, width)
    around = {kind: (centre, width) if kind == COUNTED else (every, OWN_KIND) for kind in kinds}
    found = {kind: _likeliest([rows], *around[kind]) for kind, rows in kinds.items()}
    unseen = every, np.hypot(spread, OWN_KIND)
    sizes, deviations = np.concatenate([found.get(kind.name, unseen) for kind in fields(SourceDoubts)], axis=1)
    values = dict(zip(known, (students_widening(FREEDOM) * sizes).tolist(), strict=True))
    return FittedSources(
        **evidence.about(),
        values=significant(values, 3),
        deviations=significant(dict(zip(known, deviations.tolist(), strict=True)), 3),
        error=float(np.mean([abs(np.expm1(row.off)) for row in evidence.rows])),
        sources=len({row.source for row in evidence.rows}),
    )


_Columns = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Errors and stated deviations of rows, and the number of their source; shape (n,)."""


def _columns(rows: Sequence[EvaluatedRow]) -> _Columns:
    source = np.unique([row.source for row in rows], return_inverse=True)[1]
    return np.array([row.off for row in rows]), np.array([row.stated for row in rows]), source


def _likeliest(kinds: Sequence[_Columns], centre: np.ndarray, width: np.ndarray | float) -> tuple[np.ndarray, ...]:
    """Components of least surprise with the standard deviations of their logarithms, by curvature; their prior is
    log-normal.
    """

    def surprise(logs: np.ndarray) -> float:
        prior = float(np.square((logs - np.log(centre)) / width).sum()) / 2.0
        return prior + sum(surprise_of(np.exp(logs), *rows) for rows in kinds)

    found = np.log(likeliest(lambda sizes: surprise(np.log(sizes)), centre.tolist()))
    moves = 0.1 * np.eye(len(found))
    bends = [surprise(found + move) + surprise(found - move) - 2.0 * surprise(found) for move in moves]
    return np.exp(found), 0.1 / np.sqrt(np.maximum(bends, 1e-6))


def surprise_of(sizes: np.ndarray, off: np.ndarray, stated: np.ndarray, source: np.ndarray) -> float:
    """Minus the logarithm of the likelihood of errors, up to a constant.

    Errors of a source are multivariate t with the scale matrix ``diag(own) + between² 11ᵀ``, inverted by Sherman and
    Morrison's formula.

    Args:
        sizes: between, within and stated of ``Components``.
        off, stated, source: of each number, shape (n,).
    """
    between, within, share = sizes
    own = (share * stated) ** 2 + within**2 + LEAST**2
    columns = (np.ones_like(own), 1.0 / own, off / own, off**2 / own, np.log(own))
    count, weight, pull, squares, logs = (np.bincount(source, column) for column in columns)
    widened = 1.0 + between**2 * weight
    distance = squares - (between * pull) ** 2 / widened
    each = (FREEDOM + count) / 2.0 * np.log1p(distance / FREEDOM) + (logs + np.log(widened)) / 2.0
    return float(np.minimum(1.0, WORTH / count) @ each)


def with_intervals(fitted: FittedSources, folds: Sequence[SolvedFold]) -> FittedSources:
    """With figures of each kind's intervals, of sources that were left out. A kind whose stated doubts hold there by
    themselves, and score no worse, keeps them.
    """
    rows = [row for fold in folds for row in fold.held]
    known = [getattr(fold.fitted.physics, row.kind) for fold in folds for row in fold.held]
    spreads = [spread(doubts.beside({"": row.stated}, "", "")) for doubts, row in zip(known, rows, strict=True)]
    hold = [one for one in interval_rows(rows, spreads) if one["alone_chance"] > LIKELY]
    alone = {one["kind"] for one in hold if one["alone_crps"] <= one["crps"]} - {EVERY}
    kept = [row.stated if row.kind in alone else size for row, size in zip(rows, spreads, strict=True)]
    values = {f"{kind}.{name}": value for kind in sorted(alone) for name, value in asdict(ALONE).items()}
    return replace(fitted, values=fitted.values | values, errors=interval_rows(rows, kept))


def interval_rows(rows: Sequence[EvaluatedRow], spreads: Sequence[float]) -> list[dict[str, Any]]:
    """Intervals with standard deviations ``spreads``, shape (n,), by kind, beside those that answers state alone:
    ``inside`` in percent, ``chance`` of as unlikely a number of them by a binomial test of 90 %, ``width`` (mean
    standard deviation) and ``crps`` in percent.
    """
    kinds = np.array([row.kind for row in rows])
    off, stated = np.array([(row.off, row.stated) for row in rows]).T
    found = []
    for kind in (*sorted({*kinds.tolist()}), EVERY):
        some = (kinds == kind) | (kind == EVERY)
        alone = {f"alone_{name}": value for name, value in _interval_figures(off[some], stated[some]).items()}
        figures = significant(alone | _interval_figures(off[some], np.array(spreads)[some]), 3)
        sources = len({row.source for row, chosen in zip(rows, some, strict=True) if chosen})
        found.append({"kind": kind, "rows": int(some.sum()), "sources": sources, **figures})
    return found


def _interval_figures(off: np.ndarray, spreads: np.ndarray) -> dict[str, float]:
    from scipy.stats import binomtest

    ends = NORMAL_90 * spreads
    inside = np.abs(off) <= ends
    return {
        "inside": 100.0 * float(inside.mean()),
        "width": float(spreads.mean()),
        "crps": float(crps(np.exp(-ends), np.exp(ends), np.exp(off)).mean()),
        "chance": float(binomtest(int(inside.sum()), len(off), 0.9).pvalue),
    }


SOURCES = ConstantsFit(
    read=read_sources,
    solve=solve_sources,
    traits=("source",),
    finish=with_intervals,
    rows="evaluated rows (`neusight evaluate FILES --format csv`)",
)
