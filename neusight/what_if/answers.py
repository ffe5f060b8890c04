"""Gains of optimisations: applied cumulatively, and all of them ranked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Literal

from neusight.errors import InapplicableError, NeusightError
from neusight.questions.what_if import MetricName, WhatIfQuestion
from neusight.what_if.gain import Answer, Gain, figure
from neusight.what_if.questions import Question
from neusight.what_if.transforms import Transform, applicable, applied, named

Ask = Callable[[Question], Answer]
Goal = Literal["time", "memory"]
DEVICE = "device"
"""Group of what-ifs that change the device, not what runs on it."""
_WORTH = 1.005
"""Gain from which an optimisation is worth a step of the greedy search."""


@dataclass(frozen=True, kw_only=True)
class Rung:
    """An optimisation applied after those before it: the answer with it, and its gain over the rung before."""

    transform: Transform
    answer: Answer
    time: Gain
    memory: Gain

    @property
    def idle(self) -> bool:
        """True if neither time nor memory differs."""
        return self.time.before == self.time.after and self.memory.before == self.memory.after

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        transform = self.transform
        names = ("name", "group", "summary", "source", "accuracy", "effort")
        return {
            **{name: getattr(transform, name) for name in names},
            "time": self.time.to_dict(),
            "memory": self.memory.to_dict(),
            "limiter": self.answer.limiter,
            "fits": self.answer.fits,
        }


@dataclass(frozen=True, kw_only=True)
class WhatIf:
    """A question's answer with optimisations: ``rungs`` applied cumulatively, ``alone`` applied individually with the
    largest gain first, and reasons why others do not apply in ``refused``.
    """

    before: Answer
    rungs: tuple[Rung, ...] = ()
    alone: tuple[Rung, ...] = ()
    refused: dict[str, str]
    changed: Answer | None = None
    """Answer with the changed options, before any optimisation."""
    metric: MetricName = "time"

    @property
    def after(self) -> Answer:
        """The answer with all rungs applied."""
        return self.rungs[-1].answer if self.rungs else self.changed or self.before

    def gain(self, metric: MetricName | None = None) -> Gain:
        """Gain of all rungs together, in a metric or that of the question."""
        return Gain.of(self.before, self.after, metric or self.metric)

    def to_dict(self) -> dict[str, Any]:
        """Plain data: both answers, the gain of all rungs, each rung, and those that do not apply."""
        return {
            "before": self.before.to_dict(),
            "after": self.after.to_dict(),
            "gain": {name: self.gain(name).to_dict() for name in dict.fromkeys(("time", "memory", self.metric))},
            "rungs": [rung.to_dict() for rung in self.rungs],
            "alone": [rung.to_dict() for rung in self.alone],
            "refused": self.refused,
        }


def pair_of(asked: WhatIfQuestion) -> tuple[Question, Question]:
    """The questions before and after the changed options, with the optimisations that they have already.

    Raises:
        NeusightError: options that a question cannot have, or an optimisation that does not apply.
    """
    first: Any = asked.question
    second: Any = first.changed(**dict(asked.then))
    before, after = first.resolve(), second.resolve()
    before = [before, *applied(before, (*asked.upon, *asked.instead_of))][-1]
    return before, [after, *applied(after, asked.upon)][-1]


def changed_answers(asked: WhatIfQuestion, answer: Ask) -> WhatIf:
    """The answer before, and the answers with changed options and optimisations."""
    before, after = pair_of(asked)
    ladder = replace(laddered(after, asked.apply, answer), metric=asked.metric)
    if not (asked.then or asked.instead_of):
        return ladder
    return replace(ladder, before=answer(before), changed=ladder.before)


def laddered(question: Question, names: Sequence[str], ask: Ask) -> WhatIf:
    """Gains of optimisations applied cumulatively, in the given order, and reasons why some do not apply.

    Raises:
        ModelError: an unknown name. InapplicableError: none of them applies, or one excludes another.
    """
    before = last = ask(question)
    chosen: list[str] = []
    refused: dict[str, str] = {}
    for name in names:
        try:
            named(name)(applied(question, chosen)[-1] if chosen else question)
            chosen.append(name)
        except InapplicableError as error:
            refused[name] = str(error)
    if refused and not chosen:
        raise InapplicableError("; ".join(dict.fromkeys(refused.values())))
    rungs = []
    for name, optimised in zip(chosen, applied(question, chosen), strict=True):
        answer = ask(optimised)
        rungs.append(_rung(name, last, answer))
        last = answer
    return WhatIf(before=before, rungs=tuple(rungs), refused=refused)


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """Ranking of the optimisations of a question by their gains.

    Attributes:
        question: the question without any optimisation.
        ask: function that answers a question.
        goal: quantity to lower: seconds, or bytes at the peak.
        target: value at or below which the search ends [s or B]; 0: when nothing gains any more.
        names: the optimisations; default all.
    """

    question: Question
    ask: Ask
    goal: Goal = "time"
    target: float = 0.0
    names: tuple[str, ...] = ()

    def ranked(self) -> WhatIf:
        """Gains of every optimisation applied individually, and of the best of them applied cumulatively."""
        before = self.ask(self.question)
        able, refused = applicable(self.question, self.names)
        singles: list[Rung] = []
        for name in able:
            try:
                rung = _rung(name, before, self.ask(named(name)(self.question)))
            except NeusightError as error:
                refused[name] = str(error)
                continue
            if rung.idle:
                refused[name] = f"{name} changes nothing: the model has nothing of the kind, or is so already"
            else:
                singles.append(rung)
        singles.sort(key=lambda rung: -self._gain(rung))
        return WhatIf(before=before, rungs=tuple(self._greedy(before, singles)), alone=tuple(singles), refused=refused)

    def _greedy(self, before: Answer, alone: Sequence[Rung]) -> Iterator[Rung]:
        """Optimisations in descending order of their individual gains, where they gain in addition to those before, and
        on the same devices: another device is a separate question.
        """
        chosen: list[str] = []
        last = before
        # What another device would gain is none of this one's optimisations.
        for name in (rung.transform.name for rung in alone if rung.transform.group != DEVICE):
            if figure(last, self.goal) <= (self.target or -inf):
                return
            try:
                rung = _rung(name, last, self.ask(applied(self.question, [*chosen, name])[-1]))
            except NeusightError:
                continue
            if self._gain(rung) >= _WORTH and rung.answer.devices == before.devices:
                chosen.append(name)
                last = rung.answer
                yield rung

    def _gain(self, rung: Rung) -> float:
        return (rung.time if self.goal == "time" else rung.memory).ratio


def _rung(name: str, before: Answer, after: Answer) -> Rung:
    gains = {metric: Gain.of(before, after, metric) for metric in ("time", "memory")}
    return Rung(transform=named(name), answer=after, **gains)
