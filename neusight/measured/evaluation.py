"""``evaluate(files, predictor)``: predictions beside all measured figures of tables of any kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from os.path import commonpath
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.errors import DataError, nearest
from neusight.measured.choice import RowChoice
from neusight.measured.compare import FIGURES, KERNEL_FIGURES, Compared, Progress, compare, kinds_of
from neusight.measured.errors import SOUGHT
from neusight.measured.kernels import skipped_counts
from neusight.measured.table import MeasuredTable, columns_of, is_truth, read_table
from neusight.workers import hired, shared

if TYPE_CHECKING:
    import pandas as pd

    from neusight.api import Predictor

_FIGURES_OF_ROWS = ("kind", "quantity", *FIGURES, "ape", "inside", "suspect")
_CHANCES = {5: "0-5%", 20: "5-20%", 40: "20-40%", 60: "40-60%", 80: "60-80%", 95: "80-95%", 100: "95-100%"}
"""Intervals of predicted probabilities, values of the column ``chance``, by their upper ends [%]."""
_ROWS = 32
"""Rows that a process answers before it takes others."""
_asked: list[Callable[..., Compared]] = []
"""Who predicts the rows of tables in this process."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Measured figures beside their predictions.

    Attributes:
        tables: of each file a row for every measured figure: columns of the file, ``file``, ``kind``, ``quantity``,
            ``predicted``, ``low``, ``high`` and ``measured``; ``predicted`` is NaN where there is no answer; ``chance``
            is the interval of a predicted probability.
        skipped: of each file and reason, how many rows have no answer, or are left out because they are suspect.
    """

    tables: list[pd.DataFrame] = field(default_factory=list)
    skipped: list[dict[str, Any]] = field(default_factory=list)

    def columns(self, names: Sequence[str]) -> pd.DataFrame:
        """Some columns and all figures, of all files one below the other."""
        import pandas as pd

        wanted = dict.fromkeys(("quantity", *names, *FIGURES))
        return pd.concat([table.reindex(columns=list(wanted)) for table in self.tables], ignore_index=True)

    def rows(self, table: pd.DataFrame) -> list[dict[str, Any]]:
        """Answered rows of a table: where they come from, the question's words, and the figures."""
        kind = "kernels" if (table["kind"] == "kernel").any() else "models"
        words = [name for name in table if name in columns_of(kind).values()]
        answered = table[table["predicted"].notna()]
        percent = 100 * (answered["predicted"] / answered["measured"] - 1).abs()
        inside = (answered["low"] <= answered["measured"]) & (answered["measured"] <= answered["high"])
        columns = ["file", *(name for name in SOUGHT if name in table), *words, "kind", "quantity", *FIGURES]
        shown = answered[columns].assign(
            ape=percent.where(~is_truth(answered["quantity"])),
            inside=inside.astype(object).where(answered["low"].notna()),
            suspect=answered["suspect"] if "suspect" in table else None,
        )
        shown = shown.astype(object).where(shown.notna(), None)
        return list(shown.to_dict("records"))

    def worst(self, count: int) -> list[dict[str, Any]]:
        """Rows whose prediction errs most, with their question as words; verdicts have no size of an error."""
        import pandas as pd

        sized = [table[~is_truth(table["quantity"])] for table in self.tables]
        errors = pd.concat([(t["predicted"] / t["measured"]).map(np.log).abs() for t in sized], keys=range(len(sized)))
        found = []
        for number, at in errors.dropna().nlargest(count).index:
            (row,) = self.rows(sized[number].loc[[at]])
            words = {name: value for name, value in row.items() if name not in _FIGURES_OF_ROWS and value is not None}
            question = " ".join(f"{name}={value}" for name, value in words.items())
            found.append({**row, "error": 100 * (row["predicted"] / row["measured"] - 1), "question": question})
        return found

    @property
    def gpus(self) -> list[str]:
        """Devices of the rows."""
        return [str(gpu) for table in self.tables if "gpu" in table for gpu in table["gpu"].dropna().unique()]


