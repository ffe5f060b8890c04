"""``spread``: fields of questions and of options as parameters of a command, whose texts the fields read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import MISSING, replace
from functools import partial, wraps
from inspect import Parameter, Signature, signature
from types import MappingProxyType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from neusight.cli.asked import Asked, CommandOptions, Help, Launched, LeftOut, OneOf, OneQuestion, option_error
from neusight.cli.completion import completer, is_completing
from neusight.cli.launched import FROM, launched_words
from neusight.questions.field import FieldError, FieldSpec
from neusight.questions.question import NamedField, Question
from neusight.quick_dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class _Spread:
    """A question or group of options whose fields are parameters of a command, but for those that it leaves out."""

    noun: type[Question] | OneOf
    left_out: frozenset[str]
    help: Mapping[str, str]
    lists: bool
    read: Callable[[Mapping[str, Any]], Any]
    launched: Launched | None = None

    def parameters(self) -> list[Parameter]:
        """Parameters of the command; with ``--from`` none is required."""
        made = question_parameters(self.noun, self.left_out, self.help, lists=self.lists)
        if not self.launched:
            return made
        optional = (p.replace(default=None) if p.default is Parameter.empty else p for p in made)
        return [_parameter(replace(FROM, help=self.launched.help), lists=False), *optional]

    def take(self, values: dict[str, Any]) -> Any:
        """The question or group of what was typed; its values are no longer among ``values``."""
        texts = {field: values.pop(field) for field in self.noun.fields() if field not in self.left_out}
        texts = {field: value for field, value in texts.items() if value not in (None, [], ())}
        _refuse_empty(self.noun, texts)
        if self.launched and isinstance(self.noun, type) and (source := values.pop(FROM.name)):
            words = launched_words(self.noun, source, texts)
            texts = {**{name: word for name, word in words.items() if name not in self.left_out}, **texts}
        return self.read(texts)


def _refuse_empty(noun: type[Question] | OneOf, texts: Mapping[str, Any]) -> None:
    """Raises:
    BadParameter: an empty text of an option that takes a number or one of some words.
    """
    for name, given in texts.items():
        field = noun.fields()[name].field
        if isinstance(given, str) and not given.strip() and (field.choices or field.kind in ("whole", "number")):
            try:
                field.read(name, given)
            except FieldError as error:
                raise option_error(noun, error) from None


def _spreads(hints: Mapping[str, Any]) -> Iterator[tuple[str, _Spread]]:
    for name, hint in hints.items():
        plain, *marks = (hint.__origin__, *hint.__metadata__) if get_origin(hint) is Annotated else (hint,)
        left_out = frozenset().union(*(mark.names for mark in marks if isinstance(mark, LeftOut)))
        described = dict(item for mark in marks if isinstance(mark, Help) for item in mark.items())
        launched = next((mark for mark in marks if isinstance(mark, Launched)), None)
        several = next((mark for mark in marks if isinstance(mark, OneOf)), None)
        if several:
            yield name, _Spread(noun=several, left_out=left_out, help=described, lists=False, read=several.read)
        elif get_origin(plain) is Asked:
            noun = get_args(plain)[0]
            lists, read = OneQuestion not in marks, partial(Asked, noun)
            yield (
                name,
                _Spread(noun=noun, left_out=left_out, help=described, lists=lists, read=read, launched=launched),
            )
        elif isinstance(plain, type) and issubclass(plain, CommandOptions):
            yield name, _Spread(noun=plain, left_out=left_out, help=described, lists=True, read=plain.typed)


def question_parameters(
    noun: type[Question] | OneOf,
    left_out: Collection[str] = (),
    help: Mapping[str, str] = MappingProxyType({}),
    *,
    lists: bool = True,
) -> list[Parameter]:
    """Parameters of a command for the fields of a question: texts and switches, which the field itself reads."""
    fields = [declared for name, declared in noun.fields().items() if name not in left_out]
    return [_parameter(replace(declared, help=help.get(declared.name, declared.help)), lists) for declared in fields]


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
    described: dict[str, Any] = {
        "help": f"{declared.help}  [default: {default_text}]" if default_text else declared.help,
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
    one = f"[{'|'.join(field.choices)}]" if field.choices else "TEXT" if field.kind == "text" else "N"
    one = field.metavar or one
    if not field.listable:
        return one
    return one if lists and "," in one else f"{one}[,…]" if lists else one.partition("[,")[0]


def spread(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with fields of its questions and options as parameters."""
    hints = get_type_hints(function, include_extras=True)
    groups = dict(_spreads(hints))
    parameters: list[Parameter] = []
    for name, parameter in signature(function).parameters.items():
        parameters += groups[name].parameters() if name in groups else [parameter.replace(annotation=hints[name])]

    @wraps(function)
    def call(**values: Any) -> Any:
        made = {name: group.take(values) for name, group in groups.items()}
        try:
            return function(**made, **values)
        except FieldError as error:
            for one in made.values():
                noun = one.noun if isinstance(one, Asked) else type(one)
                if error.field in noun.fields():
                    raise option_error(noun, error) from None
            raise

    shown = [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in parameters]
    del vars(call)["__wrapped__"]
    former = {old: FROM.option for group in groups.values() if group.launched for old in group.launched.former}
    vars(call)["renamed"] = getattr(function, "renamed", {}) | _renamed(one.noun for one in groups.values()) | former
    vars(call)["__signature__"] = Signature(shown)
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    return call


def _renamed(nouns: Iterable[type[Question] | OneOf]) -> dict[str, str]:
    """Former options, with those of today."""
    names = {}
    for declared in (declared for noun in nouns for declared in noun.fields().values()):
        for former in declared.field.former:
            today = f"{former}, given as {declared.option}" if declared.field.argument else declared.option
            names[f"--{former.replace('_', '-')}"] = today
    return names
