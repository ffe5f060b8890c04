"""The only output of commands: data to stdout as a table, JSON or CSV; notes, warnings and progress to stderr."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import isfinite
from textwrap import wrap
from typing import Any, Literal, Protocol

from neusight.quick_dataclasses import dataclass
from neusight.units import decimal, gib, milliseconds

Rows = Sequence[Mapping[str, Any]]
_WORD = 12
"""No column of words becomes narrower than this."""
_GAP = 2
"""Blanks between two columns."""
_ALONE = "\N{ZERO WIDTH NO-BREAK SPACE}"
"""Marks a row whose first cell is printed above it."""


@dataclass(frozen=True)
class Column:
    """A column of a table for people. Numbers are aligned right; where space is short, words wrap."""

    title: str
    right: bool = False
    wrap: bool = False

    @classmethod
    def of(cls, text: str) -> Column:
        """The column of a text: ``>title`` is aligned right, ``~title`` wraps."""
        return cls(text.removeprefix(">").removeprefix("~"), right=text.startswith(">"), wrap=text.startswith("~"))


@dataclass(frozen=True)
class Output:
    """Output of a command's result. ``form`` is human, json or csv."""

    form: str

    def data(self, data: Any, rows: Rows, human: Callable[[], None]) -> None:
        """Show one result: ``data`` as JSON, ``rows`` as CSV, or as ``human`` prints it."""
        if self.form == "json":
            print(json.dumps(_finite(data), indent=2, ensure_ascii=False, default=str))
        elif self.form == "csv":
            _csv(rows)
        else:
            human()


def note(text: str) -> None:
    """Print a line for the person at the terminal, on stderr."""
    print(text, file=sys.stderr)


def line(text: str = "") -> None:
    """Print a line of the result, for people."""
    print(text)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table of the result, for people, as wide as the terminal (80 columns without one).

    No text is cut. A first cell that is too long for its column, such as an id, has a separate line.

    Args:
        columns: titles, see ``Column.of``.
        rows: cells.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console, heads, cells = Console(markup=False, highlight=False), list(map(Column.of, columns)), list(map(list, rows))
    widths = _column_widths(heads, cells, console.width)
    console.width = max(console.width, sum(widths) + _GAP * (len(widths) - 1))
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    for head, width in zip(heads, widths, strict=True):
        justify: Literal["left", "right"] = "right" if head.right else "left"
        shown.add_column(head.title, justify=justify, overflow="fold", no_wrap=not head.wrap, min_width=width)
    long_cells = [row[0] for row in cells if not heads[0].wrap and len(row[0]) > widths[0]]
    for first, *others in cells:
        shown.add_row(_ALONE if first in long_cells else first, *others)
    with console.capture() as captured:
        console.print(shown)
    for text in captured.get().rstrip("\n").split("\n"):
        if text.startswith(_ALONE):
            print(long_cells.pop(0))
        print(text.replace(_ALONE, "").rstrip())


def figures(columns: str, rows: Iterable[Any], title: str | None = None) -> None:
    """Print a table of rows, below a title if given; nothing where there are no rows.

    Args:
        columns: heads with bars between them, each as in ``Column.of`` and with its figure or form where that is not
            its name: ``gpu | >mean = mape:.1f | ~plan = {tp} x {pp} | >time = latency_s``.
        rows: figures by name, or objects that have them as attributes. Times and sizes are written by the unit at the
            end of their name, others by the format behind their name; a dash marks missing figures.
        title: lines above the table.
    """
    named = [tuple(part.strip() for part in column.partition("=")) for column in columns.split("|")]
    heads = [head for head, _, _ in named]
    cells = [[_figure(form or head.lstrip(">~"), row) for head, _, form in named] for row in rows]
    if cells and title is not None:
        line(title)
    if cells:
        table(heads, cells)


_WRITTEN: dict[str, Callable[[Any], str]] = {
    "_ms": lambda value: milliseconds(value / 1e3), "_s": milliseconds, "_bytes": gib, ":bar": lambda share: bar(share),
    ":decimal": decimal, ":decimal4": lambda value: decimal(value, 4), ":decimal6": lambda value: decimal(value, 6),
}  # fmt: skip
"""Functions that write figures, by the end of their form."""
_NAMED = re.compile(r"{([^}]*)}")


def _figure(form: str, row: Any) -> str:
    """The text of a figure, which has a name, a name with a format, or several of them in braces."""
    try:
        return _NAMED.sub(lambda part: _write(part[1], row), form if "{" in form else f"{{{form}}}").strip()
    except (KeyError, TypeError):
        return "-"


