"""``Form``: the question of the page, as stored in its address, and words that only the page has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import field
from functools import cached_property
from math import inf
from shlex import join
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlencode

from neusight.devices import DeviceSpec
from neusight.devices.load import find_device
from neusight.errors import ModelError, NeusightError
from neusight.page.accuracy import BY
from neusight.questions import FieldError, Question, Serving, Step, Training
from neusight.questions.field import numbers_of, text, texts
from neusight.questions.parts import MODEL as MODEL_PANEL
from neusight.questions.parts import Assurance
from neusight.questions.question import NamedField, like
from neusight.questions.serving import LOADS
from neusight.quick_dataclasses import dataclass
from neusight.requests import MODES

MODEL, DEVICE, CLIENTS = "gpt2-large", "h100-sxm-80gb", 16
"""The model, the device and the number of clients of a page that was opened without them."""
_PROMPT, _ANSWER = 1024, 256
"""Tokens of prompts and answers that a question leaves open, as far as the model's context has room for them."""
_VIEW = "View"
_SEARCHED = ("tp",)
"""Fields that a service level leaves open unless they are given, even with their defaults."""
Word = tuple[str, str]
Noun = TypeVar("Noun", bound=Question)


class Mistake(NamedTuple):
    """A field that cannot be read: its text as it was typed, and the error."""

    text: str
    error: FieldError


@dataclass(frozen=True, kw_only=True)
class PageWords(Question):
    """Words that only the page has in addition to a question."""

    mode: str = text(
        "Inference is the forward pass; training adds the backward pass and the optimizer; serving is a language model "
        "under a load.",
        MODEL_PANEL, "inference", choices=(*MODES, "serving"),
    )  # fmt: skip
    slo: str = like(Assurance, "slo", metavar="ttft=200ms,tpot=30ms")
    axis: str = text("Field that the slider moves.", _VIEW)
    space: str = text("Design space: a device to build, such as gpu or phaze.", _VIEW)
    apply: tuple[str, ...] = texts("Optimisations that are applied one after the other, or `all`.", _VIEW)
    by: str = text("Grouping: what accuracy is compared by.", _VIEW, next(iter(BY)), choices=tuple(BY))


