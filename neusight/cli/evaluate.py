"""``neusight evaluate``: predicted against measured; ``neusight bench``: how fast the program itself is, here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from neusight.cli.options import Calibrations, Format, TileModels, loaded, named_gpus, note_corrections
from neusight.errors import DataError

app = typer.Typer(no_args_is_help=True, help="Compare predictions with measurements; all errors in percent.")


@app.command()
def kernels(
    path: Annotated[
        Path, typer.Argument(metavar="DATA", help="A parquet file of kernels, or the folder of a data set.")
    ],
    split: Annotated[str | None, typer.Option(help="Keep rows of this split: train or test. Default: all.")] = None,
    tile_models: TileModels = None,
    calibration: Calibrations = "",
    form: Format = "human",
) -> None:
    """Compare single kernels, by GPU, operator and dtype. GPUs may be those of the data set's own `devices/`.

    Examples:

    - `neusight evaluate kernels $NEUSIGHT_DATA/neusight-fp32/kernels/gemm.parquet --split test`

    - `neusight evaluate kernels ./collected`
    """
    from neusight.cli.output import Output, progress
    from neusight.evaluation import evaluate_kernels

    predictor = loaded(tile_models, calibration)
    with progress("predicting") as advance:
        found = evaluate_kernels(path, predictor, split, advance)
    counts: Counter[str] = Counter()
    for row in found["skipped"]:
        counts[row["reason"]] += row["count"]
    _note_skipped(counts)
    note_corrections(predictor, (row["gpu"] for row in found["rows"]))
    Output(form).data(found, found["rows"], lambda: _show_kernels(found))


@app.command()
def models(
    path: Annotated[Path, typer.Argument(metavar="LATENCY.parquet", help="Whole-model measurements.")],
    configs: Annotated[Path, typer.Option(metavar="DIR", help="Folder with <model>.json for every model.")],
    gpu: Annotated[str, typer.Option("--gpu", "-g", metavar="ID[,ID…]", help="Keep rows of these. Default: all.")] = "",
    tile_models: TileModels = None,
    calibration: Calibrations = "",
    form: Format = "human",
) -> None:
    """Compare whole models row by row, with means by GPU and mode: alone, with torch.compile, and on several GPUs.

    Example: `neusight evaluate models latency.parquet --configs ./configs --format json`
    """
    from neusight.cli.output import Output, progress
    from neusight.evaluation import evaluate_models

    predictor = loaded(tile_models, calibration)
    with progress("predicting") as advance:
        found = evaluate_models(path, configs, predictor, named_gpus(gpu) if gpu else None, advance)
    _note_skipped(Counter(row["reason"] for row in found["skipped"]))
    note_corrections(predictor, (row["gpu"] for row in found["rows"]))
    rows = [_with_phases(row) for row in found["rows"]]
    Output(form).data(found, rows, lambda: _show_models(found))


@app.command()
def serving(
    path: Annotated[Path, typer.Argument(metavar="CELLS.parquet", help="Measurements of served language models.")],
    models: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="JSON of configurations by model; default: models.json beside CELLS."),
    ] = None,
    source: Annotated[str, typer.Option(help="Keep cells of this source, the first part of their names.")] = "",
    limit: Annotated[int | None, typer.Option(min=1, max=10**9, help="Compare so many cells, drawn at random.")] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Draw others.")] = 0,
    tile_models: TileModels = None,
    calibration: Calibrations = "",
    form: Format = "human",
) -> None:
    """Compare served language models cell by cell: times to tokens, throughput, under the load that was measured.

    A cell needs gpu, model and what it measured; what else it leaves empty takes defaults, which are shown.

    Examples:

    - `neusight evaluate serving $NEUSIGHT_DATA/serving/cells.parquet --limit 100`

    - `neusight evaluate serving cells.parquet --models models.json --source mlenergy --format csv`
    """
    from neusight.cli.output import Output, progress
    from neusight.evaluation.serving import Picked, evaluate_serving

    predictor = loaded(tile_models, calibration)
    with progress("predicting") as advance:
        found = evaluate_serving(
            path, predictor, models, Picked(source=source, limit=limit, seed=seed), progress=advance
        )
    _note_skipped(Counter(row["reason"] for row in found["skipped"]))
    note_corrections(predictor, (row["gpu"] for row in found["rows"]))
    Output(form).data(found, found["rows"], lambda: _show_serving(found))


@app.command()
def steps(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="Steps of image models or BERT, .parquet or .csv.")],
    gpu: Annotated[str, typer.Option("--gpu", "-g", metavar="ID[,ID…]", help="Keep rows of these. Default: all.")] = "",
    limit: Annotated[int | None, typer.Option(min=1, max=10**9, help="Compare so many rows, drawn at random.")] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Draw others.")] = 0,
    tile_models: TileModels = None,
    calibration: Calibrations = "",
    form: Format = "human",
) -> None:
    """Compare steps of public benchmarks row by row: models of timm and torchvision, and training of BERT and ResNet.

    Models are built by the libraries themselves: `pip install 'neusight[timm]'`.

    Examples:

    - `neusight evaluate steps $NEUSIGHT_DATA/vision-models/torchvision.parquet --gpu a100-sxm-40gb`

    - `neusight evaluate steps $NEUSIGHT_DATA/vision-models/timm.parquet --limit 300 --format json`
    """
    from neusight.cli.output import Output, note, progress
    from neusight.cli.show_steps import show_steps
    from neusight.evaluation import Picked, evaluate_steps
    from neusight.evaluation.steps import columns_of

    predictor = loaded(tile_models, calibration)
    picked = Picked(gpus=tuple(named_gpus(gpu)) if gpu else (), limit=limit, seed=seed)
    with progress("predicting") as advance:
        found = evaluate_steps(path, predictor, picked, advance)
    _note_skipped(Counter(row["reason"] for row in found["skipped"]))
    for text in found["assumed"]:
        note(f"warning: {text}")
    note_corrections(predictor, (row["gpu"] for row in found["rows"]))
    Output(form).data(found, [columns_of(row) for row in found["rows"]], lambda: show_steps(found))


@app.command()
def memory(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="Training runs, .parquet or .csv.")],
    form: Format = "human",
) -> None:
    """Compare the memory of training runs: with the allocator's peak where it was measured, else with whether they ran.

    Example: `neusight evaluate memory $NEUSIGHT_DATA/training-runs/memory.parquet --format json`
    """
    from neusight.cli.output import Output
    from neusight.cli.show_memory import show_peaks, show_verdicts
    from neusight.evaluation import evaluate_memory

    found = evaluate_memory(path)
    _note_skipped(Counter(row["reason"] for row in found["skipped"]))
    rows = [{name: value for name, value in row.items() if name != "parts"} | row["parts"] for row in found["rows"]]
    Output(form).data(found, rows, lambda: show_peaks(found) if "worst" in found else show_verdicts(found))


@app.command()
def training(
    path: Annotated[Path, typer.Argument(metavar="RUNS", help="Parquet or CSV of distributed training runs.")],
    tile_models: TileModels = None,
    calibration: Calibrations = "",
    form: Format = "human",
) -> None:
    """Compare training steps on many GPUs row by row, with means by source, and what runs out of memory.

    A row needs model, gpu, num_gpus, seq_len and the sizes of its model; what else it leaves empty takes defaults,
    which are shown.

    Examples:

    - `neusight evaluate training $NEUSIGHT_DATA/training-throughput/a100_training.csv`

    - `neusight evaluate training $NEUSIGHT_DATA/training-runs/runs.parquet --format json`
    """
    from neusight.cli.output import Output, progress
    from neusight.cli.show_training_errors import show_training_errors
    from neusight.evaluation.training import evaluate_training

    predictor = loaded(tile_models, calibration)
    with progress("predicting") as advance:
        found = evaluate_training(path, predictor, advance)
    _note_skipped(Counter(row["reason"] for row in found["skipped"]))
    note_corrections(predictor, (row["gpu"] for row in found["rows"]))
    Output(form).data(found, found["rows"], lambda: show_training_errors(found))


@app.command()
def gate(
    write: Annotated[bool, typer.Option("--write", help="Write the summary anew, for a diff to look at.")] = False,
) -> None:
    """Hold the predictor that ships against the committed summary of its errors and predictions.

    Needs `NEUSIGHT_DATA`. Lists every figure that differs by more than rounding.
    """
    from neusight.cli.output import line
    from neusight.evaluation.gate import REWRITE, differences, read_summary, summarise, summary_path, write_summary

    found = summarise(loaded(None, "none"))
    if write:
        write_summary(found, summary_path())
        line(f"wrote {summary_path()}")
        return
    changed = differences(read_summary(summary_path()), found)
    for change in changed:
        line(change)
    if changed:
        raise DataError(f"{summary_path()} says otherwise ({len(changed)} lines): mend it, or `{REWRITE}` and say why")


def _note_skipped(counts: Counter[str]) -> None:
    from neusight.cli.output import note

    for reason, count in counts.items():
        note(f"warning: {count:,} row{'s' if count > 1 else ''} skipped: {reason}")


def _with_phases(row: dict[str, Any]) -> dict[str, Any]:
    """Every row with the same columns: measurements without phases leave those empty."""
    return {f"{phase}_{what}": None for phase in ("forward", "backward") for what in _PHASE_COLUMNS} | row


_PHASE_COLUMNS = ("predicted_ms", "measured_ms", "ape")


_FIGURES = {
    "rows": ("count", ","),
    "mean": ("mape", ".1f"),
    "median": ("median_ape", ".1f"),
    "bias": ("bias", "+.1f"),
    "bound": ("roofline_mape", ".1f"),
    "inside": ("inside", ".0f"),
    "execution": ("execution_mape", ".1f"),
}


def _show_kernels(found: dict[str, Any]) -> None:
    """One table; of several families or dtypes one a GPU, and the means by family and dtype at the end."""
    from neusight.cli.output import line

    line("Errors in percent. bound: of the bound alone; inside: within the 90 % interval.")
    figures = [title for title, (key, _) in _FIGURES.items() if found["total"][key] is not None]
    if "execution" in figures:
        line("execution: mean error of times without the launch, where they were measured.")
    rows, total = _with_family(found["rows"]), {"gpu": "all", "op": "", "family": "all", "dtype": "", **found["total"]}
    if len(found["by_family"]) == 1:
        _kernel_table(("gpu", "op"), figures, [*rows, total])
        return
    for gpu in dict.fromkeys(row["gpu"] for row in rows):
        line(f"\n{gpu}")
        # The median of each op gives way where there is no room for it.
        shown = [title for title in figures if title != "median" or "execution" not in figures]
        _kernel_table(("op", "dtype"), shown, [row for row in rows if row["gpu"] == gpu])
    line("\nby family and dtype")
    _kernel_table(("family", "dtype"), figures, [*found["by_family"], total])


def _kernel_table(names: Sequence[str], figures: Sequence[str], rows: Sequence[dict[str, Any]]) -> None:
    from neusight.cli.output import Column, table

    columns = [*(Column(name) for name in names), *(Column(title, right=True) for title in figures)]
    shown = [_FIGURES[title] for title in figures]
    table(
        columns, ((*(row[name] for name in names), *(_figure(row[key], form) for key, form in shown)) for row in rows)
    )


def _figure(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _with_family(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Ops of families that share the name of one, such as forward, get their family's before their own."""
    families: dict[str, set[str]] = {}
    for row in rows:
        families.setdefault(row["op"], set()).add(row["family"])
    shared = set().union(*(named for named in families.values() if len(named) > 1))
    return [{**row, "op": f"{row['family']} {row['op']}"} if row["family"] in shared else row for row in rows]


