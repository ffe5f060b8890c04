"""Rows of diffusion pipelines and of ladders of vision models as two questions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from neusight.errors import DataError
from neusight.evaluation.what_if.cases import Pair, UnnamedModelError, pair_of
from neusight.what_if.questions import StepQuestion

IMAGES, TORCHAO = "diffusion_attention_compile", "quant_compile_torchao_diffusion"


def row(name: str, model: str, how: str, told: dict[str, str], metric: str = "time", gpu: str = "h100-sxm-80gb") -> Any:
    return {"set": name, "model": model, "as_written": how, "gpu": gpu, "metric": metric, "told": json.dumps(told)}


def steps(pair: Pair) -> tuple[StepQuestion, StepQuestion]:
    assert isinstance(pair.before, StepQuestion)
    assert isinstance(pair.after, StepQuestion)
    return pair.before, pair.after


def test_a_guided_pipeline_is_a_step_on_twice_the_samples() -> None:
    told = {"batch": "4", "dtype": "fp16"}
    before, after = steps(pair_of(row(IMAGES, "stable-diffusion-v1-4 pipeline", "sdpa attention (from vanilla)", told)))
    assert (before.model, before.request.batch, before.request.dtype) == ("sd-1.5-unet", 8, "float16")
    assert (before.request.attention, after.request.attention) == ("eager", "sdpa")
    flux = row(TORCHAO, "FLUX.1-dev", "quantisation int8wo", {"batch": "4", "compile": "False"})
    assert steps(pair_of(flux))[0].request.batch == 4


def test_what_is_compiled_after_quantisation_is_quantised_on_both_sides() -> None:
    told = {"batch": "1", "compile": "True", "quantization": "fp8wo"}
    before, after = steps(pair_of(row(TORCHAO, "FLUX.1-dev", "torch.compile max-autotune", told)))
    assert before.setting.passes == after.setting.passes != ()
    assert (before.request.engine.launch, after.request.engine.launch) == ("eager", "compiled")


def test_compilers_of_denoisers_do_what_applies() -> None:
    told = {"dtype": "fp16/bf16"}
    for gpu, written, names in (
        ("rtx-4090", "RTX 4090", ("inference-compiler", "channels-last", "fp16-accumulation")),
        ("", "H20", ("inference-compiler", "channels-last")),
    ):
        pair = pair_of(row("misc_ladders", "sd2", "OneDiff compiler", told, gpu=gpu) | {"gpu_as_written": written})
        assert pair.applied == names
        assert steps(pair)[1].device.id == (gpu or "h20")


def test_memory_is_of_the_whole_pipeline() -> None:
    images = row(TORCHAO, "FLUX.1-dev", "quantisation int8dq", {"batch": "4", "resolution": "1024"}, "memory")
    before, after = steps(pair_of(images))
    assert (before.model, before.request.batch) == ("flux-dev-pipeline", 4)
    assert after.setting.passes[0].arguments == ("int8wo", "denoiser", True)
    clips = row(TORCHAO, "CogVideoX-2B", "quantisation fp6", {"resolution": "720x480, 49 frames"}, "memory")
    before, after = steps(pair_of(clips))
    assert before.model == "cogvideox-2b-pipeline"
    assert after.setting.passes[0].arguments == ("fp6wo",)


@pytest.mark.parametrize(
    ("record", "error", "words"),
    [
        (row(TORCHAO, "SDXL", "quantisation int8wo", {"batch": "1"}, "memory"), DataError, "beside the denoiser"),
        (row(TORCHAO, "FLUX.1-dev", "quantisation fp3", {"batch": "1"}), DataError, "torchao's fp3 is not known"),
        (
            row(IMAGES, "DeepFloyd", "torch.compile", {"dtype": "fp16"}),
            DataError,
            "no denoiser is known of 'DeepFloyd'",
        ),
        (row(IMAGES, "SDXL", "torch.compile", {"dtype": "bnb"}), UnnamedModelError, "dtype 'bnb' is none"),
        (row("ladder_segment_anything_fast", "SAM vit_b", "nested tensors", {}), DataError, "no transform"),
    ],
)
def test_rows_that_cannot_be_asked_say_why(record: Any, error: type, words: str) -> None:
    with pytest.raises(error, match=words):
        pair_of(record)
