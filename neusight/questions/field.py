"""``FieldSpec``: one word of a question, as the command line, keywords, tables, the page and launch lines read it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, field
from functools import partial
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from neusight.errors import LoadError, ModelError, UnitError, nearest, shown
from neusight.quick_dataclasses import dataclass
from neusight.units import parse, parse_image_size

if TYPE_CHECKING:
    from neusight.questions.question import Question

Kind = Literal["text", "texts", "path", "whole", "number", "lengths", "switch", "image", "level"]
MOST = 10**9
"""Samples, tokens and other counts: more are a slip of the keyboard."""
_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
_LONGEST = 400
"""Characters of a number that is read."""
_LIKE = {
    "whole": "a whole number: write it like 8", "number": "a number: write it like 1.5",
    "lengths": "a length: write it like 1024, 819..1024 or 512/64",
}  # fmt: skip
"""Formats of numbers, by kind of field."""


class FieldError(ModelError):
    """A word that a field of a question cannot take.

    Attributes:
        field: name of the field.
        reason: what is wrong and what to give instead, without the name.
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name} {reason}")
        self.field = name
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.field, self.reason)


@dataclass(frozen=True, kw_only=True)
class Usual:
    """A value that people run where a question leaves a field open, with where that is known from, and how often, as
    the source counts it.
    """

    value: Any
    source: str
    weight: float = 1.0