def _show_models(found: dict[str, Any]) -> None:
    from neusight.cli.output import Column, line, table

    figures = ("batch x seq", "predicted", "measured", "error")
    columns = [Column("gpu"), Column("model"), Column("mode"), *(Column(name, right=True) for name in figures)]
    table(columns, (_model_cells(row) for row in found["rows"]))
    line()
    line("Errors in percent. covered: rows without fallback; inside: rows within the 90 % interval.")
    numbers = ("rows", "mean", "worst", "bias", "covered", "inside")
    columns = [Column("gpu"), Column("mode"), *(Column(name, right=True) for name in numbers)]
    by_vendor = [{"gpu": row["vendor"], "mode": "", **row} for row in found["by_vendor"]]
    shown = (*found["means"], *by_vendor, {"gpu": "all", "mode": "", **found["total"]})
    table(columns, ((r["gpu"], f"{r['mode']} {r.get('option', '')}".strip(), *_mean_cells(r)) for r in shown))


def _model_cells(row: dict[str, Any]) -> tuple[str, ...]:
    from neusight.units import milliseconds

    figures = (milliseconds(row[f"{what}_ms"] / 1e3) for what in ("predicted", "measured"))
    mode = {"inference": "infer", "training": "train"}[row["mode"]]
    return (
        row["gpu"],
        row["model"],
        f"{mode} {row['option']}".strip(),
        f"{row['batch']} x {row['seq_len']}",
        *figures,
        f"{row['bias']:+.1f} %",
    )