def evaluate(
    files: Sequence[Path], predictor: Predictor, choice: RowChoice | None = None, progress: Progress | None = None, *,
    needed: Sequence[str] = (), jobs: int = 1, ray: str = "",
) -> Evaluation:  # fmt: skip
    """Predict every row of the files that is a question.

    Args:
        files: tables of measured rows.
        predictor: whose predictions.
        choice: which rows; default all that are not suspect.
        progress: called with (done, of) parts of the work.
        needed: columns of which each must be in one of the files.
        jobs, ray: processes that answer rows of models, see ``neusight.workers.hired``; kernels need none.

    Raises:
        DataError: a file that is no such table, a column that none has, or no row that can be compared, with a reason.
    """
    evaluation, names, tables = Evaluation(), [], []
    for path in files:
        table, suspect = (choice or RowChoice()).of(read_table(path))
        names.append(str(path.absolute().relative_to(commonpath([file.absolute().parent for file in files]))))
        if suspect:
            evaluation.skipped.append({"file": names[-1], "reason": "suspect, without --suspect", "rows": suspect})
        tables.append(table)
    _check_columns(tables, needed)
    for table, parts in answers(tables, partial(compare, predictor=predictor), progress, jobs, ray):
        name = names[len(evaluation.tables)]
        evaluation.tables.append(_compact(lines_of(name, table, [scored for scored, _ in parts])))
        reasons = skipped_counts([skip for _, skipped in parts for skip in skipped])
        evaluation.skipped.extend({"file": name, **reason} for reason in reasons)
    if not any(table["predicted"].notna().any() for table in evaluation.tables):
        why = evaluation.skipped[-1]["reason"] if evaluation.skipped else "none is of this choice"
        raise DataError(f"no row of {', '.join(map(str, files))[:200]} can be compared: {why}")
    return evaluation


def _check_columns(tables: Sequence[MeasuredTable], names: Sequence[str]) -> None:
    """Raises:
    DataError: a column that no table has, with the nearest that one has.
    """
    columns = (str(name) for table in tables for name in table.frame if name not in table.quantities)
    known = dict.fromkeys(["file", "kind", "quantity", "chance", *columns])
    if missing := [name for name in names if name not in known]:
        hint = nearest(missing[0], known) or f": one of {', '.join(known)}"
        raise DataError(f"no table has a column '{missing[0][:40]}'{hint}")


def _begin(asked: Callable[..., Compared]) -> None:
    _asked[:] = [asked]


def _compact(lines: pd.DataFrame) -> pd.DataFrame:
    """The same lines with whole numbers in as few bytes as hold them: tables have millions of rows."""
    import pandas as pd

    whole = lines.select_dtypes("int64")
    return lines.assign(**{str(name): pd.to_numeric(whole[name], downcast="integer") for name in whole})


def answers(
    tables: list[MeasuredTable], asked: Callable[..., Compared], progress: Progress | None, jobs: int, ray: str
) -> Iterator[tuple[MeasuredTable, list[Compared]]]:
    """Each table, which leaves the list, with answers of ``asked``, called with a table and ``progress``, to its parts:
    kernels all at once in this process, rows of models shared by workers.
    """
    parts = [[] if table.kind == "kernels" else _parts(table) for table in tables]
    tasks = [part for each in parts for part in each]
    with hired(*((jobs, ray) if tasks else (1, "")), _begin, asked) as workers:
        shares = iter(shared(workers, _compared, tasks, progress))
    for each in parts:
        table = tables.pop(0)
        yield table, [next(shares) for _ in each] or [asked(table, progress=progress)]


def _parts(table: MeasuredTable) -> list[MeasuredTable]:
    """Some rows at a time, in an order in which those that ask for the same follow each other."""
    words = [name for name in dict.fromkeys(columns_of("gains").values()) if name in table.frame]
    order = table.frame[words].astype(str).sort_values(words, kind="stable").index if words else table.frame.index
    frame = table.frame.loc[order]
    return [replace(table, frame=frame.iloc[at : at + _ROWS]) for at in range(0, len(table), _ROWS)]


def _compared(table: MeasuredTable) -> Compared:
    return _asked[0](table)


def lines_of(file: str, table: MeasuredTable, answers: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """A row for each measured figure that a prediction could be of."""
    import pandas as pd

    frame, quantities = table.frame, table.quantities
    if table.kind == "kernels":
        quantities = [name for name in quantities if name in KERNEL_FIGURES]
    kinds = pd.Categorical(kinds_of(table))
    figures = np.full((len(quantities), 3, len(frame)), np.nan)
    for scored in (scored for scored in answers if len(scored)):
        rows = frame.index.get_indexer(scored["place"])
        places = pd.Index(quantities).get_indexer(scored["quantity"].astype(str))
        figures[places, :, rows] = scored[["predicted", "low", "high"]].to_numpy(float)
    parts = []
    for quantity, (predicted, low, high) in zip(quantities, figures, strict=True):
        columns = {"predicted": predicted, "low": low, "high": high, "measured": frame[quantity]}
        part = frame.drop(columns=table.quantities).assign(file=file, kind=kinds, quantity=quantity, **columns)
        percent = 100.0 * part["predicted"].where(is_truth(part["quantity"]))
        chance = pd.cut(percent, [0, *_CHANCES], labels=[*_CHANCES.values()], include_lowest=True)
        parts.append(part.assign(chance=chance)[part["measured"].notna()])
    return pd.concat(parts, ignore_index=True)
