"""Tables of a page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

_LONG = 24
"""Characters of a cell that is prose, and may be broken."""


def table(head: Sequence[str], rows: Iterable[Sequence[str]], ids: Sequence[str] = ()) -> str:
    """As HTML; columns of words stand left, those of figures right; ``ids`` are of rows that something leads to."""
    lines = [tuple(row) for row in rows]
    words = [place == 0 or all(map(_is_word, column)) for place, column in enumerate(zip(*lines, strict=True))]
    words = words or [True] * len(head)
    titles = "".join(
        f'<th scope="col"{_kind(word, "")}>{escape(title)}</th>' for title, word in zip(head, words, strict=True)
    )
    marks = [f' id="{escape(one)}" tabindex="-1"' for one in ids] or [""] * len(lines)
    body = "".join(f"<tr{mark}>{_cells(line, words)}</tr>" for mark, line in zip(marks, lines, strict=True))
    return f'<table class="figures" tabindex="0"><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table>'


def _cells(line: Sequence[str], words: Sequence[bool]) -> str:
    return "".join(f"<td{_kind(word, text)}>{escape(text)}</td>" for text, word in zip(line, words, strict=True))


def _is_word(text: str) -> bool:
    return text[:1].isalpha() or text[:1] == "_"


def _kind(word: bool, text: str) -> str:
    kinds = [name for name, holds in (("words", word), ("prose", word and len(text) > _LONG)) if holds]
    return f' class="{" ".join(kinds)}"' if kinds else ""
