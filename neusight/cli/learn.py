"""``neusight train`` and ``calibrate``: learn from measured kernels, all tile models or the correction of one GPU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import typer

from neusight.cli import options as opt
from neusight.cli.commands import Commands
from neusight.cli.output import Output, busy, figures, line, note, tasks
from neusight.errors import DataError, shown
from neusight.paths import calibrations_dir, data_dir, writable
from neusight.questions.field import FieldError, path, switch, text, whole
from neusight.questions.parts import OnGpu, Seeded
from neusight.questions.question import like
from neusight.quick_dataclasses import dataclass

if TYPE_CHECKING:
    from neusight.collect.tasks import KernelTask
    from neusight.devices import DeviceSpec

calibrate = Commands(no_args_is_help=False)
_REGRESSORS = ("mlp", "gbm", "linear")
_EPOCHS = {"mlp": "epochs", "gbm": "rounds"}
"""Names of training passes, by regressor."""
_TARGETS = ("physics", "links", "engines", "arrays", "boards", "microcontrollers", "training", "hosts", "memory",
            "gains", "sources")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TrainTarget(opt.OfData, opt.OfModels, opt.HeldOut, Seeded, opt.Written, opt.Formatted):
    """Tile models to train, and regressors that learn from all devices but one, in turn."""

    FOLDER: ClassVar[bool] = True

    against: tuple[str, ...] = opt.names("Other regressors to compare in the same folds: gbm, linear.")
    fold_rows: int = whole("Most rows of each GPU and family that folds learn from.", opt.CHOICE, 4000, 50, 1_000_000)
    out: Path = like(opt.Written, "out", default=Path("trained"), help="Output folder, with a folder a tile model.",
                     metavar="DIR")  # fmt: skip
    physics: Path | None = path("Constants that `neusight fit` wrote. Default: those that ship.", opt.CHOICE)
    regressor: str = text(
        "Method that learns.", opt.CHOICE, "mlp", choices=(*_REGRESSORS, "roofline"), former=("backend",)
    )
    gpus: tuple[str, ...] = opt.names("Devices to train on. Default: all of --data.", "ID")
    epochs: int | None = whole("Passes (mlp) or trees (gbm). Default: the regressor's.", opt.CHOICE, high=1_000_000)
    resume: bool = switch("Continue after an interruption, with the same options.", opt.CHOICE)

    def check(self) -> None:
        """Raises:
        FieldError: a name of no regressor, or passes of one that has none.
        """
        super().check()
        if wrong := [name for name in self.against if name not in _REGRESSORS]:
            raise FieldError("against", f"'{shown(wrong[0])}' is no regressor: one of {', '.join(_REGRESSORS)}")
        if self.epochs is not None and self.regressor not in _EPOCHS:
            raise FieldError("epochs", f"have no meaning for {self.regressor}: leave them out")


def train(options: TrainTarget) -> None:
    """Train tile models. Every GPU is left out once, which decides when to stop and how wide the interval is; data of
    one GPU alone train a model whose error on others is not known.

    Examples:

    - `neusight train --out ./mine`, then `neusight predict gpt2-large --gpu l4 --tile-models ./mine`

    - `neusight train --data ./collected --out ./mine`: what `neusight collect` measured, every family and dtype

    - `neusight train --data ./measured --regressor gbm --hold-out t4 --out ./without-t4`

    - `neusight train --against gbm,linear --fold-rows 1000 --out ./compared`, then `neusight tile-models list
    --tile-models ./compared`: what each way of learning adds to physics

    - `neusight train --models tensordash --out ./mine`: on passes that are simulated, in some minutes
    """
    from neusight.laws.fitted import FittedPhysics
    from neusight.learn.training import TrainOptions
    from neusight.learn.training import train as run
    from neusight.measured.folder import kernel_files, sources_of

    data = options.data or data_dir()
    files = tuple(kernel_files(data, lambda family, gpu: family != "collective"))
    brought = _devices_of(files)
    train_options = TrainOptions(
        files=files, refit_to=data if len(sources_of(files)) > 1 else None, out=options.out,
        models=options.models, backend=options.regressor, gpus=_ids(options.gpus, brought), seed=options.seed,
        parameters=((_EPOCHS[options.regressor], options.epochs),) if options.epochs is not None else (),
        resume=options.resume, physics=FittedPhysics.load(options.physics) if options.physics else None,
        hold_out=_ids(options.hold_out, brought), against=options.against, fold_rows=options.fold_rows,
    )  # fmt: skip
    try:
        with tasks() as report:
            trained = run(train_options, report)
    except KeyboardInterrupt:
        note(f"interrupted: finished folds are kept in {options.out}, no model is half-written; go on with --resume")
        raise typer.Exit(130) from None
    rows = [_row(options.out / name, artifact.manifest) for name, artifact in trained.items()]
    lines = (f"{row['folder']}: {row['rows']:,} rows, {_left_out(row['left_out_mape'])}" for row in rows)
    Output(options.form).data(rows, rows, lambda: line("\n".join(lines)))


@dataclass(frozen=True, kw_only=True)
class FitTarget(opt.OfData, opt.Written, opt.HeldOut, Seeded, opt.Formatted):
    """Constants to fit."""

    HELP: ClassVar[Mapping[str, str]] = {
        "data": "Folder of data sets, with that of measured rows beside it. Default: $NEUSIGHT_DATA.",
        "out": "File of the constants. Default: TARGET.json.",
    }  # fmt: skip

    target: str = text(
        "Constants: physics of kernels (the default); links (collectives), arrays (systolic accelerators) or "
        "microcontrollers, each without every device too; engines that serve; boards (power); training (kernels of "
        "training steps); sources (what numbers of strangers miss, from evaluated rows); hosts (times of calls and "
        "operators), memory (of training) and gains (their doubt), in code.",
        "", "physics", choices=_TARGETS, argument=True, former=_TARGETS[1:7],
    )  # fmt: skip
    rows: int = whole("Most rows of each device and kind of kernel, for physics.", opt.CHOICE, 100, 10, 100_000)

    def check(self) -> None:
        """Raises:
        FieldError: devices to leave out of a fit that leaves out each of them.
        """
        super().check()
        if self.hold_out and self.target != "physics":
            raise FieldError("hold_out", f"has no meaning for {self.target}: every device is left out once anyway")


def fit(options: FitTarget) -> None:
    """Fit the constants of physics to measured kernels of all devices at once.

    Examples:

    - `neusight fit --out tile_models/physics.json`, then `neusight train --physics tile_models/physics.json`

    - `neusight fit --hold-out h100-sxm-80gb,h200-sxm-141gb --out without-hopper.json`

    - `neusight fit links --out tile_models/links.json`

    - `neusight fit engines --out tile_models/engines.json`

    - `neusight fit arrays --out tile_models/arrays.json`

    - `neusight fit boards --out tile_models/boards.json`

    - `neusight fit microcontrollers --out tile_models/microcontrollers.json`

    - `neusight fit training --out tile_models/training.json`

    - `neusight evaluate $NEUSIGHT_DATA/*/public.parquet --format csv > rows/public.csv`, then `neusight fit sources
    --data rows`
    """
    from neusight.learn.fits import FitOptions, fit_constants

    out, folder = options.out or writable(Path(f"{options.target}.json")), options.data or data_dir()
    chosen = FitOptions(data=folder, hold_out=_ids(options.hold_out, {}), each=options.rows, seed=options.seed)
    with tasks() as report:
        content, rows, lines = fit_constants(options.target, chosen, out, report)
    Output(options.form).data(content, rows, lambda: line("\n".join(lines)))


def _ids(names: Iterable[str], brought: Mapping[str, DeviceSpec]) -> tuple[str, ...]:
    """Ids of devices, including those of the data."""
    return tuple(_measured_gpu(name, brought).id for name in names)


def _devices_of(files: Iterable[Path]) -> dict[str, DeviceSpec]:
    """Devices that are described next to tables, by id."""
    from neusight.measured.folder import devices_beside

    return {gpu: device for file in files for gpu, (_, device) in devices_beside(file).items()}


def _measured_gpu(name: str, brought: Mapping[str, DeviceSpec]) -> DeviceSpec:
    from neusight.devices import load_device

    gpu = opt.named_gpu(name, brought)
    return brought[gpu] if gpu in brought else load_device(gpu)


def _row(folder: Path, manifest: Any) -> dict[str, Any]:
    return {
        "name": manifest.name, "folder": str(folder), "backend": manifest.backend, "rows": manifest.data["rows"],
        "training_gpus": manifest.training_gpus, "left_out_mape": manifest.left_out().get("as_shipped"),
    }  # fmt: skip


def _left_out(error: float | None) -> str:
    return "no GPU to leave out" if error is None else f"mean error {error:.1f} % on a GPU left out"


@dataclass(frozen=True, kw_only=True)
class CalibrateOptions(opt.OfData, opt.Written, opt.WithTileModels, opt.Formatted):
    """The kernels of a device that correct its estimates."""

    HELP: ClassVar[Mapping[str, str]] = {
        "data": "Measured kernels: a parquet file, or the folder of a data set.",
        "out": "File of the calibration. Default: ID.json in your own folder of calibrations.",
    }  # fmt: skip

    gpu: str = like(OnGpu, "gpu", help="Device whose rows count.", listable=False, metavar="ID")


@calibrate.callback(invoke_without_command=True)
def calibrate_(context: typer.Context, options: CalibrateOptions) -> None:
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
    data = options.data
    if data is None or not options.gpu:
        missing = "--gpu" if not options.gpu else "--data"
        raise typer.BadParameter("is missing: neusight calibrate --gpu ID --data DATA", param_hint=missing)
    from neusight.devices import gpu_of
    from neusight.executors.gpu.predictor import KernelPredictor
    from neusight.learn.calibration import fit_calibration, read_rows
    from neusight.measured.folder import kernel_files

    device = gpu_of(_measured_gpu(options.gpu, _devices_of(kernel_files(data))))
    rows, sha256 = read_rows(data, device.id)
    calibration = fit_calibration(KernelPredictor.load(options.tile_models), device, rows, sha256=sha256)
    if not calibration.data["rows"]:
        raise DataError(f"{data} has no kernel of {device.id} that counts: {'; '.join(calibration.data['reasons'])}")
    file = calibration.save(options.out or calibrations_dir() / f"{device.id}.json")
    errors = calibration.errors()
    summary = {"gpu": device.id, "file": str(file), **calibration.data, "errors": errors}
    Output(options.form).data(summary, errors, lambda: _show_calibration(summary))


def _show_calibration(summary: dict[str, Any]) -> None:
    line(f"{summary['file']}: {summary['rows']} kernels of {summary['gpu']}")
    if summary["left_out"]:
        reasons = "; ".join(f"{reason} ({rows:,})" for reason, rows in summary["reasons"].items())
        note(f"note: left out of {summary['rows'] + summary['left_out']:,} rows: {reasons}")
    line("Errors in percent. after: of each kernel, from the others.")
    columns = "kernels = kind | >rows | >before = before:.1f | >after = after:.1f | >factor = factor:.2f"
    figures(columns, summary["errors"])


@dataclass(frozen=True, kw_only=True)
class CalibrationPlan(opt.OfKernels, Seeded, opt.Written, opt.WithTileModels, opt.Formatted):
    """Kernels to choose among."""

    HELP: ClassVar[Mapping[str, str]] = {"out": "File of the kernels, for `neusight collect --plan`."}

    gpu: str = like(OnGpu, "gpu", default=MISSING, help="Device on which they are measured.", listable=False,
                    metavar="ID")  # fmt: skip
    count: int = like(opt.Counted, "count", default=100, help="Kernels to choose.", high=500)


@calibrate.command()
def plan(options: CalibrationPlan) -> None:
    """Choose the kernels to measure: those that tell most about all others, the most informative first.

    They come from the ready workloads and from shapes sampled evenly, within what the GPU can take.

    Examples:

    - `neusight calibrate plan --gpu l4 --count 100 --dtypes float32 --out plan.json`

    - `neusight calibrate plan --gpu h100-sxm-80gb --count 50 --families gemm,attention --format csv`
    """
    from neusight.api import as_device
    from neusight.collect.plan import chosen_tasks, write_plan
    from neusight.devices import gpu_of
    from neusight.executors.gpu.predictor import KernelPredictor

    predictor, device = KernelPredictor.load(options.tile_models), gpu_of(as_device(opt.named_gpu(options.gpu)))
    dtypes = opt.precisions(options.dtypes)
    with busy("choosing"):
        chosen = chosen_tasks(
            predictor, device, options.count, families=options.families, dtypes=dtypes, seed=options.seed
        )
    if options.out is not None:
        write_plan(options.out, chosen)
        note(f"next: neusight collect --plan {options.out} --out ./measured")
    rows = [{"place": place, **_task_row(task)} for place, task in enumerate(chosen, start=1)]
    columns = ">place | ~kernel | family | dtype | origin"
    Output(options.form).data([task.describe() for task in chosen], rows, lambda: figures(columns, rows))


def _task_row(task: KernelTask) -> dict[str, Any]:
    from neusight.kernels.describe import describe

    kernel = task.kernel
    return {
        "sample": task.sample, "family": kernel.family, "op": kernel.op, "dtype": kernel.dtype,
        "kernel": describe(kernel), "origin": {"test": "workload", "train": "sampled"}[task.split],
    }  # fmt: skip
