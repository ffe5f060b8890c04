"""Rows of NVIDIA's examples as two questions: batches, devices and precisions as their tables write them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from neusight.errors import DataError
from neusight.evaluation.what_if.cases import Pair, UnnamedModelError, pair_of
from neusight.evaluation.what_if.mixed_precision import OPERATOR_S

DATA = Path(os.environ.get("NEUSIGHT_DATA", "/nowhere")) / "what-if" / "pairs.parquet"


def pair(model: str, gpu: str = "a100-sxm-80gb", mode: str = "training", gpus: int = 1, **told: str) -> Pair:
    record: dict[str, Any] = {
        "set": "amp_deeplearningexamples", "model": model, "gpu": gpu, "mode": mode, "n_gpus": gpus,
        "metric": "throughput", "told": json.dumps(told),
    }  # fmt: skip
    return pair_of(record)


@pytest.mark.parametrize(
    ("told", "batches"),
    [
        ({"batch_size_/_gpu": "256"}, (256, 256)),
        ({"batch_size_/_gpu": "128 (FP32) / 256 (AMP)"}, (128, 256)),
        ({"batch_size_per_gpu": "10@FP16, 4@FP32"}, (4, 10)),
        ({"batch_size_/_gpu:_mixed_precision,_fp32": "64,32"}, (32, 64)),
        ({"batch_size_/_gpu_(fp32_:_mixed_precision": "8 : 16"}, (8, 16)),
        ({"batch_size_/_gpu": "2k"}, (2048, 2048)),
    ],
)
def test_batches_are_read_as_tables_write_them(told: dict[str, str], batches: tuple[int, int]) -> None:
    case = pair("ConvNets/resnet50v1.5 (TensorFlow)", "v100-sxm2-16gb", **told)
    assert (case.before.request.batch, case.after.request.batch) == batches  # type: ignore[union-attr]


def test_what_a_device_has_of_a_whole_step_is_shared_over_its_micro_batches() -> None:
    whole = {"batch_size_/_gpu_(fp32_and_fp16)": "4096 and 4096", "accumulation_steps_(fp32_and_fp16)": "128 and 64"}
    each = {"batch_size_/_gpu_(fp32_and_fp16)": "32 and 64", "accumulation_steps_(fp32_and_fp16)": "128 and 64"}
    first, second = (pair("BERT (PyTorch)", "v100-sxm2-32gb", gpus=8, **told) for told in (whole, each))
    for case in (first, second):
        before, after = case.before.setting.plan, case.after.setting.plan  # type: ignore[union-attr]
        assert (before.micro_batch_size, before.micro_batches, before.dp) == (32, 128, 8)
        assert (after.micro_batch_size, after.micro_batches, after.dp) == (64, 64, 8)


def test_devices_are_those_of_all_nodes() -> None:
    case = pair(
        "Transformer-XL (PyTorch)", "v100-sxm2-32gb", nodes="4", where="(16x V100)", **{"batch_size_/_gpu": "4"}
    )
    assert case.before.setting.plan.world == 64  # type: ignore[union-attr]
    assert case.before.model == "transformer-xl-large"  # type: ignore[union-attr]


def test_float32_is_what_the_device_makes_of_it() -> None:
    products = {
        gpu: pair("RN50v1.5 (PaddlePaddle)", gpu).before.request.precision.products  # type: ignore[union-attr]
        for gpu in ("a100-sxm-80gb", "v100-sxm2-16gb", "t4")
    }
    assert products == {"a100-sxm-80gb": "tf32", "v100-sxm2-16gb": "", "t4": ""}


def test_speech_is_inferred_in_half_and_trained_under_autocast() -> None:
    told = {"batch": "4", "duration": "7.0", "where": "Inference performance"}
    assert pair("Jasper (PyTorch)", **told).applied == ("fp16",)
    assert pair("Jasper (PyTorch)", **{"batch_size_/_gpu": "4"}).applied == ("amp",)


@pytest.mark.parametrize(("gpu", "spectra"), [("v100-sxm2-16gb", 1), ("a100-sxm-80gb", 0)])
def test_long_filters_are_spectra_in_float32_alone(gpu: str, spectra: int) -> None:
    case = pair("Jasper (PyTorch)", gpu, batch="4", duration="7.0")
    steps = case.before, case.after
    assert [len(one.setting.passes) for one in steps] == [spectra, 0]  # type: ignore[union-attr]
    assert {one.request.engine.host_s_per_operator for one in steps} == {OPERATOR_S}  # type: ignore[union-attr]


def test_images_of_inference_are_copied_before_each_call() -> None:
    called = pair("SSD (PyTorch)", batch_size="2").before.setting.host  # type: ignore[union-attr]
    trained = pair("SSD (PyTorch)", **{"batch_size_/_gpu": "2"}).before.setting.host  # type: ignore[union-attr]
    assert called is not None
    assert (called.copied_bytes, trained) == (2 * 3 * 300 * 300 * 4, None)


def test_joined_batches_count_as_one_in_training_alone() -> None:
    trained = pair("wav2vec2 (PyTorch)", **{"concat_batches_/_gpu": "8"})
    called = pair("wav2vec2 (PyTorch)", batch="8", duration="6.54 s")
    assert [one.before.request.batch for one in (trained, called)] == [40, 8]  # type: ignore[union-attr]


def test_what_is_not_told_is_said() -> None:
    with pytest.raises(UnnamedModelError, match="batch is not told"):
        pair("Jasper (PyTorch)")
    with pytest.raises(UnnamedModelError, match="which model"):
        pair("ConvNets (TensorFlow)")
    with pytest.raises(DataError, match="no description of the example"):
        pair("Mine (PyTorch)")


@pytest.mark.skipif(not DATA.is_file(), reason="no data")
def test_rows_whose_model_is_named_are_questions() -> None:
    rows = pd.read_parquet(DATA)
    named = read = 0
    for record in rows[rows["set"] == "amp_deeplearningexamples"].to_dict("records"):
        try:
            pair_of(record)
            read += 1
            named += 1
        except UnnamedModelError:
            continue
        except DataError:
            named += 1
    assert read >= 0.85 * named
