"""``neusight calibrate``: correct the estimates for a GPU by a few measured kernels, and choose which to measure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from neusight.cli.options import Format, TileModels, listed

if TYPE_CHECKING:
    from neusight.collect.tasks import KernelTask

app = typer.Typer()
Gpu = Annotated[str, typer.Option("--gpu", "-g", metavar="ID", help="Id, driver name, or device file (.toml).")]


@app.callback(invoke_without_command=True)
def fit(
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
    from neusight.datasets import device_of, devices_beside
    from neusight.executors.gpu.predictor import KernelPredictor
    from neusight.learn.calibration import fit_calibration
    from neusight.paths import calibrations_dir

    device = device_of(gpu, devices_beside(data))
    rows, sha256 = _measured(data, device.id)
    calibration = fit_calibration(KernelPredictor.load(tile_models), device, rows, sha256=sha256)
    path = calibration.save(out or calibrations_dir() / f"{device.id}.json")
    errors = calibration.errors()
    found = {"gpu": device.id, "file": str(path), **calibration.data, "errors": errors}
    Output(form).data(found, errors, lambda: _show(found))


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


def _show(found: dict[str, Any]) -> None:
    from neusight.cli.output import Column, line, note, table

    line(f"{found['file']}: {found['rows']} kernels of {found['gpu']}")
    if found["left_out"]:
        note(f"note: {found['left_out']} more rows are left out: no single kernels, or faulty by `datasets clean`")
    line("Errors in percent. after: of each kernel, from the others.")
    columns = [Column("kernels"), *(Column(title, right=True) for title in ("rows", "before", "after", "factor"))]
    table(
        columns,
        (
            (row["kind"], str(row["rows"]), f"{row['before']:.1f}", f"{row['after']:.1f}", f"{row['factor']:.2f}")
            for row in found["errors"]
        ),
    )


@app.command()
def plan(
    gpu: Gpu,
    count: Annotated[int, typer.Option(min=1, max=500, help="Kernels to choose.")] = 100,
    families: Annotated[str, typer.Option(metavar="NAME[,NAME…]", help="Kernel families; default: all.")] = "",
    dtypes: Annotated[str, typer.Option(metavar="DTYPE[,DTYPE…]", help="Default: all that the GPU has.")] = "",
    seed: Annotated[int, typer.Option(help="Of the sampled shapes among the candidates.")] = 0,
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
    from neusight.executors.gpu.predictor import KernelPredictor

    asked_families = listed(families, "--families") if families else []
    asked_dtypes = listed(dtypes, "--dtypes") if dtypes else []
    predictor, device = KernelPredictor.load(tile_models), as_device(gpu)
    with busy("choosing"):
        tasks = chosen_tasks(predictor, device, count, families=asked_families, dtypes=asked_dtypes, seed=seed)
    if out is not None:
        write_plan(out, tasks)
        note(f"next: neusight collect --plan {out} --out ./measured")
    rows = [{"place": place, **_row(task)} for place, task in enumerate(tasks, start=1)]
    Output(form).data([task.describe() for task in tasks], rows, lambda: _show_plan(rows))


def _row(task: KernelTask) -> dict[str, Any]:
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