@dataclass(frozen=True, kw_only=True)
class FieldSpec:
    """One word of a question.

    Attributes:
        kind: ``text``; ``texts``, several of which are repeated; ``path``; ``whole`` number; ``number``; ``lengths``,
            a number, or a text of several, see ``numbers_of``; ``switch``, on or off; ``image``, a whole number of
            pixels, or a text of width and height such as 768x512; ``level``, a service level as ``Slo`` reads it.
        help: one sentence for people who do not know the field.
        panel: title of the group in which the help shows it.
        unit: kind of quantity that ``neusight.units.parse`` reads, for numbers that people write with their unit.
        low, high: bounds of a number, both included.
        choices: words that a text can be; any unless given.
        meanings: former words of values, and the words of today.
        short: one-letter option, such as ``-b``.
        option: name of the option, unless it is the field's with dashes.
        metavar: how the help writes a value.
        placeholder: how the help writes the default.
        listable: whether several values, separated by commas, make several questions.
        former: names that the field had: files and tables may use them, commands name the new one.
        if_unset: values that people run when a question leaves the field open; of conditions that a person may not
            know, not of choices that define the question.
        objects: whether Python may give an object in place of a word.
        argument: whether a command takes it by its place, not as an option.
        complete: what a shell completes: ``devices``, ``models``, ``decoders``, ``clusters`` or ``files``.
        pairs: whether texts are ``name=value``, each name once.
        joined: whether a text is several words with commas between, so that a list of words stands for it too.
        estimated: whether estimates know it; else it is recorded, and answers say that it has no effect.
        of_mode: mode of a step without which the field has no effect; "" for none.
    """

    kind: Kind
    help: str
    panel: str
    unit: str = ""
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    meanings: Mapping[str, str] = field(default_factory=dict)
    short: str = ""
    option: str = ""
    metavar: str = ""
    placeholder: str = ""
    listable: bool = False
    former: tuple[str, ...] = ()
    if_unset: Callable[[Question], Sequence[Usual]] = lambda _: ()
    objects: bool = False
    argument: bool = False
    complete: str = ""
    pairs: bool = False
    joined: bool = False
    estimated: bool = True
    of_mode: str = ""

    def read(self, name: str, text: str) -> Any:
        """The value that a text stands for.

        Raises:
            FieldError: the text is no value of the field.
        """
        readers = {"whole": self._number, "number": self._number, "texts": _texts_of}
        return self.check(name, readers[self.kind](name, text) if self.kind in readers else text)

    def check(self, name: str, value: Any) -> Any:
        """The value, with today's word in place of a former one; lists of texts as tuples.

        Raises:
            FieldError: another type, a number out of bounds, or an unknown word.
        """
        checks = {"texts": self._texts, "text": self._word, "path": _path, "switch": _switch, "image": self._image}
        return {**checks, "lengths": self._lengths, "level": _level}.get(self.kind, self._within)(name, value)

    def write(self, value: Any) -> str:
        """The text that ``read`` reads as the value."""
        if isinstance(value, bool):
            return str(value).lower()
        text = repr(value).removesuffix(".0") if isinstance(value, float) else str(value)
        return text + _UNIT_WORDS.get(self.unit, "")

    def _number(self, name: str, text: str) -> float:
        if self.unit:
            try:
                return parse(text, self.unit)
            except UnitError as error:
                raise FieldError(name, str(error)) from None
        try:
            if len(text) > _LONGEST:
                raise ValueError
            return int(text) if self.kind == "whole" else float(text)
        except ValueError:
            raise FieldError(name, f"'{shown(text)}' is not {_LIKE[self.kind]}") from None

    def _within(self, name: str, value: Any) -> Any:
        whole = self.kind in ("whole", "image")
        if whole and isinstance(value, float) and value.is_integer():
            value = int(value)
        kinds = (int,) if whole else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds) or not (whole or isfinite(value)):
            raise FieldError(name, f"{shown(value)}: give a {'whole ' if whole else ''}number{self._range(' ')}")
        if (self.low is not None and value < self.low) or (self.high is not None and value > self.high):
            raise FieldError(name, f"{value:.15g} is out of range: give a number{self._range(' ')}")
        return value if whole else float(value)

    def _range(self, before: str) -> str:
        if self.low is not None and self.high is not None:
            return f"{before}from {self.low:,} to {self.high:,}"
        return "" if self.low is None else f"{before}of at least {self.low:,}"

    def _image(self, name: str, value: Any) -> int | str:
        """Pixels along the edge of a square, or the text of a width and a height that differ."""
        if not isinstance(value, str):
            return int(self._within(name, int(value) if isinstance(value, float) and value.is_integer() else value))
        try:
            width, height = (int(self._within(name, edge)) for edge in parse_image_size(value))
        except UnitError as error:
            raise FieldError(name, str(error)) from None
        return width if width == height else f"{width}x{height}"

    def _lengths(self, name: str, value: Any) -> float | str:
        """A number, or the text of several, see ``numbers_of``."""
        if not isinstance(value, str):
            return float(self._within(name, value))
        numbers = [float(self._within(name, self._number(name, part))) for part in _parts(value)]
        if RANGE in value and (len(numbers) != 2 or numbers[0] > numbers[1]):
            raise FieldError(name, f"'{shown(value)}' is no range: write it like 819{RANGE}1024")
        return value if len(numbers) > 1 else numbers[0]

    def _word(self, name: str, value: Any) -> Any:
        if self.joined and isinstance(value, list | tuple):
            value = ",".join(map(str, value))
        if not isinstance(value, str):
            raise FieldError(name, f"{shown(value)}: give a word")
        words = [word.strip() for word in value.split(",")] if self.joined else [self.meanings.get(value, value)]
        if unknown := [word for word in words if self.choices and word not in self.choices]:
            hint = nearest(unknown[0], self.choices)
            raise FieldError(name, f"'{shown(unknown[0])}' is unknown{hint}: one of {', '.join(self.choices)}")
        return ",".join(words)

    def _texts(self, name: str, value: Any) -> tuple[str, ...]:
        values = (value,) if isinstance(value, str) else value
        if self.pairs and isinstance(value, Mapping):
            values = tuple(f"{key}={entry}" for key, entry in value.items())
        if not isinstance(values, Sequence) or not all(isinstance(item, str) for item in values):
            raise FieldError(name, f"{shown(value)}: give texts, such as {self.metavar or 'a, b'}")
        if self.pairs:
            self._check_pairs(name, values)
        return tuple(values)

    def _check_pairs(self, name: str, values: Sequence[str]) -> None:
        if wrong := [text for text in values if not all(text.partition("="))]:
            raise FieldError(name, f"'{shown(wrong[0])}' is no pair: write it like {self.metavar}")
        keys = [text.partition("=")[0] for text in values]
        if repeated := [key for place, key in enumerate(keys) if key in keys[:place]]:
            raise FieldError(name, f"'{shown(repeated[0])}' is given twice: leave out one of them")


