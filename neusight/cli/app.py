"""The commands, and one place where errors become one line and an exit code."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Annotated, Any

import typer

import neusight
from neusight.cli.commands import USAGE_ERROR, Commands, OptionGroup
from neusight.errors import NeusightError, one_line

_HELP = "NoArgsIsHelpError"
"""Name of the exception that a group without a command raises to show its help."""


class _Guarded(OptionGroup):
    """Command group in which a user's mistake ends in one line on stderr: exit 1 for bad input, 2 for bad usage, 130
    for Ctrl-C.
    """

    def make_context(self, *args: Any, **options: Any) -> Any:
        with _usage_errors():
            return super().make_context(*args, **options)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Raises:
        UsageError: no command has the name, or one had it.
        """
        if args and args[0] in _FORMER:
            raise USAGE_ERROR(f"`neusight {args[0]}` is now `neusight {_FORMER[args[0]]}`", ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            with _usage_errors():
                return super().invoke(ctx)
        except BrokenPipeError:
            raise
        except (NeusightError, OSError) as error:
            _say(f"error: {_explain(error)}")
            raise typer.Exit(1) from error
        except KeyboardInterrupt as error:
            _say(f"interrupted: {error}" if str(error) else "interrupted")
            raise typer.Exit(130) from error


@contextmanager
def _usage_errors() -> Iterator[None]:
    """Report an invalid command line in one line as well, with exit 2."""
    try:
        yield
    except USAGE_ERROR as error:
        if type(error).__name__ == _HELP:
            raise
        command = error.ctx.command_path if error.ctx else "neusight"
        _say(f"error: {_abbreviate(error.format_message())}; see {command} --help")
        raise typer.Exit(2) from error


def _abbreviate(message: str) -> str:
    """A usage error's line: an option by its first name."""
    return re.sub(r"'(--[a-z-]+)'( / '[^']+')+", r"'\1'", one_line(message).rstrip("."))


def _explain(error: BaseException) -> str:
    if isinstance(error, OSError) and error.filename:
        return one_line(f"{error.filename}: {(error.strerror or str(error)).lower()}: check the path")
    return one_line(str(error))


def _say(line: str) -> None:
    print(line, file=sys.stderr)


_COMMANDS = {
    "predict": "predict:predict",
    "kernel": "kernel:kernel",
    "sweep": "sweep:sweep",
    "what-if": "what_if:what_if",
    "ask": "ask:ask",
    "serving": "serving:serving",
    "page": "page:page",
    "observe": "observe:observe",
    "memory": "memory:memory",
    "training": "training:training",
    "plan": "training:plan",
    "design": "design:design",
    "fit": "learn:fit",
    "train": "learn:train",
    "bench": "evaluate:bench",
    "calibrate": "learn:calibrate",
    "collect": "collect:app",
    "evaluate": "evaluate:evaluate",
    "check": "check:check",
    "devices": "devices:devices",
    "clusters": "devices:clusters",
    "datasets": "datasets:app",
    "models": "models:models",
    "tile-models": "tile_models:app",
    "experiments": "experiments:app",
    "sparsity": "collect:sparsity",
}
"""Module of this folder and its name for the command, or the group of commands."""
_FORMER = {"workloads": "models"}
"""Former names of commands, with those of today."""


def command_named(name: str) -> Any:
    """The function of a command, or a group of commands."""
    module, _, attribute = _COMMANDS[name].partition(":")
    return getattr(import_module(f"neusight.cli.{module}"), attribute)


def command_line(called: str = "") -> Commands:
    """All commands, or only the one that is ``called``: an answer waits for no module of another."""
    app = Commands(
        cls=_Guarded,
        add_completion=called not in _COMMANDS,
        pretty_exceptions_enable=False,
        epilog="Terms are explained in docs/glossary.md.",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for name in [called] if called in _COMMANDS else _COMMANDS:
        command = command_named(name)
        if isinstance(command, Commands):
            app.add_typer(command, name=name)
        else:
            app.command(name, renamed=getattr(command, "renamed", {}))(command)
    return app


def _version(wanted: bool) -> None:
    if wanted:
        print(f"neusight {neusight.__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """How long a deep-learning model takes on a GPU that you don't have."""


def __getattr__(name: str) -> Commands:
    """``app``: all commands."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return command_line()
