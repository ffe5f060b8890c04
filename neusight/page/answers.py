"""Answers of the Python API, off the event loop: each question once, the last few hundred kept."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from neusight.api import Predictor
from neusight.devices.chosen import version_of
from neusight.distributed.search import Found
from neusight.errors import ModelError, NeusightError, reason, shown
from neusight.estimates import Estimate, figures
from neusight.figures import Chart
from neusight.page.form import Form
from neusight.paths import calibrations_dir, is_there
from neusight.questions import Serving, Step, Training
from neusight.serving import figures as served
from neusight.serving.estimate import ServingEstimate
from neusight.workloads.catalogue import canonical_name

_KEPT = 512
"""Answers: tens of kilobytes each."""
OF_PLANS = ("model", "cluster", "nodes", "batch", "seq_len", "dtype", "optimizer")
"""Fields of a step that a search for plans takes."""
T = TypeVar("T")
Question = Callable[[Predictor, Form], T]


@dataclass(frozen=True)
class DeviceAnswer:
    """Of one device: an estimate, or why there is none in one line."""

    gpu: str
    estimate: Estimate | ServingEstimate | None = None
    error: str = ""


class _Lane:
    """One thread with a predictor of its own, since a predictor remembers what it meets."""

    def __init__(self, calibrations: Path | None) -> None:
        self._calibrations = calibrations
        self._threads = ThreadPoolExecutor(1)

    @cached_property
    def _predictor(self) -> Predictor:
        return Predictor.load(calibrations=self._calibrations)

    def submit(self, ask: Question[T], form: Form) -> Future[T]:
        return self._threads.submit(lambda: ask(self._predictor, form))


class Answers:
    """Questions of all tabs: those of ready models in one lane, those that trace or search in another, so that nobody
    who drags waits for them.

    Args:
        functions: ``package.module:function`` models that may run; a URL alone runs no code.
    """

    def __init__(self, functions: Sequence[str] = ()) -> None:
        self._functions = frozenset(functions)
        self._kept: OrderedDict[object, Future[Any]] = OrderedDict()
        self._lock = Lock()
        self.forget()

    def forget(self) -> None:
        """All answers, since there is a calibration more."""
        calibrations = calibrations_dir() if calibrations_dir().is_dir() else None
        with self._lock:
            self._quick, self._slow = _Lane(calibrations), _Lane(calibrations)
            self._kept.clear()

    async def of(self, ask: Question[T], form: Form, *, slow: bool = False) -> T:
        """What ``ask`` says of a form.

        Args:
            ask: a function of a predictor and a form.
            form: the question.
            slow: whether it takes longer than anyone who drags should wait.

        Raises:
            NeusightError: what is wrong with the question.
        """
        return await asyncio.wrap_future(self.submit(ask, form, slow=slow))

    def submit(self, ask: Question[T], form: Form, *, slow: bool = False) -> Future[T]:
        """As ``of``, without waiting.

        Raises:
            ModelError: a function that may not run.
        """
        self._check(form)
        key = (ask, form, version_of(form.question.model))
        with self._lock:
            future = self._kept.get(key)
            if future is None:
                lane = self._slow if slow or canonical_name(form.question.model) is None else self._quick
                future = lane.submit(ask, form)
                self._kept[key] = future
                while len(self._kept) > _KEPT:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(key)
        return future

    def _check(self, form: Form) -> None:
        model = form.question.model
        known = model in self._functions or model.startswith(_PREFIXES)
        if ":" in model and not known and not is_there(model):
            raise ModelError(f"{shown(model)} is not run by a URL: start `neusight page {shown(model)}`")


_PREFIXES = ("timm:", "torchvision:", "diffusers:")


def answered(predictor: Predictor, form: Form) -> tuple[DeviceAnswer, ...]:
    """Answers of each device of the form.

    Raises:
        NeusightError: no device has an answer, all for the same reason.
    """
    answers = tuple(_answered(predictor, question) for question in form.questions)
    if len(reasons := {answer.error for answer in answers}) == 1 and "" not in reasons:
        raise NeusightError(*reasons)
    return answers


def _answered(predictor: Predictor, question: Step | Serving) -> DeviceAnswer:
    try:
        return DeviceAnswer(question.gpu, estimated(predictor, question))
    except NeusightError as error:
        return DeviceAnswer(question.gpu, error=str(error))
    except Exception as error:  # A page goes on where a command would end.
        return DeviceAnswer(question.gpu, error=f"{type(error).__name__}: {reason(error)}")


def plan_question(form: Form) -> Training:
    """The training step whose plans on a cluster are searched.

    Raises:
        ModelError: another mode.
    """
    step = form.question
    if not isinstance(step, Step) or step.mode != "training":
        raise ModelError("plans on a cluster are of training: choose mode training")
    return Training.named({name: getattr(step, name) for name in OF_PLANS if getattr(step, name) != "none"})


def planned(predictor: Predictor, form: Form) -> Found:
    """Plans of training on a cluster, the fastest first.

    Raises:
        ModelError: as ``plan_question``. DeviceError: an unknown cluster.
    """
    return predictor.plans(plan_question(form).unplanned())


def estimated(predictor: Predictor, question: Step | Serving) -> Estimate | ServingEstimate:
    """The answer on one device, with its interval.

    Raises:
        NeusightError: as ``Predictor.ask``.
    """
    estimate: Estimate | ServingEstimate = predictor.ask(question)
    _ = estimate.interval, getattr(estimate, "coverage", None)
    return estimate


def memory(form: Form, estimates: Sequence[Any]) -> Chart:
    """Memory of each device, term by term."""
    return served.memory(estimates) if form.serving else figures.memory(estimates)
