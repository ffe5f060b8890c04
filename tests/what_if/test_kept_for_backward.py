"""What is kept for the backward pass."""

from __future__ import annotations

from neusight import Predictor
from neusight.questions.step import step_question


def test_samples_one_by_one_keep_one_sample(predictor: Predictor) -> None:
    step = step_question("gpt2", "a100-sxm-80gb", mode="training", batch=4, seq_len=256)
    answer = predictor.what_if(step, ["gradient-accumulation"])
    one = predictor.answer(step.asking(batch=1))
    # The gradients' sum stands beside what one sample keeps.
    assert one.peak_bytes <= answer.after.peak_bytes < answer.before.peak_bytes
    assert answer.gain("throughput").ratio < 1.0 < answer.gain("memory").ratio
