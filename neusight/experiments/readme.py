"""README's accuracy section, between its two marks, from the results of the experiments that declare ``readme``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from neusight.errors import DataError
from neusight.experiments.canvas import gpus_in, judged, kinds_in, titles
from neusight.experiments.markdown import table
from neusight.experiments.report_models import GROUPS

BEGIN, END = "<!-- accuracy:begin -->", "<!-- accuracy:end -->"
Results = Mapping[str, Any]


def accuracy_block(all_results: Sequence[Results]) -> str:
    """The text between the marks: a part an experiment, in the order of their ids."""
    return "\n\n".join(_part(results) for results in sorted(all_results, key=lambda r: r["experiment"]))


def _part(results: Results) -> str:
    parts = [
        f"**{results['title']}.** {results['question']}\nDetails: `experiments/{results['experiment']}/report.md`."
    ]
    if "models" in results:
        parts.append(_models(results))
    if "kernels" in results:
        parts.append(_kernels(results))
    return "\n\n".join(parts)


def _models(results: Results) -> str:
    groups = results["models"]["groups"]
    rows = [
        (title, *(_cell(group["predictors"].get(name)) for group in groups.values())) for name, title in _named(results)
    ]
    head = [f"{GROUPS[name]} ({group['count']})" for name, group in groups.items()]
    shown = table(("whole models", *head), rows)
    return f"{shown}\n\nMean error of whole models in percent, in brackets the worst."


def _named(results: Results) -> list[tuple[str, str]]:
    return list(titles(results).items())


def _cell(error: Results | None) -> str:
    return f"{error['mean']:.1f} ({error['worst']:.0f})" if error else ""


def _kernels(results: Results) -> str:
    cells = [cell for cell in results["kernels"]["cells"] if cell["predictor"] == judged(results)]
    kinds = kinds_in(cells)
    found = {(cell["gpu"], cell["kind"]): f"{cell['mape']:.1f}" for cell in cells}
    rows = [(gpu, *(found.get((gpu, kind), "") for kind in kinds)) for gpu in gpus_in(results, cells)]
    shown = table(("kernels of held-out GPUs", *kinds), rows)
    return f"{shown}\n\nMean error of single kernels in percent, nothing of the GPU being known."


def update_readme(path: Path, all_results: Sequence[Results]) -> bool:
    """Put the block in its place; whether the file changed.

    Raises:
        DataError: a mark is missing.
    """
    before = path.read_text(encoding="utf-8")
    head, begin, rest = before.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise DataError(f"{path} lacks {BEGIN} … {END}: add both lines where the accuracy table belongs")
    after = f"{head}{BEGIN}\n{accuracy_block(all_results)}\n{END}{tail}"
    if after != before:
        path.write_text(after, encoding="utf-8")
    return after != before
