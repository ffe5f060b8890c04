"""Measured figures as anchors of predictions: those of a table, and each row of a source in turn for its others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.api.given import NOISE, Given, doubts_of, moved
from neusight.errors import DataError, NeusightError
from neusight.laws.doubts import Anchors
from neusight.measured.choice import RowChoice
from neusight.measured.compare import Progress, RecentAnswers, kinds_of, question_of
from neusight.measured.errors import figures
from neusight.measured.figures import OMITS, figure_of
from neusight.measured.table import STATISTIC, MeasuredTable, filled, read_table
from neusight.questions import WhatIfQuestion

if TYPE_CHECKING:
    from neusight.api import Predictor

METRICS: Mapping[str, str] = {
    "latency_ms": "time", "step_ms": "time", "ttft_ms": "ttft", "tpot_ms": "tpot", "itl_ms": "itl", "e2e_ms": "e2e",
    "tokens_per_s": "throughput", "steady_tokens_per_s": "throughput", **dict.fromkeys(OMITS, "memory"),
}  # fmt: skip
"""Metrics of answers by measured column."""
ROWS = 12
"""Rows of a source that are anchors in turn."""
_SHOWN = ("median", "inside", "crps")


@dataclass(frozen=True)
class GivenRows:
    """Measured rows of one's own, for predictions to learn from."""

    table: MeasuredTable

    def predicted_by(self, predictor: Predictor) -> Given:
        """The figures of the rows beside a predictor's own.

        Raises:
            DataError: no row has a prediction, with the reason of the first.
        """
        table, reasons = self.table, list[str]()
        lines = [line for part in _lines(table, predictor, reasons) for line in part]
        if not lines:
            why = reasons[0] if reasons else f"{', '.join(table.quantities)} have no doubts that others share"
            raise DataError(f"{table.path} has no figure that predictions can learn from: {why}")
        columns: dict[str, Any] = {name: [line[name] for line in lines] for name in lines[0]}
        return Given(
            name=table.path.name, places=columns["gpu"], metrics=columns["metric"], doubts=columns["doubts"],
            log_ratio=np.log(np.array(columns["measured"]) / columns["predicted"]), noise=np.array(columns["noise"]),
        )  # fmt: skip


def _lines(
    table: MeasuredTable, predictor: Predictor, reasons: list[str], progress: Progress | None = None
) -> Iterator[list[dict[str, Any]]]:
    """Predictions beside the figures of each row, with their doubts; reasons why rows have none are added."""
    recent, records = RecentAnswers(predictor), table.frame.to_dict("records")
    for number, row in enumerate(records):
        if progress:
            progress(number, len(records))
        measured = filled(row, [name for name in table.quantities if STATISTIC.sub("", name, count=1) in METRICS])
        try:
            question = question_of(row, table)
            whole = isinstance(question, WhatIfQuestion)
            answer = recent.what_if(question).before if whole else recent.ask(question)  # type: ignore[arg-type]
            yield [_line(row, name, answer, measured) for name in measured]
        except NeusightError as error:
            reasons.append(str(error))
            yield []


def _line(row: Mapping[Any, Any], name: str, answer: Any, measured: Mapping[str, object]) -> dict[str, Any]:
    predicted, low, high = figure_of(answer, name, [*measured])
    metric = METRICS[STATISTIC.sub("", name, count=1)]
    ends = [row.get(f"repeated_{metric}_{end}_ms", np.nan) for end in ("min", "max")]
    repeated = np.log(ends[1] / ends[0]) / 2.0 if np.isfinite(ends).all() else row.get("std_ms", 0.0) / row[name]
    return {
        "quantity": name, "metric": metric, "predicted": predicted, "low": low, "high": high, "measured": row[name],
        "doubts": doubts_of(answer, metric), "noise": float(np.fmax(repeated, NOISE)), "gpu": str(row.get("gpu")),
    }  # fmt: skip


def evaluate_anchored(
    files: Sequence[Path], predictor: Predictor, choice: RowChoice, of: Sequence[str], progress: Progress | None = None
) -> list[dict[str, Any]]:
    """Errors of rows by kind and group without and with each other row of the group as the only measurement.

    Args:
        files: tables of measured rows.
        predictor: whose predictions.
        choice: which rows; its seed draws ``ROWS`` of each group.
        of: columns that groups share, such as source, or source and gpu.
        progress: called with (done, of) rows.

    Raises:
        DataError: no group has three rows with predictions.
    """
    summary: list[dict[str, Any]] = []
    for path in files:
        table, _ = choice.of(read_table(path))
        names = [name for name in of if name in table.frame]
        frame = table.frame.assign(kind=kinds_of(table))
        for values, part in frame.groupby(["kind", *names], sort=False, observed=True):
            rows_of = RowChoice(limit=ROWS, seed=choice.seed).of(replace(table, frame=part.drop(columns="kind")))[0]
            rows = [lines for lines in _lines(rows_of, predictor, [], progress) if lines] if len(part) >= 3 else []
            if len(rows) >= 3:
                group = dict(zip(("kind", *names), values, strict=True))
                summary += [{**group, **errors} for errors in _errors(rows)]
    if not summary:
        raise DataError(f"no {' and '.join(of)} has three rows with predictions: give other files or columns")
    return summary


def _errors(rows: Sequence[Sequence[Mapping[str, Any]]]) -> Iterator[dict[str, Any]]:
    """Figures of errors by metric, without anchors and with each row in turn as the only one of the others."""
    import pandas as pd

    lines = pd.DataFrame([line for row in rows for line in row])
    anchored = pd.DataFrame(
        [_anchored(line, row) for row in rows for other in rows if other is not row for line in other]
    )
    for metric, part in lines.groupby("metric", sort=False):
        alone, together = figures(part), figures(anchored[anchored["metric"] == metric])
        changes = {f"anchored_{name}": together.get(name) for name in _SHOWN}
        yield {"metric": metric, "rows": len(part), **{n: alone.get(n) for n in _SHOWN}, **changes}


def _anchored(line: Mapping[str, Any], row: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A line whose prediction is corrected by the figures of another row."""
    ratios = np.log([one["measured"] / one["predicted"] for one in row])
    move = moved(
        Anchors([one["doubts"] for one in row], ratios, np.array([one["noise"] for one in row])), line["doubts"]
    )
    predicted, factor = line["predicted"], np.exp(move.shift)
    ends = {n: factor * predicted * (line[n] / predicted) ** (move.after / move.before) for n in ("low", "high")}
    return {**line, "predicted": factor * predicted, **ends}
