"""``neusight train`` and ``calibrate``: learn from measured kernels, all tile models or the correction of one GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from neusight.cli.commands import Commands
from neusight.cli.options import Format, Seed, TileModels, listed, named_dtypes, named_gpu

if TYPE_CHECKING:
    from neusight.collect.tasks import KernelTask
    from neusight.devices import DeviceSpec
    from neusight.laws.fitted import FittedToDevices
    from neusight.learn import Report

calibrate = Commands(no_args_is_help=False)
_EPOCHS = {"mlp": "epochs", "gbm": "rounds"}
"""What a backend calls its passes."""


@dataclass(frozen=True, kw_only=True)
class Folds:
    """What is left out in turn, and who learns from the rest."""

    against: Annotated[
        str, typer.Option(metavar="NAME[,NAME…]", help="Compare it in the same folds: gbm, gp, mlp+gbm+gp.")
    ] = ""
    fold_rows: Annotated[
        int, typer.Option(min=50, max=1_000_000, help="Rows of each GPU and family that folds learn from, at most.")
    ] = 4000

    def backends(self) -> tuple[str, ...]:
        """Names of backends, or of several joined by a plus."""
        names = tuple(listed(self.against, "--against")) if self.against else ()
        learned = ("mlp", "gbm", "gp", "linear")
        if wrong := [name for several in names for name in several.split("+") if name not in learned]:
            raise typer.BadParameter(f"no backend '{wrong[0]}': one of {', '.join(learned)}", param_hint="--against")
        return names


def train(
    folds: Folds,
    data: Annotated[
        Path | None,
        typer.Option(help="A table, a data set, or a folder of them; default: $NEUSIGHT_DATA."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder to write, one sub-folder a model.")] = Path("trained"),
    models: Annotated[
        str, typer.Option(metavar="NAME[,NAME…]", help="gemm, conv2d, matrix, …; default: all that have rows.")
    ] = "",
    physics: Annotated[
        Path | None, typer.Option(help="Constants that neusight fit wrote; default: those that ship.")
    ] = None,
    backend: Annotated[Literal["mlp", "gbm", "gp", "linear", "roofline"], typer.Option(help="What learns.")] = "mlp",
    gpus: Annotated[str, typer.Option(metavar="ID[,ID…]", help="Train on these; default: all in --data.")] = "",
    hold_out: Annotated[str, typer.Option(metavar="ID[,ID…]", help="Leave these out.")] = "",
    seed: Seed = 0,
    epochs: Annotated[
        int | None, typer.Option(min=1, max=1_000_000, help="Passes (mlp) or trees (gbm); default: the backend's.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on after an interruption, with the same options.")
    ] = False,
    form: Format = "human",
) -> None:
    """Train tile models. Every GPU is left out once, which decides when to stop and how wide the interval is; data of
    one GPU alone train a model whose error on others is not known.

    Examples:

    - `neusight train --out ./mine`, then `neusight predict gpt2-large --gpu l4 --tile-models ./mine`

    - `neusight train --data ./collected --out ./mine`: what `neusight collect` measured, every family and dtype

    - `neusight train --data ./measured --backend gbm --hold-out t4 --out ./without-t4`

    - `neusight train --against gbm,gp,mlp+gbm+gp --fold-rows 1000 --out ./compared`, then `neusight tile-models list
    --tile-models ./compared`: what each way of learning adds to physics
    """
    from neusight.cli.output import Output, line, note, tasks
    from neusight.datasets import devices_beside
    from neusight.laws.fitted import FittedPhysics
    from neusight.learn.training import TrainOptions
    from neusight.learn.training import train as run
    from neusight.learn.training_data import sets_of
    from neusight.paths import data_dir, writable

    writable(out, folder=True)
    if epochs is not None and backend not in _EPOCHS:
        raise typer.BadParameter(f"{backend} has no passes: leave it out", param_hint="--epochs")
    source = data if data is not None else data_dir()
    brought = {gpu: device for path in sets_of(source) for gpu, device in devices_beside(path).items()}
    options = TrainOptions(
        source=source,
        out=out,
        models=tuple(listed(models, "--models")) if models else (),
        backend=backend,
        gpus=_ids(gpus, "--gpus", brought),
        hold_out=_ids(hold_out, "--hold-out", brought),
        seed=seed,
        parameters=((_EPOCHS[backend], epochs),) if epochs is not None else (),
        resume=resume,
        physics=FittedPhysics.load(physics) if physics else None,
        against=folds.backends(),
        fold_rows=folds.fold_rows,
    )
    try:
        with tasks() as report:
            trained = run(options, report)
    except KeyboardInterrupt:
        note(f"interrupted: finished folds are kept in {out}, no model is half-written; go on with --resume")
        raise typer.Exit(130) from None
    rows = [_row(out / name, artifact.manifest) for name, artifact in trained.items()]

    def human() -> None:
        for row in rows:
            line(f"{row['folder']}: {row['rows']:,} rows, {_left_out(row['left_out_mape'])}")

    Output(form).data(rows, rows, human)


def fit(
    data: Annotated[Path | None, typer.Option(help="Folder of data sets; default: $NEUSIGHT_DATA.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="File to write; default: physics.json, or links.json and so on."),
    ] = None,
    links: Annotated[
        bool, typer.Option("--links", help="The constants of collectives instead, without each architecture too.")
    ] = False,
    engines: Annotated[
        bool, typer.Option("--engines", help="The constants of serving engines instead, from measured runs.")
    ] = False,
    arrays: Annotated[
        bool, typer.Option("--arrays", help="The constants of systolic accelerators instead, without each of them too.")
    ] = False,
    boards: Annotated[
        bool, typer.Option("--boards", help="What boards draw instead, from meters, without each GPU too.")
    ] = False,
    microcontrollers: Annotated[
        bool,
        typer.Option("--microcontrollers", help="The constants of microcontrollers instead, without each core too."),
    ] = False,
    training: Annotated[
        bool, typer.Option("--training", help="What kernels take in training steps instead, from measured steps.")
    ] = False,
    hold_out: Annotated[str, typer.Option(metavar="ID[,ID…]", help="Leave these out.")] = "",
    rows: Annotated[int, typer.Option(min=10, max=100_000, help="Of each device and kind of kernel, at most.")] = 100,
    seed: Seed = 0,
    form: Format = "human",
) -> None:
    """Fit the constants of physics to measured kernels of all devices at once.

    Examples:

    - `neusight fit --out tile_models/physics.json`, then `neusight train --physics tile_models/physics.json`

    - `neusight fit --hold-out h100-sxm-80gb,h200-sxm-141gb --out without-hopper.json`

    - `neusight fit --links --out tile_models/links.json`

    - `neusight fit --engines --out tile_models/engines.json`

    - `neusight fit --arrays --out tile_models/arrays.json`

    - `neusight fit --boards --out tile_models/boards.json`

    - `neusight fit --microcontrollers --out tile_models/microcontrollers.json`

    - `neusight fit --training --out tile_models/training.json`
    """
    fits = {
        "links": links, "engines": engines, "arrays": arrays, "boards": boards, "microcontrollers": microcontrollers,
        "training": training,
    }  # fmt: skip
    chosen = [name for name, on in fits.items() if on]
    if len(chosen) > 1:
        raise typer.BadParameter(f"--{chosen[0]} and --{chosen[1]} are two fits: give one", param_hint="--" + chosen[1])
    what = chosen[0] if chosen else "physics"
    if chosen and hold_out:
        raise typer.BadParameter(f"--{what} leaves every device out once anyway: drop it", param_hint="--hold-out")
    from neusight.cli.output import Output, line, tasks
    from neusight.paths import data_dir, writable

    path, folder = writable(out or Path(f"{what}.json")), data if data is not None else data_dir()
    with tasks() as report:
        if what == "physics":
            content, listed_rows, lines = _fit_physics(folder, path, report, hold_out=hold_out, rows=rows, seed=seed)
        elif what == "links":
            content, listed_rows, lines = _fit_links(folder, path, report, seed)
        elif what == "arrays":
            content, listed_rows, lines = _fit_arrays(folder, path, report, seed)
        else:
            others = {
                "engines": _fit_engines, "boards": _fit_boards, "microcontrollers": _fit_microcontrollers,
                "training": _fit_training,
            }  # fmt: skip
            content, listed_rows, lines = others[what](folder, path, report)
    Output(form).data(content, listed_rows, lambda: line("\n".join(lines)))


Fitted = tuple[Any, list[dict[str, Any]], list[str]]
"""What a fit prints: as JSON, as rows of a table, and in lines."""


def _fit_links(folder: Path, out: Path, report: Report, seed: int) -> Fitted:
    from neusight.learn.links import fit_links

    fitted = fit_links(folder, seed=seed, report=report)
    fitted.save(out)
    return fitted.values, fitted.errors, _lines_of_constants(out, fitted)


def _fit_arrays(folder: Path, out: Path, report: Report, seed: int) -> Fitted:
    from neusight.learn.arrays import fit_arrays

    fitted = fit_arrays(folder, seed=seed, report=report)
    fitted.save(out)
    head = f"{out}: {len(fitted.values)} constants from {fitted.rows:,} rows of {', '.join(fitted.gpus)}"
    lines = [
        f"{e['fit']}: {e['gpu']} {e['family']}, mean {e['mean']} %, median {e['median']} %"
        + (f", inside {e['inside']} %" if "inside" in e else "")
        for e in fitted.errors
    ]
    return fitted.values, fitted.errors, [head, *lines]


SERVING_TABLES = ("serving/cells.parquet", "serving-more/cells.parquet")
"""Tables of served models that constants of engines are fitted to, below the folder of data sets."""


def _fit_engines(folder: Path, out: Path, report: Report) -> Fitted:
    from neusight.cli.options import loaded
    from neusight.evaluation.serving import deployed_cells
    from neusight.executors.gpu.tile_models.artifact import file_sha256
    from neusight.learn.engines import fit_engines

    predictor, hashes = loaded(None, "none"), {name: file_sha256(folder / name) for name in SERVING_TABLES}
    fitted = fit_engines(
        lambda: chain.from_iterable(deployed_cells(folder / name, predictor) for name in hashes), report=report
    )
    fitted.save(out, hashes)
    rows = [{"engine": era, **each.values} for era, each in fitted.engines.items()]
    lines = [
        f"{era}: mean error {each.error:.1%} on {each.cells:,} cells of {', '.join(each.gpus)}"
        for era, each in fitted.engines.items()
    ]
    return rows, rows, [*lines, *_left_out_lines("cells", fitted.left_out)]


def _fit_boards(folder: Path, out: Path, report: Report) -> Fitted:
    from neusight.cli.options import loaded
    from neusight.datasets.power import ROOFLINES
    from neusight.evaluation.serving import deployed_cells
    from neusight.executors.gpu.tile_models.artifact import file_sha256
    from neusight.learn.boards import fit_boards, served_observations, steady_observations

    predictor, left_out = loaded(None, "none"), Counter[str]()
    hashes = {name: file_sha256(folder / name) for name in (str(ROOFLINES), *SERVING_TABLES)}
    cells = chain.from_iterable(deployed_cells(folder / name, predictor) for name in SERVING_TABLES)
    observations = [*steady_observations(folder), *served_observations(cells, left_out)]
    fitted = fit_boards(observations, hashes, left_out)
    fitted.save(out)
    head = f"{out}: {len(fitted.values)} constants from {fitted.rows:,} readings of {', '.join(fitted.gpus)}"
    lines = [
        f"{e['fit']}: {e['gpu']} {e['source']}, mean {e['mean']} %, median {e['median']} %, bias {e['bias']:+} %"
        for e in fitted.errors
    ]
    return fitted.values, fitted.errors, [head, *lines, *_left_out_lines("cells", fitted.skipped)]


def _fit_microcontrollers(folder: Path, out: Path, report: Report) -> Fitted:
    from neusight.datasets.published_steps import INFERENCES
    from neusight.executors.gpu.tile_models.artifact import file_sha256
    from neusight.learn.microcontrollers import fit_microcontrollers

    path = folder / INFERENCES
    fitted = fit_microcontrollers([path], {INFERENCES: file_sha256(path)})
    fitted.save(out)
    head = f"{out}: {len(fitted.values)} constants from {fitted.rows:,} inferences on {', '.join(fitted.gpus)}"
    lines = [
        f"without {e['core']}: {e['model']}, {e['rows']} rows, mean error {e['law']} %"
        + (f", of a line through the multiply-adds {e['line']} %" if "line" in e else "")
        for e in fitted.errors
    ]
    return fitted.values, fitted.errors, [head, *lines]


STEP_TABLES = ("training-runs/runs.parquet", "training-throughput/a100_training.csv")
"""Tables of training steps that factors are fitted to, below the folder of data sets."""


def _fit_training(folder: Path, out: Path, report: Report) -> Fitted:
    from neusight.cli.options import loaded
    from neusight.evaluation.training import measured_steps
    from neusight.executors.gpu.tile_models.artifact import file_sha256
    from neusight.learn.training_steps import fit_training

    predictor, hashes = loaded(None, "none"), {name: file_sha256(folder / name) for name in STEP_TABLES}
    steps, skipped = measured_steps(folder / name for name in STEP_TABLES)
    fitted = fit_training(steps, predictor.timed, hashes, report, Counter(row["reason"] for row in skipped))
    fitted.save(out)
    rows = [{"factor": name, "value": v, "deviation": fitted.deviations[name]} for name, v in fitted.values.items()]
    lines = [f"{fitted.rows} steps of {', '.join(fitted.gpus)}: mean error {fitted.error:.1%}"]
    lines += [
        f"without steps of {gpu}: {errors['mean']:.1%}, worst source {errors['worst_source']:.1%}"
        for gpu, errors in fitted.left_out.items()
    ]
    return rows, rows, [*lines, *_left_out_lines("steps", fitted.skipped)]


def _left_out_lines(what: str, left_out: Mapping[str, int]) -> list[str]:
    """How many rows a fit did not read, and why, in a line; none where all were read."""
    from neusight.learn.sums import most_common

    counted = Counter(left_out)
    return [f"{counted.total():,} {what} were left out: {most_common(counted)}"] if counted else []


def _fit_physics(folder: Path, out: Path, report: Report, *, hold_out: str, rows: int, seed: int) -> Fitted:
    from neusight.devices import load_device
    from neusight.learn.physics.fit import FitOptions, fit_physics

    held = tuple(load_device(named_gpu(name)).id for name in listed(hold_out, "--hold-out")) if hold_out else ()
    fitted = fit_physics(FitOptions(data=folder, hold_out=held, each=rows, seed=seed), report=report)
    fitted.save(out)
    constants = [{"constant": name, "value": value} for name, value in fitted.values.items()]
    return fitted.values, constants, _lines_of_constants(out, fitted)


def _lines_of_constants(out: Path, fitted: FittedToDevices) -> list[str]:
    return [
        f"{out}: {len(fitted.values)} constants from {fitted.rows:,} rows of {len(fitted.gpus)} devices, ",
        f"mean error {fitted.error:.1%} with what each device has of its own",
        *_left_out_lines("rows", fitted.skipped),
    ]


def _ids(text: str, option: str, brought: Mapping[str, DeviceSpec]) -> tuple[str, ...]:
    """Ids of devices, those that the data bring along among them."""
    return tuple(_measured_gpu(name, brought).id for name in listed(text, option)) if text else ()


def _measured_gpu(name: str, brought: Mapping[str, DeviceSpec]) -> DeviceSpec:
    from neusight.datasets import device_of

    return device_of(named_gpu(name, brought), brought)


def _row(folder: Path, manifest: Any) -> dict[str, Any]:
    return {
        "name": manifest.name,
        "folder": str(folder),
        "backend": manifest.backend,
        "rows": manifest.data["rows"],
        "training_gpus": manifest.training_gpus,
        "left_out_mape": manifest.left_out().get("as_shipped"),
    }


def _left_out(error: float | None) -> str:
    return "no GPU to leave out" if error is None else f"mean error {error:.1f} % on a GPU left out"


@calibrate.callback(invoke_without_command=True)
def calibrate_(
    context: typer.Context,
    gpu: Annotated[str, typer.Option("--gpu", "-g", metavar="ID", help="Whose rows count.")] = "",
    data: Annotated[
        Path | None, typer.Option(metavar="DATA", help="Measured kernels: a parquet file or the folder of a data set.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Default: ID.json in your own folder of calibrations.")
    ] = None,
    tile_models: TileModels = None,
    form: Format = "human",
) -> None:
    """Correct the estimates for a GPU by 20 to 200 of its kernels that you have measured.

    What is measured moves what is like it: the whole GPU a little, kernels of its family, op and shape more. Later
    commands take the correction up and say so.

    Examples:

    - `neusight calibrate plan --gpu l4 --count 100 --out plan.json`

    - `neusight collect --plan plan.json --out ./measured`

    - `neusight calibrate --gpu l4 --data ./measured`, then `neusight predict gpt2-large --gpu l4`
    """
    if context.invoked_subcommand is not None:
        return
    for option, given in (("--gpu", gpu), ("--data", data)):
        if not given:
            raise typer.BadParameter("is missing: neusight calibrate --gpu ID --data DATA", param_hint=option)
    assert data is not None
    from neusight.cli.output import Output
    from neusight.datasets import devices_beside
    from neusight.devices import gpu_of
    from neusight.executors.gpu.predictor import KernelPredictor
    from neusight.learn.calibration import fit_calibration
    from neusight.paths import calibrations_dir, writable

    if out is not None:
        writable(out)
    device = gpu_of(_measured_gpu(gpu, devices_beside(data)))
    rows, sha256 = _measured(data, device.id)
    calibration = fit_calibration(KernelPredictor.load(tile_models), device, rows, sha256=sha256)
    path = calibration.save(out or calibrations_dir() / f"{device.id}.json")
    errors = calibration.errors()
    summary = {"gpu": device.id, "file": str(path), **calibration.data, "errors": errors}
    Output(form).data(summary, errors, lambda: _show_calibration(summary))


def _measured(data: Path, gpu: str) -> tuple[Any, dict[str, str]]:
    """A GPU's rows, and the hashes of the files that they may come from."""
    from neusight.datasets import load_kernels
    from neusight.datasets.load import parquet_files
    from neusight.errors import DataError
    from neusight.executors.gpu.tile_models.artifact import file_sha256

    frame = load_kernels(data)
    own = frame[frame["gpu"] == gpu]
    if own.empty:
        raise DataError(f"{data} has no rows of {gpu}: it has {', '.join(sorted(frame['gpu'].unique()))}")
    return own, {file.name: file_sha256(file) for file in parquet_files(data)}


