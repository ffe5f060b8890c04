"""Predictions beside what was measured, for every kind of rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.distributed.sources import memory
from neusight.errors import DataError, NeusightError
from neusight.estimates.energy import board_energy
from neusight.kernels.work import work_of
from neusight.measured.figures import MEMORY_FIGURES, Figure, figure_of, memory_figure
from neusight.measured.folder import table_parts
from neusight.measured.kernels import ROW_BY_ROW, KernelPart, Skip
from neusight.measured.table import CHANGES, NOUNS, MeasuredTable, columns_of, filled
from neusight.plans.fits import verdict
from neusight.questions import Training, WhatIfQuestion
from neusight.questions.files import question_of as kernel_question
from neusight.questions.question import Question

if TYPE_CHECKING:
    import pandas as pd

    from neusight.api import Predictor
    from neusight.executors import Costs
    from neusight.what_if import WhatIf
    from neusight.what_if.gain import Gain

Progress = Callable[[int, int], None]
Row = Mapping[Any, Any]
FIGURES = ("predicted", "low", "high", "measured")
"""Columns of predictions beside measurements in one unit; ends of 90 % intervals are NaN where none is stated."""
_SCORED = ("place", "quantity", *FIGURES)
Compared = tuple["pd.DataFrame", list[Skip]]
"""Lines of measured figures, and rows without an answer: reasons and positions."""
Figures = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Predictions and the ends of their intervals."""


def compare(table: MeasuredTable, predictor: Predictor, progress: Progress | None = None) -> Compared:
    """Every row that can be asked, a line for each quantity that it measured.

    Args:
        table: the rows.
        predictor: whose predictions.
        progress: called with (done, of) rows.

    Returns:
        ``place`` (the row's label in the frame), ``quantity`` and ``FIGURES``; rows that are no question or that the
        product refuses, as (reason, positions).
    """
    import pandas as pd

    if lists := _lists(table):
        return _compare_best(table, lists, predictor)
    if table.kind != "kernels":
        return _compare_models(table, predictor, progress)
    alone = table.frame[[name for name in ROW_BY_ROW if name in table.frame]].notna().any(axis=1).to_numpy(bool)
    if not alone.any():
        return _compare_kernels(table, predictor, progress)
    ways = ((_compare_models, alone), (_compare_kernels, ~alone))
    parts, skipped = [], []
    for answer, rows in ways:
        part, left_out = answer(replace(table, frame=table.frame[rows]), predictor, progress)
        parts += [part] if len(part) else []
        skipped += [(reason, np.flatnonzero(rows)[places]) for reason, places in left_out]
    return pd.concat(parts, ignore_index=True) if parts else part, skipped


def _lists(table: MeasuredTable) -> list[str]:
    """Columns of kernels whose cells are lists."""
    words = table.frame.select_dtypes(object) if table.kind == "kernels" else {}
    return [str(name) for name in words if table.frame[name].head(1).map(np.ndim).gt(0).any()]


def _compare_best(table: MeasuredTable, lists: list[str], predictor: Predictor) -> Compared:
    """Rates of the best of several products, whose extents are lists."""
    products = table.frame.explode(lists).infer_objects()
    lines, skipped = _compare_kernels(replace(table, frame=products), predictor, None)
    best = lines.groupby(["place", "quantity"])["predicted"].idxmax()
    rows = [(reason, np.unique(table.frame.index.get_indexer(products.index[each]))) for reason, each in skipped]
    return lines.loc[best].reset_index(drop=True), rows


