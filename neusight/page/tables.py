"""Tables of a page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def table(head: Sequence[str], rows: Iterable[Sequence[str]], ids: Sequence[str] = ()) -> str:
    """As HTML; the first column is of words, the others stand right; ``ids`` are of rows that something leads to."""
    titles = "".join(f'<th scope="col">{escape(title)}</th>' for title in head)
    cells = ["".join(map(_cell, row)) for row in rows]
    marks = [f' id="{escape(one)}" tabindex="-1"' for one in ids] or [""] * len(cells)
    lines = "".join(f"<tr{mark}>{line}</tr>" for mark, line in zip(marks, cells, strict=True))
    return f'<table class="figures" tabindex="0"><thead><tr>{titles}</tr></thead><tbody>{lines}</tbody></table>'


_LONG = 24
"""Characters of a cell that is prose, and may be broken."""


def _cell(text: str) -> str:
    kind = ' class="words"' if len(text) > _LONG else ""
    return f"<td{kind}>{escape(text)}</td>"
