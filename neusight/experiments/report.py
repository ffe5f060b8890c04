"""``report.md`` and README's accuracy section: every figure and every judgement in them is computed.

Both are made of a summary alone, so that what is committed can be written again; figures of single rows need the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from neusight.errors import DataError
from neusight.experiments import dies_report, figures, serving_report, sparse_report, training_report
from neusight.experiments.kernels import main_group
from neusight.experiments.page import Drawing, number, save, table, wrapped
from neusight.experiments.results import (
    RESULTS,
    SUMMARY,
    as_text,
    gpus_in,
    has_rows,
    judged,
    kinds_in,
    summary_of,
    titles,
)

REPORT = "report.md"
BEGIN, END = "<!-- accuracy:begin -->", "<!-- accuracy:end -->"
GROUPS = {"all": "all", "held_out": "held-out GPUs", "training": "training GPUs", "other_vendor": "other vendor"}
DESIGNS = {
    "plan": "Kernels chosen by `neusight calibrate plan`, before any was measured:",
    "random": "Kernels drawn at random:",
}
Results = Mapping[str, Any]
Cells = Sequence[Mapping[str, Any]]


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
    other = _other_kind(results)
    found = dict(other.FIGURES if other else figures.FIGURES)
    if not other and len(results["declared"]["predictors"]) == 1:
        del found["predictors.png"]
    return found


def _other_kind(results: Results) -> ModuleType | None:
    """The module that reports results of another kind than measured ones."""
    kinds = {
        "sparse": sparse_report,
        "left-out-dies": dies_report,
        "serving": serving_report,
        "training": training_report,
    }
    return kinds.get(results["declared"]["kind"])


def draw(results: Results, folder: Path) -> list[str]:
    """Draw what results hold into ``folder``; the names of what was drawn.

    Figures of an earlier run that this one lacks go; a summary leaves those of rows as they are.
    """
    known = drawings(results)
    drawable = [name for name, drawing in known.items() if drawing.drawable(results)]
    for name in drawable:
        save(known[name].draw(results), folder / name)
    every = {
        *figures.FIGURES,
        *sparse_report.FIGURES,
        *dies_report.FIGURES,
        *serving_report.FIGURES,
        *training_report.FIGURES,
    }
    for name in every - set(known if not has_rows(results) else drawable):
        (folder / name).unlink(missing_ok=True)
    return drawable


def render(results: Results, drawn: Sequence[str]) -> str:
    """The report as Markdown, of results or their summary, with figures of these names."""
    declared = results["declared"]
    parts = [f"# {declared['title']}", wrapped(declared["question"])]
    if results["quick"]:
        parts.append("> " + wrapped(f"**{results['quick']}**", 78).replace("\n", "\n> "))
    if outdated := results.get("outdated"):
        parts.append("> " + wrapped(outdated, 78).replace("\n", "\n> "))
    other = _other_kind(results)
    parts.append("\n".join(map(_item, other.setup(results) if other else _setup(results))))
    parts += _verdicts(results["verdicts"], other.TARGETS_SAID if other else "")
    known = drawings(results)
    for part, words in (other.sections(results) if other else _sections(results)).items():
        parts += words
        shown = {name: known[name] for name in drawn if known[name].part == part}
        parts += [f"![{name.removesuffix('.png')}]({name})\n\n{wrapped(d.caption)}" for name, d in shown.items()]
    return "\n\n".join(parts) + "\n"


def _item(text: str) -> str:
    return "- " + wrapped(text, 78).replace("\n", "\n  ")


def _setup(results: Results) -> list[str]:
    declared, seconds = results["declared"], results["seconds"]
    data, named = declared["data"], titles(results)
    split = f', rows of split "{data["training_split"]}" alone' if data["training_split"] else ""
    tested = f'rows of split "{data["tested_split"]}"' if data["tested_split"] else "all rows"
    return [
        *_folds(declared),
        f"Trained on kernels of `{data['name']}`{split}; tested on {tested} of the held-out GPUs. "
        "Nothing is trained on whole models.",
        f"Predictors: {', '.join(named.values())}. Targets judge {named[judged(results)]}.",
        f"Took {sum(seconds.values()) / 60:.0f} min on one core, {seconds['training'] / 60:.0f} of them training. "
        f"Again with `neusight experiments run {results['experiment']}`, which also writes every prediction to "
        "`results.json`; hashes of data and code, and versions, are in `summary.json`.",
    ]


def _folds(declared: Results) -> list[str]:
    """What is held out: in a line a fold, or all in one where each holds out one GPU."""
    folds, gpus = declared["folds"], ", ".join(declared["gpus"])
    if len(folds) == 1:
        held = folds[0]["held_out"]
        trained = ", ".join(gpu for gpu in declared["gpus"] if gpu not in held)
        return [f"Trained on: {trained}.", f"Held out: {', '.join(held)}."]
    if all(len(fold["held_out"]) == 1 for fold in folds):
        held = ", ".join(fold["held_out"][0] for fold in folds)
        return [f"GPUs: {gpus}. Held out in turn, training on all the others: {held}."]
    turns = "; ".join(f"{fold['name']} ({', '.join(fold['held_out'])})" for fold in folds)
    return [f"GPUs: {gpus}. Held out in turn, training on all the others: {turns}."]


def _verdicts(verdicts: Sequence[Results], remark: str = "") -> list[str]:
    if not verdicts:
        return []
    missed = [v for v in verdicts if not v["met"]]
    said = f"{len(missed)} of {len(verdicts)} missed." if missed else f"All {len(verdicts)} met."
    rows = [(v["target"], v["aim"], _found(v["value"]), "met" if v["met"] else "**missed**") for v in verdicts]
    parts = ["## Targets", wrapped(f"{said} {remark}".strip()), table(("target", "aim", "found", ""), rows)]
    short = [_item(f"{v['target']}: {', '.join(v['short'])}") for v in missed if v["short"]]
    return parts + (["What fell short:\n\n" + "\n".join(short)] if short else [])


def _found(value: float) -> str:
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _sections(results: Results) -> dict[str, list[str]]:
    """Words and tables, by the part of the report whose figures follow them."""
    found = {}
    if "kernels" in results:
        found["kernels"] = _kernels(results)
    if "few_shot_curve" in results:
        found["few_shot_curve"] = _few_shot(results)
    if "models" in results:
        found["models"] = _models(results)
        found["by_model"] = _by_model(results)
        found |= {"oracle": _oracle(results)} if "oracle" in results["models"] else {}
    return found


def _kernels(results: Results) -> list[str]:
    """Error, coverage and width by GPU and kind; beyond that every predictor by kind."""
    cells, main = _judged_cells(results), main_group(results["kernels"]["by_kind"])
    text = (
        f"Mean error of {titles(results)[judged(results)]} in percent, on rows of GPUs that were held out. "
        "mean: over those GPUs, each counted once; roofline: max(FLOP / peak, compulsory bytes / DRAM bandwidth) "
        "as prediction."
    )
    parts = ["## Single kernels", wrapped(text), _errors_of_group(results, main)]
    parts += _with_grown_launches(cells)
    if main == "held_out" and any(cell["group"] == "other_vendor" for cell in cells):
        parts += ["Another vendor's:", _errors_of_group(results, "other_vendor")]
    text = "Median error and, in brackets, mean signed error (below zero: predicted too fast), percent:"
    parts += [wrapped(text), _matrix(results, cells, lambda c: f"{c['median_ape']:.1f} ({c['bias']:+.1f})")]
    if all(cell["inside"] is not None for cell in cells):
        text = (
            "Percent of rows within the 90 % interval and, in brackets, the median of its width (high less low, in "
            "percent of the prediction):"
        )
        inside = _matrix(results, cells, lambda c: f"{c['inside']:.0f} ({c['width']:.0f})")
        parts += ["### Intervals", wrapped(text), inside]
    return parts + (_predictors(results, main) if len(results["declared"]["predictors"]) > 1 else [])


def _judged_cells(results: Results) -> Cells:
    return [cell for cell in results["kernels"]["cells"] if cell["predictor"] == judged(results)]


def _with_grown_launches(cells: Cells) -> list[str]:
    """Errors of kernels whose launches grew while a GPU was measured, these being known; nothing where none did."""
    by_kind: dict[str, dict[str, float]] = {}
    for cell in cells:
        if (error := cell.get("grown_mape")) is not None:
            by_kind.setdefault(cell["kind"], {})[cell["gpu"]] = error
    said = [
        f"Launches of {kind} grew severalfold while GPUs were measured, on all of them alike, with every new shape. "
        f"With the launch that each row had the mean error is {np.mean([*errors.values()]):.1f} %: "
        f"{', '.join(f'{gpu} {error:.1f}' for gpu, error in errors.items())}."
        for kind, errors in by_kind.items()
    ]
    return [wrapped(text) for text in said]


def _errors_of_group(results: Results, group: str) -> str:
    """Mean errors, then over GPUs their mean and worst, and the roofline's, of a group by kind."""
    cells = [cell for cell in _judged_cells(results) if cell["group"] == group]
    rows = [
        row for row in results["kernels"]["by_kind"] if (row["predictor"], row["group"]) == (judged(results), group)
    ]
    lines = {"**mean**": "mean", "**worst GPU**": "worst", "roofline": "roofline"}
    if all(row["gpus"] == 1 for row in rows):
        lines = {"roofline": "roofline"}
    summaries = [(name, {row["kind"]: f"{row[key]:.1f}" for row in rows}) for name, key in lines.items()]
    return _matrix(results, cells, _mape, summaries)


