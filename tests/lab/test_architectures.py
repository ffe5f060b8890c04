"""Architectures of transformers that nobody picked: their default configurations, two layers deep, get an estimate."""

import itertools
import signal

import pytest
import torch
from transformers import CONFIG_MAPPING

from neusight.api import Predictor
from neusight.lab import architectures
from neusight.lab.architectures import TooLongError, buildable, check, drawn, runnable
from neusight.workloads.huggingface import model_class

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


@pytest.mark.filterwarnings("ignore:Initializing zero-element")
@pytest.mark.parametrize(
    ("kind", "part", "fitting"),
    [
        # Half of a head of 128 is not 8 + 12 + 12, as which its rotary frequencies are divided.
        ("glm4v", "text_config", {"rope_parameters": {"rope_theta": 1e4, "mrope_section": [16, 24, 24]}}),
        # How many experts a token goes to is left open.
        ("deepseek_v2", None, {"num_experts_per_tok": 2}),
        # Its default looks at no scale of what its backbone sees.
        ("lw_detr", None, {"projector_scale_factors": [1.0]}),
    ],
)
def test_a_default_that_no_input_runs_through_is_no_gap(kind, part, fitting):
    def model(**options):
        parsed = CONFIG_MAPPING[kind](**options)
        with torch.device("meta"):
            return model_class({"model_type": kind}, parsed, "inference")(parsed)

    assert not runnable(model())
    assert runnable(model(**({part: fitting} if part else fitting)))


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
