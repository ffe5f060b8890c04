"""Optimisations of deployments: what they change, and what they do not apply to."""

import pytest

from neusight.errors import InapplicableError
from neusight.serving import Setup, Static
from neusight.what_if import DeploymentQuestion, applied
from neusight.what_if.catalogue.deployments import with_drafts, with_prefix_share

SERVED = DeploymentQuestion(model="llama-2-7b", gpu="a100-sxm-80gb", load=Static(batch=1, isl=100, osl=10))
EAGER = SERVED.deployed(engine="transformers")


def test_weights_are_quantised_once() -> None:
    once = applied(SERVED, ["int4wo"])[-1]
    assert once.setup.dtype == "int4_linear"
    with pytest.raises(InapplicableError, match="already"):
        applied(once, ["nf4"])


def test_quantised_weights_and_cache_and_ranks_commute() -> None:
    names = ["awq", "int8-cache", "tensor-parallel-2"]
    assert applied(SERVED, names)[-1] == applied(SERVED, names[::-1])[-1]


def test_generation_is_compiled_where_transformers_run_it() -> None:
    assert applied(EAGER, ["compile"])[-1].setup == Setup(engine="gpt-fast", graphs=False)
    assert applied(EAGER, ["reduce-overhead"])[-1].setup == Setup(engine="gpt-fast")
    with pytest.raises(InapplicableError, match="transformers"):
        applied(SERVED, ["reduce-overhead"])


def test_ranks_prefixes_and_drafts_are_given_once() -> None:
    with pytest.raises(InapplicableError, match="share each matrix already"):
        applied(SERVED.deployed(tp=2), ["tensor-parallel-4"])
    with pytest.raises(InapplicableError, match="cache already"):
        with_prefix_share(SERVED.deployed(prefix_hit=0.2), 0.5)
    with pytest.raises(InapplicableError, match="drafted already"):
        with_drafts(applied(SERVED, ["speculative-decoding"])[-1], "draft=ngram,tokens=2,acceptance=0.5")
