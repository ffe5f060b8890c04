"""What-ifs of modules of a user, whose dtype is known once they are traced."""

from __future__ import annotations

import pytest
import torch

from neusight import Predictor
from neusight.errors import InapplicableError
from neusight.questions.step import step_question
from neusight.what_if import StepQuestion


def question(dtype: torch.dtype, mode: str = "training", batch: int = 4096) -> StepQuestion:
    module = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048, dtype=dtype) for _ in range(4)))
    return step_question(module, "a100-sxm-80gb", inputs=(torch.zeros(batch, 2048, dtype=dtype),), mode=mode)


@pytest.mark.parametrize("name", ["amp", "amp-bf16", "bf16", "fp16", "tf32"])
def test_precision_of_a_float32_module_gains(predictor: Predictor, name: str) -> None:
    assert predictor.what_if(question(torch.float32), [name]).gain("time").ratio > 1.5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_refusals_name_the_dtype_of_the_module(predictor: Predictor, dtype: torch.dtype) -> None:
    name = str(dtype).removeprefix("torch.")
    with pytest.raises(InapplicableError, match=f"the step runs in {name} already: this is for a step in float32"):
        predictor.what_if(question(dtype), ["amp"])


def test_quantised_weights_take_the_dtype_of_the_module(predictor: Predictor) -> None:
    half = question(torch.bfloat16, "inference", batch=1)
    assert predictor.what_if(half, ["int8wo"]).gain("memory").ratio > 1.0
    with pytest.raises(InapplicableError, match="int8wo is of a step in 16 bits, not in float32"):
        predictor.what_if(question(torch.float32, "inference"), ["int8wo"])