@dataclass(frozen=True, kw_only=True)
class Form:
    """A model on devices: a step of inference or training, or a deployment that is served.

    Attributes:
        question: the question.
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
        """The form of the words of an address; an empty word is not given.

        Raises:
            FieldError: an unknown field, or a value that it cannot take.
        """
        form = cls.read(words)
        for mistake in form.mistakes.values():
            raise mistake.error
        return form

    @classmethod
    def read(cls, words: Iterable[Word]) -> Form:
        """Read every field separately: those that cannot be read are among ``mistakes``."""
        nonempty = [(name, text.strip()) for name, text in words if text.strip()]
        of_page = PageWords.fields()
        page, mistakes = _read(PageWords, [word for word in nonempty if word[0] in of_page])
        nouns: tuple[type[Step | Serving], ...] = (Step, Serving)
        noun, other = reversed(nouns) if page.mode == "serving" else nouns
        rest = [(_today(noun, name), text) for name, text in nonempty if name not in of_page]
        aside = [word for word in rest if word[0] not in noun.fields() and _today(other, word[0]) in other.fields()]
        base = {"model": MODEL} | ({"mode": page.mode} if noun is Step else {})
        question, wrong = _read(noun, [word for word in rest if word not in aside], base)
        restated = tuple(name for name in _SEARCHED if name in dict(rest) and name not in {**question.words(), **wrong})
        return cls(question=question, page=page, restated=restated, aside=tuple(aside), mistakes=mistakes | wrong)

    def changed(self, **texts: str) -> Form:
        """The form with other words in some fields; lines of a text are values of a field that takes several."""
        dropped = LOADS if (texts.get("mode", self.page.mode) == "serving") != self.serving else ()
        rest = [(name, text) for name, text in self.words() if name not in (*texts, *dropped) and self.declared(name)]
        return Form.read([*rest, *((name, line) for name, text in texts.items() for line in text.splitlines())])

    def words(self) -> Iterator[Word]:
        """Fields that are given, with the texts of those that cannot be read."""
        yield from self.page.texts()
        yield from ((name, text) for name, text in self.question.texts() if name not in PageWords.fields())
        yield from ((name, str(getattr(self.question, name))) for name in self.restated)
        yield from self.aside
        yield from ((name, line) for name, mistake in self.mistakes.items() for line in mistake.text.splitlines())

    @cached_property
    def given(self) -> Mapping[str, str]:
        """Texts of fields that are given, by name; several are lines."""
        texts: dict[str, str] = {}
        for name, line in self.words():
            texts[name] = f"{texts[name]}\n{line}" if name in texts else line
        return texts

    @property
    def query(self) -> str:
        """Words of an address, the model among them in any case."""
        return urlencode(list(dict.fromkeys([("model", self.question.model), *self.words()])))

    @property
    def serving(self) -> bool:
        """True if the question is about a deployment."""
        return isinstance(self.question, Serving)

    @property
    def cluster(self) -> str:
        """Name of the cluster; "" without one."""
        return getattr(self.question, "cluster", "")

    def declared(self, name: str) -> NamedField | None:
        """The declaration of a field, also of the other mode."""
        nouns: tuple[type[Question], ...] = (PageWords, type(self.question), Step, Serving)
        return next((noun.fields()[name] for noun in nouns if name in noun.fields()), None)

    def text(self, name: str) -> str:
        """Text of a field on the screen: as it was typed where it cannot be read."""
        field = self.declared(name)
        usual = field.field.write(field.default) if field and field.default not in (None, ()) else ""
        return self.given.get(name, usual)

    @property
    def gpus(self) -> tuple[str, ...]:
        """Ids or files of the devices, or "" where a cluster names them.

        Raises:
            DeviceError: an unknown one. ModelError: none.
        """
        if self.cluster and not self.question.gpu:
            return ("",)
        names = [name.strip() for name in (self.question.gpu or DEVICE).split(",") if name.strip()]
        if not names:
            raise ModelError("names no device: give ids of `neusight devices list`, such as h100,4090")
        return tuple(find_device(name).name for name in names)

    @cached_property
    def complete(self) -> Step | Serving:
        """The question of devices, with the page's assumptions for fields that are left open."""
        words: dict[str, Any] = {} if self.cluster else {"gpu": self.question.gpu or DEVICE}
        if isinstance(self.question, Serving):
            words |= {} if self.question.trace else _lengths(self.question)
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
        """Text shown in place of a field which is not given; "" for none."""
        if self.page.slo and self.serving and name in ("gpu", "tp", "concurrency"):
            return {"gpu": "all with a price", "tp": "1, 2, 4 or 8"}.get(name, "")
        value = getattr(self.complete, name, None)
        is_open = value is not None and value != getattr(self.question, name)
        return self.question.fields()[name].field.write(value) if is_open else ""

    @property
    def command(self) -> str:
        """The command line that gives the same.

        Raises:
            As ``gpus``.
        """
        question = self.complete.changed(gpu=",".join(self.gpus))
        return join(["neusight", question.KIND, *question.command_line()])

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

    @property
    def device(self) -> DeviceSpec:
        """The first device, or that of the cluster, with the figures that are changed.

        Raises:
            As ``gpus``. FieldError: a cluster without training.
        """
        return self.training.place().device if self.cluster else self.questions[0].device()

    @property
    def training(self) -> Training:
        """The step as one of training on its cluster.

        Raises:
            FieldError: a step without training, or a word that has no meaning there.
        """
        return Training.named(Step.training_words(self.question.words()))

    def with_change(self, key: str, text: str) -> Form:
        """The form with another figure of the device; the catalogue's where the text is empty."""
        key = f"device.{key}" if self.cluster else key
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


def _lengths(question: Serving) -> dict[str, float | str]:
    """Tokens of a prompt and of its answer: those that are not given have room in the model's context."""
    isl, osl = (max(numbers_of(tokens)) if tokens else 0 for tokens in (question.isl, question.osl))
    room: float = inf
    with suppress(NeusightError):
        room = question.decoder().max_len or inf
    osl = osl or int(min(_ANSWER, max(1, room - isl if isl else room / 4)))
    return {"isl": question.isl or int(min(_PROMPT, max(1, room - osl))), "osl": question.osl or osl}
