"""Answers of the Python API, off the event loop: each question once, the last few hundred kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, TypeVar

from neusight.api import Predictor
from neusight.devices.chosen import version_of
from neusight.distributed.estimate import TrainingEstimate
from neusight.errors import ModelError, NeusightError, reason, shown
from neusight.estimates import Estimate, figures
from neusight.estimates.core import core
from neusight.figures import Chart
from neusight.measured.feedback import fillable_rows
from neusight.page.form import Form
from neusight.paths import calibrations_dir, is_there
from neusight.questions import Serving, Step
from neusight.serving import figures as served
from neusight.serving.estimate import ServingEstimate
from neusight.workloads.catalogue import canonical_name

_KEPT = 512
"""Number of answers that are kept: tens of kilobytes each."""
_PREFIXES = ("timm:", "torchvision:", "diffusers:")
"""Prefixes of models of libraries, which are not functions of a user."""
T = TypeVar("T")
Question = Callable[[Predictor, Form], T]
Answer = Estimate | ServingEstimate | TrainingEstimate


@dataclass(frozen=True)
class DeviceAnswer:
    """The estimate of a question on one device, or the reason in one line why there is none."""

    question: Step | Serving
    estimate: Answer | None = None
    error: str = ""

    @property
    def gpu(self) -> str:
        """Id of the device."""
        return self.question.gpu


class _Lane:
    """One thread with a separate predictor, since a predictor caches its answers."""

    def __init__(self, calibrations: Path | None) -> None:
        self._calibrations = calibrations
        self._threads = ThreadPoolExecutor(1)

    @cached_property
    def _predictor(self) -> Predictor:
        return Predictor.load(calibrations=self._calibrations)

    def submit(self, ask: Question[T], form: Form) -> Future[T]:
        return self._threads.submit(lambda: ask(self._predictor, form))


class Answers:
    """Questions of all tabs: those of ready models in one lane, those that trace or search in another, so that dragging
    never waits for them.

    Args:
        functions: ``package.module:function`` models that may run; a URL alone runs no code.
    """

    def __init__(self, functions: Sequence[str] = ()) -> None:
        self._functions = frozenset(functions)
        self._submitted = lru_cache(_KEPT)(self._submit)
        self.forget()

    def forget(self) -> None:
        """Forget all answers, since there is a new calibration."""
        calibrations = calibrations_dir() if calibrations_dir().is_dir() else None
        self._quick, self._slow = _Lane(calibrations), _Lane(calibrations)
        self._submitted.cache_clear()

    async def of(self, ask: Question[T], form: Form, *, slow: bool = False) -> T:
        """The answer of ``ask`` to a form.

        Args:
            ask: a function of a predictor and a form.
            form: the question.
            slow: True if it takes longer than dragging should wait.

        Raises:
            NeusightError: the question is invalid. ModelError: a function that may not run.
        """
        model = form.question.model
        allowed = model in self._functions or model.startswith(_PREFIXES)
        if ":" in model and not allowed and not is_there(model):
            raise ModelError(f"{shown(model)} is not run by a URL: start `neusight page {shown(model)}`")
        slow = slow or bool(form.cluster) or canonical_name(model) is None
        answer: T = await asyncio.wrap_future(self._submitted(ask, form, slow, version_of(model)))
        return answer

    def _submit(self, ask: Question[Any], form: Form, slow: bool, _version: int) -> Future[Any]:
        return (self._slow if slow else self._quick).submit(ask, form)


def answer_form(predictor: Predictor, form: Form) -> tuple[DeviceAnswer, ...]:
    """Answers of each device of the form.

    Raises:
        NeusightError: no device has an answer, all for the same reason.
    """
    answers = tuple(_answer_one(predictor, question) for question in form.questions)
    if len(reasons := {answer.error for answer in answers}) == 1 and "" not in reasons:
        raise NeusightError(*reasons)
    return answers


def _answer_one(predictor: Predictor, question: Step | Serving) -> DeviceAnswer:
    try:
        return DeviceAnswer(question, answer_question(predictor, question))
    except Exception as error:  # A page goes on where a command would end.
        return DeviceAnswer(question, error=said_of(error))


def said_of(error: Exception) -> str:
    """The reason why there is no answer, in one line."""
    return str(error) if isinstance(error, NeusightError) else f"{type(error).__name__}: {reason(error)}"


def answer_question(predictor: Predictor, question: Step | Serving) -> Answer:
    """The answer on one device or cluster, with its interval and coverage computed.

    Raises:
        NeusightError: as ``Predictor.ask``.
    """
    estimate: Answer = predictor.ask(question)
    _ = estimate.interval, getattr(estimate, "coverage", None)
    return estimate


def predictions(answers: Sequence[DeviceAnswer]) -> str:
    """Write questions and answers as CSV into which measurements are filled, as ``neusight sweep --format csv``."""
    import pandas as pd

    figures = [_figures(answer.estimate) | {"error": answer.error} for answer in answers]
    return pd.DataFrame(fillable_rows([answer.question for answer in answers], figures)).to_csv(index=False)


def _figures(estimate: Answer | None) -> dict[str, Any]:
    """Figures of an estimate, those of steps without parts and words."""
    if isinstance(estimate, ServingEstimate):
        return estimate.row()
    return {name: value for name, value in (core(estimate) if estimate else {}).items() if not isinstance(value, Sized)}


def charts(form: Form, estimates: Sequence[Any]) -> list[Chart]:
    """Charts of time by limiter, for steps on one device each, and of memory term by term."""
    if not estimates:
        return []
    if form.serving:
        return [served.memory(estimates)]
    return [*([] if form.cluster else [figures.time(estimates)]), figures.memory(estimates)]