def _write(form: str, row: Any) -> str:
    """Raises:
    KeyError, TypeError: the row lacks the figure.
    """
    name, _, spec = form.partition(":")
    value = row[name] if isinstance(row, Mapping) else getattr(row, name)
    if value is None:
        raise KeyError(name)
    write = next((write for end, write in _WRITTEN.items() if form.endswith(end)), None)
    return write(value) if write else format(value, spec)


def _column_widths(heads: Sequence[Column], cells: Sequence[Sequence[str]], width: int) -> list[int]:
    """Least width of each column. The first is as wide as its longest text that leaves room for the others."""
    texts = [[*head.title.split("\n"), *column] for head, *column in zip(heads, *cells, strict=True)]
    longest = [max(map(len, column)) for column in texts]
    least = [min(most, _WORD) if head.wrap else most for head, most in zip(heads, longest, strict=True)]
    room = max(width - sum(least[1:]) - _GAP * (len(least) - 1), _WORD)
    fitting = max((len(text) for text in texts[0] if len(text) <= room), default=room)
    return [least[0] if heads[0].wrap else fitting, *least[1:]]


def headline(text: str) -> None:
    """Print a text wrapped at 80 columns, its further lines indented."""
    for place, part in enumerate(wrap(text, 76, break_on_hyphens=False)):
        line(f"{'  ' if place else ''}{part}")


def paragraph(title: str, *texts: str, indent: int = 12) -> None:
    """Print each text from a new line, wrapped at 80 columns, to the right of the title; nothing without texts."""
    parts = (part for text in texts for part in wrap(text, 80 - indent, break_on_hyphens=False))
    for place, part in enumerate(parts):
        line(f"{'' if place else title:{indent}}{part}")


def bar(share: float, width: int = 10) -> str:
    """A bar of ``share`` (0 to 1), in eighths of a character where the terminal can show them."""
    if not (sys.stdout.encoding or "").lower().startswith("utf"):
        return "#" * round(max(0.0, min(1.0, share)) * width)
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    return "█" * (eighths // 8) + ("▏▎▍▌▋▊▉"[eighths % 8 - 1] if eighths % 8 else "")


class Advance(Protocol):
    """Function that reports the progress of work."""

    def __call__(self, done: int, of: int, best: str = "") -> None:
        """Report parts done, of how many (0 where unknown), and the best answer so far in words."""


@contextmanager
def busy(text: str, answer: str = "best so far") -> Iterator[Advance]:
    """Show a moving line on stderr while something runs, if stderr is a terminal; yields a function to call.

    Args:
        text: name of the work.
        answer: words before the best answer.
    """
    if not sys.stderr.isatty():
        yield lambda done, of, best="": None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(text, total=None)

        def advance(done: int, of: int, best: str = "") -> None:
            count = f": {done:,} of {of:,}" if of else f": {done:,}" if done else ""
            shown.update(task, description=f"{text}{count}{f', {answer} {best}' if best else ''}")

        yield advance


@contextmanager
def tasks() -> Iterator[Callable[[str, int, int, float], None]]:
    """Show a progress bar a task on stderr; yields a function to call with (task, done, of, error).

    Without a terminal, a finished task leaves a line.
    """
    if not sys.stderr.isatty():
        yield lambda task, done, of, error: note(f"{task}: done {_error(error)}".rstrip()) if done == of else None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bars: dict[str, Any] = {}
    with Progress(*columns, TextColumn("{task.fields[error]}"), console=Console(stderr=True)) as shown:

        def report(task: str, done: int, of: int, error: float) -> None:
            if task not in bars:
                bars[task] = shown.add_task(task, total=of, error="")
            shown.update(bars[task], completed=done, total=of, error=_error(error))

        yield report


def _error(error: float) -> str:
    return f"error {error:.3f}" if isfinite(error) else ""


def _csv(rows: Rows) -> None:
    import csv

    if not rows:
        return
    names = dict.fromkeys(name for row in rows for name in row)
    writer = csv.DictWriter(sys.stdout, fieldnames=list(names), lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _cell(value) for key, value in row.items()} for row in rows)


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else value


def _finite(data: Any) -> Any:
    """Data that JSON can represent: null for NaN, plain numbers and lists for scalars and arrays of numpy."""
    if hasattr(data, "tolist"):
        data = data.tolist()
    if isinstance(data, float):
        return data if isfinite(data) else None
    if isinstance(data, Mapping):
        return {key: _finite(value) for key, value in data.items()}
    return [_finite(value) for value in data] if isinstance(data, list | tuple) else data
