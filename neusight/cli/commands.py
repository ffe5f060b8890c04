"""How commands take questions and options: each field once, what was typed apart from defaults, lists combined.

A command names questions (``Asked[Step]``) and groups of options (``CommandOptions``) among its parameters;
``Commands`` spreads their fields over its command line, and hands the command what the fields read from the texts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass, replace
from functools import partial, wraps
from inspect import Parameter, Signature, signature
from itertools import product
from math import prod
from textwrap import wrap
from types import MappingProxyType
from typing import Annotated, Any, Generic, TypeVar, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from neusight.cli.completion import completer, is_completing
from neusight.cli.launched import FROM, from_parameter, launched_words
from neusight.cli.output import Advance, note
from neusight.errors import NeusightError
from neusight.questions.field import FieldError, FieldSpec
from neusight.questions.parts import OUTPUT
from neusight.questions.question import NamedField, Noun, Question
from neusight.quick_dataclasses import dataclass

_CONTEXT = "context"
_DIGITS = 15
"""Of a whole number that is certain to be read."""
USAGE_ERROR: Any = typer.BadParameter.__base__
"""The parent of all usage errors, which typer has no public name for."""
MOST_POINTS = 10_000
"""Combinations that a command answers: more are a slip of the keyboard."""
_NAMES = 24
"""Columns of an option's name in the help; longer ones have a line of their own."""
_PLACES = {"Arguments": -1, OUTPUT: 1, "Options": 2}
"""Panels of the help that are first or last."""
Answer = TypeVar("Answer")


class Given(frozenset[str]):
    """Names of the parameters that stand on the command line, whatever their values."""

    def option(self, name: str) -> str:
        """``seq_len`` as ``--seq-len``."""
        return f"--{name.replace('_', '-')}"

    def refuse(self, names: Iterable[str], why: str) -> None:
        """Raises:
        BadParameter: one of ``names`` is given, with ``why`` it cannot be.
        """
        if given := [self.option(name) for name in names if name in self]:
            raise typer.BadParameter(why, param_hint=", ".join(given))


