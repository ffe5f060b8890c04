"""``ResultFormat``: how a tool writes what it measured (``formats/*.toml``), and files in these formats."""

from __future__ import annotations

import csv
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

from neusight.check.places import at_path
from neusight.errors import DataError
from neusight.quick_dataclasses import dataclass

_FOLDER = Path(__file__).with_name("formats")
Records = list[dict[str, Any]]
_CUT = "\0"
"""Stands for a cell that a row of a table lacks."""


@dataclass(frozen=True, kw_only=True)
class ResultFormat:
    """How a tool writes what it measured.

    Attributes:
        tool: its name.
        command: the command that answers the question of a row.
        layouts: ``json`` (lines of JSON too), ``table`` (CSV, and tables of markdown), ``lines`` (text).
        marks: paths that every file of the tool has, of lines regular expressions that it contains.
        rows: path of the list of results, in a document that has one.
        header: regular expressions of lines, whose named groups are lists of all that they match.
        row: a regular expression of the text of a result.
        arguments: a regular expression of arguments (``name``, ``value``) of ``program`` in the text.
        program: what the arguments start.
        fixed: words of every question.
        words: places of words, by field.
        quantities: places of figures, by measured column.
        software: place of the version.
    """

    tool: str
    command: str
    layouts: Sequence[str]
    marks: Sequence[str]
    rows: str = ""
    header: Sequence[str] = ()
    row: str = ""
    arguments: str = ""
    program: str = ""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    words: Mapping[str, Any] = field(default_factory=dict)
    quantities: Mapping[str, Any]
    software: Any = ""

    def records(self, text: str) -> Records:
        """Results of a text; none where it is of another tool.

        Raises:
            DataError: a table that is cut off.
        """
        readers = {"json": self._from_json, "table": _table, "lines": self._from_lines}
        for layout in self.layouts:
            records = readers[layout](text)
            if records and (layout == "lines" or all(at_path(records[0], mark) is not None for mark in self.marks)):
                if cut := sum(value == _CUT for value in records[-1].values()):
                    raise DataError(f"its last row lacks {cut} cells, it is cut off")
                return records
        return []

    def _from_json(self, text: str) -> Records:
        documents = _json(text)
        if self.rows:
            nested = [(one, at_path(one, self.rows)) for one in documents]
            return [{**one, **row} for one, rows in nested if isinstance(rows, list) for row in rows]
        return documents

    def _from_lines(self, text: str) -> Records:
        if not all(re.search(mark, text, re.MULTILINE) for mark in self.marks):
            return []
        groups = [one.groupdict() for pattern in self.header for one in re.finditer(pattern, text, re.MULTILINE)]
        names = {name for group in groups for name in group}
        shared: dict[str, Any] = {name: [group[name] for group in groups if name in group] for name in names}
        if not self.row:
            return [shared] if shared else []
        return [{**shared, **match.groupdict()} for match in re.finditer(self.row, text, re.MULTILINE)]


@cache
def result_formats() -> Sequence[ResultFormat]:
    """All formats, by the names of their files; those of text, which may be JSON as well, are last."""
    files = sorted(_FOLDER.glob("*.toml"))
    formats = [ResultFormat(**tomllib.loads(file.read_text(encoding="utf-8"))) for file in files]
    return sorted(formats, key=lambda one: "lines" in one.layouts)


def recognise(path: Path) -> tuple[ResultFormat, Records, str]:
    """The format of a file, its results, and its text.

    Raises:
        DataError: no such file, an empty, a truncated one, or one of no known tool.
    """
    if not path.is_file():
        raise DataError(f"{path} {'is a folder' if path.is_dir() else 'is not there'}: give a file that a bench wrote")
    try:
        text = path.read_text(encoding="utf-8-sig")
        known = ((one, one.records(text), text) for one in result_formats())
        if found := next((each for each in known if each[1]), None):
            return found
    except (UnicodeDecodeError, DataError) as error:
        raise DataError(f"{path}: {error}: give JSON, CSV, markdown or a log that a bench wrote") from None
    fault = "is empty" if not text.strip() else "is no result of a known tool"
    if text.lstrip()[:1] in ("{", "[") and not _json(text):
        fault = "is truncated or damaged JSON"
    tools = ", ".join(dict.fromkeys(one.tool for one in result_formats()))
    raise DataError(f"{path} {fault}: give a whole result of one of {tools}")


def _json(text: str) -> Records:
    """Objects of a document, or of lines; none where the text is no JSON."""
    for document in ((text,), text.splitlines()):
        with suppress(ValueError, RecursionError):
            values = [json.loads(part) for part in document if part.strip()]
            values = values[0] if len(document) == len(values) == 1 and isinstance(values[0], list) else values
            if all(isinstance(value, dict) for value in values):
                return values
    return []


def _table(text: str) -> Records:
    """Rows of a table of markdown, else of CSV."""
    marked = [line.strip().strip("|") for line in text.splitlines() if line.lstrip().startswith("|")]
    rows = [line.split("|") for line in marked if set(line) - set("|-: ")] or [*csv.reader(text.splitlines())]
    head, *cells = [[cell.strip() for cell in row] for row in rows if row] or [[]]
    return [dict(zip_longest(head, row[: len(head)], fillvalue=_CUT)) for row in cells] if len(head) > 1 else []
