"""``neusight evaluate``: predicted against measured; ``neusight bench``: how fast the program itself is, here."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from typer import BadParameter

from neusight.cli import options as opt
from neusight.cli.asked import described, leave_out
from neusight.cli.commands import Commands
from neusight.cli.output import Output, busy, figures, line, note
from neusight.errors import DataError
from neusight.questions.field import number, required, switch, text, whole
from neusight.questions.parts import OnGpu, Seeded
from neusight.quick_dataclasses import dataclass
from neusight.units import decimal

if TYPE_CHECKING:
    from neusight.evaluation import Selection

app = Commands(help="Compare predictions with measurements; all errors in percent.")


@dataclass(frozen=True, kw_only=True)
class Measured(opt.Formatted):
    """A table of measurements."""

    path: Path = required("Measurements.", "", kind="path", metavar="DATA")


@dataclass(frozen=True, kw_only=True)
class Compared(opt.Models, Measured):
    """A table of measurements, and what predicts them."""

    def show(self, kind: str, **options: Any) -> Mapping[str, Any]:
        """Predict, compare and print; ``options`` are those of the function ``evaluate_{kind}``."""
        from neusight.cli.show_errors import show

        evaluate = getattr(import_module("neusight.evaluation"), f"evaluate_{kind}")
        predictor = opt.loaded(self.tile_models, self.calibration)
        with busy("predicting") as advance:
            errors: Mapping[str, Any] = evaluate(self.path, predictor=predictor, progress=advance, **options)
        show(kind, errors, self.form, predictor)
        return errors


@dataclass(frozen=True, kw_only=True)
class Chosen(opt.Limited, OnGpu, Seeded):
    """Rows that are compared."""

    HELP: ClassVar[Mapping[str, str]] = {"gpu": "Rows of these devices. Default: all."}

    @property
    def gpus(self) -> tuple[str, ...]:
        """Ids of devices; none where all rows count."""
        return tuple(map(opt.named_gpu, self.gpu))

    @property
    def selection(self) -> Selection:
        """As evaluations take it."""
        from neusight.evaluation import Selection

        return Selection(gpus=self.gpus, limit=self.limit, seed=self.seed)


@dataclass(frozen=True, kw_only=True)
class OnHosts(Chosen):
    """Rows that depend on the host as well."""

    hosts: str = text(
        "Hosts whose times are fitted: to half of their own programs or models, or to other hosts.",
        opt.CHOICE, "own", choices=("own", "others"),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ServedCells(opt.OfConfigurations, opt.Limited, Seeded):
    """Measurements of served models that are compared."""

    source: str = text("Cells of this source, the first part of their names. Default: all.", opt.CHOICE, metavar="NAME")


@dataclass(frozen=True, kw_only=True)
class ProgramRows(OnHosts):
    """Timings of programs that are compared."""

    programs: Path | None = opt.path(
        "Folder with <graph>.pt2. Default: problems beside DATA.", opt.CHOICE, metavar="DIR"
    )
    spread: float = number(
        "Leave out rows whose standard deviation is more percent of their mean.", opt.CHOICE, 10.0, low=0.0
    )
    suspect: bool = switch("Keep rows that the table doubts.", opt.CHOICE)


@dataclass(frozen=True, kw_only=True)
class PairRows(Chosen):
    """Measured gains that are compared."""

    optimisation: tuple[str, ...] = opt.names("Rows of these, such as amp. Default: all.")
    sets: tuple[str, ...] = opt.names("Rows of these sets. Default: all.", former=("set",))


@dataclass(frozen=True, kw_only=True)
class GateOptions(opt.CommandOptions):
    """The committed summary."""

    write: bool = switch("Write the summary again, for a diff to look at.", opt.OUTPUT)


@dataclass(frozen=True, kw_only=True)
class BenchOptions(opt.WithTileModels, opt.Formatted):
    """What is timed, and how often."""

    repeats: int = whole("Runs of each; the median counts.", opt.CHOICE, 5, high=1000)


@app.command()
def kernels(
    data: Annotated[Compared, described(path="A parquet file of kernels, or the folder of a data set.")],
    rows: opt.OfSplit,
) -> None:
    """Compare single kernels, by GPU, operator and dtype. GPUs may be those of the data set's own `devices/`.

    Examples:

    - `neusight evaluate kernels $NEUSIGHT_DATA/neusight-fp32/kernels/gemm.parquet --split test`

    - `neusight evaluate kernels ./collected`
    """
    data.show("kernels", split=rows.split or None)


@app.command()
def models(
    data: Annotated[Compared, described(path="Whole-model measurements, a parquet file.")],
    configurations: opt.OfConfigurations,
    rows: Annotated[Chosen, leave_out("limit", "seed")],
) -> None:
    """Compare whole models row by row, with means by GPU and mode: alone, with torch.compile, and on several GPUs.

    Example: `neusight evaluate models latency.parquet --configs ./configs --format json`
    """
    if configurations.configs is None:
        raise BadParameter("is missing: the folder with <model>.json for every model", param_hint="--configs")
    errors = data.show("models", configs=configurations.configs, gpus=rows.gpus)
    if count := errors["adapted"]:
        operators = f"the table of measured operators beside {data.path}"
        note(f"note: attention of {count:,} rows has the steps that {operators} names")


@app.command(renamed={"--models": "--configs"})
def serving(
    data: Annotated[Compared, described(path="Measurements of served language models, a parquet file.")],
    cells: Annotated[
        ServedCells, described(configs="JSON file of configurations by model. Default: models.json beside DATA.")
    ],
) -> None:
    """Compare served language models cell by cell: times to tokens, throughput, under the load that was measured.

    A cell needs gpu, model and what it measured; what else it leaves empty takes defaults, which are shown.

    Examples:

    - `neusight evaluate serving $NEUSIGHT_DATA/serving/cells.parquet --limit 100`

    - `neusight evaluate serving cells.parquet --configs models.json --source mlenergy --format csv`
    """
    from neusight.evaluation import Selection

    selection = Selection(source=cells.source, limit=cells.limit, seed=cells.seed)
    data.show("serving", models=cells.configs, selection=selection)


@app.command()
def steps(
    data: Annotated[Compared, described(path="Steps of image models or BERT, .parquet or .csv.")], rows: OnHosts
) -> None:
    """Compare steps of public benchmarks row by row: models of timm and torchvision, and training of BERT and ResNet.

    Models are built by the libraries themselves: `pip install 'neusight[timm]'`.

    Examples:

    - `neusight evaluate steps $NEUSIGHT_DATA/vision-models/torchvision.parquet --gpu a100-sxm-40gb`

    - `neusight evaluate steps $NEUSIGHT_DATA/vision-models/timm.parquet --limit 300 --format json`
    """
    errors = data.show("steps", selection=rows.selection, hosts=rows.hosts)
    for assumption in errors["assumed"]:
        note(f"warning: {assumption}")


@app.command()
def programs(
    data: Annotated[Compared, described(path="Timings of programs, .parquet or .csv.")], rows: ProgramRows
) -> None:
    """Compare programs of torch.export, eager and as torch.compile runs them, with what each mode gains over eager.

    Examples:

    - `neusight evaluate programs $NEUSIGHT_DATA/kernelbench/timings.parquet --gpu l40s`

    - `neusight evaluate programs timings.parquet --programs ./problems --format json`
    """
    from neusight.evaluation.programs import Filters

    filters = Filters(spread=rows.spread, suspect=rows.suspect)
    data.show("programs", programs=rows.programs, selection=rows.selection, hosts=rows.hosts, filters=filters)


@app.command()
def rates(data: Annotated[Compared, described(path="The folder of the data sets, as for `neusight fit`.")]) -> None:
    """Show what every GPU of the catalogue sustains, a copy of 1 GiB and products of 8192³ in every dtype, beside what
    is published; JSON and CSV are one table.

    Example: `neusight evaluate rates $NEUSIGHT_DATA --format csv`
    """
    data.show("rates")


@app.command()
def energy(
    data: Annotated[Compared, described(path="The folder of the data sets, as for `neusight fit`.")], rows: Chosen
) -> None:
    """Compare what boards draw with their meters: beside steady kernels, and for an output token of served models.

    `--limit` and `--gpu` choose among the rows of each table.

    Example: `neusight evaluate energy $NEUSIGHT_DATA`
    """
    data.show("energy", selection=rows.selection)


@app.command("what-if")
def what_if(
    data: Annotated[Compared, described(path="Gains of optimisations, before and after: .parquet, .csv or .toml.")],
    rows: PairRows,
) -> None:
    """Compare what optimisations gain with pairs that public projects measured. Nothing is fitted to them.

    Examples:

    - `neusight evaluate what-if $NEUSIGHT_DATA/what-if/pairs.parquet`

    - `neusight evaluate what-if $NEUSIGHT_DATA/what-if/pairs.parquet --optimisation amp --limit 50`

    - `neusight evaluate what-if experiments/what-if/published.toml`
    """
    data.show("what_if", optimisations=rows.optimisation, sets=rows.sets, selection=rows.selection)


@app.command()
def memory(data: Annotated[Measured, described(path="Training runs, .parquet or .csv.")]) -> None:
    """Compare the memory of training runs: with the allocator's peak where it was measured, else with whether they ran.

    Example: `neusight evaluate memory $NEUSIGHT_DATA/training-runs/memory.parquet --format json`
    """
    from neusight.cli.show_errors import show
    from neusight.evaluation import evaluate_memory

    show("memory", evaluate_memory(data.path), data.form)


@app.command()
def training(data: Annotated[Compared, described(path="Distributed training runs, .parquet or .csv.")]) -> None:
    """Compare training steps on many GPUs row by row, with means by source, and what runs out of memory.

    A row needs model, gpu, num_gpus, seq_len and the sizes of its model; what else it leaves empty takes defaults,
    which are shown.

    Examples:

    - `neusight evaluate training $NEUSIGHT_DATA/training-throughput/a100_training.csv`

    - `neusight evaluate training $NEUSIGHT_DATA/training-runs/runs.parquet --format json`
    """
    data.show("training")


@app.command()
def gate(options: GateOptions) -> None:
    """Hold the predictor that ships against the committed summary of its errors and predictions.

    Needs `NEUSIGHT_DATA`. Names every row that is new or gone, and every figure that differs by more than rounding:
    what it was, what it is, and whether it got worse. Exit 1 where anything differs.
    """
    from neusight.evaluation import gate as committed

    summary, path = committed.summarise(opt.loaded(None, "none")), committed.summary_path()
    if options.write:
        committed.write_summary(summary, path)
        line(f"wrote {path}")
    elif changes := committed.differences(committed.read_summary(path), summary):
        line("\n".join(map(str, changes)))
        remedy = f"write it anew with `{committed.REWRITE}` and say why in the commit"
        raise DataError(f"{committed.counted(changes)} from {path}: mend what got worse, or {remedy}")


def bench(options: BenchOptions) -> None:
    """Measure the program on this machine: cold start, warm prediction, kernels a second, memory of a large trace.

    Example: `neusight bench --format json > bench.json`
    """
    from neusight.benchmark import measure

    rows = []
    for row in measure(options.tile_models, options.repeats):
        note(f"{row['name']}: {decimal(row['value'], 4)} {row['unit']}")
        rows.append(row)
    shown = [{**row, "value": decimal(row["value"], 4), "limit": decimal(row["limit"], 6)} for row in rows]
    Output(options.form).data(rows, rows, lambda: figures("~what = name | >measured = value | unit | >limit", shown))
