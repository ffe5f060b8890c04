"""What optimisations gain, as public projects and papers measured it, against what is predicted of each pair."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.api import Predictor
from neusight.evaluation import Scored
from neusight.experiments.pairs_report import CLEAR
from neusight.experiments.runs import Results, advance_of, figures, files_sha256, most_common
from neusight.measured import MeasuredTable, compare, read_table
from neusight.paths import data_dir, measured_in

if TYPE_CHECKING:
    from neusight.experiments.declare import PairsDeclaration
    from neusight.learn import Report

QUICK_PAIRS = 60
ALL = "all"
"""The row of all optimisations together."""
KEPT = {
    "source": "set", "optimisation": "optimisation", "as_written": "as_written", "model": "model", "gpu": "gpu",
    "metric": "metric", "apply": "applied", "predicted": "predicted_gain", "inside": "inside", "error": "error",
}  # fmt: skip
STATED = {
    "as_written": "as_written", "gpu": "gpu", "predicted": "predicted_gain", "low": "low_gain", "high": "high_gain",
    "inside": "inside", "measured": "stated_gain",
}  # fmt: skip
BY = {"by_gpu": ("gpu",), "by_set": ("set", "optimisation", "metric"), "groups": ("optimisation", "metric")}


def run_pairs(declared: PairsDeclaration, folder: Path, quick: bool, report: Report | None = None) -> Results:
    """Predict every pair, and each effect that a paper states.

    Returns:
        ``rows``: a pair each, without what was measured; ``optimisations``: of each and of ``all`` how many pairs
        there are, of how many in percent are answered, and the errors of those; the same errors ``by_gpu``, ``by_set``
        and in ``groups`` with percentiles of predicted over measured; ``published``: effects, predicted and stated;
        ``skipped``: reasons, counted; ``sha256`` of the tables.
    """
    predictor, data = Predictor.load(), measured_in(data_dir())
    table = _joined([read_table(data / name) for name in declared.tables], quick)
    scored, skipped = compare(table, predictor, advance_of("pairs", report))
    scored = replace(scored, keys=scored.keys.assign(set=scored.keys["source"]))
    results: Results = {
        "rows": _rows(scored, KEPT),
        "optimisations": list(_optimisations(table, scored)),
        **{name: [names | figures(part) for names, part in scored.groups(*keys)] for name, keys in BY.items()},
        "skipped": most_common(Counter(reason for reason, places in skipped for _ in places)),
        "sha256": files_sha256(declared.tables, data),
    }
    return results | (_published(folder / declared.published, predictor) if declared.published else {})


def _joined(tables: list[MeasuredTable], quick: bool) -> MeasuredTable:
    """Rows of all tables, or a few of them."""
    import pandas as pd

    frame = pd.concat([table.frame for table in tables], ignore_index=True)
    few = frame.sample(min(QUICK_PAIRS, len(frame)), random_state=0) if quick else frame
    return replace(tables[0], frame=few.reset_index(drop=True))


def _rows(scored: Scored, names: dict[str, str]) -> list[dict[str, Any]]:
    """Keys and figures of pairs under the names that results have for them."""
    columns = scored.keys.assign(
        predicted=scored.predicted, low=scored.low, high=scored.high, measured=scored.measured,
        inside=scored.inside.astype(bool), error=scored.bias,
    )  # fmt: skip
    found = columns.reindex(columns=list(names)).rename(columns=names).astype(object)
    rows: list[dict[str, Any]] = found.where(found.notna(), "").to_dict("records")
    return rows


def _optimisations(table: MeasuredTable, scored: Scored) -> Iterator[dict[str, Any]]:
    """Of each optimisation and of all how many pairs are answered, and errors of the gain with ``sign``: the percent
    of gains clearly above or below 1 on whose side the prediction is.
    """
    pairs = table.frame["optimisation"].value_counts().sort_index().to_dict()
    for name, count in {**pairs, ALL: len(table)}.items():
        part = scored if name == ALL else scored.where(optimisation=name)
        # Rows name their model, or they were no questions.
        counts = {"pairs": count, "named": count, "answered": 100.0 * len(part) / count}
        clear = np.abs(part.measured - 1.0) > CLEAR
        right = ((part.predicted > 1.0) == (part.measured > 1.0))[clear]
        sign = {"sign": 100.0 * float(right.mean()) if clear.any() else None}
        yield {"optimisation": name, **counts, **part.figures(), **sign}


def _published(path: Path, predictor: Predictor) -> Results:
    """Effects that papers state beside what is predicted, and those without an answer."""
    table = read_table(path)
    scored, skipped = compare(table, predictor)
    words = table.frame["as_written"]
    unanswered = [{"as_written": words[place], "reason": reason} for reason, places in skipped for place in places]
    return {"published": _rows(scored, STATED), "unanswered": unanswered}
