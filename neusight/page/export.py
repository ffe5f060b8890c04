"""Pages of accuracy for a project's site: plain HTML with pictures, figures as CSV and JSON, and no server."""

from __future__ import annotations

from html import escape
from pathlib import Path

from neusight.errors import DataError
from neusight.figures import Chart
from neusight.page.accuracy import BY, HEAD, accuracies, cells_of, chart
from neusight.page.tables import table
from neusight.paths import writable

STYLE = Path(__file__).with_name("style.css")
_FORMS = ("svg", "png", "csv", "json")


def export(folder: Path) -> list[Path]:
    """Write a page for each thing that accuracy is told by, with its figure.

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
    files = [_write(figure, path.with_name(f"{stem}.{form}")) for form in _FORMS]
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


def _write(figure: Chart, path: Path) -> str:
    figure.save(path)
    return path.name