class _Plain:
    """Of a command: help and errors as plain lines, an option that takes one value is given once, texts and defaults
    stay as they are, since what converts values is slow to import.
    """

    def get_params(self, context: Any) -> list[Any]:
        """The parameters, which convert no more values than they must."""
        annotations = getattr(self.callback, "__annotations__", {})  # type: ignore[attr-defined]
        parameters: list[Any] = super().get_params(context)  # type: ignore[misc]
        for parameter in parameters:
            if "process_value" not in vars(parameter):
                annotation = getattr(annotations.get(parameter.name), "__origin__", None)
                parameter.process_value = _converter(parameter, annotation)
        return parameters

    def parse_args(self, context: Any, words: list[str]) -> list[str]:
        """Raises:
        BadParameter: an option is given twice, all but the last of which would be ignored; whatever is wrong with the
            words, in the context of this command.
        """
        typed = list(words)
        try:
            rest: list[str] = super().parse_args(context, words)  # type: ignore[misc]
        except USAGE_ERROR as error:
            error.ctx = error.ctx or context
            renamed = getattr(self.callback, "renamed", {})  # type: ignore[attr-defined]
            if (name := getattr(error, "option_name", "")) in renamed:
                raise typer.BadParameter(f"{name} is now {renamed[name]}", ctx=context) from None
            raise
        _, _, order = self.make_parser(context).parse_args(args=typed)  # type: ignore[attr-defined]
        for option in order:
            if order.count(option) > 1 and not option.multiple and option.param_type_name == "option":
                several = "…" in (option.metavar or "")
                hint = "write the values as one list: a,b" if several else "leave out all but one"
                raise typer.BadParameter(f"is given {order.count(option)} times: {hint}", ctx=context, param=option)
        return rest

    def shell_complete(self, context: Any, incomplete: str) -> list[Any]:
        """Options as well where nothing is typed."""
        words: list[Any] = super().shell_complete(context, incomplete)  # type: ignore[misc]
        return words if words or incomplete else super().shell_complete(context, "--")  # type: ignore[misc]

    def format_help_text(self, context: Any, formatter: Any) -> None:
        """Paragraphs; of an example its command."""
        for paragraph in (self.help or "").split("\n\n"):  # type: ignore[attr-defined]
            text = " ".join(paragraph.replace("`", "").split())
            first, rest = ("    ", "      ") if text.startswith("- ") else ("  ", "  ")
            lines = wrap(text.removeprefix("- "), formatter.width - 2, initial_indent=first, subsequent_indent=rest,
                         break_on_hyphens=False)  # fmt: skip
            formatter.write("" if first == "    " else "\n")
            formatter.write("".join(f"{text}\n" for text in lines))

    def format_options(self, context: Any, formatter: Any) -> None:
        """Options panel by panel; names stand whole."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(context):
            panel = parameter.rich_help_panel or f"{parameter.param_type_name}s".capitalize()
            name, text = parameter.get_help_record(context)
            shown = name if parameter.param_type_name == "option" else name.partition(" ")[0]
            text = re.sub(r"\[default: \((.*)\)\]$", r"[default: \1]", text.replace("`", ""))
            panels.setdefault(panel, []).append((shown, text))
        for title in sorted(panels, key=lambda title: _PLACES.get(title, 0)):
            with formatter.section(title):
                formatter.write_dl(panels[title], col_max=_NAMES)
        for name, command in getattr(self, "commands", {}).items():
            panels.setdefault("", []).append((name, " ".join((command.help or "").partition("\n\n")[0].split())))
        if "" in panels:
            with formatter.section("Commands"):
                formatter.write_dl(panels[""])


class Command(_Plain, TyperCommand):
    """A command of ``Commands``."""


class OptionGroup(_Plain, TyperGroup):
    """A group of ``Commands``."""


def _converter(parameter: Any, annotation: Any) -> Callable[[Any, Any], Any]:
    """``process_value`` of a parameter, which calls the library that converts values for those that need it alone."""
    convert: Callable[[Any, Any], Any] = parameter.process_value
    types = {annotation, *get_args(annotation)}
    if parameter.min is not None or parameter.max is not None:
        types -= {int, float}

    def process_value(context: Any, value: Any) -> Any:
        if not _is_typed(context, parameter.name):
            return convert(context, value) if parameter.required else value
        plain = _plain_value(types, value)
        if plain is None:
            return convert(context, value)
        return plain if parameter.callback is None else parameter.callback(context, parameter, plain)

    return process_value


def _plain_value(types: Collection[Any], text: Any) -> str | float | None:
    """A text, a word among the permitted ones or a whole number; None where more is to be converted or refused."""
    if not isinstance(text, str):
        return None
    if str in types or text in types:
        return text
    number = next((kind for kind in (int, float) if kind in types), None)
    return number(text) if number and text.isascii() and text.isdecimal() and len(text) <= _DIGITS else None


class Commands(typer.Typer):
    """A group of commands that take their options in groups."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"cls": OptionGroup, "no_args_is_help": True, "rich_markup_mode": None, **options})

    def command(
        self, name: str | None = None, *, renamed: Mapping[str, str] = MappingProxyType({}), **options: Any
    ) -> Callable[[Any], Any]:
        """As ``Typer.command``, of a function that has groups of options among its parameters.

        Args:
            name: of the command.
            renamed: former options, with those of today.
            options: as those of ``Typer.command``.
        """
        register = super().command(name, **{"cls": Command, **options})

        def registered(function: Any) -> Any:
            parameters = spread(function)
            vars(parameters)["renamed"].update(renamed)
            register(parameters)
            return function

        return registered

    def callback(self, **options: Any) -> Callable[[Any], Any]:
        """As ``Typer.callback``, of a function that has groups of options among its parameters."""
        register = super().callback(**options)

        def registered(function: Any) -> Any:
            register(spread(function))
            return function

        return registered


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
            raise _wrong(cls, error) from None


class Asked(Generic[Noun]):
    """Questions as they were typed: one, or those that lists of values make."""

    def __init__(self, noun: type[Noun], texts: Mapping[str, Any]) -> None:
        self.noun = noun
        try:
            self.texts = {noun.today(name): given for name, given in texts.items()}
        except FieldError as error:
            option = f"--{error.field.replace('_', '-')}"
            raise typer.BadParameter(f"has no meaning in a {noun.__name__} question", param_hint=option) from None
        self.typed = Given(self.texts)
        lists = {name: _values(noun.fields()[name], given) for name, given in self.texts.items()}
        self.axes = {n: v for n, v in lists.items() if isinstance(v, list) and noun.fields()[n].field.kind != "texts"}
        """Values of the options that were written as lists, be it of one."""
        _check_count(self.axes)
        try:
            self.questions: list[Noun] = noun.several(lists)
        except FieldError as error:
            raise self.wrong(error) from None

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

    def wrong(self, error: FieldError) -> typer.BadParameter:
        """The mistake in a field as that of its option."""
        return _wrong(self.noun, error)


