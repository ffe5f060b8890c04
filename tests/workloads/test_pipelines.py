"""A pipeline of diffusion is one denoising step or a whole image: the denoiser as often as asked, all else once."""

from functools import cache
from typing import Any

import pytest
from cli_runs import as_json, error, run

from neusight import Predictor
from neusight.errors import InapplicableError, ModelError
from neusight.questions.step import step_question
from neusight.requests import Plan, Request
from neusight.workloads import Workload, load_workload
from neusight.workloads.resolve import resolve

PIPELINE = "sd-1.5-pipeline"
SIZE = {"image_size": 128, "dtype": "fp16"}
WORDS = ("predict", PIPELINE, "--gpu", "a100-sxm-80gb", "--image-size", 128, "--dtype", "fp16")


@cache
def step(steps: int | None = None) -> Workload:
    return load_workload(PIPELINE, steps=steps, **SIZE)


def counts(workload: Workload, module: str) -> int:
    """Kernels that run in one of the pipeline's modules."""
    return sum(n for launch in workload.launches for name, n in launch.modules if name.startswith(module))


@pytest.mark.parametrize("steps", [1, 2, 50])
def test_steps_repeat_the_denoiser_alone(steps: int) -> None:
    one, several = step(), step(steps)
    for module, times in (("encoders", 1), ("denoiser", steps), ("autoencoder", 1)):
        assert counts(several, module) == times * counts(one, module) > 0
    assert (several.memory, len(several.nodes)) == (one.memory, len(one.nodes))


def test_steps_meet_the_weights_of_the_denoiser_again() -> None:
    once, thrice = (sum(step(steps).traffic_bytes) for steps in (1, 3))
    weights = sum(t.nbytes * t.copies for t in step().tensors if t.kind == "weight" and "denoiser" in t.layer.pattern)
    assert 2 * weights <= thrice - once <= 2 * once


def test_estimate_of_steps_has_parts_that_sum_up(predictor: Predictor) -> None:
    one, many = (predictor.estimate(PIPELINE, "a100-sxm-80gb", steps=steps, **SIZE) for steps in (None, 50))
    assert 20.0 < many.latency_s / one.latency_s < 50.0
    assert sum(many.by_part.values()) == pytest.approx(many.latency_s)
    assert set(many.by_part) >= {"text encoder", "denoiser x 50", "decoder"}
    assert many.by_part["decoder"] == pytest.approx(one.by_part["decoder"], rel=0.05)
    assert many.by_part["denoiser x 50"] == pytest.approx(50.0 * one.by_part["denoiser x 1"], rel=0.05)
    assert many.peak_bytes == one.peak_bytes
    assert predictor.estimate(PIPELINE, "a100-sxm-80gb", steps=1, **SIZE).latency_s == one.latency_s


def test_steps_of_a_sweep_and_on_several_devices(predictor: Predictor) -> None:
    whole = predictor.estimate(PIPELINE, "l4", steps=3, dtype="fp16")
    (row,) = predictor.sweep_rows(PIPELINE, "l4", dtypes="fp16", steps=3)
    assert (row["latency_s"], row["unit"]) == (whole.latency_s, whole.unit)
    shared = predictor.estimate(PIPELINE, "l4", steps=3, dtype="fp16", plan=Plan(dp=2, global_batch_size=2))
    assert shared.latency_s == pytest.approx(whole.latency_s, rel=0.1)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"model": "sd-1.5-unet", "steps": 2}, "no pipeline with steps of denoising"),
        ({"model": "resnet-50", "steps": 2}, "no pipeline with steps of denoising"),
        ({"model": "gpt2", "steps": 2}, "no pipeline with steps of denoising"),
        ({"model": PIPELINE, "steps": 2, "mode": "training"}, "none in training"),
        ({"model": PIPELINE, "steps": 0}, "from 1 to 10,000"),
        ({"model": PIPELINE, "steps": 10**6}, "from 1 to 10,000"),
        ({"model": PIPELINE, "steps": 2, "plan": Plan(pp=2)}, "leave out pp"),
    ],
)
def test_steps_are_refused_where_there_are_none(predictor: Predictor, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        predictor.estimate(options.pop("model"), "l4", **options)


def test_cached_features_are_of_a_single_step(predictor: Predictor) -> None:
    question = step_question(PIPELINE, "l4", steps=2, **SIZE)
    with pytest.raises(InapplicableError, match="ask for one step"):
        predictor.what_if(question, ["step-caching"])


def test_predict_says_which_work_it_is_of() -> None:
    text = " ".join(run(*WORDS).stdout.split())
    assert "1 denoising step of the 50 that are usual, each with and without the prompt" in text
    assert "--steps 50 is a whole image" in text
    text = " ".join(run(*WORDS, "--steps", 50).stdout.split())
    assert "a whole image in 50 denoising steps" in text and "denoiser x 50" in text
    assert as_json(*WORDS, "--steps", 4)["unit"].startswith("a whole image in 4 denoising steps")
    assert "leave out --steps" in error("predict", "gpt2", "--gpu", "l4", "--steps", 4)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("pixart-alpha-pipeline", "of the 20 that are usual"),
        ("flux-dev-pipeline", "of the 28 that are usual, with text encoder"),
        ("cogvideox-2b-pipeline", "--steps 50 is a whole clip"),
        ("sd-1.5-unet", "1 denoising step: an image or clip has many"),
        ("translation-decoder@4", "one token in each beam"),
        ("hifi-gan", "one clip of sound"),
        ("nnu-net-3d", "one patch"),
        ("ssd300-resnet50", "all boxes and scores"),
        ("block:rms-norm@tokens=8,hidden=8,round=2", "not a model"),
        ("gpt2", "not generation token by token"),
        ("resnet-50", ""),
        ("bert-base", ""),
    ],
)
def test_unit_names_the_work_of_a_step(model: str, words: str) -> None:
    unit = resolve(model).unit(Request.of(model))
    assert words in unit and bool(words) == bool(unit)
