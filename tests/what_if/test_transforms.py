"""Optimisations compose: in any order where they commute, with a clear word where they exclude each other."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest

from neusight.devices import cluster_of
from neusight.distributed.training_run import usual_run
from neusight.errors import InapplicableError, ModelError
from neusight.questions.step import step_question
from neusight.serving import closed
from neusight.what_if import DeploymentQuestion, Question, applied, known
from neusight.what_if.questions import changed_facts, facts
from neusight.what_if.transforms import applicable
from neusight.workloads.decoders.known import known_decoder

TRAINING = step_question("gpt2", "a100-sxm-80gb", mode="training", optimizer="adam", attention="eager", batch=4)
IMAGES = step_question("resnet-50", "a100-sxm-80gb", batch=8)
LLAMA = known_decoder("llama-3.1-8b")
RUN = usual_run(
    LLAMA, cluster_of("h100-sxm-80gb", 8, 1, "", []), {"global_batch_size": 8, "seq_len": 2048}, engine="torchtitan"
)
SERVED = DeploymentQuestion(model="llama-3.1-8b", gpu="l40s", load=closed(4, 512, 64))
QUESTIONS: list[Question] = [TRAINING, IMAGES, RUN, SERVED]


def outcome(question: Question, names: tuple[str, ...]) -> Any:
    """All facts after some optimisations, or None where they exclude each other or one does not apply."""
    try:
        return facts(applied(question, names)[-1])
    except InapplicableError:
        return None


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda q: type(q).__name__)
def test_two_that_apply_give_the_same_in_any_order_or_exclude_each_other(question: Question) -> None:
    able, refused = applicable(question)
    assert able
    assert set(able) | set(refused) == set(known())
    wrong = [(a, b) for a, b in combinations(able, 2) if outcome(question, (a, b)) != outcome(question, (b, a))]
    assert wrong == []


def test_two_that_decide_the_same_say_so() -> None:
    with pytest.raises(InapplicableError, match="exclude each other"):
        applied(IMAGES, ["compile", "reduce-overhead"])
    with pytest.raises(InapplicableError, match="bf16 and amp exclude each other"):
        applied(IMAGES, ["amp", "bf16"])


def test_what_is_so_already_changes_nothing() -> None:
    with pytest.raises(InapplicableError, match="already"):
        applied(step_question("gpt2", "l4", dtype="bf16"), ["bf16"])
    with pytest.raises(InapplicableError, match="changes nothing"):
        applied(step_question("gpt2", "l4", attention="sdpa"), ["sdpa"])


def test_an_unknown_name_and_a_foreign_kind_are_one_clear_line() -> None:
    with pytest.raises(ModelError, match="did you mean compile"):
        applied(IMAGES, ["compil"])
    with pytest.raises(InapplicableError, match="not of a deployment"):
        applied(SERVED, ["amp"])


def test_only_what_an_optimisation_is_about_differs() -> None:
    (after,) = applied(TRAINING, ["sdpa"])
    assert changed_facts(TRAINING, after) == {"request.engine.attention"}


def test_every_optimisation_states_its_source_and_what_it_does() -> None:
    bare = [one.name for one in known().values() if not one.source or not one.summary.endswith(".")]
    assert bare == []
    assert all(name == one.name and name == name.lower() for name, one in known().items())
