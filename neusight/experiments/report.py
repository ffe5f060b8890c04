"""``report.md`` and the accuracy tables of the documentation: every figure and every judgement in them is computed.

Both are made of a summary alone, so that what is committed can be written again; figures of single rows need the rows.
What is outdated has no figures, and no part in the documentation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from neusight.experiments.accelerators import ACCELERATORS
from neusight.experiments.pairs_report import PAIRS
from neusight.experiments.programs_report import PROGRAMS
from neusight.experiments.results import RESULTS, SUMMARY, as_text, has_rows, summary_of
from neusight.experiments.runs_report import SERVING, TRAINING
from neusight.lab.accuracy import headed
from neusight.lab.page import Drawing, ReportForm, save, table, wrapped

REPORT = "report.md"
REPORTS: dict[str, ReportForm] = {
    "serving": SERVING,
    "training": TRAINING,
    "programs": PROGRAMS,
    "pairs": PAIRS,
    "accelerators": ACCELERATORS,
}
"""By kind of experiment."""
Results = Mapping[str, Any]


def write_results(folder: Path, results: Results) -> list[Path]:
    """Write results, summary, report and figures into a folder; the same results give the same files."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn, summary = draw(results, folder), summary_of(results)
    shown = [name for name in drawings(results) if (folder / name).is_file()]
    texts = {RESULTS: as_text(results)} if has_rows(results) else {}
    texts |= {SUMMARY: as_text(summary), REPORT: render(summary, shown)}
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in (*texts, *drawn)]


def drawings(results: Results) -> dict[str, Drawing]:
    """The figures that results of their kind may have, by file name, in the order of the report."""
    declared = results["declared"]
    known = dict(REPORTS[declared["kind"]].figures)
    return {} if results.get("outdated") else known


def draw(results: Results, folder: Path) -> list[str]:
    """Draw what results hold into ``folder``; the names of what was drawn.

    Figures of an earlier run that this one lacks go; a summary leaves those of rows as they are.
    """
    known = drawings(results)
    drawable = [name for name, drawing in known.items() if drawing.drawable(results)]
    for name in drawable:
        save(known[name].draw(results), folder / name)
    every = {name for report in REPORTS.values() for name in report.figures}
    for name in every - set(known if not has_rows(results) else drawable):
        (folder / name).unlink(missing_ok=True)
    return drawable


def render(results: Results, drawn: Sequence[str]) -> str:
    """The report as Markdown, of results or their summary, with figures of these names."""
    declared, report = results["declared"], REPORTS[results["declared"]["kind"]]
    parts = [f"# {declared['title']}", wrapped(declared["question"])]
    remarks = [f"**{results['quick']}**"] if results["quick"] else []
    for remark in (*remarks, *filter(None, [results.get("outdated")])):
        parts.append("> " + wrapped(remark, 78).replace("\n", "\n> "))
    parts.append("\n".join(map(_item, report.setup(results))))
    parts += _verdicts(results["verdicts"], report.remark)
    known = drawings(results)
    for part, words in report.sections(results).items():
        parts += words
        shown = {name: known[name] for name in drawn if name in known and known[name].part == part}
        parts += [f"![{name.removesuffix('.png')}]({name})\n\n{wrapped(d.caption)}" for name, d in shown.items()]
    return "\n\n".join(parts) + "\n"


def _item(text: str) -> str:
    return "- " + wrapped(text, 78).replace("\n", "\n  ")


def _verdicts(verdicts: Sequence[Results], remark: str) -> list[str]:
    if not verdicts:
        return []
    missed = [v for v in verdicts if not v["met"]]
    count = f"{len(missed)} of {len(verdicts)} missed." if missed else f"All {len(verdicts)} met."
    rows = [(v["target"], v["aim"], _value(v["value"]), "met" if v["met"] else "**missed**") for v in verdicts]
    parts = ["## Targets", wrapped(f"{count} {remark}".strip()), table(("target", "aim", "found", ""), rows)]
    short = [_item(f"{v['target']}: {', '.join(v['short'])}") for v in missed if v["short"]]
    return parts + (["What fell short:\n\n" + "\n".join(short)] if short else [])


def _value(value: float) -> str:
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def accuracy_part(results: Results) -> str:
    """An experiment's part of docs/accuracy.md."""
    declared = results["declared"]
    head = headed(declared["title"], declared["question"], results["experiment"])
    return "\n\n".join([head, *REPORTS[declared["kind"]].accuracy(results)])
