"""Plain HTML without a server: tables, and pages of accuracy for a project's site with pictures, CSV and JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from neusight.errors import DataError
from neusight.page.accuracy import BY, HEAD, accuracies, cells_of, chart
from neusight.paths import writable

STYLE = Path(__file__).with_name("style.css")
_FORMS = ("svg", "png", "csv", "json")
_LONG = 24
"""Characters of a cell that is prose, and may be broken."""


def export(folder: Path) -> list[Path]:
    """Write a page for each grouping of accuracy, with its figure.

    Returns:
        The pages.

    Raises:
        DataError: the folder cannot be written.
    """
    writable(folder, folder=True)
    folder.mkdir(parents=True, exist_ok=True)
    pages = {name: f"{'index' if place == 0 else name.replace(' ', '-')}.html" for place, name in enumerate(BY)}
    return [_page(folder / file, by, pages) for by, file in pages.items()]


def _page(path: Path, by: str, pages: dict[str, str]) -> Path:
    rows = accuracies(by)
    if not rows:
        raise DataError(f"no experiment tells accuracy by {by}: run in a checkout, or install the wheel")
    figure = chart(by, rows)
    stem = by.replace(" ", "-")
    files = [f"{stem}.{form}" for form in _FORMS]
    for file in files:
        figure.save(path.with_name(file))
    here = ' aria-current="page"'
    names = " ".join(f'<a href="{file}"{here if name == by else ""}>{escape(name)}</a>' for name, file in pages.items())
    links = " ".join(f'<a href="{file}">{file.rpartition(".")[2].upper()}</a>' for file in files)
    title = escape(figure.title)
    path.write_text(
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title} · neusight</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE.read_text()}{_STATIC}</style></head><body>"
        f'<header><nav class="views"><span class="brand">neusight</span>{names}</nav></header>'
        f'<main class="nicegui-content"><h1>{title}</h1><img src="{files[0]}" alt="{title}">'
        f'<p class="links">{links}</p>{table(HEAD, map(cells_of, rows))}</main></body></html>',
        encoding="utf-8",
    )
    return path


_STATIC = "body { margin: 0; font-family: sans-serif; } header { background: #0b3f6b; color: #fff; padding: 8px 16px; }"
_STATIC += " img { max-width: 100%; height: auto; background: #fff; }"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], ids: Sequence[str] = ()) -> str:
    """A table as HTML; columns of words are aligned left, figures right; ``ids`` are link targets of rows."""
    lines = [tuple(row) for row in rows]
    words = [place == 0 or all(map(_is_word, column)) for place, column in enumerate(zip(*lines, strict=True))]
    words = words or [True] * len(head)
    heads = zip(head, words, strict=True)
    titles = "".join(f'<th scope="col"{_kind(word, "")}>{escape(title)}</th>' for title, word in heads)
    marks = [f' id="{escape(row_id)}" tabindex="-1"' for row_id in ids] or [""] * len(lines)
    body = "".join(f"<tr{mark}>{_cells(line, words)}</tr>" for mark, line in zip(marks, lines, strict=True))
    return f'<table class="figures" tabindex="0"><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table>'


def _cells(line: Sequence[str], words: Sequence[bool]) -> str:
    return "".join(f"<td{_kind(word, text)}>{escape(text)}</td>" for text, word in zip(line, words, strict=True))


def _is_word(text: str) -> bool:
    return text[:1].isalpha() or text[:1] == "_"


def _kind(word: bool, text: str) -> str:
    kinds = [name for name, holds in (("words", word), ("prose", word and len(text) > _LONG)) if holds]
    return f' class="{" ".join(kinds)}"' if kinds else ""
