"""Architectures of transformers that nobody picked: their default configurations, two layers deep, get an estimate."""

import itertools
import signal

import pytest

from neusight.api import Predictor
from neusight.evaluation import architectures
from neusight.evaluation.architectures import TooLongError, buildable, check, drawn

GROUP, LEAST = 5, 4
"""So many types are asked together, of which so many are answered.

What transformers itself does not build from its default is not missing.
"""
DRAWN = drawn(40, seed=14)


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    return Predictor.load()


@pytest.mark.parametrize("first", range(0, len(DRAWN), GROUP), ids=lambda first: DRAWN[first])
def test_architectures_at_random_are_answered(predictor, first):
    answers = check(predictor, DRAWN[first : first + GROUP], "l4")
    missing = {answer.kind: answer.missing for answer in answers if answer.missing and answer.buildable}
    assert len(answers) - len(missing) >= LEAST, missing
    assert all(answer.latency_s > 0 and answer.inputs for answer in answers if not answer.missing)


def test_what_transformers_does_not_build_is_no_gap(predictor):
    # Its default has no size of a vocabulary.
    assert not buildable("esm") and buildable("gpt2")
    (answer,) = check(predictor, ["esm"], "l4")
    assert answer.missing and not answer.buildable


def test_an_answer_that_takes_too_long_is_cut_short(predictor, monkeypatch):
    def endless(*_, **__):
        for _ in itertools.count():
            try:
                sum(range(1000))
            except Exception:
                continue

    monkeypatch.setattr(architectures, "LIMIT_S", 0.02)
    monkeypatch.setattr(Predictor, "estimate", endless)
    before = signal.getsignal(signal.SIGPROF)
    (answer,) = check(predictor, ["gpt2"], "l4")
    assert (answer.group, answer.latency_s) == ("too slow", None)
    assert signal.getsignal(signal.SIGPROF) is before
    assert not issubclass(TooLongError, architectures.ModelError)