def _wrong(noun: type[Question], error: FieldError) -> typer.BadParameter:
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
        return [from_parameter(self.launched.help), *optional]

    def take(self, values: dict[str, Any]) -> Any:
        """The question or group of what was typed; its values are no longer among ``values``."""
        texts = {field: values.pop(field) for field in self.noun.fields() if field not in self.left_out}
        texts = {field: value for field, value in texts.items() if value not in (None, [])}
        if self.launched and isinstance(self.noun, type) and (source := values.pop(FROM)):
            words = launched_words(self.noun, source, texts)
            texts = {**{name: word for name, word in words.items() if name not in self.left_out}, **texts}
        return self.read(texts)


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
    """The function with fields of its questions and groups as parameters; ``Given`` among them is what was typed."""
    hints = get_type_hints(function, include_extras=True)
    nouns = dict(_spreads(hints))
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint) and name not in nouns}
    parameters: list[Parameter] = []
    for name, parameter in signature(function).parameters.items():
        if name in nouns:
            parameters += nouns[name].parameters()
        else:
            parameters += _fields(groups[name]) if name in groups else [parameter.replace(annotation=hints[name])]
    typed = [parameter.name for parameter in parameters if parameter.annotation is Given]

    @wraps(function)
    def call(**values: Any) -> Any:
        made: dict[str, Any] = {}
        if typed:
            context = values.pop(_CONTEXT)
            made[typed[0]] = Given(name for name in values if _is_typed(context, name))
        made |= {name: one.take(values) for name, one in nouns.items()}
        for name, group in groups.items():
            made[name] = group(**{each.name: values.pop(each.name) for each in fields(group)})
        return function(**made, **values)

    shown = [p.replace(kind=Parameter.KEYWORD_ONLY) for p in parameters if p.name not in typed]
    if typed:
        shown.append(Parameter(_CONTEXT, Parameter.KEYWORD_ONLY, annotation=typer.Context))
    del vars(call)["__wrapped__"]
    vars(call)["renamed"] = _renamed(one.noun for one in nouns.values())
    vars(call)["renamed"] |= {old: "--from" for one in nouns.values() if one.launched for old in one.launched.former}
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


def _is_typed(context: Any, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _fields(group: Any) -> list[Parameter]:
    hints = get_type_hints(group, include_extras=True)
    made = []
    for each in fields(group):
        default = Parameter.empty if each.default is MISSING else each.default
        if each.default_factory is not MISSING:
            default = each.default_factory()
        made.append(Parameter(each.name, Parameter.KEYWORD_ONLY, default=default, annotation=hints[each.name]))
    return made


@dataclass(frozen=True, kw_only=True)
class Point(Generic[Answer]):
    """One combination of options, with its estimate or the ``error`` that stands for it."""

    options: dict[str, Any]
    estimate: Answer | None = None
    error: str = ""


def combined(
    axes: Mapping[str, Sequence[Any]],
    answer: Callable[[dict[str, Any]], Answer],
    *,
    many: bool,
    advance: Advance | None = None,
) -> Iterator[Point[Answer]]:
    """Every combination of the values of ``axes``, the last of which changes fastest.

    Args:
        axes: values by option.
        answer: of one combination.
        many: whether an error stands in its point, and the others go on.
        advance: called before each.

    Raises:
        BadParameter: too many combinations. NeusightError: what is wrong, unless ``many``.
    """
    count = _check_count(axes)
    for done, values in enumerate(product(*axes.values())):
        if advance and count > 1:
            advance(done, count)
        options = dict(zip(axes, values, strict=True))
        try:
            yield Point(options=options, estimate=answer(options))
        except NeusightError as error:
            if not many:
                raise
            yield Point(options=options, error=str(error))


def _check_count(axes: Mapping[str, Sequence[Any]]) -> int:
    if (count := prod(map(len, axes.values()))) > MOST_POINTS:
        raise typer.BadParameter(f"{count:,} combinations are too many: leave values out, or search with `plan`")
    return count


def check_answers(points: Sequence[Point[Answer]], name: str) -> None:
    """Say on stderr which values of an option have no estimate, and why.

    Raises:
        Exit: with 1, where no point has an estimate.
    """
    none = not any(point.estimate for point in points)
    for error in dict.fromkeys(point.error for point in points if point.error):
        of = [str(getattr(value, "id", value)) for value in (p.options[name] for p in points if p.error == error)]
        which = "" if len(of) == len(points) else f"no estimate of {', '.join(of)}: "
        note(f"{'error' if none else 'warning'}: {which}{error}")
    if none:
        raise typer.Exit(1)


def differing(points: Sequence[Point[Answer]], names: Iterable[str]) -> list[str]:
    """Options in which points differ: the columns of their table."""
    return [name for name in names if len({str(point.options.get(name)) for point in points}) > 1]


def reasons(points: Sequence[Point[Answer]]) -> Iterator[str]:
    """A line for each reason why points have no estimate."""
    errors = [point.error for point in points if point.error]
    for error in dict.fromkeys(errors):
        count = errors.count(error)
        yield f"no estimate for {count} combination{'s' if count > 1 else ''}: {error}"
