"""Rows about generation: words of sources, and a few pairs against what was measured."""

import os
from pathlib import Path

import pytest

from neusight.api import Predictor
from neusight.errors import DataError
from neusight.evaluation.what_if import evaluate_what_if
from neusight.evaluation.what_if.cases import pair_of
from neusight.evaluation.what_if.generation import decoder_of_words, scheme_of
from neusight.measured.score import Selection

DATA = os.environ.get("NEUSIGHT_DATA")


def row(as_written: str, model: str, told: str, **fields: object) -> dict[str, object]:
    common = {"set": "weight_only_llm_decode", "mode": "decode", "gpu": "a100-sxm-80gb", "metric": "throughput"}
    return common | {"as_written": as_written, "model": model, "told": told, "gpu_as_written": "A100 * 1"} | fields


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("bitsandbytes NF4+DQ BF16 -> NF4+DQ", "nf4-double"),
        ("4-bit bnb.nf4-dq", "nf4-double"),
        ("4-bit bnb.nf4", "nf4"),
        ("bitsandbytes INT8+Decomp", "llm-int8-outliers"),
        ("quantisation int8wo", "int8wo"),
        ("quantisation int4wo-64-GPTQ", "int4wo"),
        ("quantisation float8dq (Per Row)", "fp8dq-row"),
        ("quantisation uintx-2-8-hqq", "uint2-weight-only"),
        ("weight-only Q5_K_S (llama.cpp)", "q5_k_s"),
        ("weight-only int4 AWQ (TinyChat)", "awq"),
    ],
)
def test_words_of_sources_name_schemes(words: str, name: str) -> None:
    assert scheme_of(words) == name


def test_words_that_name_none_are_refused() -> None:
    with pytest.raises(DataError, match="no scheme"):
        scheme_of("linear causal mask")


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("Llama 3.1 8B", 8.03),
        ("Llama 2 13 B", 13.0),
        ("Qwen 2.5 3B Instruct", 3.09),
        ("StableLM Alpha 3 B", 3.64),
        ("phi-1.5 1.3 B", 1.42),
        ("Vicuna-7B-v1.3", 6.74),
        ("Gemma-7B generate (TE)", 8.54),
        ("Llama-3-8B int4 TinyChat", 8.03),
    ],
)
def test_models_by_the_names_that_sources_write(name: str, billions: float) -> None:
    assert decoder_of_words(name, "float16").parameters == pytest.approx(billions * 1e9, rel=0.01)


def test_bitsandbytes_means_its_own_int8_and_by_version() -> None:
    told = '{"framework": "transformers", "dtype": "BF16 -> INT8", "bitsandbytes": "%s", "batch": "8"}'
    new, old = (pair_of(row("bitsandbytes INT8", "Llama 3.1 8B", told % v)) for v in ("0.45.0.dev", "0.44.1"))
    assert (new.applied, old.applied) == (("llm-int8",), ("llm-int8-turned",))
    assert new.metric == "tpot"
    assert new.before.load.batch == 8  # type: ignore[union-attr]


def test_prompts_with_awq_are_summed_in_float16_on_geforce_boards() -> None:
    asked = row("int4 AWQ prefill (TinyChat)", "Llama-2-7B", '{"batch": "1", "seq": "256"}', mode="prefill")
    boards = (pair_of(asked | {"set": "misc_ladders", "gpu": gpu}) for gpu in ("rtx-4090", "a100-sxm-80gb"))
    assert [pair.applied for pair in boards] == [("awq", "fp16-accumulation"), ("awq",)]


def test_llama_cpp_gives_each_device_some_layers() -> None:
    told = '{"phase": "prefill", "tokens": "4096", "batch": "1", "dtype": "F16 -> Q4_K_M", "framework": "llama.cpp"}'
    asked = row("weight-only Q4_K_M (llama.cpp)", "Llama-3-70B", told, mode="prefill", gpu_as_written="A100 * 4")
    pair = pair_of(asked)
    assert (pair.before.setup.pp, pair.metric) == (4, "ttft")  # type: ignore[union-attr]


@pytest.mark.skipif(not DATA, reason="the measured data are not here")
def test_pairs_of_generation_are_near_what_was_measured(predictor: Predictor) -> None:
    report = evaluate_what_if(
        Path(str(DATA)) / "what-if" / "pairs.parquet", predictor,
        sets=("weight_only_llm_decode",), selection=Selection(gpus=("mi250", "rtx-6000-ada")),
    )  # fmt: skip
    assert report["total"]["median"] < 25
    assert report["total"]["sign"] > 90
