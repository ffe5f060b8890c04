"""``read_result``: what a bench or log says as measured rows, with the words of options for what it does not say."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neusight.check.formats import ResultFormat, recognise
from neusight.check.places import number, value_at
from neusight.devices.load import find_device
from neusight.errors import DataError
from neusight.kernels import KERNEL_CLASSES
from neusight.kernels.named import family_of
from neusight.measured.feedback import cells_of
from neusight.measured.table import NOUNS, MeasuredTable, read_frame, table_of
from neusight.questions import KernelCall, Step
from neusight.questions.field import FieldError, pairs_of
from neusight.questions.launch import read_launch
from neusight.questions.question import Question, plain_number
from neusight.quick_dataclasses import dataclass

if TYPE_CHECKING:
    import pandas as pd

Words = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Result:
    """Measured rows of a file, each with its question.

    Attributes:
        format: that of the tool that wrote the file.
        questions: of the rows.
        table: the rows, numbered as in the file.
        replaced: words of the file that options replace, by field.
        empty: results that measured nothing that is known.
    """

    format: ResultFormat
    questions: Sequence[Question]
    table: MeasuredTable
    replaced: Words = field(default_factory=dict)
    empty: int = 0


def read_result(path: Path, options: Words) -> Result:
    """The measured rows of a file.

    Args:
        path: of a result in one of ``result_formats``.
        options: words by field, for what the file does not say and in place of what it says.

    Raises:
        DataError: no such result, or one that measured nothing. FieldError: a word that is missing, or that the
            question does not have. NeusightError: whatever else is wrong with the question.
    """
    import pandas as pd

    form, records, text = recognise(path)
    shared = {**form.fixed, **_argument_words(form, text, options)}
    named = {f"--{name.replace('_', '-')}": value for name, value in options.items()}
    rows, questions, replaced = [], [], dict[str, Any]()
    for place, record in enumerate(records):
        # Tools write 0 for what they did not measure.
        figures = {name: value for name, value in _values(path, form.quantities, {**record, **named}, number) if value}
        if not figures:
            continue
        said = {**shared, **dict(_values(path, form.words, {**record, **named}, plain_number))}
        replaced |= {name: said[name] for name in options if str(said.get(name, options[name])) != str(options[name])}
        questions.append(_question(form, {**said, **options}))
        software = value_at(form.software, record) if form.software else None
        origin = {"source": form.tool, "table": path.name, "row": place, "software": software}
        rows.append({**_cells(questions[-1]), **figures, **origin})
    if not rows:
        names = ", ".join(form.quantities)
        raise DataError(f"{path} of {form.tool} measured nothing that is known: {names}")
    table = table_of(path, _typed(pd.DataFrame(rows)))
    return Result(format=form, questions=questions, table=table, replaced=replaced, empty=len(records) - len(rows))


def _values(path: Path, places: Words, record: Words, convert: Callable[[Any], Any]) -> Iterator[tuple[str, Any]]:
    """Values by name of the places that a record fills.

    Raises:
        DataError: a text in place of a number.
    """
    for name, place in places.items():
        try:
            if (value := value_at(place, record)) is not None:
                yield name, convert(value)
        except DataError as error:
            raise DataError(f"{path}: {name}: {error}: correct the file") from None


def _argument_words(form: ResultFormat, text: str, options: Words) -> dict[str, Any]:
    """Words that arguments give which a log lists: those of a launch line, as far as it is known."""
    if not form.arguments:
        return {}
    found = re.findall(form.arguments, text, re.MULTILINE)
    line = " ".join(
        f"--{name.replace('_', '-')}{'' if value == 'True' else f' {value}'}"
        for name, value in found
        if value not in ("False", "None", "[]") and " " not in value
    )
    return read_launch(f"{form.program} {line}").words_beside(options) if found else {}


def _question(form: ResultFormat, words: Words) -> Question:
    """The question of a row; options that name a kernel ask of it."""
    noun = KernelCall if "name" in words else NOUNS[form.command]
    known = {name: value for name, value in words.items() if name not in form.fixed or name in noun.fields()}
    for name in known.keys() - noun.fields().keys() - noun.KEYS.keys():
        raise FieldError(name, f"is no option for a result of {form.tool}: give those of `neusight {noun.KIND}`")
    if known.get("gpu"):
        known["gpu"] = find_device(str(known["gpu"])).name
    question = noun.named(known)
    question.resolve(question.device()) if isinstance(question, Step) else question.resolve()  # type: ignore[attr-defined]
    return question


def _cells(question: Question) -> dict[str, Any]:
    """Question columns of the row."""
    cells = cells_of(question)
    if not isinstance(question, KernelCall):
        return {"command": question.KIND, **cells}
    name, _ = cells.pop("name"), cells.pop("shape", None)
    family = {"family": family_of(name), "op": None if name in KERNEL_CLASSES else name}
    return {**family, **pairs_of(question.shape), **cells}


def write_rows(result: Result, path: Path) -> int:
    """Add the rows to a CSV or parquet file of measured rows, which may not exist yet; returns how many it has then.

    Raises:
        DataError: the file holds other rows, or none.
    """
    import pandas as pd

    frame = _typed(pd.concat([read_frame(path), result.table.frame]) if path.exists() else result.table.frame)
    table_of(path, frame)
    frame.to_csv(path, index=False) if path.suffix == ".csv" else frame.to_parquet(path, index=False)
    return len(frame)


def _typed(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame as it is read from a CSV file."""
    import pandas as pd

    return pd.read_csv(StringIO(frame.dropna(axis=1, how="all").to_csv(index=False)))