def _mean_cells(row: dict[str, Any]) -> tuple[str, ...]:
    errors = (f"{row['mape']:.1f}", f"{row['max_ape']:.1f}", f"{row['bias']:+.1f}")
    return str(row["count"]), *errors, f"{row['covered']:.0f}", f"{row['inside']:.0f}"


def _show_serving(found: dict[str, Any]) -> None:
    """Errors by what is compared, then what cells do not tell."""
    from neusight.cli.output import Column, line, table

    line("Errors in percent, of cells without fault and, in the last two columns, of all.")
    line("inside: within the 90 % interval; bias of tokens_per_s above 0: too many.\n")
    clean = {_name(row): row for row in found["means"]}
    numbers = ("cells", "mean", "median", "bias", "inside", "all", "median")
    columns = [Column("figures"), *(Column(name, right=True) for name in numbers)]
    table(columns, (_serving_cells(row, clean.get(_name(row))) for row in found["means_all"]))
    if found["assumed"]:
        line("\nWhat cells do not tell:\n")
        columns = [Column("default"), Column("value"), Column("cells", right=True), Column("why", wrap=True)]
        table(columns, ((r["what"], str(r["value"]), f"{r['count']:,}", r["reason"]) for r in found["assumed"]))


def _name(row: dict[str, Any]) -> str:
    return "all" if row["by"] == "all" else " ".join(str(row[key]) for key in row["by"].split())


