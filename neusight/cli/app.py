"""The commands, and one place where errors become one line and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

import neusight
from neusight.cli import (
    collect,
    datasets,
    devices,
    evaluate,
    experiments,
    learn,
    memory,
    predict,
    serving,
    sweep,
    training,
    workloads,
)
from neusight.cli.commands import Commands, OptionGroup
from neusight.errors import NeusightError, one_line

_UsageError: Any = typer.BadParameter.__base__
"""The parent of all usage errors, which typer has no public name for."""


class _Guarded(OptionGroup):
    """A mistake of the user's ends in one line on stderr: exit 1 for bad input, 130 for Ctrl-C."""

    def make_context(self, *args: Any, **options: Any) -> Any:
        with _short_usage_errors():
            return super().make_context(*args, **options)

    def invoke(self, ctx: Any) -> Any:
        try:
            with _short_usage_errors():
                return super().invoke(ctx)
        except BrokenPipeError:
            raise
        except (NeusightError, OSError) as error:
            _say(f"error: {_explained(error)}")
            raise typer.Exit(1) from error
        except KeyboardInterrupt as error:
            _say(f"interrupted: {error}" if str(error) else "interrupted")
            raise typer.Exit(130) from error


@contextmanager
def _short_usage_errors() -> Iterator[None]:
    """What was typed is quoted in usage errors, however long it is: they are kept to a line like all others."""
    try:
        yield
    except _UsageError as error:
        error.message = one_line(error.message)
        raise


def _explained(error: BaseException) -> str:
    if isinstance(error, OSError) and error.filename:
        return one_line(f"{error.filename}: {(error.strerror or str(error)).lower()}: check the path")
    return one_line(str(error))


def _say(line: str) -> None:
    print(line, file=sys.stderr)


app = Commands(
    cls=_Guarded,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="markdown",
)
for command in (
    predict.predict,
    sweep.kernel,
    sweep.sweep,
    serving.serving,
    memory.memory,
    training.training,
    training.plan,
    learn.fit,
    learn.train,
    evaluate.bench,
):
    app.command()(command)
app.add_typer(learn.calibrate, name="calibrate")
app.add_typer(collect.app, name="collect")
app.add_typer(evaluate.app, name="evaluate")
app.add_typer(devices.devices, name="devices")
app.add_typer(devices.clusters, name="clusters")
app.add_typer(datasets.app, name="datasets")
app.add_typer(workloads.models, name="models")
app.add_typer(workloads.workloads, name="workloads")
app.add_typer(experiments.app, name="experiments")
app.add_typer(collect.sparsity, name="sparsity")


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
