"""``Form``: what the page asks, as its address keeps it: a question, and words that only the page has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import inf
from shlex import join
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlencode

from neusight.devices.chosen import version_of
from neusight.devices.load import find_device
from neusight.errors import ModelError, NeusightError
from neusight.page.words import PageWords
from neusight.questions import FieldError, Question, Serving, Step
from neusight.questions.question import NamedField
from neusight.questions.serving import LOADS

MODEL, DEVICE, CLIENTS = "gpt2-large", "h100-sxm-80gb", 16
"""The model, the device and the number of clients of a page that was opened without them."""
_PROMPT, _ANSWER = 1024, 256
"""Tokens of prompts and answers that a question leaves open, as far as the model's context has room for them."""
_OF_MODE = {"serving": Serving}
"""Questions of modes; all others are of a step."""
_SEARCHED = ("tp",)
"""Fields that a service level leaves open unless they are given, be it as they are by default."""
Word = tuple[str, str]
Noun = TypeVar("Noun", bound=Question)


class Mistake(NamedTuple):
    """A field that cannot be read: its text as it was typed, and what is wrong."""

    text: str
    error: FieldError


@dataclass(frozen=True, kw_only=True)
class Form:
    """A model on devices: a step of inference or training, or a deployment that is served.

    Attributes:
        question: what is asked.
        page: words that only the page has.
        restated: fields among ``_SEARCHED`` that are given as they are by default.
        aside: words of the other question, which come back with its mode.
        mistakes: fields that cannot be read, by name; the question has their defaults and must not be answered.
    """

    question: Step | Serving = field(default_factory=lambda: Step(model=MODEL))
    page: PageWords = field(default_factory=PageWords)
    restated: tuple[str, ...] = ()
    aside: tuple[Word, ...] = ()
    mistakes: Mapping[str, Mistake] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, words: Iterable[Word]) -> Form:
        """From the words of an address; an empty one is not given.

        Raises:
            FieldError: an unknown field, or a value that it cannot take.
        """
        form = cls.read(words)
        for mistake in form.mistakes.values():
            raise mistake.error
        return form

    @classmethod
    def read(cls, words: Iterable[Word]) -> Form:
        """Read every field by itself: those that cannot be read are among ``mistakes``."""
        given = [(name, text.strip()) for name, text in words if text.strip()]
        of_page = PageWords.fields()
        page, mistakes = _read(PageWords, [word for word in given if word[0] in of_page])
        noun: type[Step | Serving] = _OF_MODE.get(page.mode, Step)
        other = Step if noun is Serving else Serving
        rest = [(_today(noun, name), text) for name, text in given if name not in of_page]
        aside = [word for word in rest if word[0] not in noun.fields() and _today(other, word[0]) in other.fields()]
        base = {"model": MODEL} | ({"mode": page.mode} if noun is Step else {})
        question, wrong = _read(noun, [word for word in rest if word not in aside], base)
        restated = tuple(name for name in _SEARCHED if name in dict(rest) and name not in {**question.words(), **wrong})
        return cls(question=question, page=page, restated=restated, aside=tuple(aside), mistakes=mistakes | wrong)

    def changed(self, **texts: str) -> Form:
        """With other words in some fields; lines of a text are values of a field that takes several."""
        dropped = LOADS if (texts.get("mode", self.mode) == "serving") != self.serving else ()
        kept = [(name, text) for name, text in self.words() if name not in (*texts, *dropped) and self.declared(name)]
        return Form.read([*kept, *((name, line) for name, text in texts.items() for line in text.splitlines())])

    def words(self) -> Iterator[Word]:
        """Fields that are given, with the texts of those that cannot be read."""
        yield from self.page.texts()
        yield from ((name, text) for name, text in self.question.texts() if name not in PageWords.fields())
        yield from ((name, self._written(name)) for name in self.restated)
        yield from self.aside
        yield from ((name, line) for name, mistake in self.mistakes.items() for line in mistake.text.splitlines())

    @property
    def query(self) -> str:
        """Words of an address, the model among them in any case."""
        return urlencode(list(dict.fromkeys([("model", self.question.model), *self.words()])))

    @property
    def mode(self) -> str:
        """Inference, training or serving."""
        return self.page.mode

    @property
    def serving(self) -> bool:
        """Whether a deployment is asked for."""
        return isinstance(self.question, Serving)

    @property
    def cluster(self) -> str:
        """The cluster that is named; "" for none."""
        return getattr(self.question, "cluster", "")

    @property
    def of_cluster(self) -> list[str]:
        """Fields that are given and count where plans on a cluster are searched alone."""
        return [name for name in ("cluster", "nodes") if getattr(self.question, name, None)]

    def declared(self, name: str) -> NamedField | None:
        """The declaration of a field, be it of the other mode."""
        nouns: tuple[type[Question], ...] = (PageWords, type(self.question), Step, Serving)
        return next((noun.fields()[name] for noun in nouns if name in noun.fields()), None)

    def text(self, name: str) -> str:
        """Text of a field on the screen: as it was typed where it cannot be read."""
        return self.mistakes[name].text if name in self.mistakes else self._written(name)

    def _written(self, name: str) -> str:
        noun: Question = self.page if name in PageWords.fields() else self.question
        if name not in noun.fields():
            return ""
        value, spec = getattr(noun, name), noun.fields()[name].field
        if spec.kind == "texts":
            return "\n".join(value)
        return "" if value is None else spec.write(value)

    @property
    def gpus(self) -> tuple[str, ...]:
        """Ids or files of the devices.

        Raises:
            DeviceError: an unknown one. ModelError: none.
        """
        names = [name.strip() for name in (self.question.gpu or DEVICE).split(",") if name.strip()]
        if not names:
            raise ModelError("names no device: give ids of `neusight devices list`, such as h100,4090")
        return tuple(find_device(name).name for name in names)

    @property
    def lengths(self) -> tuple[int, int]:
        """Tokens of a prompt and of its answer: those that are not given have room in the model's context."""
        isl, osl = getattr(self.question, "isl", None), getattr(self.question, "osl", None)
        room = _context(self.question.model, version_of(self.question.model)) or inf
        osl = osl or int(min(_ANSWER, max(1, room - isl if isl else room / 4)))
        return isl or int(min(_PROMPT, max(1, room - osl))), osl

    @property
    def complete(self) -> Step | Serving:
        """The question of devices, with what the page assumes where it is left open."""
        words: dict[str, Any] = {"gpu": self.question.gpu or DEVICE}
        if isinstance(self.question, Step):
            words |= {"cluster": "", "nodes": None}
        if isinstance(self.question, Serving):
            if not self.question.trace:
                words |= dict(zip(("isl", "osl"), self.lengths, strict=True))
            if not any(getattr(self.question, name) for name in LOADS):
                words["concurrency"] = CLIENTS
        return self.question.changed(**words)

    @property
    def questions(self) -> list[Step | Serving]:
        """The question of each device.

        Raises:
            As ``gpus``.
        """
        return [self.complete.changed(gpu=gpu) for gpu in self.gpus]

    def assumed(self, name: str) -> str:
        """Text that stands in place of a field which is not given; "" for none."""
        if self.page.slo and self.serving and name in ("gpu", "tp", "concurrency"):
            return {"gpu": "all with a price", "tp": "1, 2, 4 or 8"}.get(name, "")
        value = getattr(self.complete, name, None)
        if value is None or value == getattr(self.question, name):
            return ""
        return self.question.fields()[name].field.write(value)

    @property
    def command(self) -> str:
        """The command line that gives the same.

        Raises:
            As ``gpus``.
        """
        question = self.complete
        words = ["neusight", question.KIND, question.model, "--gpu", ",".join(self.gpus)]
        return join([*words, *question.changed(gpu="").options()])

    @property
    def python(self) -> str:
        """Lines of Python that give the same.

        Raises:
            As ``gpus``.
        """
        noun = type(self.question).__name__
        lines = ["from neusight import Predictor", f"from neusight.questions import {noun}", ""]
        lines += ["predictor = Predictor.load()"]
        for question in self.questions:
            words = ", ".join(f"{name}={_source(value)}" for name, value in question.words().items())
            lines += [f"print(predictor.ask({noun}({words})))"]
        return "\n".join(lines)

    def options(self, *names: str) -> list[str]:
        """Options of a command line for fields among ``names`` that are given."""
        texts = [*self.question.texts(), *((name, self._written(name)) for name in self.restated)]
        declared = self.question.fields()
        return [word for name, text in texts if name in names for word in declared[name].command_words(text)]

    def with_change(self, key: str, text: str) -> Form:
        """With another figure of the device; the catalogue's where the text is empty."""
        rest = [change for change in self.question.overrides if not change.startswith(f"{key}=")]
        return self.changed(overrides="\n".join([*rest, f"{key}={text}"] if text.strip() else rest))


