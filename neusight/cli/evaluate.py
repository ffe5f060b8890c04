"""``neusight evaluate``: predicted against measured; ``neusight bench``: how fast the program itself is, here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from neusight.cli.commands import Commands
from neusight.cli.options import Calibrations, Format, TileModels, loaded, named_gpus
from neusight.errors import DataError
from neusight.units import decimal

GpuFilter = Annotated[str, typer.Option("--gpu", "-g", metavar="ID[,ID…]", help="Keep rows of these. Default: all.")]
Limit = Annotated[int | None, typer.Option(min=1, max=10**9, help="Compare so many rows, drawn at random.")]
HostsOf = Annotated[
    Literal["own", "others"],
    typer.Option("--hosts", help="Fit what hosts take to half of their own programs or models, or to other hosts."),
]
Draw = Annotated[int, typer.Option("--seed", min=0, max=2**32 - 1, help="Draw others.")]

app = Commands(help="Compare predictions with measurements; all errors in percent.")


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
    from neusight.cli.output import busy
    from neusight.cli.show_errors import show, show_kernels
    from neusight.evaluation import evaluate_kernels

    predictor = loaded(tile_models, calibration)
    with busy("predicting") as advance:
        errors = evaluate_kernels(path, predictor, split, advance)
    show(errors, form, show_kernels, predictor)


@app.command()
def models(
    path: Annotated[Path, typer.Argument(metavar="LATENCY.parquet", help="Whole-model measurements.")],
    configs: Annotated[Path, typer.Option(metavar="DIR", help="Folder with <model>.json for every model.")],
    gpu: GpuFilter = "",
    tile_models: TileModels = None,
    calibration: Calibrations = "",
    form: Format = "human",
) -> None:
    """Compare whole models row by row, with means by GPU and mode: alone, with torch.compile, and on several GPUs.

    Example: `neusight evaluate models latency.parquet --configs ./configs --format json`
    """
    from neusight.cli.output import busy, note
    from neusight.cli.show_errors import show, show_models, with_phases
    from neusight.evaluation import evaluate_models

    predictor = loaded(tile_models, calibration)
    with busy("predicting") as advance:
        errors = evaluate_models(path, configs, predictor, named_gpus(gpu) if gpu else None, advance)
    if count := errors["adapted"]:
        note(
            f"note: attention of {count:,} rows has the steps that the table of measured operators beside {path} names"
        )
    show(errors, form, show_models, predictor, columns=with_phases)


@app.command()
def serving(
    path: Annotated[Path, typer.Argument(metavar="CELLS.parquet", help="Measurements of served language models.")],
    models: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="JSON of configurations by model; default: models.json beside CELLS."),
    ] = None,
    source: Annotated[str, typer.Option(help="Keep cells of this source, the first part of their names.")] = "",
    limit: Limit = None,
    seed: Draw = 0,
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
    from neusight.cli.output import busy
    from neusight.cli.show_errors import show, show_serving
    from neusight.evaluation import Selection, evaluate_serving

    predictor, selection = loaded(tile_models, calibration), Selection(source=source, limit=limit, seed=seed)
    with busy("predicting") as advance:
        errors = evaluate_serving(path, predictor, models, selection, progress=advance)
    show(errors, form, show_serving, predictor)


@app.command()
def steps(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="Steps of image models or BERT, .parquet or .csv.")],
    hosts: HostsOf = "own",
    gpu: GpuFilter = "",
    limit: Limit = None,
    seed: Draw = 0,
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
    from neusight.cli.output import busy, note
    from neusight.cli.show_errors import show, show_steps
    from neusight.evaluation import Selection, evaluate_steps
    from neusight.evaluation.steps import columns_of

    predictor = loaded(tile_models, calibration)
    selection = Selection(gpus=tuple(named_gpus(gpu)) if gpu else (), limit=limit, seed=seed)
    with busy("predicting") as advance:
        errors = evaluate_steps(path, predictor, selection, advance, hosts)
    for text in errors["assumed"]:
        note(f"warning: {text}")
    show(errors, form, show_steps, predictor, columns=columns_of)


@app.command()
def programs(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="Timings of programs, .parquet or .csv.")],
    folder: Annotated[
        Path | None,
        typer.Option("--programs", metavar="DIR", help="Folder with <graph>.pt2. Default: problems beside FILE."),
    ] = None,
    spread: Annotated[
        float, typer.Option(min=0, help="Leave out rows whose standard deviation is more percent of their mean.")
    ] = 10.0,
    suspect: Annotated[bool, typer.Option("--suspect", help="Keep rows that the table doubts.")] = False,
    hosts: HostsOf = "own",
    gpu: GpuFilter = "",
    limit: Limit = None,
    seed: Draw = 0,
    tile_models: TileModels = None,
    calibration: Calibrations = "",
    form: Format = "human",
) -> None:
    """Compare programs of torch.export, eager and as torch.compile runs them, with what each mode gains over eager.

    Examples:

    - `neusight evaluate programs $NEUSIGHT_DATA/kernelbench/timings.parquet --gpu l40s`

    - `neusight evaluate programs timings.parquet --programs ./problems --format json`
    """
    from neusight.cli.output import busy
    from neusight.cli.show_errors import show, show_programs
    from neusight.evaluation import Selection, evaluate_programs
    from neusight.evaluation.programs import Filters

    predictor = loaded(tile_models, calibration)
    selection = Selection(gpus=tuple(named_gpus(gpu)) if gpu else (), limit=limit, seed=seed)
    filters = Filters(spread=spread, suspect=suspect)
    with busy("predicting") as advance:
        options: dict[str, Any] = {"programs": folder, "selection": selection, "filters": filters, "hosts": hosts}
        errors = evaluate_programs(path, predictor, progress=advance, **options)
    show(errors, form, show_programs, predictor)


@app.command()
def rates(
    data: Annotated[Path, typer.Argument(metavar="DATA", help="The folder of the data sets, as for `neusight fit`.")],
    tile_models: TileModels = None,
    calibration: Calibrations = "",
    form: Format = "human",
) -> None:
    """Show what every GPU of the catalogue sustains, a copy of 1 GiB and products of 8192³ in every dtype, beside what
    is published; JSON and CSV are one table.

    Example: `neusight evaluate rates $NEUSIGHT_DATA --format csv`
    """
    from neusight.cli.output import busy
    from neusight.cli.show_errors import show, show_rates
    from neusight.evaluation import evaluate_rates

    predictor = loaded(tile_models, calibration)
    with busy("predicting") as advance:
        errors = evaluate_rates(data, predictor, advance)
    show(errors, form, show_rates, predictor)


@app.command()
def energy(
    data: Annotated[Path, typer.Argument(metavar="DATA", help="The folder of the data sets, as for `neusight fit`.")],
    gpu: GpuFilter = "",
    limit: Limit = None,
    seed: Draw = 0,
    tile_models: TileModels = None,
    calibration: Calibrations = "",
    form: Format = "human",
) -> None:
    """Compare what boards draw with their meters: beside steady kernels, and for an output token of served models.

    `--limit` and `--gpu` choose among the rows of each table.

    Example: `neusight evaluate energy $NEUSIGHT_DATA`
    """
    from neusight.cli.output import busy
    from neusight.cli.show_errors import show, show_energy
    from neusight.evaluation import Selection, evaluate_energy

    predictor = loaded(tile_models, calibration)
    selection = Selection(gpus=tuple(named_gpus(gpu)) if gpu else (), limit=limit, seed=seed)
    with busy("predicting") as advance:
        errors = evaluate_energy(data, predictor, selection, advance)
    show(errors, form, show_energy, predictor)


@app.command("what-if")
def what_if(
    path: Annotated[Path, typer.Argument(metavar="PAIRS.parquet", help="Gains of optimisations, before and after.")],
    optimisation: Annotated[
        str, typer.Option(metavar="NAME[,NAME…]", help="Keep rows of these, such as amp. Default: all.")
    ] = "",
    sets: Annotated[str, typer.Option("--set", metavar="NAME[,NAME…]", help="Keep rows of these. Default: all.")] = "",
    gpu: GpuFilter = "",
    limit: Limit = None,
    seed: Draw = 0,
    tile_models: TileModels = None,
    calibration: Calibrations = "",
    form: Format = "human",
) -> None:
    """Compare what optimisations gain with pairs that public projects measured. Nothing is fitted to them.

    Examples:

    - `neusight evaluate what-if $NEUSIGHT_DATA/what-if/pairs.parquet`

    - `neusight evaluate what-if $NEUSIGHT_DATA/what-if/pairs.parquet --optimisation amp --limit 50`

    - `neusight evaluate what-if experiments/what-if/published.toml`
    """
    from neusight.cli.output import busy
    from neusight.cli.show_errors import show, show_what_if
    from neusight.evaluation import Selection
    from neusight.evaluation.what_if import evaluate_what_if

    predictor = loaded(tile_models, calibration)
    selection = Selection(gpus=tuple(named_gpus(gpu)) if gpu else (), limit=limit, seed=seed)
    chosen = {"optimisations": optimisation, "sets": sets}
    with busy("predicting") as advance:
        errors = evaluate_what_if(
            path,
            predictor,
            **{name: tuple(filter(None, text.split(","))) for name, text in chosen.items()},
            selection=selection,
            progress=advance,
        )
    show(errors, form, show_what_if, predictor)


@app.command()
def memory(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="Training runs, .parquet or .csv.")],
    form: Format = "human",
) -> None:
    """Compare the memory of training runs: with the allocator's peak where it was measured, else with whether they ran.

    Example: `neusight evaluate memory $NEUSIGHT_DATA/training-runs/memory.parquet --format json`
    """
    from neusight.cli.show_errors import show, show_peaks, show_verdicts, with_parts
    from neusight.evaluation import evaluate_memory

    errors = evaluate_memory(path)
    show(errors, form, show_peaks if "worst" in errors else show_verdicts, columns=with_parts)


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
    from neusight.cli.output import busy
    from neusight.cli.show_errors import show, show_training
    from neusight.evaluation import evaluate_training

    predictor = loaded(tile_models, calibration)
    with busy("predicting") as advance:
        errors = evaluate_training(path, predictor, advance)
    show(errors, form, show_training, predictor)


@app.command()
def gate(
    write: Annotated[bool, typer.Option("--write", help="Write the summary anew, for a diff to look at.")] = False,
) -> None:
    """Hold the predictor that ships against the committed summary of its errors and predictions.

    Needs `NEUSIGHT_DATA`. Names every row that is new or gone, and every figure that differs by more than rounding:
    what it was, what it is, and whether it got worse. Exit 1 where anything differs.
    """
    from neusight.cli.output import line
    from neusight.evaluation.gate import (
        REWRITE,
        counted,
        differences,
        read_summary,
        summarise,
        summary_path,
        write_summary,
    )

    summary = summarise(loaded(None, "none"))
    if write:
        write_summary(summary, summary_path())
        line(f"wrote {summary_path()}")
        return
    changes = differences(read_summary(summary_path()), summary)
    for change in changes:
        line(str(change))
    if changes:
        raise DataError(
            f"{counted(changes)} from {summary_path()}: mend what got worse, or write it anew with `{REWRITE}` and say "
            "why in the commit"
        )


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
        note(f"{row['name']}: {decimal(row['value'], 4)} {row['unit']}")
        rows.append(row)

    def human() -> None:
        columns = [
            Column("what", wrap=True),
            Column("measured", right=True),
            Column("unit"),
            Column("limit", right=True),
        ]
        table(columns, ((r["name"], decimal(r["value"], 4), r["unit"], decimal(r["limit"], 6)) for r in rows))

    Output(form).data(rows, rows, human)
