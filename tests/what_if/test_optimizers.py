"""Optimizers of traced steps."""

import pytest

from neusight.api import Predictor
from neusight.errors import InapplicableError
from neusight.kernels.families import Optimizer
from neusight.questions.step import step_question
from neusight.steps.questions import workload_of
from neusight.what_if import applied
from neusight.workloads.target import TargetDevice

STEP = step_question("gpt2", "a100-sxm-80gb", mode="training", batch=4, seq_len=512, optimizer="adamw")


def test_moments_in_eight_bits_move_their_bytes(predictor: Predictor) -> None:
    fused, narrow = (applied(STEP, [name])[-1] for name in ("fused-optimizer", "adam-8bit"))
    kernels = [
        next(k for node in workload_of(q.model, q.request, q.setting, TargetDevice()).nodes for k in node.kernels
             if isinstance(k, Optimizer) and "fused" in k.op)
        for q in (fused, narrow)
    ]  # fmt: skip
    saved = 2 * kernels[0].elements * (4 - (1 + 4 / 256))
    assert kernels[0].read_bytes - kernels[1].read_bytes == pytest.approx(saved)
    before, after = predictor.answer(fused), predictor.answer(narrow)
    states = before.memory_terms["optimizer"]
    assert after.memory_terms["optimizer"] == pytest.approx(states * (1 + 4 / 256) / 4, rel=0.01)
    assert after.latency_s < before.latency_s


def test_sums_of_rows_and_columns_keep_next_to_nothing(predictor: Predictor) -> None:
    (factored,) = applied(STEP, ["adafactor"])
    assert predictor.answer(factored).memory_terms.get("optimizer", 0.0) == 0.0


def test_other_optimizers_have_no_such_moments() -> None:
    with pytest.raises(InapplicableError, match="of Adam"):
        applied(step_question("gpt2", "l4", mode="training", optimizer="sgd"), ["adam-8bit"])
    with pytest.raises(InapplicableError, match="exclude each other"):
        applied(STEP, ["adam-8bit", "adafactor"])