def _source(value: Any) -> str:
    """The value in Python, a whole number without its point."""
    return repr(int(value) if isinstance(value, float) and value.is_integer() else value)


def _read(
    noun: type[Noun], words: Iterable[Word], base: Mapping[str, str] | None = None
) -> tuple[Noun, dict[str, Mistake]]:
    """The question of the words that can be read, and the mistakes of the others; ``base`` where none is given."""
    mistakes: dict[str, Mistake] = {}
    good = list(words)
    while True:
        try:
            return noun.named([*(word for word in (base or {}).items() if word[0] not in dict(good)), *good]), mistakes
        except FieldError as error:
            wrong = [word for word in good if _today(noun, word[0]) == error.field] or good
            mistakes[error.field] = Mistake("\n".join(text for _, text in wrong), error)
            good = [word for word in good if word not in wrong]


def _today(noun: type[Question], name: str) -> str:
    """Today's name of a field, or the name itself where no field has or had it."""
    try:
        return noun.today(name)
    except FieldError:
        return name


@lru_cache(maxsize=256)
def _context(model: str, _version: int) -> int:
    """Tokens of a model's longest sequence, 0 where it is no decoder or states none."""
    from neusight.workloads.decoders.known import known_decoder

    try:
        return known_decoder(model).max_len
    except NeusightError:
        return 0