def _mape(cell: Results) -> str:
    return f"{cell['mape']:.1f}"


def _matrix(
    results: Results,
    cells: Cells,
    shown: Callable[[Results], str],
    summaries: Sequence[tuple[str, Mapping[str, str]]] = (),
    corner: str = "gpu",
) -> str:
    """A row a GPU, a column a kind (of several folds the last), then rows of summaries."""
    kinds, found = kinds_in(cells), {(cell["gpu"], cell["kind"]): shown(cell) for cell in cells}
    gpus = gpus_in(results, (cell["gpu"] for cell in cells))
    rows = [(gpu, *(found.get((gpu, kind), "") for kind in kinds)) for gpu in gpus]
    rows += [(name, *(said.get(kind, "") for kind in kinds)) for name, said in summaries]
    return table((corner, *kinds), rows)


def _predictors(results: Results, group: str) -> list[str]:
    """Every predictor by kind: mean over GPUs, its spread over seeds, and the worst GPU."""
    rows = [row for row in results["kernels"]["by_kind"] if row["group"] == group]
    kinds, names = kinds_in(rows), titles(results)
    shown = []
    for name in dict.fromkeys(row["predictor"] for row in rows):
        said = {row["kind"]: row for row in rows if row["predictor"] == name}
        shown.append((names[name], *(_spread(said[kind]) if kind in said else "" for kind in kinds)))
    text = (
        "Mean error over held-out GPUs in percent, in brackets the worst GPU's. Of several seeds: the mean of all, and "
        "from the least to the largest."
    )
    return ["### Every predictor", wrapped(text), table(("predictor", *kinds), shown)]


