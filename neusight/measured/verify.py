"""Check tables of measured rows: columns, units, values, questions, doubts and hashes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from neusight.errors import DataError, NeusightError
from neusight.executors.gpu.tile_models.artifact import file_sha256
from neusight.measured.choice import filled_cells
from neusight.measured.compare import question_of
from neusight.measured.folder import table_parts
from neusight.measured.kernels import Skip
from neusight.measured.manifest import DataDescription, list_descriptions, read_description
from neusight.measured.suspects import RULES
from neusight.measured.table import MeasuredTable, read_table
from neusight.paths import checkout_dir
from neusight.questions import Serving, Step, Training

_PLAUSIBLE_MS = (1e-5, 1e8)
"""Ten nanoseconds to a day: beyond, the unit is another."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Rows of a file that a rule is about; a fault makes the file unsound, a doubt informs.

    Attributes:
        file: path of the file.
        rule: name of the rule.
        rows: how many.
        example: first of them, and why.
        fault: whether the file is not sound.
    """

    file: str
    rule: str
    rows: int
    example: str
    fault: bool


def verify(paths: Sequence[Path]) -> list[Finding]:
    """Check files, and all tables below folders; where a manifest lists them, their hashes too.

    Raises:
        DataError: no such file or folder, or a folder without a table.
    """
    found: list[Finding] = []
    for path in paths:
        for file in tables_below(path):
            found += _check_table(file)
        found += _check_hashes(path)
    return found


def tables_below(path: Path) -> list[Path]:
    """The file, or tables of measured rows in a folder, or else in its folders of kinds.

    Raises:
        DataError: the path does not exist, or the folder has none.
    """
    if path.is_file():
        return [path]
    files = [*path.glob("*.parquet"), *path.glob("*.csv")] or [*path.glob("*/*.parquet"), *path.glob("*/*.csv")]
    if not files:
        raise DataError(f"{path} holds no tables of measured rows: give a folder with .parquet or .csv files")
    return sorted(files)


def _check_table(file: Path) -> Iterator[Finding]:
    try:
        table = read_table(file)
    except NeusightError as error:
        yield Finding(file=str(file), rule="not a table of measured rows", rows=0, example=str(error), fault=True)
        return
    for rule, mask, why in (*_implausible(table), *_assumptions(table)):
        yield from _finding(table, rule, mask, why, fault=True)
    for reason, rows in _refused(table):
        mask = np.isin(np.arange(len(table)), rows)
        yield from _finding(table, "cannot be asked", mask, reason, fault=bool(mask.all()))
    marked = filled_cells(table, "suspect")
    yield from _finding(table, "marked as suspect", marked, _first(table, "suspect", marked), fault=False)
    for find, why in RULES.items():
        yield from _finding(table, find.__name__, find(table) & ~marked, why, fault=False)


def _finding(table: MeasuredTable, rule: str, mask: np.ndarray, why: str, *, fault: bool) -> Iterator[Finding]:
    if mask.any():
        example = f"row {int(mask.argmax()) + 1}: {why}"
        yield Finding(file=str(table.path), rule=rule, rows=int(mask.sum()), example=example, fault=fault)


def _first(table: MeasuredTable, name: str, mask: np.ndarray) -> str:
    return str(table.frame[name].iloc[int(mask.argmax())]) if mask.any() else ""


def _implausible(table: MeasuredTable) -> Iterator[tuple[str, np.ndarray, str]]:
    """Times that are hardly milliseconds."""
    least, most = _PLAUSIBLE_MS
    for name in table.quantities:
        cells = table.frame[name].to_numpy(float)
        if name.endswith("_ms"):
            wrong = (cells < least) | (cells > most)
            yield "implausible", wrong, f"{name} is {_first(table, name, wrong)}: is the unit ms?"


def _assumptions(table: MeasuredTable) -> Iterator[tuple[str, np.ndarray, str]]:
    if "assumed" in table.frame:
        texts = table.frame["assumed"]
        wrong = {text for text in texts.dropna().unique() if text and not _is_listed(str(text))}
        yield "assumed", texts.isin(wrong).to_numpy(), 'assumed is no JSON of [["column", "reason"], …]'


def _is_listed(text: str) -> bool:
    try:
        return all(len(pair) == 2 and all(isinstance(word, str) for word in pair) for pair in json.loads(text))
    except (ValueError, TypeError):
        return False


def _refused(table: MeasuredTable) -> list[tuple[str, np.ndarray]]:
    """Rows that are no question of today, by reason."""
    skipped: list[Skip] = []
    if table.kind == "kernels":
        for _ in table_parts(table, skipped):
            pass
    else:
        for place, row in enumerate(table.frame.to_dict("records")):
            try:
                question = question_of(row, table)
                if isinstance(question, Step):
                    question.resolve(question.device())
                elif isinstance(question, Training | Serving):
                    question.resolve()
            except NeusightError as error:
                skipped.append((str(error), np.array([place])))
    reasons = dict.fromkeys(reason for reason, _ in skipped)
    return [(reason, np.concatenate([rows for other, rows in skipped if other == reason])) for reason in reasons]


def _check_hashes(path: Path) -> Iterator[Finding]:
    """Files whose bytes are not those of the manifest, and of a folder files of its kinds that are missing."""
    for description in _descriptions(path):
        for record in description.files:
            file = path / record.path if path.is_dir() else path
            if file.absolute().as_posix().endswith(f"/{record.path}"):
                yield from _hash_finding(file, record.sha256)


def _descriptions(path: Path) -> list[DataDescription]:
    """Manifests that a folder brings along, else those of the checkout that describe files which are there."""
    folder = path if path.is_dir() else path.absolute().parent.parent
    if (folder / "manifest.json").is_file():
        return [read_description(folder / "manifest.json")]
    if (folder / "datasets").is_dir():
        return list_descriptions(folder / "datasets")
    if not any(checkout_dir("datasets").glob("*/manifest.json")):
        return []
    return [each for each in list_descriptions() if any((folder / file.path).is_file() for file in each.files)]


def _hash_finding(file: Path, expected: str) -> Iterator[Finding]:
    state = "missing" if not file.is_file() else "changed" if file_sha256(file) != expected else ""
    if state:
        why = f"the file is {state}: copy it again from its source"
        yield Finding(file=str(file), rule=f"{state} file", rows=0, example=why, fault=True)
