"""Types of the parameters of commands: questions as they are typed, groups of options, and traits of both."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, Generic, TypeVar

import typer

from neusight.questions.field import FieldError
from neusight.questions.question import NamedField, Noun, Question
from neusight.quick_dataclasses import dataclass

MOST_POINTS = 10_000
"""Largest number of combinations that a command answers: more are a typing error."""


class ParameterTraits(dict[str, Any]):
    """Traits of a question or group of options in one command: attributes of ``spread.ParameterGroup``."""


ONE_QUESTION = ParameterTraits(lists=False)
"""Trait of commands without lists of values: they answer ``Asked.one``."""


def leave_out(*names: str) -> ParameterTraits:
    """Fields that a command decides itself."""
    return ParameterTraits(left_out=frozenset(names))


def only(noun: type[Question], *names: str) -> ParameterTraits:
    """The fields of a noun that are parameters of a command; it decides the others itself."""
    return leave_out(*(name for name in noun.fields() if name not in names))


def described(**help: str) -> ParameterTraits:
    """Help of fields by name, where that of a command is more specific than their declaration."""
    return ParameterTraits(help=help)


def from_line(help: str, *former: str) -> ParameterTraits:
    """A question whose fields ``--from`` sets too: help of that option, and its former names."""
    return ParameterTraits(from_help=help, from_former=former)


Group = TypeVar("Group", bound="CommandOptions")


@dataclass(frozen=True, kw_only=True)
class CommandOptions(Question):
    """Options of commands that are not fields of a question; a listable one has all values, as a tuple."""

    def __post_init__(self) -> None:
        self.check()

    @classmethod
    def typed(cls: type[Group], texts: Mapping[str, Any]) -> Group:
        """The options with these texts; empty ones are left open.

        Raises:
            BadParameter: a text that an option cannot take.
        """
        fields = cls.fields()
        values: dict[str, Any] = {}
        try:
            for name, text in texts.items():
                field = fields[name]
                if field.field.listable:
                    values[name] = tuple(map(field.canonical, parts_of(field, text)))
                elif not isinstance(text, str) or text.strip():
                    values[name] = field.canonical(text)
            cls.check_required(values)
            return cls(**values)
        except FieldError as error:
            raise option_error(fields, error) from None


class Asked(Generic[Noun]):
    """Questions as they were typed: one, or all combinations of lists of values."""

    def __init__(self, noun: type[Noun], texts: Mapping[str, Any]) -> None:
        """Raises:
        BadParameter: an option of another question, a text that an option cannot take, or too many combinations.
        """
        self.noun, fields = noun, noun.fields()
        try:
            self.texts = {noun.today(name): text for name, text in texts.items()}
        except FieldError as error:
            option = f"--{error.field.replace('_', '-')}"
            raise typer.BadParameter(f"has no meaning in a {noun.__name__} question", param_hint=option) from None
        lists = {name: _values(fields[name], text) for name, text in self.texts.items()}
        self.axes = {n: v for n, v in lists.items() if isinstance(v, list) and fields[n].field.kind != "texts"}
        """Values of the options that were written as lists, even of one value."""
        if (count := prod(map(len, self.axes.values()))) > MOST_POINTS:
            raise typer.BadParameter(f"{count:,} combinations are too many: leave values out, or search with `plan`")
        try:
            self.questions: list[Noun] = noun.several(lists)
        except FieldError as error:
            raise option_error(fields, error) from None

    def upon(self, words: Mapping[str, Any]) -> Asked[Noun]:
        """The same questions, with ``words`` where the command line leaves a field open."""
        return Asked(self.noun, {**words, **self.texts})

    def options_of(self, question: Noun) -> dict[str, Any]:
        """Values of a question for the options that could be lists."""
        listable = (name for name, field in self.noun.fields().items() if field.field.listable and not field.required)
        names = [name for name in self.noun.fields() if name in self.axes or (name in self.texts and name in listable)]
        return {name: getattr(question, name) for name in names}

    @property
    def one(self) -> Noun:
        """The only question.

        Raises:
            BadParameter: an option was written as a list.
        """
        for name in self.axes:
            raise typer.BadParameter("takes one value", param_hint=self.noun.fields()[name].option)
        return self.questions[0]

    @property
    def many(self) -> bool:
        """True if any option was written as a list."""
        return bool(self.axes)


def option_error(fields: Mapping[str, NamedField], error: FieldError) -> typer.BadParameter:
    """The mistake in a field as that of its option."""
    declared = fields.get(error.field)
    option = error.field.upper() if declared and declared.field.argument else declared.option if declared else ""
    return typer.BadParameter(error.reason, param_hint=option or error.field)


def parts_of(declared: NamedField, text: str) -> list[str]:
    """``a,b`` as ``[a, b]``; blanks and empty parts do not count.

    Raises:
        BadParameter: nothing is left.
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise typer.BadParameter(f"'{text}' names nothing: write it like a,b", param_hint=declared.option)
    return parts


def _values(declared: NamedField, given: Any) -> Any:
    """Value of an option: a list where it was written as one and the field takes lists."""
    listed = declared.field.listable and isinstance(given, str) and "," in given
    return parts_of(declared, given) if listed else given