def _spread(row: Mapping[str, Any]) -> str:
    low, high = row["spread"]
    seeds = f", {low:.1f}–{high:.1f}" if high > low else ""
    return f"{row['mean']:.1f} ({row['worst']:.1f}{seeds})"


def _few_shot(results: Results) -> list[str]:
    """Mean error by kind against measured kernels, over GPUs, with the worst GPU: a table a design."""
    found = results["few_shot_curve"]["by_kind"]
    parts = [
        "## With some kernels of the GPU measured",
        wrapped(
            "Mean error in percent after so many kernels of the held-out GPU, of all kinds together, were measured and "
            "made known, on its other rows; over GPUs, in brackets the worst."
        ),
    ]
    for design, said in DESIGNS.items():
        rows = [row for row in found if row["design"] == design]
        if rows:
            parts += [said, _curve(rows)]
    return parts


def _curve(found: Cells) -> str:
    kinds = kinds_in(found)
    at = {(row["kind"], row["points"]): f"{row['mean']:.1f} ({row['worst']:.1f})" for row in found}
    rows = [(str(points), *(at[kind, points] for kind in kinds)) for points in sorted({p for _, p in at})]
    return table(("kernels", *kinds), rows)


def _models(results: Results) -> list[str]:
    """Errors of every predictor by group and GPU."""
    found, names = results["models"], titles(results)
    groups = {GROUPS[name]: group for name, group in found["groups"].items()}
    gpus = {gpu: found["by_gpu"][gpu] for gpu in gpus_in(results, found["by_gpu"])}
    covered = ", those that published predictions cover" if results["declared"]["data"]["published"] else ""
    text = (
        f'Steps on one GPU{covered}; "all" leaves another vendor\'s out. Mean error in percent, in brackets the '
        "worst step's. Of several seeds: over all of them."
    )
    parts = ["## Whole models", wrapped(text), _by_predictor(groups, names), "Mean by GPU:", _by_gpu(gpus, names)]
    if any(_seed_range(group, name) for group in groups.values() for name in names):
        parts += ["From the seed with the least mean error to the one with the largest:", _seeds(groups, names)]
    if all(group["inside"] is not None for group in groups.values()):
        rows = [(name, *(f"{g[k]:.0f}" for k in ("count", "inside", "width"))) for name, g in (groups | gpus).items()]
        text = "Percent of steps within the 90 % interval, and the median of its width in percent of the prediction:"
        parts += [wrapped(text), table(("steps of", "steps", "inside", "width"), rows)]
    return parts