def _show_calibration(summary: dict[str, Any]) -> None:
    from neusight.cli.output import Column, line, note, table

    line(f"{summary['file']}: {summary['rows']} kernels of {summary['gpu']}")
    if summary["left_out"]:
        reasons = "; ".join(f"{reason} ({rows:,})" for reason, rows in summary["reasons"].items())
        note(f"note: left out of {summary['rows'] + summary['left_out']:,} rows: {reasons}")
    line("Errors in percent. after: of each kernel, from the others.")
    columns = [Column("kernels"), *(Column(title, right=True) for title in ("rows", "before", "after", "factor"))]
    table(
        columns,
        (
            (row["kind"], str(row["rows"]), f"{row['before']:.1f}", f"{row['after']:.1f}", f"{row['factor']:.2f}")
            for row in summary["errors"]
        ),
    )


@calibrate.command()
def plan(
    gpu: Annotated[
        str, typer.Option("--gpu", "-g", metavar="ID", help="Id, driver or short name, or device file (.toml).")
    ],
    count: Annotated[int, typer.Option(min=1, max=500, help="Kernels to choose.")] = 100,
    families: Annotated[str, typer.Option(metavar="NAME[,NAME…]", help="Kernel families; default: all.")] = "",
    dtypes: Annotated[str, typer.Option(metavar="DTYPE[,DTYPE…]", help="Default: all that the GPU has.")] = "",
    seed: Seed = 0,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write them for `neusight collect --plan`.")] = None,
    tile_models: TileModels = None,
    form: Format = "human",
) -> None:
    """Choose the kernels to measure: those that tell most about all others, the most informative first.

    They come from the ready workloads and from shapes sampled evenly, within what the GPU can take.

    Examples:

    - `neusight calibrate plan --gpu l4 --count 100 --dtypes float32 --out plan.json`

    - `neusight calibrate plan --gpu h100-sxm-80gb --count 50 --families gemm,attention --format csv`
    """
    from neusight.api import as_device
    from neusight.cli.output import Output, busy, note
    from neusight.collect.plan import chosen_tasks, write_plan
    from neusight.devices import gpu_of
    from neusight.executors.gpu.predictor import KernelPredictor
    from neusight.paths import writable

    if out is not None:
        writable(out)
    chosen_families = listed(families, "--families") if families else []
    chosen_dtypes = named_dtypes(dtypes, "--dtypes") if dtypes else []
    predictor, device = KernelPredictor.load(tile_models), gpu_of(as_device(named_gpu(gpu)))
    with busy("choosing"):
        tasks = chosen_tasks(predictor, device, count, families=chosen_families, dtypes=chosen_dtypes, seed=seed)
    if out is not None:
        write_plan(out, tasks)
        note(f"next: neusight collect --plan {out} --out ./measured")
    rows = [{"place": place, **_task_row(task)} for place, task in enumerate(tasks, start=1)]
    Output(form).data([task.describe() for task in tasks], rows, lambda: _show_plan(rows))


def _task_row(task: KernelTask) -> dict[str, Any]:
    from neusight.kernels.describe import describe

    kernel = task.kernel
    return {
        "sample": task.sample,
        "family": kernel.family,
        "op": kernel.op,
        "dtype": kernel.dtype,
        "kernel": describe(kernel),
        "origin": {"test": "workload", "train": "sampled"}[task.split],
    }


def _show_plan(rows: list[dict[str, Any]]) -> None:
    from neusight.cli.output import Column, table

    shown = ("place", "kernel", "family", "dtype", "origin")
    columns = [Column(name, right=name == "place", wrap=name == "kernel") for name in shown]
    table(columns, (tuple(str(row[name]) for name in shown) for row in rows))
