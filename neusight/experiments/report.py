"""``report.md`` and the accuracy tables of the documentation: every figure and every judgement in them is computed.

Both are made of a summary alone, so that what is committed can be written again; figures of single rows need the rows.
What is outdated has no figures, and no part in the documentation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from neusight.errors import DataError
from neusight.experiments.accelerators import ACCELERATORS
from neusight.experiments.energy import ENERGY
from neusight.experiments.measured_report import MEASURED
from neusight.experiments.page import Drawing, ReportForm, save, table, wrapped
from neusight.experiments.pairs_report import PAIRS
from neusight.experiments.programs_report import PROGRAMS
from neusight.experiments.results import RESULTS, SUMMARY, as_text, has_rows, summary_of
from neusight.experiments.runs_report import SERVING, TRAINING
from neusight.experiments.sparse_report import SPARSE, declared_drawings

REPORT = "report.md"
REPORTS: dict[str, ReportForm] = {
    "measured": MEASURED,
    "sparse": SPARSE,
    "serving": SERVING,
    "training": TRAINING,
    "programs": PROGRAMS,
    "pairs": PAIRS,
    "energy": ENERGY,
    "accelerators": ACCELERATORS,
}
"""By kind of experiment."""
BEGIN, END = "<!-- accuracy:begin -->", "<!-- accuracy:end -->"
Results = Mapping[str, Any]
HEADLINES: tuple[tuple[str, str, str, Mapping[str, Any]], ...] = (
    ("matrix products, whole GPU architecture left out", "leave-one-architecture-out", "kernels.by_kinship",
     {"predictor": "ours", "kind": "linear"}),
    ("whole models, GPU left out", "asplos25", "models.groups", {"predictor": "ours", "group": "held_out"}),
    ("PyTorch programs above 1 ms, GPU chip left out", "kernelbench", "errors",
     {"left_out": "die", "mode": "eager", "size": "above 1 ms"}),
    ("answers of served language models, Hopper left out", "serving", "dies",
     {"die": "GH100", "source": "all", "engine": "all", "quantity": "e2e_ms"}),
    ("training steps on 8 to 2,048 GPUs, Hopper left out", "distributed", "left_out.steps",
     {"die": "GH100", "source": "all"}),
    ("training steps on Trainium, never fitted", "accelerators", "tables", {"table": "training_neuron"}),
    ("gains that thirty public projects published", "what-if", "optimisations", {"optimisation": "all"}),
)  # fmt: skip
"""Rows of README's table: title, experiment, path of the table in its summary, and the row's keys there."""


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
    known = dict(REPORTS[declared["kind"]].figures) | declared_drawings(declared)
    if declared["kind"] == "measured":
        # One predictor is in the other figures, and a roof in float32 is not that of several dtypes.
        for name, spare in (
            ("predictors.png", len(declared["predictors"]) == 1),
            ("roofline.png", bool(declared["data"]["sets"])),
        ):
            if spare:
                del known[name]
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


def accuracy_block(all_results: Sequence[Results]) -> str:
    """The text between the marks: a part an experiment, in the order of their ids, but for those that are outdated."""
    current = [results for results in all_results if not results.get("outdated")]
    return "\n\n".join(_part(results) for results in sorted(current, key=lambda r: r["experiment"]))


def _part(results: Results) -> str:
    declared = results["declared"]
    head = f"**{declared['title']}.** {declared['question']}\nDetails: `experiments/{results['experiment']}/report.md`."
    return "\n\n".join([head, *REPORTS[declared["kind"]].accuracy(results)])


def headline_block(all_results: Sequence[Results]) -> str:
    """README's table: a row for each of ``HEADLINES``, errors in percent."""
    summaries = {results["experiment"]: results for results in all_results}
    rows = []
    for title, experiment, path, keys in HEADLINES:
        name, _, column = path.partition(".")
        entries = summaries[experiment][name]
        if isinstance(entries, Mapping):
            entries, column = entries[column], ""
        row = next(entry for entry in entries if keys.items() <= entry.items())
        row = row[column] if column else row
        rows.append((title, f"{row['count']:,}", *(f"{row[figure]:.1f}" for figure in ("median", "mean")),
                     f"{row['inside']:.0f}"))  # fmt: skip
    return table(("what was predicted", "numbers", "median error", "mean", "in the 90 % interval"), rows)


def update_accuracy(path: Path, block: str) -> bool:
    """Put a block between the marks of a file; whether the file changed.

    Raises:
        DataError: a mark is missing.
    """
    before = path.read_text(encoding="utf-8")
    head, begin, rest = before.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise DataError(f"{path} lacks {BEGIN} … {END}: add both lines where the accuracy table belongs")
    after = f"{head}{BEGIN}\n{block}\n{END}{tail}"
    if after != before:
        path.write_text(after, encoding="utf-8")
    return after != before