def _compare_kernels(table: MeasuredTable, predictor: Predictor, progress: Progress | None) -> Compared:
    import pandas as pd

    frame, done = table.frame, 0
    skipped: list[Skip] = []
    lines = []
    for part in table_parts(table, skipped):
        for quantity in [name for name in table.quantities if name in KERNEL_FIGURES]:
            measured = frame[quantity].to_numpy(float)[part.rows]
            rows = np.flatnonzero(~np.isnan(measured))
            if not len(rows):
                continue
            try:
                asked = part if len(rows) == len(part.rows) else part.take(rows)
                costs = predictor.kernels(asked.batch, asked.device, conditions=asked.conditions)
                figures = KERNEL_FIGURES[quantity](costs, asked)
            except NeusightError as error:
                skipped.append((str(error), part.rows[rows]))
                continue
            columns = (frame.index[part.rows[rows]], quantity, *figures, measured[rows])
            lines.append(pd.DataFrame(dict(zip(_SCORED, columns, strict=True))))
        done += len(part.rows)
        if progress:
            progress(done, len(frame))
    return pd.concat(lines, ignore_index=True) if lines else _scored([]), skipped


def _latency(costs: Costs, _: KernelPart) -> Figures:
    low, high = costs.interval_s()
    return 1e3 * costs.latency_s, 1e3 * low, 1e3 * high


def _power(costs: Costs, part: KernelPart) -> Figures:
    """Power of the board while the kernel runs again and again."""
    drawn = zip(costs.drawn.total_j, costs.latency_s, strict=True)
    energies = [board_energy(part.device, joules, (seconds,) * 3) for joules, seconds in drawn]
    names = ("expected_j", "low_j", "high_j")
    expected, low, high = (np.array([getattr(one, name) for one in energies]) / costs.latency_s for name in names)
    return expected, low, high


def _rate(costs: Costs, part: KernelPart) -> Figures:
    flops, (low, high) = 1e-12 * work_of(part.batch).flops, costs.interval_s()
    return flops / costs.latency_s, flops / high, flops / low


def _execution(costs: Costs, _: KernelPart) -> Figures:
    return tuple(1e3 * (end_s - costs.overhead_s) for end_s in (costs.latency_s, costs.low_s, costs.high_s))


KERNEL_FIGURES = {"latency_ms": _latency, "execution_ms": _execution, "power_w": _power, "tflop_per_s": _rate}
"""Figures of kernels by measured column, with the ends of their intervals."""


