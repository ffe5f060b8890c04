"""``spread``: fields of questions and of options as parameters of a command, whose texts the fields read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, field, replace
from functools import cached_property, wraps
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from neusight.cli.asked import Asked, CommandOptions, ParameterTraits, option_error
from neusight.cli.completion import completer, is_completing
from neusight.cli.launched import FROM, launched_words
from neusight.questions.field import FieldError, FieldSpec
from neusight.questions.question import NamedField, Question
from neusight.quick_dataclasses import dataclass

_WIDEST = 40
"""Columns of choices that stand behind an option; more are named by its help."""


@dataclass(frozen=True, kw_only=True)
class ParameterGroup:
    """A question or options whose fields are parameters of a command.

    Attributes:
        nouns: the question or the class of the options; several where the command asks one of these questions.
        read: what the command receives, from the texts by name and the noun that ``--from`` describes, None without it.
        left_out: fields that the command decides itself.
        help: of fields by name, where the command says more than their declaration.
        lists: whether options may be lists.
        from_help: help of ``--from``; "" where the command has no such option.
        from_former: names that ``--from`` had.
    """

    nouns: tuple[type[Question], ...]
    read: Callable[[Mapping[str, Any], type[Question] | None], Any]
    left_out: frozenset[str] = frozenset()
    help: Mapping[str, str] = field(default_factory=dict)
    lists: bool = True
    from_help: str = ""
    from_former: tuple[str, ...] = ()

    @classmethod
    def of(cls, hint: Any) -> ParameterGroup | None:
        """The group that the type of a parameter names, with its traits; None for other types."""
        plain, *marks = (hint.__origin__, *hint.__metadata__) if get_origin(hint) is Annotated else (hint,)
        traits = {name: value for mark in marks if isinstance(mark, ParameterTraits) for name, value in mark.items()}
        if get_origin(plain) is Asked:
            (noun,) = get_args(plain)
            return cls(**{"nouns": (noun,), "read": lambda texts, _: Asked(noun, texts), **traits})
        if isinstance(plain, type) and issubclass(plain, CommandOptions):
            return cls(**{"nouns": (plain,), "read": lambda texts, _: plain.typed(texts), **traits})
        return None

    @cached_property
    def declared(self) -> Mapping[str, NamedField]:
        """All declarations by name, each of the first noun that has it; one of several questions requires no field."""
        merged: dict[str, NamedField] = {}
        for noun in self.nouns:
            for name, f in noun.fields().items():
                default = "" if f.required and len(self.nouns) > 1 else f.default
                merged.setdefault(name, replace(f, default=default, help=self.help.get(name, f.help)))
        return merged

    def parameters(self) -> list[Parameter]:
        """Parameters of the command: texts and switches, which fields read; with ``--from`` none is required."""
        made = [_parameter(f, self.lists) for name, f in self.declared.items() if name not in self.left_out]
        if not self.from_help:
            return made
        optional = (p.replace(default=None) if p.default is Parameter.empty else p for p in made)
        return [_parameter(replace(FROM, help=self.from_help), lists=False), *optional]

    def take(self, values: dict[str, Any]) -> Any:
        """The question or group of what was typed; its values are no longer among ``values``."""
        names = [name for name in self.declared if name not in self.left_out]
        texts = {name: values.pop(name) for name in names}
        texts = {name: value for name, value in texts.items() if value not in (None, [], ())}
        for name, text in texts.items():
            _refuse_empty(self.declared[name], text)
        source = values.pop(FROM.name) if self.from_help else None
        if source is None:
            return self.read(texts, None)
        _refuse_empty(FROM, source)
        noun, words = launched_words(self.nouns, source, texts)
        return self.read({**{name: word for name, word in words.items() if name in names}, **texts}, noun)

    @property
    def renamed(self) -> dict[str, str]:
        """Former options, with those of today."""
        names = dict.fromkeys(self.from_former, FROM.option)
        for declared in self.declared.values():
            for former in declared.field.former:
                today = f"{former}, given as {declared.option}" if declared.field.argument else declared.option
                names[f"--{former.replace('_', '-')}"] = today
        return names


def _refuse_empty(declared: NamedField, given: Any) -> None:
    """Raises:
    BadParameter: an empty text.
    """
    if any(isinstance(text, str) and not text.strip() for text in (given if isinstance(given, list) else [given])):
        expected = _metavar(declared.field, lists=False)
        raise typer.BadParameter(f"is empty: give {expected}, or leave it out", param_hint=declared.option)


def _parameter(declared: NamedField, lists: bool) -> Parameter:
    field = declared.field
    kind: Any = {"switch": bool | None, "texts": list[str] | None}.get(field.kind, str | None)
    completed: dict[str, Any] = {"autocompletion": completer(field)} if is_completing() else {}
    if field.argument:
        metavar = field.metavar or declared.name.upper()
        metavar = f"{metavar}…" if field.kind == "texts" else metavar
        argument = typer.Argument(metavar=metavar, help=declared.help, show_default=False, **completed)
        default = Parameter.empty if declared.required else None
        return Parameter(declared.name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, argument])
    names = [declared.option]
    if field.kind == "switch" and declared.default is not False:
        names = [f"{declared.option}/{declared.option.replace('--', '--no-', 1)}"]
    names += [field.short] if field.short else []
    default_text = field.placeholder or _default_text(declared.default)
    named = f" One of {', '.join(field.choices)}." if not field.metavar and "NAME" in _metavar(field, lists) else ""
    described: dict[str, Any] = {
        "help": f"{declared.help}{named}  [default: {default_text}]" if default_text else declared.help + named,
        "rich_help_panel": field.panel or None, "show_default": False,
        "metavar": None if field.kind == "switch" else _metavar(field, lists),
    }  # fmt: skip
    option = typer.Option(*names, **(described | completed))
    return Parameter(declared.name, Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option])


def _default_text(default: Any) -> str:
    """The default as it is typed; "" where the help need not say it."""
    if default is MISSING or default is None or isinstance(default, bool):
        return ""
    if isinstance(default, tuple):
        return ",".join(map(str, default))
    return f"{default:g}" if isinstance(default, float) else str(default)


def _metavar(field: FieldSpec, lists: bool) -> str:
    name = f"[{'|'.join(field.choices)}]" if field.choices else "TEXT" if field.kind == "text" else "N"
    name = field.metavar or (name if len(name) <= _WIDEST else "NAME")
    if not field.listable:
        return name
    return name if lists and "," in name else f"{name}[,…]" if lists else name.partition("[,")[0]


def options_of(function: Callable[..., Any]) -> dict[str, NamedField]:
    """Fields that are parameters of a command, by name."""
    groups = filter(None, map(ParameterGroup.of, get_type_hints(function, include_extras=True).values()))
    return {name: f for group in groups for name, f in group.declared.items() if name not in group.left_out}


def spread(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with fields of its questions and options as parameters."""
    hints = get_type_hints(function, include_extras=True)
    groups = {name: group for name, hint in hints.items() if (group := ParameterGroup.of(hint))}
    parameters: list[Parameter] = []
    for name, parameter in signature(function).parameters.items():
        parameters += groups[name].parameters() if name in groups else [parameter.replace(annotation=hints[name])]

    @wraps(function)
    def call(**values: Any) -> Any:
        made = {name: group.take(values) for name, group in groups.items()}
        try:
            return function(**made, **values)
        except FieldError as error:
            for group in groups.values():
                if error.field in group.declared:
                    raise option_error(group.declared, error) from None
            raise

    shown = [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in parameters]
    del vars(call)["__wrapped__"]
    former = {old: today for group in groups.values() for old, today in group.renamed.items()}
    vars(call)["renamed"] = getattr(function, "renamed", {}) | former
    vars(call)["__signature__"] = Signature(shown)
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    return call
