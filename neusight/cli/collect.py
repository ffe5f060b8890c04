"""``neusight collect``: measure the device at hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from neusight.cli import collect_models
from neusight.cli.options import Format, listed

if TYPE_CHECKING:
    from neusight.collect.session import Report

app = typer.Typer()
app.command()(collect_models.models)


@app.callback(invoke_without_command=True)
def kernels(
    context: typer.Context,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the data set; an interrupted one is gone on with.")
    ] = None,
    device: Annotated[
        Literal["cuda", "cpu"], typer.Option(help="GPUs (ROCm's too), or a core as a stand-in.")
    ] = "cuda",
    families: Annotated[
        str, typer.Option(metavar="NAME[,NAME…]", help="Kernel families, or collective; default: all.")
    ] = "",
    dtypes: Annotated[
        str, typer.Option(metavar="DTYPE[,DTYPE…]", help="bfloat16, float32, float16, tf32, float8; default: all.")
    ] = "",
    minutes: Annotated[float, typer.Option(help="Time for measuring; any is enough for a balanced set.")] = 20.0,
    plan: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Kernels that `neusight calibrate plan` chose, and no others.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Rows, skipped ones too, at which to stop before.")] = None,
    workers: Annotated[int, typer.Option(min=0, help="Devices side by side; default: all GPUs, one core.")] = 0,
    ray: Annotated[str | None, typer.Option(metavar="ADDRESS", help="Ray cluster: auto, host:port, or local.")] = None,
    seed: Annotated[int, typer.Option(help="Of the sampled shapes and the operands.")] = 0,
    form: Format = "human",
) -> None:
    """Measure the device at hand, into a data set to train on and to evaluate with.

    Kernels of every family and dtype, the most informative first; whole models with `collect models`. Ctrl-C keeps
    what has been measured, and the same command goes on.

    Examples:

    - `neusight collect --out ./measured`, then `neusight evaluate kernels ./measured`

    - `neusight collect --out ./measured --families gemm,attention --dtypes bfloat16 --minutes 5`

    - `neusight collect --out ./measured --plan plan.json`: what `neusight calibrate plan` chose

    - `neusight collect --out ./measured --ray auto`: every GPU of a Ray cluster
    """
    if context.invoked_subcommand is not None:
        return
    if out is None:
        raise typer.BadParameter("give the folder to write", param_hint="--out")
    if plan is not None and (families or dtypes):
        raise typer.BadParameter("the plan says which kernels: leave out --families and --dtypes", param_hint="--plan")
    from neusight.cli.output import Output
    from neusight.collect.request import Request, collect_kernels

    request = Request(
        out=out, target=device, minutes=minutes, limit=limit, workers=workers, ray=ray, seed=seed, plan=plan
    )
    asked_families = listed(families, "--families") if families else []
    asked_dtypes = listed(dtypes, "--dtypes") if dtypes else []
    with measuring(out) as progress:
        report = collect_kernels(request, asked_families, asked_dtypes, progress)
    row = {**asdict(report), "folder": str(out), "gpus": list(report.gpus)}
    Output(form).data(row, [row], lambda: show(report))


@contextmanager
def measuring(out: Path) -> Iterator[Callable[[int, int | None, float], None]]:
    """A bar with the time left; an interruption says how to go on."""
    from neusight.cli.output import countdown

    try:
        with countdown("measuring") as advance:
            yield advance
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"what was measured is kept in {out}; the same command goes on") from None


def show(report: Report) -> None:
    """What came of a collection, and what to do with it."""
    from neusight.cli.output import line, note

    rate = 60.0 * report.new / report.seconds
    line(f"{report.folder}: {report.rows:,} rows of {', '.join(report.gpus)}, {report.skipped:,} skipped")
    line(f"{report.new:,} new in {report.seconds:.0f} s, {rate:.0f} a minute")
    if report.lost_workers:
        note(f"warning: {report.lost_workers} processes were lost and replaced")
    note(f"next: neusight datasets verify {report.folder}")
