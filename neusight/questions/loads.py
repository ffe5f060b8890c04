"""The load that the words of a ``Serving`` question describe: lengths of prompts and answers, and when they come."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from neusight.devices.chosen import version_of
from neusight.paths import user_path
from neusight.questions.field import FieldError
from neusight.serving.load import Lengths, Load, Offline, Open, Static, TokenCounts, Trace, read_trace
from neusight.serving.planning import ARRIVALS, closed

if TYPE_CHECKING:
    from neusight.questions.serving import Serving

UNBOUNDED = 16
"""Lengths of a model without a longest sequence are cut at so many times their mean (assumption)."""


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
            raise FieldError("batch", "has requests of equal lengths: leave out isl_cv and osl_cv")
        return Static(batch=question.batch or 1, isl=isl, osl=osl)
    if kind == "concurrency":
        return closed(question.concurrency or 1, isl, osl, num_prompts=count, seed=seed)
    if kind == "request_rate":
        count = count or ARRIVALS * question.replicas * (question.dp or 1)
        rate = question.request_rate or 0.0
        return Open(request_rate=rate, num_prompts=count, isl=isl, osl=osl, arrivals=question.arrivals, seed=seed)
    return Offline(num_prompts=count or 1, isl=isl, osl=osl, seed=seed)


def lengths_of(question: Serving, context: int) -> tuple[TokenCounts, TokenCounts]:
    """Tokens of prompts and of answers: equal ones, or a distribution that is cut so that both fit a model's context.

    Raises:
        FieldError: a length is missing.
    """
    isl, osl = question.isl, question.osl
    if isl is None or osl is None:
        raise FieldError("isl" if isl is None else "osl", "is missing: give tokens, such as 1024")
    longest = question.max_model_len or context or UNBOUNDED * (isl + osl)
    most = min(longest, context) if context else longest
    shares = isl / (isl + osl), osl / (isl + osl)
    return _lengths(question, "isl", isl, shares[0] * most), _lengths(question, "osl", osl, shares[1] * most)


def _lengths(question: Serving, name: str, mean: float, most: float) -> TokenCounts:
    if question.is_drawn(name):
        shape, cv = getattr(question, f"{name}_shape"), getattr(question, f"{name}_cv")
        return Lengths(mean=mean, shape=shape, cv=cv, longest=int(max(mean, int(most))))
    if mean % 1:
        raise FieldError(name, f"{mean:g}: equal lengths are whole numbers: round it, or give {name}_cv")
    return int(mean)


def _trace(question: Serving) -> Trace:
    trace = _read(question.trace, version_of(user_path(question.trace)))
    if trace.sessions is not None:
        question.refuse(("prefix_hit",), "is what sessions of the trace leave: leave it out")
    return trace


@lru_cache(maxsize=8)
def _read(path: str, _version: int) -> Trace:
    return read_trace(user_path(path))
