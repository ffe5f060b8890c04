"""What commands name among their parameters: questions as they are typed, groups of options, and marks of both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Generic, TypeVar

import typer

from neusight.cli.points import check_count
from neusight.questions.field import FieldError
from neusight.questions.question import NamedField, Noun, Question
from neusight.quick_dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """Fields of a question that a command decides itself."""

    names: frozenset[str]

    @classmethod
    def of(cls, *names: str) -> LeftOut:
        """Of these names."""
        return cls(names=frozenset(names))

    @classmethod
    def all_but(cls, noun: type[Question], *names: str) -> LeftOut:
        """All fields of a noun but those of these names."""
        return cls(names=frozenset(noun.fields()) - set(names))


@dataclass(frozen=True, kw_only=True)
class Launched:
    """A question of which ``--from`` gives words too: help of that option, and names that it had."""

    help: str
    former: tuple[str, ...] = ()


class Help(dict[str, str]):
    """Help of fields by name, where a command says more than their declaration."""


class OneQuestion:
    """Mark of a question whose options are no lists: the command answers ``Asked.one``."""


Group = TypeVar("Group", bound="CommandOptions")


@dataclass(frozen=True, kw_only=True)
class CommandOptions(Question):
    """Options of commands that are no words of a question; of a listable one all values, as a tuple."""

    def __post_init__(self) -> None:
        for name, declared in self.fields().items():
            values, field = getattr(self, name), declared.field
            if field.listable and values is not declared.default:
                object.__setattr__(self, name, tuple(field.read(name, value) for value in values))
        self.check()

    @classmethod
    def typed(cls: type[Group], texts: Mapping[str, Any]) -> Group:
        """The options with these texts.

        Raises:
            BadParameter: a text that an option cannot take, or one that is missing.
        """
        fields = cls.fields()
        try:
            lists = {name: _parts(fields[name], text) if fields[name].field.listable else text
                     for name, text in texts.items()}  # fmt: skip
            return cls.named(lists)
        except FieldError as error:
            raise option_error(cls, error) from None


class Asked(Generic[Noun]):
    """Questions as they were typed: one, or those that lists of values make."""

    def __init__(self, noun: type[Noun], texts: Mapping[str, Any]) -> None:
        self.noun = noun
        try:
            self.texts = {noun.today(name): given for name, given in texts.items()}
        except FieldError as error:
            option = f"--{error.field.replace('_', '-')}"
            raise typer.BadParameter(f"has no meaning in a {noun.__name__} question", param_hint=option) from None
        self.typed = frozenset(self.texts)
        lists = {name: _values(noun.fields()[name], given) for name, given in self.texts.items()}
        self.axes = {n: v for n, v in lists.items() if isinstance(v, list) and noun.fields()[n].field.kind != "texts"}
        """Values of the options that were written as lists, be it of one."""
        check_count(self.axes)
        try:
            self.questions: list[Noun] = noun.several(lists)
        except FieldError as error:
            raise option_error(self.noun, error) from None

    def upon(self, words: Mapping[str, Any]) -> Asked[Noun]:
        """The same questions, with ``words`` where the command line leaves a field open."""
        return Asked(self.noun, {**words, **self.texts})

    def options_of(self, question: Noun) -> dict[str, Any]:
        """Values of one of the questions for the options that could be lists."""
        listable = (name for name, one in self.noun.fields().items() if one.field.listable and not one.required)
        names = [name for name in self.noun.fields() if name in self.axes or (name in self.typed and name in listable)]
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
        """Whether any option was written as a list."""
        return bool(self.axes)


def option_error(noun: type[Question] | OneOf, error: FieldError) -> typer.BadParameter:
    """The mistake in a field as that of its option."""
    declared = noun.fields().get(error.field)
    option = error.field.upper() if declared and declared.field.argument else declared.option if declared else ""
    return typer.BadParameter(error.reason, param_hint=option or error.field)


def _values(declared: NamedField, given: Any) -> Any:
    """What an option was given: a list where it was written as one and the field takes lists."""
    if not declared.field.listable or not isinstance(given, str) or "," not in given:
        return given
    return _parts(declared, given)


def _parts(declared: NamedField, text: str) -> list[str]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise typer.BadParameter(f"'{text}' names nothing: write it like a,b", param_hint=declared.option)
    return parts


@dataclass(frozen=True, kw_only=True)
class OneOf:
    """Questions of several kinds, of one of which a command asks; ``read`` decides by the options that are typed."""

    nouns: tuple[type[Question], ...]
    read: Callable[[Mapping[str, Any]], Asked[Any]]

    def fields(self) -> Mapping[str, NamedField]:
        """Declarations by name, each of the first noun that has it; a command may do without any question."""
        merged: dict[str, NamedField] = {}
        for noun in self.nouns:
            for name, declared in noun.fields().items():
                merged.setdefault(name, replace(declared, default="") if declared.required else declared)
        return merged
