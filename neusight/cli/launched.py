"""``--from``: words of a question out of the line or script that starts an engine."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from inspect import Parameter
from typing import Annotated, Any

import typer

from neusight.cli.output import note
from neusight.questions.parts import MODEL
from neusight.questions.question import Question

FROM = "from_"
"""Name of the parameter."""


def from_parameter(help: str) -> Parameter:
    """The option, with its help."""
    option = typer.Option("--from", help=help, rich_help_panel=MODEL, metavar="LINE|FILE", show_default=False)
    return Parameter(FROM, Parameter.KEYWORD_ONLY, default="", annotation=Annotated[str, option])


def launched_words(noun: type[Question], source: str, given: Collection[str]) -> Mapping[str, Any]:
    """Words of a launch line for fields that are not given; the rest of the line is named on stderr.

    Raises:
        BadParameter: a line of another command. DataError, FieldError, ModelError: as ``read_launch``.
    """
    from neusight.questions.launch import read_launch

    line = read_launch(source)
    if line.noun is not noun:
        raise typer.BadParameter(f"starts what `neusight {line.noun.KIND}` predicts", param_hint="--from")
    for text in line.notes():
        note(f"warning: {text}")
    return line.words_beside(given)