def _by_predictor(groups: Mapping[str, Results], names: Mapping[str, str]) -> str:
    """A row a predictor, a column a group: predictors are many, and their names long."""
    rows = [("steps", *(str(group["count"]) for group in groups.values()))]
    for name, title in names.items():
        rows.append((title, *(_mean_worst(group["predictors"].get(name)) for group in groups.values())))
    return table(("", *groups), rows)


def _by_gpu(gpus: Mapping[str, Results], names: Mapping[str, str]) -> str:
    """A row a GPU."""
    rows = [
        (gpu, str(said["count"]), *(number((said["predictors"].get(name) or {}).get("mean")) for name in names))
        for gpu, said in gpus.items()
    ]
    return table(("gpu", "steps", *_short(names)), rows)


def _mean_worst(error: Results | None) -> str:
    return f"{error['mean']:.1f} ({error['worst']:.0f})" if error else ""


def _seed_range(group: Results, name: str) -> str:
    error = group["predictors"].get(name)
    if not error or error["spread"][0] == error["spread"][1]:
        return ""
    return "{:.1f}–{:.1f}".format(*error["spread"])


def _seeds(groups: Mapping[str, Results], names: Mapping[str, str]) -> str:
    rows = [(title, *(_seed_range(group, name) for group in groups.values())) for name, title in names.items()]
    return table(("", *groups), [row for row in rows if any(row[1:])])


def _oracle(results: Results) -> list[str]:
    """How the error of whole models comes about: operators, and their sum."""
    text = (
        "Each operator of these steps was also measured alone, on the same GPU. Their sum is what a predictor of "
        "kernels without any error would say (the one measured layer times the layers, less the time of a call). "
        "operators: our prediction over that sum; composition: that sum over the measured step; both multiply to ours. "
        "Mean error in percent, in brackets the mean signed error."
    )
    parts = {"total": "ours", "operators": "operators", "composition": "composition"}
    rows = [
        (
            GROUPS[row["name"]] if row["by"] == "group" else row["name"],
            str(row["count"]),
            *(f"{row[part]['mean']:.1f} ({row[part]['bias']:+.1f})" for part in parts),
        )
        for row in results["models"]["oracle"]
    ]
    return ["### Sums of measured operators", wrapped(text), table(("steps of", "steps", *parts.values()), rows)]


def _by_model(results: Results) -> list[str]:
    """Mean error and, of the judged predictor, bias of every model and mode."""
    names, rows = titles(results), results["models"]["by_model"]
    shown = [
        (
            f"{row['model']} {row['mode']}",
            str(row["count"]),
            f"{row['predictors'][judged(results)]['bias']:+.1f}",
            *(number((row["predictors"].get(name) or {}).get("mean")) for name in names),
        )
        for row in rows
    ]
    text = f"Mean error by model and mode over those GPUs; bias: mean signed error of {names[judged(results)]}."
    return ["### By model", wrapped(text), table(("model", "steps", "bias", *_short(names)), shown)]


def _short(names: Mapping[str, str]) -> list[str]:
    return [title.replace(" (published)", " ᵖ") for title in names.values()]


def accuracy_block(all_results: Sequence[Results]) -> str:
    """The text between the marks: a part an experiment, in the order of their ids."""
    return "\n\n".join(_part(results) for results in sorted(all_results, key=lambda r: r["experiment"]))


def _part(results: Results) -> str:
    declared = results["declared"]
    parts = [
        f"**{declared['title']}.** {declared['question']}\nDetails: `experiments/{results['experiment']}/report.md`."
    ]
    if "models" in results:
        parts.append(_models_told(results))
    if "kernels" in results:
        parts.append(_kernels_told(results))
    return "\n\n".join(parts)


def _models_told(results: Results) -> str:
    groups = results["models"]["groups"]
    rows = [
        (title, *(_mean_worst(group["predictors"].get(name)) for group in groups.values()))
        for name, title in titles(results).items()
    ]
    head = [f"{GROUPS[name]} ({group['count']})" for name, group in groups.items()]
    shown = table(("whole models", *head), rows)
    return f"{shown}\n\nMean error of whole models in percent, in brackets the worst."


def _kernels_told(results: Results) -> str:
    shown = _matrix(results, _judged_cells(results), _mape, corner="kernels of held-out GPUs")
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
