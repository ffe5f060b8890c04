"""All commands state the same memory of the same step, under the same names."""

from __future__ import annotations

from typing import Any

import pytest
from cli_runs import as_json, error, run

from neusight import Predictor
from neusight.questions.step import step_question
from neusight.what_if import Ranking
from neusight.what_if.gain import figure

A100, L4 = "a100-sxm-80gb", "l4"
STEPS = {
    "gpt2-large in bf16": ("gpt2-large", A100, ("-b", 4, "-s", 1024, "--dtype", "bf16"), ()),
    "gpt2 in fp32": ("gpt2", L4, ("-b", 8), ()),
    "opt-350m nearly full": ("opt-350m", L4, ("-b", 6, "-s", 1024), ()),
    "llama-3.2-1b compiled": ("llama-3.2-1b", A100, ("-b", 2, "-s", 512), ("--launch", "compiled")),
    "bert-base": ("bert-base", L4, ("-b", 16, "-s", 128), ()),
    "resnet-18": ("resnet-18", L4, ("-b", 32), ()),
}


def in_training(model: str, gpu: str, options: tuple[object, ...], launch: tuple[object, ...]) -> dict[str, Any]:
    """The step by each command."""
    engine = ("--engine", "torch-compiled" if launch else "torch-eager")
    step = ("--optimizer", "adamw", *options)
    return {
        "predict": as_json("predict", model, "--gpu", gpu, "--mode", "training", *step, *launch),
        "training": as_json("training", model, "--gpu", gpu, "--per-node", 1, *engine, *step),
        "memory": as_json("memory", model, "--gpu", gpu, *engine, *step),
    }


@pytest.mark.parametrize("name", STEPS)
def test_needed_bytes_are_the_same_in_predict_training_and_memory(name: str) -> None:
    answers = in_training(*STEPS[name])
    needed = answers["predict"]["fit"]["needed_bytes"]
    assert answers["training"]["fit"]["needed_bytes"] == pytest.approx(needed, rel=0.03)
    assert answers["memory"]["needed_bytes"] == pytest.approx(answers["training"]["fit"]["needed_bytes"], rel=1e-12)
    assert {answer["fits"] for answer in answers.values()} == {answers["predict"]["fits"]}
    weights = [answers[command]["memory_terms"]["weights"] for command in ("predict", "training")]
    assert weights[0] == pytest.approx(weights[1], rel=1e-3)


@pytest.mark.parametrize("engine", ["megatron-te", "fsdp", "torchtitan", "maxtext"])
def test_memory_and_training_take_the_same_defaults(engine: str) -> None:
    gpu = "tpu-v5p" if engine == "maxtext" else "h100-sxm-80gb"
    step = ("llama-3.1-8b", "--gpu", gpu, "-b", 16, "--engine", engine)
    training, memory = as_json("training", *step, "--per-node", 4), as_json("memory", *step, "--dp", 4)
    assert (memory["plan"], memory["seq_len"]) == (training["plan"], training["seq_len"])
    assert memory["needed_bytes"] == training["needed_bytes"]
    assert memory["assumed"] == training["assumed"]


@pytest.mark.parametrize(
    ("model", "gpu", "words"),
    [
        ("gpt2-large", L4, {"mode": "training", "optimizer": "adam"}),
        ("llama-3.2-1b", A100, {"mode": "training", "batch": 2, "seq_len": 512}),
        ("bert-base", L4, {"batch": 32}),
        ("resnet-18", L4, {"mode": "training", "batch": 32, "dtype": "amp"}),
    ],
)
def test_what_if_and_sweep_state_the_needed_bytes_of_predict(
    predictor: Predictor, model: str, gpu: str, words: dict[str, Any]
) -> None:
    step = step_question(model, gpu, **words)
    estimate = predictor.answer(step)
    before = predictor.what_if(step, []).before
    assert figure(before, "memory") == estimate.fit.needed_bytes > estimate.peak_bytes == figure(before, "peak")
    grid = {"modes": words.get("mode", "inference"), "seq_lens": words.get("seq_len"), "dtypes": words.get("dtype")}
    optimizer = words.get("optimizer", "none")
    (row,) = predictor.sweep(model, gpu, words.get("batch", 1), optimizer=optimizer, **grid).to_dict("records")
    assert (row["needed_bytes"], row["peak_bytes"]) == (estimate.fit.needed_bytes, estimate.peak_bytes)


@pytest.mark.parametrize(("model", "batch"), [("gpt2-large", 1), ("opt-1.3b", 1), ("bert-large", 32)])
def test_what_ifs_search_until_the_needed_bytes_fit(predictor: Predictor, model: str, batch: int) -> None:
    step = step_question(model, L4, mode="training", optimizer="adam", batch=batch, seq_len=512)
    before = predictor.answer(step)
    # Between the peak and what the step needs.
    target = (before.peak_bytes + before.fit.needed_bytes) / 2
    names = ("checkpointing", "adam-8bit", "cuda-graphs")
    found = Ranking(question=step, ask=predictor.answer, goal="memory", target=target, names=names).ranked()
    assert found.rungs and figure(found.after, "memory") <= target


def test_memory_says_which_options_its_engine_decides() -> None:
    assert "--dropout: has no effect under torch-eager" in error(
        "memory", "gpt2", "--gpu", L4, "-b", 1, "--engine", "torch-eager", "--dropout"
    )
    page = run("memory", "resnet-18", "--gpu", L4, "-b", 8, "--engine", "torch-eager").stdout
    assert "longest sequence" not in page and "needs" in page and "peak" in page
