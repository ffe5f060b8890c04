"""``report.md`` from results: every figure and every judgement in it is computed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from neusight.experiments.model_step import PREDICTORS, step_of
from neusight.units import milliseconds

FIGURES = {
    "models.png": "Whole models: every predictor over what was measured, along our own prediction.",
    "kernels.png": "Mean error of single kernels on GPUs that were not trained on, by family.",
    "gpus.png": "Mean error of whole models by GPU; a dash is the worst row; bars beyond the axis carry their figure.",
}
Results = Mapping[str, Any]


def render(results: Results, figures: Sequence[str]) -> str:
    """The report as Markdown; details are of the first set of tile models, others appear in a table of their own."""
    first = results["runs"][0]
    parts = [f"# {results['title']}", results["question"], _setup(results), _targets(first)]
    if len(results["runs"]) > 1:
        parts.append(_runs(results["runs"]))
    if "models" in first:
        parts.append(_models(first["models"]))
    if "kernels" in first:
        parts.append(_kernels(first["kernels"]))
    if "operators" in results:
        parts.append(_operators(results["operators"]))
    parts += [f"![{name.removesuffix('.png')}]({name})\n\n{FIGURES[name]}" for name in figures]
    if "models" in first:
        parts.append(_rows(first["models"]["rows"], results.get("operators", {}).get("rows", ())))
    return "\n\n".join(parts) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], words: int = 1) -> str:
    """A Markdown table, padded so that it reads as text, too; columns after the first ``words`` stand right."""
    cells = [list(head), *(list(row) for row in rows)]
    widths = [max(3, *(len(row[place]) for row in cells)) for place in range(len(head))]
    rule = ["-" * width if place < words else "-" * (width - 1) + ":" for place, width in enumerate(widths)]
    lines = [_line(cells[0], widths, words), f"| {' | '.join(rule)} |"]
    return "\n".join([*lines, *(_line(row, widths, words) for row in cells[1:])])


def _line(row: Sequence[str], widths: Sequence[int], words: int) -> str:
    padded = [
        text.ljust(width) if place < words else text.rjust(width)
        for place, (text, width) in enumerate(zip(row, widths, strict=True))
    ]
    return f"| {' | '.join(padded)} |"


def _setup(results: Results) -> str:
    split, first = results["split"], results["runs"][0]
    fresh = first["tile_models"] != "shipped" and not results["tile_models"]["train"]
    command = f"neusight experiments run {results['experiment']}{' --train' if fresh else ''}"
    models = [f"{name} ({what})" for name, what in first["provenance"]["tile_models"].items()]
    lines = [
        f"- Trained on: {', '.join(first['provenance']['training_gpus'])}; kernels of `{results['data']['name']}`.",
        f"- Held out, never trained on: {', '.join(split['held_out'])}.",
        f"- Tile models: {first['tile_models']}: {', '.join(models)}.",
        f"- Again with `{command}`; the data's hashes are in `results.json`.",
    ]
    if split["other_vendor"]:
        lines.insert(2, f"- Another vendor's, never trained on and shown apart: {', '.join(split['other_vendor'])}.")
    return "\n".join(lines)


def _targets(run: Results) -> str:
    rows = [
        (row["target"], f"{row['limit']:g}", f"{row['value']:.2f}", "met" if row["met"] else "missed")
        for row in run["targets"]
    ]
    short = [f"- {row['target']}: {', '.join(row['short'])}" for row in run["targets"] if row["short"]]
    said = "What fell short:\n\n" + "\n".join(short) if short else ""
    missed = sum(not row["met"] for row in run["targets"])
    verdict = f"{missed} of {len(rows)} missed." if missed else f"All {len(rows)} met."
    shown = table(("target", "at most", "found", ""), rows)
    return "\n\n".join(part for part in ("## Targets", verdict, shown, said) if part)


def _runs(runs: Sequence[Results]) -> str:
    names = [row["target"] for row in runs[0]["targets"]]
    rows = [(run["tile_models"], *(f"{row['value']:.2f}" for row in run["targets"])) for run in runs]
    return f"## Sets of tile models\n\n{table(('tile models', *names), rows)}\n\nDetails are of the first."


def _models(models: Results) -> str:
    names = {"all": "all", "held_out": "held-out GPUs", "training": "training GPUs", "other_vendor": "other vendor"}
    groups = [(names[name], group) for name, group in models["groups"].items()]
    head = ("rows of", "count", *PREDICTORS.values(), "inside")
    by_group = table(head, [_group_cells(*pair) for pair in groups])
    by_gpu = table(head, [_group_cells(*pair) for pair in models["by_gpu"].items()])
    bias = table(head[:-1], [_bias_cells(*pair) for pair in groups])
    return (
        "## Whole models\n\nMean error (worst) in percent, on the rows that the published predictions cover; "
        '"all" leaves the other vendor out. inside: percent of rows within our 90 % interval.\n\n'
        f"{by_group}\n\nBy GPU:\n\n{by_gpu}\n\nMean signed error (below zero: predicted too fast), percent:\n\n{bias}"
    )


def _group_cells(name: str, group: Results) -> tuple[str, ...]:
    errors = [group["predictors"][key] for key in PREDICTORS]
    shown = (f"{e['mean']:.1f} ({e['worst']:.1f})" if e else "" for e in errors)
    return name, str(group["count"]), *shown, f"{group['inside']:.0f}"


def _bias_cells(name: str, group: Results) -> tuple[str, ...]:
    errors = (group["predictors"][key] for key in PREDICTORS)
    return name, str(group["count"]), *(f"{e['bias']:+.1f}" if e else "" for e in errors)


def _kernels(kernels: Results) -> str:
    long = f"≥ {kernels['long_ms']:g} ms"
    head = ("count", "mean", "median", "bias", "inside", "roofline", "bound", "ours/roofline", "ours/bound")
    late = (f"rows {long}", f"mean {long}", f"ours/roofline {long}")
    text = (
        "## Single kernels\n\nErrors in percent. roofline: max(flops / peak, compulsory bytes / DRAM bandwidth) as "
        "prediction; bound: our lower bound as prediction (also L2, and the cheapest known algorithm); both know of no "
        f"launch, so the last columns leave kernels below {kernels['long_ms']:g} ms out. All measured rows of these "
        "GPUs count. inside: percent of rows within the 90 % interval."
    )
    parts = [text]
    for title, key, names in (
        ("Held-out GPUs together", "held_out", ("family",)),
        ("By GPU", "by_gpu", ("gpu", "family")),
        ("Held-out GPUs together, by operator", "by_op", ("family", "op")),
        ("The other vendor's", "other_vendor", ("family",)),
    ):
        if rows := kernels[key]:
            cells = [(*(row[name] for name in names), *_kernel_cells(row)) for row in rows]
            parts.append(f"{title}:\n\n{table((*names, *head, *late), cells, len(names))}")
    return "\n\n".join(parts)


def _kernel_cells(row: Results) -> tuple[str, ...]:
    long = row["long"]
    late = (f"{long['count']:,}", f"{long['mape']:.1f}", f"{long['share_of_roofline']:.2f}") if long else ("", "", "")
    return (
        f"{row['count']:,}",
        *(f"{row[key]:.1f}" for key in ("mape", "median_ape")),
        f"{row['bias']:+.1f}",
        f"{row['inside']:.0f}",
        *(f"{row[key]:.1f}" for key in ("roofline_mape", "bound_mape")),
        *(f"{row[key]:.2f}" for key in ("share_of_roofline", "share_of_bound")),
        *late,
    )


def _operators(operators: Results) -> str:
    rows = [
        (name, str(group["count"]), *(cell for key in ("operators", "ours") for cell in _sum_cells(group[key])))
        for name, group in operators["groups"].items()
    ]
    head = ("steps", "count", "sum: mean", "worst", "bias", "ours: mean", "worst", "bias")
    return (
        "## Sums of measured operators\n\nEach operator of these steps was also measured alone, on the "
        "same GPU. Their sum (the one measured layer times the layers, less the time of a call) misses the measured "
        "step by, in percent, with our error on the same steps beside it:\n\n" + table(head, rows)
    )


def _sum_cells(error: Results | None) -> tuple[str, ...]:
    return (f"{error['mean']:.1f}", f"{error['worst']:.1f}", f"{error['bias']:+.1f}") if error else ("", "", "")


def _rows(rows: Sequence[Results], sums: Sequence[Results]) -> str:
    summed = {step_of(row): row["errors"]["operators"] for row in sums}
    head = ("gpu", "model", "mode", "batch × seq", "ours", "90 % interval", "inside")
    errors = ([*(row["errors"][name] for name in PREDICTORS), summed.get(step_of(row))] for row in rows)
    cells = [(*_row_cells(row), *map(_signed, missed)) for row, missed in zip(rows, errors, strict=True)]
    return (
        "## Row by row\n\nOur prediction with its 90 % interval, whether the measured latency lies inside, and signed "
        "errors in percent: of every predictor, and of the sum of measured operators where there is one.\n\n"
        + table((*head, *PREDICTORS.values(), "operators"), cells, 3)
    )


def _row_cells(row: Results) -> tuple[str, ...]:
    ours, low, high = (milliseconds(row[f"{key}_ms"] / 1e3) for key in ("ours", "low", "high"))
    inside = "yes" if row["inside"] else "no"
    return row["gpu"], row["model"], row["mode"], f"{row['batch']} × {row['seq_len']}", ours, f"{low} – {high}", inside


def _signed(error: float | None) -> str:
    return "" if error is None else f"{error:+.1f}"