def _scored(lines: Iterable[tuple[Any, ...]]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(lines, columns=_SCORED).astype(dict.fromkeys(FIGURES, float))


def _compare_models(table: MeasuredTable, predictor: Predictor, progress: Progress | None) -> Compared:
    skipped: list[Skip] = []
    lines, recent = [], RecentAnswers(predictor)
    records = table.frame.to_dict("records")
    for number, (place, row) in enumerate(zip(table.frame.index, records, strict=True)):
        try:
            figures = _figures(row, filled(row, table.quantities), recent, table)
        except NeusightError as error:
            skipped.append((str(error), np.array([number])))
            figures = {}
        lines += [(place, name, *figure, row[name]) for name, figure in figures.items()]
        if progress:
            progress(number + 1, len(records))
    return _scored(lines), skipped


class RecentAnswers:
    """A predictor that is not asked again for what it has answered: rows of a table often ask for the same, for its
    time and its memory or again and again, and gains for the same step without them.
    """

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor
        self._answers: list[tuple[Any, Any]] = []

    def ask(self, question: Any) -> Any:
        """As the predictor answers it, and raises what it refuses."""
        return self._once(self._predictor.ask, question)

    def what_if(self, question: WhatIfQuestion) -> WhatIf:
        """As the predictor answers it, each of the steps that it compares once."""
        from neusight.what_if.answers import changed_answers

        answer = getattr(self._predictor, "answer", self._predictor.ask)
        return changed_answers(question, partial(self._once, answer))

    def _once(self, answer: Callable[[Any], Any], question: Any) -> Any:
        for known, result in self._answers:
            if _is_same(known, question):
                return result
        self._answers.append((question, answer(question)))
        return self._answers[-1][1]


def _is_same(known: Any, question: Any) -> bool:
    with suppress(ValueError):  # Traces of requests are arrays.
        return bool(known == question)
    return False


def _figures(row: Row, measured: Collection[str], predictor: RecentAnswers, table: MeasuredTable) -> dict[str, Figure]:
    """Predicted figures of a row by measured column."""
    question = question_of(row, table)
    if isinstance(question, WhatIfQuestion):
        answers = predictor.what_if(question)
        if "gain" in measured:
            gain = gain_of(answers)
            return {"gain": (gain.ratio, gain.low, gain.high)}
        return {name: figure_of(answers.before, name) for name in measured}
    if isinstance(question, Training) and {*measured} <= {*MEMORY_FIGURES}:
        ranks = memory(run := question.resolve())
        fit = verdict(ranks, run.cluster.device)
        return {name: memory_figure(name, fit, ranks[-1].allocated) for name in measured}
    estimate = predictor.ask(question)
    return {name: figure_of(estimate, name, measured) for name in measured}


def kinds_of(table: MeasuredTable) -> list[str]:
    """The command that answers each row, ``gains`` of ratios; "" where a row is no question."""
    if table.kind != "models":
        return [{"kernels": "kernel"}.get(table.kind, table.kind)] * len(table)
    return [_kind_of(row) for row in table.frame.to_dict("records")]


def _kind_of(row: Row) -> str:
    try:
        return _noun(row, filled(row, columns_of("gains").keys() - CHANGES.keys())).KIND
    except NeusightError:
        return ""


def gain_of(answers: WhatIf) -> Gain:
    """In the metric that was asked for; of memory sources measure the peak of what is allocated."""
    return answers.gain("peak" if answers.metric == "memory" else answers.metric)


def question_of(row: Row, table: MeasuredTable) -> Question | WhatIfQuestion:
    """The question of a row.

    Raises:
        NeusightError: its words are no question.
    """
    if table.kind == "kernels":
        shape = filled(row, columns_of("kernels"))
        return kernel_question({name: _plain(value) for name, value in shape.items()}, "kernel")
    words = _words(row, table.path.parent)
    changed = {name: words.pop(name) for name in CHANGES if name in words}
    noun = _noun(row, words)
    if table.kind != "gains" and "upon" not in changed:
        return noun.named(words)
    metric = {"metric": row["metric"]} if table.kind == "gains" else {}
    return WhatIfQuestion.named({"command": noun.KIND, **words, **changed, **metric})


def _words(row: Row, folder: Path) -> dict[str, Any]:
    """Filled question columns; files that a row names are below the folder of its table, or beside it, as are those
    of devices that the catalogue lacks.
    """
    words = filled(row, columns_of("gains"))
    for place in (folder, folder.parent):
        file = place / "devices" / f"{words.get('gpu')}.toml"
        words |= {"gpu": str(file)} if file.is_file() else {}
    for name in ("trace", "model"):
        for place in (folder, folder.parent / "programs"):
            file = place / str(words.get(name, ""))
            if name in words and file.suffix in (".parquet", ".csv", ".pt2", ".onnx", ".json") and file.is_file():
                words[name] = str(file)
    return {str(name): _plain(value) for name, value in words.items()}


def _plain(value: Any) -> Any:
    """A cell as Python has it: whole numbers that gaps made floats, arrays as lists."""
    value = value.item() if isinstance(value, np.generic) else value
    value = value.tolist() if isinstance(value, np.ndarray) else value
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _noun(row: Row, words: Mapping[str, Any]) -> type[Question]:
    """The noun that has fields for all words; ``command`` names it where several do."""
    command = row.get("command")
    if isinstance(command, str):
        if command not in NOUNS:
            raise DataError(f"command '{command}' answers no rows: one of {', '.join(NOUNS)}")
        return NOUNS[command]
    nouns = [noun for noun in NOUNS.values() if words.keys() <= _names_of(noun.KIND)]
    if not nouns:
        raise DataError(f"no question has all of {', '.join(words)}: leave out a column")
    return nouns[0]


@cache
def _names_of(kind: str) -> frozenset[str]:
    """Names that fields of a kind of questions have or had."""
    return frozenset(name for one in NOUNS[kind].fields().values() for name in (*one.field.former, one.name))