RANGE, IN_TURN = "..", "/"
"""Between the ends of a range, from which lengths are drawn evenly, and between lengths that are taken in turns."""


def numbers_of(lengths: float | str) -> list[float]:
    """The number of lengths that are all equal, the ends of a range (``819..1024``), or those that are taken in turns
    (``512/2048/512``).
    """
    return [float(part) for part in _parts(str(lengths))]


def _parts(text: str) -> list[str]:
    return text.split(RANGE if RANGE in text else IN_TURN)


def _texts_of(name: str, text: str) -> Sequence[str]:
    """One text, or those of a JSON list, as columns of tables have them."""
    if not text.startswith("["):
        return (text,)
    try:
        return tuple(json.loads(text))
    except ValueError as error:
        raise FieldError(name, f"'{shown(text)}' is no list of JSON: {error}") from None


def _switch(name: str, value: Any) -> bool:
    """State of a switch, from a text or a truth value."""
    word = str(value).lower()
    if not isinstance(value, bool | str) or word not in (*_TRUE, *_FALSE):
        raise FieldError(name, f"'{shown(value)}': give true or false")
    return word in _TRUE


def _level(name: str, value: Any) -> str:
    from neusight.serving.slo import Slo

    try:
        Slo.named(str(value))
    except LoadError as error:
        raise FieldError(name, str(error)) from None
    return str(value)


def _path(name: str, value: Any) -> Path:
    if not isinstance(value, str | Path):
        raise FieldError(name, f"{shown(value)}: give a path")
    return Path(value)


_UNIT_WORDS = {"bytes": "B", "s": "s"}
"""Base units, in which values are written."""


def option(kind: Kind, help: str, panel: str, default: Any = None, **declared: Any) -> Any:
    """A field of a question with its declaration; arguments are those of ``FieldSpec``."""
    return field(default=default, metadata={"field": FieldSpec(kind=kind, help=help, panel=panel, **declared)})


def text(help: str, panel: str, default: Any = "", **declared: Any) -> Any:
    """A word; "" where it is left open."""
    return option("text", help, panel, default, **declared)


texts = partial(option, "texts", default=())
"""Words that are given one after the other; none by default."""
number, lengths = partial(option, "number"), partial(option, "lengths")
"""A number, and one that may be drawn; None where it is left open."""


def path(help: str, panel: str, **declared: Any) -> Any:
    """A file or folder; None where it is left open."""
    return option("path", help, panel, metavar=declared.pop("metavar", "FILE"), complete="files", **declared)


def whole(help: str, panel: str, default: Any = None, low: int = 1, high: int = MOST, **declared: Any) -> Any:
    """A whole number from ``low`` to ``high``; None where it is left open."""
    return option("whole", help, panel, default, low=low, high=high, **declared)


def switch(help: str, panel: str, default: bool | None = False, **declared: Any) -> Any:
    """Declare a switch that is on or off; None where it is left open."""
    return option("switch", help, panel, default, **declared)


def required(help: str, panel: str, **declared: Any) -> Any:
    """Declare a field that every question gives."""
    return option(declared.pop("kind", "text"), help, panel, MISSING, argument=True, **declared)


def pairs_of(texts: Sequence[str]) -> dict[str, str]:
    """Values by name, from texts ``name=value``."""
    return {name: value for name, _, value in (text.partition("=") for text in texts)}
