"""The commands, and one place where errors become one line and an exit code."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import neusight
from neusight.cli import (
    bench,
    calibrate,
    collect,
    datasets,
    devices,
    evaluate,
    experiments,
    kernel,
    models,
    predict,
    sparsity,
    sweep,
    train,
    workloads,
)
from neusight.errors import NeusightError


class _Guarded(TyperGroup):
    """A mistake of the user's ends in one line on stderr: exit 1 for bad input, 130 for Ctrl-C."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise
        except (NeusightError, OSError) as error:
            _say(f"error: {_explained(error)}")
            raise typer.Exit(1) from error
        except KeyboardInterrupt as error:
            _say(f"interrupted: {error}" if str(error) else "interrupted")
            raise typer.Exit(130) from error


def _explained(error: BaseException) -> str:
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {(error.strerror or str(error)).lower()}: check the path"
    return " ".join(str(error).split())


def _say(line: str) -> None:
    print(line, file=sys.stderr)


app = typer.Typer(
    cls=_Guarded,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="markdown",
)
app.command()(predict.predict)
app.command()(kernel.kernel)
app.command()(sweep.sweep)
app.command()(train.train)
app.command()(bench.bench)
app.add_typer(calibrate.app, name="calibrate")
app.add_typer(collect.app, name="collect")
app.add_typer(evaluate.app, name="evaluate")
app.add_typer(devices.app, name="devices")
app.add_typer(datasets.app, name="datasets")
app.add_typer(models.app, name="models")
app.add_typer(workloads.app, name="workloads")
app.add_typer(experiments.app, name="experiments")
app.add_typer(sparsity.app, name="sparsity")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"neusight {neusight.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """How long a deep-learning model takes on a GPU that you don't have."""
