"""``report.md`` from results: every figure and every judgement in it is computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from neusight.experiments import report_kernels, report_models
from neusight.experiments.canvas import judged, titles
from neusight.experiments.figures import FIGURES
from neusight.experiments.markdown import table, wrapped

Results = Mapping[str, Any]


def render(results: Results, figures: Sequence[str]) -> str:
    """The report as Markdown."""
    parts = [f"# {results['title']}", wrapped(results["question"])]
    if results["quick"]:
        parts.append("> " + wrapped(f"**{results['quick']}**", 78).replace("\n", "\n> "))
    parts += [_setup(results), *_verdicts(results["verdicts"])]
    if "kernels" in results:
        parts += [*report_kernels.kernels(results), *_figures("kernels", figures)]
    if "few_shot_curve" in results:
        parts += [*report_kernels.few_shot(results), *_figures("few_shot_curve", figures)]
    if "models" in results:
        parts += [*report_models.models(results), *_figures("models", figures)]
        parts += report_models.oracle(results) if "oracle" in results["models"] else []
        parts += report_models.rows(results)
    return "\n\n".join(parts) + "\n"


def _figures(part: str, figures: Sequence[str]) -> list[str]:
    """The figures of a part of the results, behind its tables."""
    shown = {name: figure for name, figure in FIGURES.items() if figure.needs == part and name in figures}
    return [f"![{name.removesuffix('.png')}]({name})\n\n{wrapped(f.caption)}" for name, f in shown.items()]


def _setup(results: Results) -> str:
    data, training = results["data"], sum(results["seconds"].values())
    split = f', rows of split "{data["training_split"]}" alone' if data["training_split"] else ""
    tested = f'rows of split "{data["tested_split"]}"' if data["tested_split"] else "all rows"
    first = titles(results)[judged(results)]
    lines = [
        *_folds(results),
        f"Trained on kernels of `{data['name']}`{split}; tested on {tested} of the held-out GPUs. "
        "Nothing is trained on whole models.",
        f"Predictors: {', '.join(titles(results).values())}. Targets judge {first}.",
        f"Took {training / 60:.0f} min on one core, {results['seconds']['training'] / 60:.0f} of them training. Again "
        f"with `neusight experiments run {results['experiment']}`; hashes of data and code, and versions, are in "
        "`results.json`.",
    ]
    return "\n".join(f"- {wrapped(line, 78)}".replace("\n", "\n  ") for line in lines)


def _folds(results: Results) -> list[str]:
    """What is held out: in a line a fold, or all in one where each holds out one GPU."""
    folds, gpus = results["folds"], ", ".join(results["gpus"])
    if len(folds) == 1:
        held = folds[0]["held_out"]
        trained = ", ".join(gpu for gpu in results["gpus"] if gpu not in held)
        return [f"Trained on: {trained}.", f"Held out: {', '.join(held)}."]
    if all(len(fold["held_out"]) == 1 for fold in folds):
        held = ", ".join(fold["held_out"][0] for fold in folds)
        return [f"GPUs: {gpus}. Held out in turn, training on all the others: {held}."]
    turns = "; ".join(f"{fold['name']} ({', '.join(fold['held_out'])})" for fold in folds)
    return [f"GPUs: {gpus}. Held out in turn, training on all the others: {turns}."]


def _verdicts(verdicts: Sequence[Results]) -> list[str]:
    if not verdicts:
        return []
    rows = [(v["target"], v["aim"], f"{v['value']:.1f}", "met" if v["met"] else "**missed**") for v in verdicts]
    missed = [v for v in verdicts if not v["met"]]
    said = f"{len(missed)} of {len(rows)} missed." if missed else f"All {len(rows)} met."
    shown = table(("target, percent", "aim", "found", ""), rows)
    short = [f"- {v['target']}: {', '.join(v['short'])}" for v in missed if v["short"]]
    parts = ["## Targets", said, shown]
    return parts + (["What fell short:\n\n" + "\n".join(_item(line) for line in short)] if short else [])


def _item(line: str) -> str:
    return wrapped(line, 78).replace("\n", "\n  ")
