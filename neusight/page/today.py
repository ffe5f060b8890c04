"""Words of questions as calls of the API and options of commands that do not take questions yet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from neusight.questions import Serving, Step
from neusight.serving import EngineOptions, Offline, Open, Static, closed
from neusight.serving.deployment import Setup
from neusight.serving.planning import ARRIVALS


def options_of(question: Step | Serving) -> list[str]:
    """Options of today's commands."""
    launch = {"compiled": ["--compile"], "graph": ["--cuda-graph"]}.get(getattr(question, "launch", ""), [])
    return [*(question.changed(launch="eager") if launch else question).options(), *launch]


def setup_words(question: Serving) -> dict[str, Any]:
    """Words of ``Predictor.deployment``."""
    words = question.words()
    setup = {one.name: words[one.name] for one in fields(Setup) if one.name in words}
    limits = {one.name: words[one.name] for one in fields(EngineOptions) if one.name in words}
    return setup | ({"options": EngineOptions(**limits)} if limits else {})


def load_of(question: Any) -> Any:
    """The load."""
    lengths: dict[str, Any] = {"isl": question.isl, "osl": question.osl}
    if question.load == "batch":
        return Static(batch=question.batch, **lengths)
    if question.load == "request_rate":
        number = question.num_prompts or ARRIVALS * question.replicas
        return Open(request_rate=question.request_rate, num_prompts=number, arrivals=question.arrivals, **lengths)
    if question.load == "num_prompts":
        return Offline(num_prompts=question.num_prompts, **lengths)
    return closed(question.concurrency, **lengths, num_prompts=question.num_prompts)


def lines_of(questions: list[Step | Serving]) -> Iterator[str]:
    """Lines of Python."""
    step = isinstance(questions[0], Step)
    if step:
        yield from ("from neusight import Predictor", "from neusight.questions import Step", "")
    else:
        yield from ("from neusight import Predictor, load_device", "from neusight.serving import closed", "")
    yield "predictor = Predictor.load()"
    for one in questions:
        if isinstance(one, Serving):
            device = f"load_device({one.gpu!r}, {list(one.overrides)!r})" if one.overrides else repr(one.gpu)
            words = "".join(f", {name}={value!r}" for name, value in setup_words(one).items())
            load = f"closed({one.concurrency}, {one.isl}, {one.osl})"
            yield f"print(predictor.serving({one.model!r}, {device}, {load}{words}))"
        else:
            words = ", ".join(f"{name}={value!r}" for name, value in one.words().items())
            yield f"print(predictor.ask(Step({words})))"
