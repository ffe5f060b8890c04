"""A field that is left out has one value in every command, and the answer names it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from neusight import Predictor
from neusight.defaults import LONGEST_SEQ_LEN, default_dtype, default_micro_batch, default_seq_len
from neusight.devices import cluster_of
from neusight.engines import engine_named
from neusight.questions import Training
from neusight.questions.step import step_question
from neusight.workloads.catalogue import list_workloads
from neusight.workloads.decoders.known import known_decoder
from neusight.workloads.resolve import resolve, step_dtype

GPU = "h100-sxm-80gb"
TINY = {"model_type": "gpt2", "n_layer": 1, "n_embd": 32, "n_head": 2, "n_positions": 4096, "vocab_size": 100}
STATED = {
    "Qwen/Qwen3-8B": "bfloat16",
    "llama-3.1-8b": "bfloat16",
    "llama-2-7b": "float16",
    "mistral-7b": "bfloat16",
    "mixtral-8x7b": "bfloat16",
    "gpt2-large": "float32",
    "opt-1.3b": "float32",
}
"""Default dtypes of models in plain PyTorch."""


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    """A configuration that states a dtype and takes more tokens than the default."""
    file = tmp_path / "tiny" / "config.json"
    file.parent.mkdir()
    file.write_text(json.dumps(TINY | {"torch_dtype": "float16"}))
    return str(file)


@pytest.mark.parametrize(("model", "dtype"), STATED.items())
def test_step_dtype_is_as_the_configuration_states(model: str, dtype: str) -> None:
    assert step_dtype(resolve(model), engine_named("torch-eager"))[0] == dtype
    assert step_question(model, GPU).request.dtype == dtype


@pytest.mark.parametrize("model", [info.name for info in list_workloads() if info.kind == "causal-lm"])
def test_step_dtype_is_that_of_the_decoder(model: str) -> None:
    stated = known_decoder(model).dtype
    for engine in ("torch-eager", "megatron-te", "fsdp"):
        default = default_dtype(stated, engine_named(engine))
        assert step_dtype(resolve(model), engine_named(engine))[0] == default.value


@pytest.mark.parametrize("model", ["llama-3.2-1b", "llama-2-7b", "gpt2-large"])
@pytest.mark.parametrize("engine", ["torch-eager", "megatron-te", "fsdp"])
def test_training_run_dtype_is_the_default_of_its_engine(predictor: Predictor, model: str, engine: str) -> None:
    run = Training.named(
        {"model": model, "cluster": cluster_of(GPU, 2), "global_batch_size": 2, "seq_len": 64, "engine": engine}
    ).resolve()
    default = default_dtype(known_decoder(model).dtype, engine_named(engine))
    assert (run.dtype, run.assumed["dtype"]) == (default.value, str(default))


@pytest.mark.parametrize("limit", [None, 0, 512, 1024, 2048, 131072])
def test_default_seq_len_is_within_the_limit(limit: int | None) -> None:
    assert default_seq_len(limit).value == min(limit or 512, LONGEST_SEQ_LEN)


@pytest.mark.parametrize("model", ["gpt2-large", "llama-3.1-8b", "opt-1.3b"])
def test_default_seq_len_is_the_same_in_every_command(predictor: Predictor, model: str) -> None:
    cluster = cluster_of(GPU, 8)
    traced, described = (
        Training.named({"model": model, "cluster": cluster, "global_batch_size": 8, "engine": engine}).resolve()
        for engine in ("torch-eager", "fsdp")
    )
    step = predictor.estimate(model, GPU, mode="training")
    assert traced.seq_len == described.seq_len == step.seq_len == min(2048, known_decoder(model).max_len)
    assert traced.assumed["seq_len"] == described.assumed["seq_len"] == step.assumed["seq_len"]


def test_given_fields_are_not_assumed(predictor: Predictor) -> None:
    step = predictor.estimate("gpt2", GPU, seq_len=64, dtype="bf16")
    run = Training.named(
        {
            "model": "gpt2",
            "cluster": cluster_of(GPU, 1),
            "global_batch_size": 2,
            "micro_batch_size": 2,
            "seq_len": 64,
            "dtype": "bf16",
            "engine": "torch-eager",
        }
    ).resolve()
    assert step.assumed == run.assumed == {}


@pytest.mark.parametrize(
    ("engine", "stages", "value"),
    [("torch-eager", 1, 8), ("maxtext", 1, 8), ("torch-eager", 2, 1), ("megatron-te", 1, 1), ("fsdp", 1, 1)],
)
def test_default_micro_batch_is_named_in_the_answer(predictor: Predictor, engine: str, stages: int, value: int) -> None:
    default = default_micro_batch(8, stages, engine_named(engine))
    options: dict[str, Any] = {"global_batch_size": 8, "pp": stages, "seq_len": 64}
    run = Training.named(
        {
            "model": "gpt2",
            "cluster": cluster_of("tpu-v5p" if engine == "maxtext" else GPU, stages),
            **options,
            "engine": engine,
        }
    ).resolve()
    assert run.plan.micro_batch_size == default.value == value
    assert run.assumed["micro_batch_size"] == str(default)


def test_sweep_and_what_if_take_the_dtype_of_the_file(predictor: Predictor, tiny: str) -> None:
    (row,) = predictor.sweep(tiny, GPU, seq_lens=[32]).to_dict("records")
    step = step_question(tiny, GPU, seq_len=32)
    before = predictor.what_if(step, ["compile"]).before
    estimate = predictor.estimate(tiny, GPU, seq_len=32)
    assert row["dtype"] == before.to_dict()["dtype"] == estimate.dtype == "float16"
    assert before.assumed == estimate.assumed == {"dtype": "float16, as the configuration states"}
