"""The load that the words of a ``Serving`` question describe: lengths of prompts and answers, and when they come."""

from __future__ import annotations

from functools import lru_cache
from math import inf
from statistics import fmean
from typing import TYPE_CHECKING, Any

from neusight.devices.chosen import version_of
from neusight.errors import UnitError, shown
from neusight.paths import user_path
from neusight.questions.field import RANGE, FieldError, numbers_of
from neusight.questions.parts import MOST_ARRIVALS
from neusight.serving.load import Lengths, Load, Offline, Open, Static, TokenCounts, Trace, read_trace
from neusight.serving.planning import ARRIVALS, closed
from neusight.units import parse

if TYPE_CHECKING:
    from neusight.questions.serving import Serving

UNBOUNDED = 16
"""Lengths of a model without a longest sequence are cut at this multiple of their mean (assumption)."""


def load_of(question: Serving, context: int) -> Load:
    """The load of a model that takes sequences of ``context`` tokens, 0 for any.

    Raises:
        FieldError: words that a load cannot have. DataError, LoadError: a trace that cannot be read.
    """
    kind = question.load
    if kind == "trace":
        question.refuse(("isl", "osl", "isl_cv", "osl_cv"), "has no place: the trace has its own lengths: leave it out")
        return _trace(question)
    isl, osl = lengths_of(question, context)
    seed, count = question.seed, question.num_prompts
    if kind == "batch":
        if not (isinstance(isl, int) and isinstance(osl, int)):
            raise FieldError("batch", "has requests of equal lengths: give one number as isl and as osl")
        return Static(batch=question.batch or 1, isl=isl, osl=osl)
    if kind == "concurrency":
        return closed(question.concurrency or 1, isl, osl, num_prompts=count, seed=seed)
    if question.arrives:
        count = count or ARRIVALS * question.replicas * (question.dp or 1)
        return _open(question, count, isl, osl)
    return Offline(num_prompts=count or 1, isl=isl, osl=osl, seed=seed)


def _open(question: Serving, count: int, isl: TokenCounts, osl: TokenCounts) -> Open:
    """Requests that arrive at a rate, ``count`` of them, or at those of stages, which give their number."""
    rate, stages = question.request_rate or 0.0, _stages(question.stages)
    expected: float = count
    if stages:
        expected = sum(rate * lasts_s for rate, lasts_s in stages)
        rate = expected / sum(lasts_s for _, lasts_s in stages)
    if expected > MOST_ARRIVALS:
        raise FieldError(question.load, f"brings {expected:.3g} requests: give a load of up to {MOST_ARRIVALS:,}")
    count = max(1, round(expected))
    # The coefficient of variation of a gamma distribution is its shape to the power of -1/2.
    arrivals, cv = ("gamma" if question.burstiness != 1 else question.arrivals), question.burstiness**-0.5
    drawn: dict[str, Any] = {"isl": isl, "osl": osl, "arrivals": arrivals, "cv": cv, "seed": question.seed}
    return Open(request_rate=rate, num_prompts=count, stages=stages, **drawn)


def _stages(text: str) -> tuple[tuple[float, float], ...]:
    """Rates [1/s] with how long each lasts [s].

    Raises:
        FieldError: what is no rate and time, or one of them is not above 0.
    """
    stages = []
    for stage in text.split(",") if text else ():
        rate, _, lasts = stage.partition(":")
        try:
            stages.append((float(rate), parse(lasts, "s")))
            if not all(0 < part < inf for part in stages[-1]):
                raise FieldError("stages", f"'{shown(stage)}': give a rate and a time above 0, like 4:60s")
        except (ValueError, UnitError):
            raise FieldError("stages", f"'{shown(stage)}' is no rate with its time: write it like 4:60s") from None
    return tuple(stages)


def lengths_of(question: Serving, context: int) -> tuple[TokenCounts, TokenCounts]:
    """Tokens of prompts and of answers: equal ones, or a distribution that is cut so that both fit a model's context.

    Raises:
        FieldError: a length is missing.
    """
    if question.isl is None or question.osl is None:
        raise FieldError("isl" if question.isl is None else "osl", "is missing: give tokens, such as 1024")
    isl, osl = (fmean(numbers_of(tokens)) for tokens in (question.isl, question.osl))
    longest = question.max_model_len or context or UNBOUNDED * (isl + osl)
    most = min(longest, context) if context else longest
    shares = isl / (isl + osl), osl / (isl + osl)
    return _lengths(question, "isl", isl, shares[0] * most), _lengths(question, "osl", osl, shares[1] * most)


def _lengths(question: Serving, name: str, mean: float, most: float) -> TokenCounts:
    tokens = getattr(question, name)
    if isinstance(tokens, str):
        numbers = numbers_of(tokens)
        return Lengths.between(*numbers) if RANGE in tokens else [_whole(name, number) for number in numbers]
    if question.is_drawn(name):
        shape, cv = getattr(question, f"{name}_shape"), getattr(question, f"{name}_cv")
        return Lengths(mean=mean, shape=shape, cv=cv, longest=int(max(mean, int(most))))
    return _whole(name, mean)


def _whole(name: str, tokens: float) -> int:
    """Raises:
    FieldError: no whole number.
    """
    if tokens % 1:
        raise FieldError(name, f"{tokens:g}: lengths that are not drawn are whole numbers: round it, or give {name}_cv")
    return int(tokens)


def _trace(question: Serving) -> Trace:
    trace = _read(question.trace, version_of(user_path(question.trace)))
    if trace.sessions is not None:
        question.refuse(("prefix_hit",), "is what sessions of the trace leave: leave it out")
    return trace


@lru_cache(maxsize=8)
def _read(path: str, _version: int) -> Trace:
    return read_trace(user_path(path))
