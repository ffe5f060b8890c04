"""A device or a cluster that is better in one figure, and what has no tables to move."""

from __future__ import annotations

from dataclasses import replace

import pytest

from neusight import Predictor
from neusight.devices import cluster_of
from neusight.distributed.training_run import usual_run
from neusight.errors import InapplicableError
from neusight.questions.step import step_question
from neusight.serving.load import Static
from neusight.what_if import Ranking, StepQuestion, applied
from neusight.what_if.questions import DeploymentQuestion
from neusight.workloads.decoders.known import known_decoder

STEP = step_question("gpt2", "a100-sxm-80gb", dtype="bf16", batch=1, seq_len=64, launch="graph")


@pytest.mark.parametrize(("name", "most"), [("more-bandwidth", 2.0), ("faster-clock", 1.25), ("faster-link", 1.0)])
def test_a_better_figure_gains_as_far_as_it_limits(predictor: Predictor, name: str, most: float) -> None:
    ratio = predictor.what_if(STEP, [name]).gain().ratio
    assert 1.0 <= ratio + 1e-9 <= most + 2e-9
    assert (ratio > 1.01) == (most > 1.0)


def test_a_served_decoder_is_summed_in_float16_where_it_has_that_dtype() -> None:
    llama = known_decoder("llama-3.1-8b")
    served = DeploymentQuestion(model=llama, gpu="rtx-4090", load=Static(batch=1, isl=64, osl=1))
    with pytest.raises(InapplicableError, match="not in float16"):
        applied(served, ["fp16-accumulation"])
    served = replace(served, model=replace(llama, dtype="float16"), gpu=served.device)
    (after,) = applied(served, ["fp16-accumulation"])
    with pytest.raises(InapplicableError, match="changed already"):
        applied(after, ["fp16-accumulation"])
    assert after.device.matrix_flops_per_s["float16"] == pytest.approx(330.3e12, rel=1e-3)


def test_figures_that_are_changed_already_are_not_changed_again() -> None:
    with pytest.raises(InapplicableError, match="changed already"):
        applied(STEP.under(overrides=("sm_count=54",)), ["more-bandwidth"])
    with pytest.raises(InapplicableError, match="exclude each other"):
        applied(STEP, ["more-bandwidth", "faster-clock"])


def test_matrix_units_that_add_in_float16_are_those_of_geforce_boards(predictor: Predictor) -> None:
    step = step_question("gpt2", "rtx-4090", dtype="fp16", batch=8, seq_len=512, launch="graph")
    after = applied(step, ["fp16-accumulation"])[-1]
    assert isinstance(after, StepQuestion)
    stated = pytest.approx(2 * step.device.gemm_flops_per_s("float16"), rel=0.01)
    assert after.device.gemm_flops_per_s("float16") == stated
    assert 1.2 < predictor.what_if(step, ["fp16-accumulation"]).gain().ratio < 2.0
    with pytest.raises(InapplicableError, match="as fast"):
        applied(step_question("gpt2", "l40s", dtype="fp16", batch=1, seq_len=64), ["fp16-accumulation"])
    with pytest.raises(InapplicableError, match="bfloat16, not in float16"):
        applied(STEP, ["fp16-accumulation"])


def test_another_device_is_ranked_but_not_among_what_is_done_together(predictor: Predictor) -> None:
    answer = Ranking(question=STEP, ask=predictor.answer, names=("more-bandwidth",)).ranked()
    assert [rung.transform.name for rung in answer.alone] == ["more-bandwidth"]
    assert answer.rungs == ()


def test_a_model_without_tables_has_none_to_move(predictor: Predictor) -> None:
    with pytest.raises(InapplicableError, match="no tables of embeddings"):
        predictor.what_if(STEP, ["host-tables"])
    block = step_question("block:softmax@tokens=8,hidden=8,round=1", "a100-sxm-80gb", mode="training")
    with pytest.raises(InapplicableError, match="no tables of embeddings"):
        predictor.what_if(block, ["hot-rows"])


def test_twice_the_links_halve_what_a_run_exchanges(predictor: Predictor) -> None:
    cluster = cluster_of("v100-sxm2-16gb", 1, 8, "10Gb/s ethernet")
    given = {"global_batch_size": 8, "seq_len": 256, "dtype": "float32"}
    run = usual_run(known_decoder("gpt2"), cluster, given, engine="torchtitan")
    gain = predictor.what_if(run, ["faster-link"]).gain()
    assert 1.5 < gain.ratio <= 2.0
    alone = usual_run(known_decoder("gpt2"), cluster_of("v100-sxm2-16gb", 1), {**given, "global_batch_size": 1})
    with pytest.raises(InapplicableError, match="exchanges nothing"):
        applied(alone, ["faster-link"])
