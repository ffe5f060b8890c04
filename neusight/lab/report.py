"""``report.md``: the same form for every experiment, of its summary alone; every figure in it is computed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from neusight.lab.declare import DeclaredFigure, ErrorGroup, declared_in
from neusight.lab.figures import draw
from neusight.lab.page import filled, listing, quoted, table, wrapped
from neusight.lab.results import RESULTS, SUMMARY, Results, as_text, summary_of

REPORT = "report.md"
ERRORS: Mapping[str, tuple[str, str]] = {
    "rows": ("measured", "{rows:,}"),
    "count": ("rows", "{count:,}"),
    "groups": ("of", "{groups:,}"),
    "answered": ("answered", "{answered:.0f}"),
    "median": ("median", "{median:.1f}"),
    "mean": ("mean", "{mean:.1f}"),
    "bias": ("bias", "{bias:+.1f}"),
    "worst": ("worst", "{worst:.0f}"),
    "inside": ("inside", "{inside:.0f}"),
    "sign": ("sign", "{sign:.0f}"),
    "right": ("right", "{right:.1f}"),
    "wrongly_true": ("wrongly true", "{wrongly_true:.1f}"),
    "wrongly_false": ("wrongly false", "{wrongly_false:.1f}"),
}
"""Figures of groups: the head of their column, and their form; reports show all but the first."""
_BESIDE = ("median", "mean", "inside")
MOST_SKIPPED = 12
WORDS = (
    "Errors in percent of what was measured. bias: mean signed error, below zero predicted too low; inside: rows "
    "within their 90 % interval; answered: rows that have a prediction; sign: clear gains and losses predicted as such."
)


def write_results(folder: Path, results: Results) -> list[Path]:
    """Write results, summary, report and figures into a folder; the same results give the same files.

    Raises:
        DataError: results of an earlier form.
    """
    declared_in(results)
    folder.mkdir(parents=True, exist_ok=True)
    summary = summary_of(results)
    drawn = draw(results, folder)
    texts = {RESULTS: as_text(results)} if "rows" in results else {}
    texts |= {SUMMARY: as_text(summary), REPORT: render(summary)}
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in (*texts, *drawn)]


def render(results: Results) -> str:
    """The report as Markdown."""
    declared = declared_in(results)
    parts = [f"# {declared.title}", wrapped(declared.question)]
    for remark in filter(None, [results["quick"], results.get("outdated")]):
        parts.append(quoted(remark))
    again = f"Took {results['seconds'] / 60:.0f} min. Again with `neusight experiments run {results['experiment']}`."
    parts += ["\n".join(map(_item, (*declared.notes, again))), *verdict_section(results["verdicts"])]
    parts.append(wrapped(WORDS))
    for group in declared.groups:
        parts += _group(results["groups"].get(group.name, ()), group)
        parts += [_picture(drawing) for drawing in declared.figures if drawing.group == group.name]
    return "\n\n".join([*parts, *_rest(results)]) + "\n"


def _item(text: str) -> str:
    return "- " + wrapped(text, 78).replace("\n", "\n  ")


def _picture(drawing: DeclaredFigure) -> str:
    return f"![{drawing.file}]({drawing.file}.png)\n\n{wrapped(drawing.caption)}"


def _group(rows: Sequence[Results], group: ErrorGroup) -> list[str]:
    head = f"## {group.title or group.name.replace('_', ' ').capitalize()}"
    text = [wrapped(group.text)] if group.text else []
    if not rows or group.detail:
        return []
    if group.figure:
        return [head, *text, _filled(rows, group)]
    return [head, *text, listing(rows, columns_of(rows, group), words=len(_names(group)))]


def _filled(rows: Sequence[Results], group: ErrorGroup) -> str:
    """One figure, a row for each value of all columns but ``across``, and a column for each value of that."""
    down = [name for name in _names(group) if name != group.across]
    _, form = ERRORS.get(group.figure, ("", f"{{{group.figure}:.2f}}"))
    cells: dict[str, dict[str, str]] = {}
    for row in rows:
        named = cells.setdefault(" ".join(str(row[name]) for name in down), {})
        named[row.get(group.across, group.figure)] = filled(form, row)
    heads = list(dict.fromkeys(head for named in cells.values() for head in named))
    shown = ((name, *(named.get(head, "") for head in heads)) for name, named in cells.items())
    return table((" ".join(down), *heads), shown)


def _names(group: ErrorGroup) -> list[str]:
    return [name for name in group.by if name not in group.average]


def columns_of(rows: Iterable[Results], group: ErrorGroup, figures: Sequence[str] = ()) -> list[tuple[str, str]]:
    """Columns of a table of errors: what groups are by, then those figures that any row has."""
    known = {name for row in rows for name, value in row.items() if value is not None}
    full = all(row.get("answered") == 100.0 for row in rows)
    hidden = {"answered"} if full else set()
    shown = [name for name in figures or [*ERRORS][1:] if name in known - hidden]
    beside = [(f"{group.prefix} {name}", f"{{{group.prefix}_{name}:.1f}}") for name in _BESIDE]
    return [
        *((name.replace("_", " "), f"{{{name}}}") for name in _names(group)),
        *(ERRORS[name] for name in shown),
        *(beside if group.beside and not figures else ()),
    ]


def verdict_section(verdicts: Sequence[Results]) -> list[str]:
    """The targets, and what fell short."""
    if not verdicts:
        return []
    missed = [v for v in verdicts if not v["met"]]
    count = f"{len(missed)} of {len(verdicts)} missed." if missed else f"All {len(verdicts)} met."
    rows = [(v["target"], v["aim"], _value(v["value"]), "met" if v["met"] else "**missed**") for v in verdicts]
    parts = ["## Targets", count, table(("target", "aim", "found", ""), rows)]
    short = [_item(f"{v['target']}: {', '.join(v['short'])}") for v in missed if v["short"]]
    return parts + (["What fell short:\n\n" + "\n".join(short)] if short else [])


def _value(value: float) -> str:
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _rest(results: Results) -> list[str]:
    """Errors that others publish, rows that are most wrong, rows without an answer, values that are assumed."""
    parts: list[str] = []
    if rows := results["published"]:
        columns = (("who", "{contestant}"), ("of", "{of}"), ("figure", "{figure}"), ("rows", "{count:,}"),
                   ("theirs", "{theirs:.1f}"), ("ours", "{ours:.1f}"))  # fmt: skip
        parts += ["## Errors that others publish", listing(rows, columns, words=3)]
    worst = (("row", "{row}"), ("quantity", "{quantity}"), ("error", "{error:+.0f}"))
    reasons = [
        _item(text) for text in dict.fromkeys(f"{r['row']}: {r['reason']}" for r in results["worst"] if r["reason"])
    ]
    parts += ["## Most wrong", listing(results["worst"], worst, words=2), *(["\n".join(reasons)] if reasons else [])]
    for title, name, key in (("Without an answer", "skipped", "set"), ("What rows do not tell", "assumed", "column")):
        if rows := _most(results[name]):
            reasons_of = ((key, f"{{{key}}}"), ("why", "{reason}"), ("rows", "{rows:,}"))
            parts += [f"## {title}", listing(rows, reasons_of, words=2)]
    return parts


def _most(rows: Sequence[Results]) -> list[dict[str, Any]]:
    """The reasons with most rows."""
    ordered = sorted(rows, key=lambda row: -row["rows"])[:MOST_SKIPPED]
    return [{**row, "reason": " ".join(str(row["reason"]).split()).replace("|", "/")[:160]} for row in ordered]
