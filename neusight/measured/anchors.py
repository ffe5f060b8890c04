"""Measured figures as anchors of predictions: those of a table, and each row of a source in turn for its others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.api.given import NOISE, Given, bound_s, doubts_of, fault_of, moved
from neusight.errors import DataError, NeusightError, one_line
from neusight.laws.doubts import Anchors
from neusight.measured.choice import RowChoice
from neusight.measured.compare import Progress, RecentAnswers, kinds_of, question_of
from neusight.measured.errors import figures
from neusight.measured.figures import OMITS, figure_of
from neusight.measured.table import QUANTITIES, STATISTIC, MeasuredTable, filled, read_table
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
Line = dict[str, Any]
"""A measured figure beside its prediction, see ``Given``; ``fault`` is the reason why it cannot be of its question."""


@dataclass(frozen=True)
class GivenRows:
    """Measured rows of one's own, for predictions to learn from."""

    table: MeasuredTable

    def predicted_by(self, predictor: Predictor) -> Given:
        """The figures of the rows beside a predictor's own, and what of the table does not count.

        Raises:
            DataError: no row has a prediction, with the reason of the first.
        """
        table, lines, faults = self.table, list[Line](), list[str]()
        for number, row in enumerate(_lines(table, predictor), start=1):
            lines += [{**line, "row": number} for line in row if not line["fault"]]
            faults += [f"row {number}: {line['fault']}" for line in row if line["fault"]]
        if not lines:
            why = faults[0] if faults else f"{', '.join(table.quantities)} have no doubts that others share"
            raise DataError(f"{table.path} has no figure that predictions can learn from: {why}")
        if columns := [name for name in table.quantities if _metric(name) in ("", "memory")]:
            faults.append(f"no answer learns of {', '.join(columns)}")
        used = f"--given {table.path.name}: used {len({line['row'] for line in lines})} of {len(table)} rows"
        unused = one_line(f"{used}; {'; '.join(faults)}") if faults else ""
        return Given(lines=lines, name=table.path.name, unused=unused)


def _metric(name: str) -> str:
    """Metric of answers that a measured column is of; "" of others."""
    return METRICS.get(STATISTIC.sub("", name, count=1), "")


def _lines(table: MeasuredTable, predictor: Predictor) -> Iterator[list[Line]]:
    """Predictions beside the figures of each row, or a line with nothing but the ``fault`` of a row without one."""
    recent = RecentAnswers(predictor)
    for row in table.frame.to_dict("records"):
        measured = filled(row, filter(_metric, table.quantities))
        try:
            question = question_of(row, table)
            whole = isinstance(question, WhatIfQuestion)
            answer = recent.what_if(question).before if whole else recent.ask(question)  # type: ignore[arg-type]
            yield [_line(row, name, answer, measured) for name in measured] or [{"fault": "nothing is measured"}]
        except NeusightError as error:
            yield [{"fault": str(error)}]


def _line(row: Mapping[Any, Any], name: str, answer: Any, measured: Mapping[str, object]) -> Line:
    metric, figure = _metric(name), figure_of(answer, name, [*measured])
    ends = [row.get(f"repeated_{metric}_{end}_ms", np.nan) for end in ("min", "max")]
    repeated = np.log(ends[1] / ends[0]) / 2.0 if np.isfinite(ends).all() else row.get("std_ms", 0.0) / row[name]
    line = {"quantity": name, "metric": metric, "measured": row[name], "place": getattr(answer, "gpu", row.get("gpu"))}
    line |= {"noise": float(np.fmax(repeated, NOISE)), "doubts": doubts_of(answer, metric)}
    line |= dict(zip(("predicted", "low", "high"), figure, strict=True))
    unit = QUANTITIES[STATISTIC.sub("", name, count=1)].partition(":")[0]
    return {**line, "fault": fault_of(line, 1e3 * bound_s(answer) if metric == "time" else 0.0, unit)}


def evaluate_anchored(
    files: Sequence[Path], predictor: Predictor, choice: RowChoice, of: Sequence[str], progress: Progress | None = None
) -> list[dict[str, Any]]:
    """Errors of rows by kind and group without and with each other row of the group as the only measurement.

    Args:
        files: tables of measured rows.
        predictor: whose predictions.
        choice: which rows; its seed draws ``ROWS`` of each group.
        of: columns that groups share, such as source, or source and gpu.
        progress: called with (done, of) files.

    Raises:
        DataError: no group has three rows with predictions.
    """
    summary: list[dict[str, Any]] = []
    for number, path in enumerate(files):
        if progress:
            progress(number, len(files))
        table, _ = choice.of(read_table(path))
        names = [name for name in of if name in table.frame]
        frame = table.frame.assign(kind=kinds_of(table))
        for values, part in frame.groupby(["kind", *names], sort=False, observed=True):
            rows_of = RowChoice(limit=ROWS, seed=choice.seed).of(replace(table, frame=part.drop(columns="kind")))[0]
            rows = [row for row in _lines(rows_of, predictor) if "measured" in row[0]] if len(part) >= 3 else []
            if len(rows) >= 3:
                group = dict(zip(("kind", *names), values, strict=True))
                summary += [{**group, **errors} for errors in _errors(rows)]
    if not summary:
        raise DataError(f"no {' and '.join(of)} has three rows with predictions: give other files or columns")
    return summary


def _errors(rows: Sequence[Sequence[Line]]) -> Iterator[dict[str, Any]]:
    """Figures of errors by metric, without anchors and with each row in turn as the only one of the others."""
    import pandas as pd

    lines = pd.DataFrame([line for row in rows for line in row])
    moved_lines = []
    for row in rows:
        anchors = Given(lines=[line for line in row if not line["fault"]]).anchors
        moved_lines += [_anchored(line, anchors) for other in rows if other is not row for line in other]
    anchored = pd.DataFrame(moved_lines)
    for metric, part in lines.groupby("metric", sort=False):
        alone, together = figures(part), figures(anchored[anchored["metric"] == metric])
        changes = {f"anchored_{name}": together.get(name) for name in _SHOWN}
        yield {"metric": metric, "rows": len(part), **{n: alone.get(n) for n in _SHOWN}, **changes}


def _anchored(line: Line, anchors: Anchors) -> Line:
    """A line whose prediction is corrected by anchors."""
    move = moved(anchors, line["doubts"])
    predicted, factor = line["predicted"], np.exp(move.shift)
    ends = {n: factor * predicted * (line[n] / predicted) ** (move.after / move.before) for n in ("low", "high")}
    return {**line, "predicted": factor * predicted, **ends}
