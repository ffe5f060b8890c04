"""``Question``: words with their fields. From a row, keywords, texts or a file, and back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, field, fields, replace
from itertools import product
from os import PathLike, fspath
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

from neusight.errors import nearest, shown
from neusight.questions.field import FieldError, FieldSpec
from neusight.quick_dataclasses import dataclass

Noun = TypeVar("Noun", bound="Question")


@dataclass(frozen=True, kw_only=True)
class Question:
    """Words that decide an answer, checked field by field.

    An object that Python gives in place of a word (a module, a device) is kept in ``objects``; the field then holds a
    name for it, and the words alone are not the question.
    """

    _FIELDS: ClassVar[Mapping[str, NamedField]]
    KIND: ClassVar[str] = ""
    """Name of the command that answers."""
    HELP: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Help of fields that mean something else in this question than in others."""
    KEYS: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Keys of pairs that are names by themselves too, with the field that has the pairs."""

    objects: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False)

    def __post_init__(self) -> None:
        objects = dict(self.objects)
        for name, declared in self.fields().items():
            value = getattr(self, name)
            if value is declared.default:
                continue
            if declared.field.objects and not isinstance(value, str | tuple | list):
                objects[name], value = value, _name_of(value)
            object.__setattr__(self, name, declared.field.check(name, value))
        object.__setattr__(self, "objects", objects)
        self.check()

    def check(self) -> None:
        """Relations between fields, which nouns add.

        Raises:
            FieldError: words that exclude each other.
        """

    @classmethod
    def fields(cls) -> Mapping[str, NamedField]:
        """Declarations by name, in the order of the help."""
        if "_FIELDS" not in vars(cls):
            cls._FIELDS = dict(sorted(_declarations(cls), key=lambda one: not one[1].field.argument))
        return cls._FIELDS

    @classmethod
    def named(cls: type[Noun], words: Iterable[tuple[str, Any]] | Mapping[str, Any]) -> Noun:
        """The question of the words of a row, a file, an address or keywords; those that are None or "" are left open.

        Texts stand for numbers and switches as well, and former names for those of today.

        Raises:
            FieldError: an unknown name, a name given twice, or a value that the field cannot take.
        """
        values: dict[str, Any] = {}
        for name, value in words.items() if isinstance(words, Mapping) else words:
            if value is None or (isinstance(value, str) and not value.strip()) or (name, value) == ("kind", cls.KIND):
                continue
            name = cls.today(name)
            key, name = name, cls.KEYS.get(name, name)
            declared = cls.fields()[name]
            value = declared.canonical(value if key == name else f"{key}={declared.field.write(value)}")
            if name in values and declared.field.kind != "texts":
                raise FieldError(name, "is given twice: leave out one of them")
            values[name] = (*values.get(name, ()), *value) if isinstance(value, tuple) else value
        cls.check_required(values)
        return cls(**values)

    @classmethod
    def check_required(cls, values: Mapping[str, Any]) -> None:
        """Raises:
        FieldError: a field that every question gives is missing.
        """
        for name, declared in cls.fields().items():
            if declared.required and name not in values:
                raise FieldError(name, f"is missing: {declared.help}")

    @classmethod
    def several(cls: type[Noun], words: Mapping[str, Any]) -> list[Noun]:
        """All combinations of words, some of which are lists; the last of them changes fastest.

        Raises:
            FieldError: as ``named``, or a list of what takes one value.
        """
        axes: dict[str, list[Any]] = {}
        for name, value in words.items():
            declared = cls.fields()[cls.today(name)].field
            several = isinstance(value, list | tuple) and not (declared.joined or declared.kind == "texts")
            if several and not declared.listable:
                raise FieldError(name, f"{shown(value)}: give one value")
            axes[name] = list(value) if several else [value]
        return [cls.named(dict(zip(axes, values, strict=True))) for values in product(*axes.values())]

    @classmethod
    def today(cls, name: str) -> str:
        """Today's name of a field, or the key itself of pairs that a field has.

        Raises:
            FieldError: no field has or had the name.
        """
        declared = cls.fields()
        if name in declared or name in cls.KEYS:
            return name
        if names := [field.name for field in declared.values() if name in field.field.former]:
            return names[0]
        hint = nearest(name, (*declared, *cls.KEYS)) or f": one of {', '.join(declared)}"
        raise FieldError(shown(name), f"is no field of a {cls.__name__} question{hint}")

    def words(self) -> dict[str, Any]:
        """Fields that are not as they are by default, by name: what ``named`` reads back."""
        return {name: getattr(self, name) for name, f in self.fields().items() if getattr(self, name) != f.default}

    def record(self) -> dict[str, Any]:
        """The words with the kind of the question: an entry of a file of questions."""
        return {"kind": self.KIND, **{name: plain_number(value) for name, value in self.words().items()}}

    def texts(self) -> Iterator[tuple[str, str]]:
        """The same as pairs of texts, several for a field that is given several times."""
        for name, value in self.words().items():
            spec = self.fields()[name].field
            yield from ((name, spec.write(v)) for v in (value if spec.kind == "texts" else (value,)))

    def options(self) -> list[str]:
        """The same as options of a command line."""
        texts = [(self.fields()[name], text) for name, text in self.texts()]
        return [word for field, text in texts if not field.required for word in field.command_words(text)]

    def command_line(self) -> list[str]:
        """Words of a command line after the name of its command: arguments, then options."""
        arguments = [text for name, text in self.texts() if self.fields()[name].required]
        return [*arguments, *self.options()]

    def given(self, name: str) -> Any:
        """The object that Python gave for a field, else its word."""
        return self.objects.get(name, getattr(self, name))

    def refuse(self, names: Iterable[str], why: str) -> None:
        """Raises:
        FieldError: one of the fields is given, with ``why`` it cannot be.
        """
        if changed := [name for name in names if getattr(self, name) != self.fields()[name].default]:
            raise FieldError(changed[0], why)

    def not_estimated(self) -> Iterator[str]:
        """A line for each given field that estimates do not know."""
        for name in self.words():
            if not self.fields()[name].field.estimated:
                yield f"{name} has no effect: estimates do not know it yet"

    def changed(self: Noun, **words: Any) -> Noun:
        """The question with other words, None or "" for their defaults."""
        fields = {name: self.fields()[self.today(name)] for name in words}
        values = {f.name: f.default if words[name] in (None, "") else f.canonical(words[name])
                  for name, f in fields.items()}  # fmt: skip
        return replace(self, objects={name: o for name, o in self.objects.items() if name not in values}, **values)


@dataclass(frozen=True, kw_only=True)
class NamedField:
    """A field with the name and default that a question gives it."""

    name: str
    field: FieldSpec
    default: Any
    help: str

    @property
    def required(self) -> bool:
        """True if every question gives the field."""
        return self.default is MISSING

    @property
    def option(self) -> str:
        """``--seq-len``, or how the help writes an argument."""
        if self.field.argument:
            return self.field.metavar or self.name.upper()
        return self.field.option or f"--{self.name.replace('_', '-')}"

    def canonical(self, value: Any) -> Any:
        """A value of a row, a keyword or a text as a question has it: former words as those of today.

        Raises:
            FieldError: a value that the field cannot take.
        """
        value = fspath(value) if isinstance(value, PathLike) else value
        if isinstance(value, str):
            return self.field.read(self.name, value.strip())
        unread = self.field.objects or (self.field.listable and isinstance(value, list))
        return value if unread else self.field.check(self.name, value)

    def command_words(self, text: str) -> list[str]:
        """Words of a command line that give the field this text."""
        if self.field.argument:
            return [text]
        if self.field.kind != "switch":
            return [self.option, text]
        return [self.option if text == "true" else self.option.replace("--", "--no-", 1)]


def like(noun: type[Question], name: str, *, default: Any = None, **changes: Any) -> Any:
    """A field that is declared as that of a question or of other options, with another default or other traits."""
    declared = noun.fields()[name]
    spec = replace(declared.field, **{"help": declared.help, **changes})
    return field(default=declared.default if default is None else default, metadata={"field": spec})


def _declarations(cls: type[Question]) -> Iterator[tuple[str, NamedField]]:
    for f in fields(cls):
        if (declared := f.metadata.get("field")) is not None:
            for value in f.default if isinstance(f.default, tuple) else (f.default,):
                if value is not MISSING and value not in (None, ""):
                    declared.check(f.name, value)
            text = cls.HELP.get(f.name, declared.help)
            text = text if declared.estimated else f"{text} Estimates do not know it yet."
            yield f.name, NamedField(name=f.name, field=declared, default=f.default, help=text)


def plain_number(value: Any) -> Any:
    """A number as people write it: 1024, not 1024.0."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _name_of(value: Any) -> str:
    """A name for an object: its identifier, else the name of its class."""
    return str(getattr(value, "id", None) or getattr(value, "name", None) or type(value).__name__)