def _serving_cells(row: dict[str, Any], clean: dict[str, Any] | None) -> tuple[str, ...]:
    forms = {"count": ",", "mean": ".1f", "median": ".1f", "bias": "+.1f", "inside": ".0f"}
    figures = ("-" if clean is None else format(clean[key], form) for key, form in forms.items())
    return _name(row), *figures, f"{row['count']:,}", f"{row['median']:.1f}"


def bench(
    repeats: Annotated[int, typer.Option(min=1, max=1000, help="Runs of each; the median counts.")] = 5,
    tile_models: TileModels = None,
    form: Format = "human",
) -> None:
    """Measure the program on this machine: cold start, warm prediction, kernels a second, memory of a large trace.

    Example: `neusight bench --format json > bench.json`
    """
    from neusight.benchmark import measure
    from neusight.cli.output import Column, Output, note, table

    rows = []
    for row in measure(tile_models, repeats):
        note(f"{row['name']}: {row['value']:.4g} {row['unit']}")
        rows.append(row)

    def human() -> None:
        columns = [
            Column("what", wrap=True),
            Column("measured", right=True),
            Column("unit"),
            Column("limit", right=True),
        ]
        table(columns, ((r["name"], f"{r['value']:.4g}", r["unit"], f"{r['limit']:g}") for r in rows))

    Output(form).data(rows, rows, human)
