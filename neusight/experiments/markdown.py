"""Tables in Markdown that read as text, too."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]], words: int = 1) -> str:
    """A Markdown table, padded so that it reads as text, too; columns after the first ``words`` stand right."""
    cells = [list(head), *(list(row) for row in rows)]
    widths = [max(3, *(len(row[place]) for row in cells)) for place in range(len(head))]
    rule = ["-" * width if place < words else "-" * (width - 1) + ":" for place, width in enumerate(widths)]
    lines = [_line(cells[0], widths, words), f"| {' | '.join(rule)} |"]
    return "\n".join([*lines, *(_line(row, widths, words) for row in cells[1:])])


def _line(row: Sequence[str], widths: Sequence[int], words: int) -> str:
    padded = [
        text.ljust(width) if place < words else text.rjust(width)
        for place, (text, width) in enumerate(zip(row, widths, strict=True))
    ]
    return f"| {' | '.join(padded)} |"


def figure(value: float | None, form: str = ".1f") -> str:
    """A number, or nothing where there is none."""
    return "" if value is None else format(value, form)


def wrapped(text: str, width: int = 80) -> str:
    """Prose in lines of at most so many characters."""
    from textwrap import fill

    return fill(text, width, break_long_words=False, break_on_hyphens=False)
