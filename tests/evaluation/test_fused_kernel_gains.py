"""Kernels written by hand as measured: blocks are named, phases told apart, and what is not told is said."""

from __future__ import annotations

import json
from typing import Any

import pytest

from neusight import Predictor
from neusight.errors import DataError
from neusight.evaluation.what_if.cases import Pair, UnnamedModelError, pair_of
from neusight.what_if.gain import Gain

MLP = {"t": "4096", "bsz": "2", "hidden_size": "2048", "intermediate_size": "4096", "dtype": "torch.bfloat16"}


def pair(model: str, told: dict[str, str], kernel: str = "fused kernel: liger", **more: str) -> Pair:
    record: dict[str, Any] = {
        "set": "fused_kernels_liger", "model": model, "as_written": kernel, "gpu": "rtx-4090", "metric": "time",
        "mode": "forward", "told": json.dumps(told),
    }  # fmt: skip
    return pair_of(record | more)


def gain(predictor: Predictor, case: Pair) -> float:
    return Gain.of(predictor.answer(case.before), predictor.answer(case.after), case.metric).ratio


def test_memory_and_time_of_an_mlp_in_slices(predictor: Predictor) -> None:
    tiled = [pair("tiled_swiglu", MLP, "tiled MLP", mode=mode, metric=metric)
             for mode, metric in (("forward", "memory"), ("backward", "memory"), ("backward", "time"))]  # fmt: skip
    forward, backward, slower = (gain(predictor, case) for case in tiled)
    assert forward > 2.0 > backward / 1.2 > 1.0
    assert 0.5 < slower < 0.9


def test_phases_of_a_chunked_loss(predictor: Predictor) -> None:
    told = {"bt": "4096", "h": "4096", "v": "128256", "dtype": "torch.bfloat16"}
    forward, both = (
        gain(predictor, pair("fused_linear_cross_entropy", told, mode=mode, gpu="a100-sxm-80gb"))
        for mode in ("forward", "training (fwd+bwd)")
    )
    assert forward < both < 1.0


def test_small_kernels_wait_for_a_host_that_runs_python(predictor: Predictor) -> None:
    small, large = (
        gain(predictor, pair("relu_squared", {"n": n, "m": "4096"}, mode="training (fwd+bwd)", gpu="h100-sxm-80gb"))
        for n in ("128", "16384")
    )
    assert small < 1.0 < large


def test_what_is_not_told_or_not_known_is_said() -> None:
    with pytest.raises(UnnamedModelError, match="number of tokens"):
        pair("fused_moe", {})
    with pytest.raises(UnnamedModelError, match="hidden_size is not told"):
        pair("swiglu", {"t": "1", "bsz": "1"})
    with pytest.raises(DataError, match="mhc is not written as a block"):
        pair("mhc", {})


def test_a_layer_of_an_encoder_gains_what_its_paper_measured(predictor: Predictor) -> None:
    told = {"batch": "8", "seq": "512", "dtype": "fp16"}
    layer = {"set": "training_ladder_hf_issues_and_small_tables", "gpu": "v100-sxm2-16gb", "optimisation": "other"}
    case = pair("BERT-large encoder layer", told, "data movement recipe (Substation)", **layer)
    assert 1.2 < gain(predictor, case) < 1.45
    with pytest.raises(DataError, match="XLA"):
        pair("BERT-large encoder layer", told, "XLA (TensorFlow)", **layer)


def test_layers_of_transformer_engine_are_faster_than_those_of_transformers(predictor: Predictor) -> None:
    told = {"batch": "8", "seq": "256", "dtype": "bf16"}
    written = "TransformerEngine fused layer (HF -> TE)"
    case = pair("Llama-2-7B", told, written, set="misc_ladders", gpu="h100-sxm-80gb")
    assert 1.1 < gain(predictor, case) < 1.5
    with pytest.raises(UnnamedModelError, match="batch is not told"):
        pair("Llama-2-7B", {"dtype": "bf16"}, written, set="misc_ladders")


def test_kernels_of_no_stated_shape_are_not_guessed() -> None:
    for name, kernel in (("horizontal_fusion_hfuse", "vertical fusion"), ("misc_ladders", "LightSeq fused kernels")):
        with pytest.raises(UnnamedModelError, match="not told"):
            pair("Transformer", {"dtype": "fp16"}, kernel, set=name)
