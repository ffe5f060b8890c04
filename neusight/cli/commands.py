"""``Commands``: groups of commands whose parameters are fields of questions and of options, see ``spread``.

A command has questions (``Asked[Step]``) and groups of options (``CommandOptions``) among its parameters, and receives
the values that the fields read from the command line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from textwrap import wrap
from types import MappingProxyType
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from neusight.cli.spread import spread
from neusight.questions.parts import OUTPUT

USAGE_ERROR: Any = typer.BadParameter.__base__
"""The parent of all usage errors, which typer has no public name for."""
_NAMES = 24
"""Columns of an option's name in the help; longer ones have a separate line."""
_HYPHEN = "\N{NON-BREAKING HYPHEN}"
"""Replacement of hyphens while lines are broken, so that names of options and engines stay whole."""
_PLACES = {"Arguments": -1, OUTPUT: 1, "Options": 2}
"""Panels of the help that are first or last."""


class _Plain:
    """A command whose help and errors are plain lines, and whose options of one value are given once."""

    def get_params(self, context: Any) -> list[Any]:
        """The parameters; fields read their texts, so that typer loads nothing that converts values."""
        parameters: list[Any] = super().get_params(context)  # type: ignore[misc]
        for parameter in parameters:
            if "process_value" not in vars(parameter):
                parameter.process_value = partial(_keep, parameter, parameter.process_value)
        return parameters

    def parse_args(self, context: Any, words: list[str]) -> list[str]:
        """Raises:
        BadParameter: an option is given twice, all but the last of which would be ignored; or any other mistake in
            the words, in the context of this command.
        """
        typed = list(words)
        try:
            rest: list[str] = super().parse_args(context, words)  # type: ignore[misc]
        except USAGE_ERROR as error:
            error.ctx = error.ctx or context
            renamed = getattr(self.callback, "renamed", {})  # type: ignore[attr-defined]
            if (name := getattr(error, "option_name", "")) in renamed:
                raise typer.BadParameter(f"{name} is now {renamed[name]}", ctx=context) from None
            if name and any("=" in (parameter.metavar or "") for parameter in self.get_params(context)[:2]):
                error.message += f": a field has no dashes, write it like {name.removeprefix('--')}=8"
            raise
        _, _, order = self.make_parser(context).parse_args(args=typed)  # type: ignore[attr-defined]
        for option in order:
            if order.count(option) > 1 and not option.multiple and option.param_type_name == "option":
                several = "…" in (option.metavar or "")
                hint = "write the values as one list: a,b" if several else "leave out all but one"
                raise typer.BadParameter(f"is given {order.count(option)} times: {hint}", ctx=context, param=option)
        return rest

    def shell_complete(self, context: Any, incomplete: str) -> list[Any]:
        """Completions, with options as well where nothing is typed."""
        words: list[Any] = super().shell_complete(context, incomplete)  # type: ignore[misc]
        return words if words or incomplete else super().shell_complete(context, "--")  # type: ignore[misc]

    def format_help_text(self, context: Any, formatter: Any) -> None:
        """Write the paragraphs of the help; of an example its command."""
        for paragraph in (self.help or "").split("\n\n"):  # type: ignore[attr-defined]
            text = " ".join(paragraph.replace("`", "").split())
            first, rest = ("    ", "      ") if text.startswith("- ") else ("  ", "  ")
            lines = wrap(text.removeprefix("- "), formatter.width - 2, initial_indent=first, subsequent_indent=rest,
                         break_on_hyphens=False)  # fmt: skip
            formatter.write("" if first == "    " else "\n")
            formatter.write("".join(f"{text}\n" for text in lines))

    def format_options(self, context: Any, formatter: Any) -> None:
        """Write the options panel by panel; names stay whole."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(context):
            panel = parameter.rich_help_panel or f"{parameter.param_type_name}s".capitalize()
            name, text = parameter.get_help_record(context)
            shown = name if parameter.param_type_name == "option" else name.partition(" ")[0]
            panels.setdefault(panel, []).append((shown, text.replace("`", "").replace("-", _HYPHEN)))
        for title in sorted(panels, key=lambda title: _PLACES.get(title, 0)):
            with formatter.section(title):
                formatter.write_dl(panels[title], col_max=_NAMES)
        for name, command in getattr(self, "commands", {}).items():
            panels.setdefault("", []).append((name, " ".join((command.help or "").partition("\n\n")[0].split())))
        if "" in panels:
            with formatter.section("Commands"):
                formatter.write_dl(panels[""])
        formatter.buffer = [text.replace(_HYPHEN, "-") for text in formatter.buffer]


class Command(_Plain, TyperCommand):
    """A command of ``Commands``."""


class OptionGroup(_Plain, TyperGroup):
    """A group of ``Commands``."""


def _keep(parameter: Any, check: Callable[[Any, Any], Any], context: Any, value: Any) -> Any:
    """The value as it is typed, unless it is missing or has a callback."""
    missing = parameter.required and parameter.value_is_missing(value)
    return check(context, value) if missing or (parameter.callback and value) else value


class Commands(typer.Typer):
    """A group of commands that take their options in groups."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"cls": OptionGroup, "no_args_is_help": True, "rich_markup_mode": None, **options})

    def command(
        self, name: str | None = None, *, renamed: Mapping[str, str] = MappingProxyType({}), **options: Any
    ) -> Callable[[Any], Any]:
        """Decorator like ``Typer.command``, for a function that has groups of options among its parameters.

        Args:
            name: name of the command.
            renamed: former options, with those of today.
            options: options of ``Typer.command``.
        """
        register = super().command(name, **{"cls": Command, **options})

        def register_spread(function: Any) -> Any:
            parameters = spread(function)
            vars(parameters)["renamed"].update(renamed)
            register(parameters)
            return function

        return register_spread

    def callback(self, **options: Any) -> Callable[[Any], Any]:
        """Decorator like ``Typer.callback``, for a function that has groups of options among its parameters."""
        register = super().callback(**options)

        def register_spread(function: Any) -> Any:
            register(spread(function))
            return function

        return register_spread
