"""What GPUs sustain beside what is published: rates are those of the kernels, outliers have reasons."""

import os
from pathlib import Path

import pandas as pd
import pytest

from neusight import Predictor
from neusight.devices import load_device
from neusight.errors import DataError
from neusight.evaluation import evaluate_rates, rates
from neusight.kernels.conditions import Conditions
from neusight.kernels.named import requested

GPUS = ("l4", "rtx-3090", "a100-sxm-80gb")
PRODUCT = {"m": None, "n": None, "k": None, "batch": 1, "note": "", "best_of": "square 1024..10240"}


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "list_gpus", lambda: [load_device(gpu) for gpu in GPUS])


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for folder in ("microbenchmarks", "matmul-rates"):
        (tmp_path / folder).mkdir()
    copies = [("l4", "scale", 200.0), ("l4", "scale", 230.0), ("l4", "init", 290.0)]
    frame = pd.DataFrame(copies, columns=["gpu", "kernel", "gb_per_s"])
    frame.to_csv(tmp_path / "microbenchmarks" / "dram_stream.csv", index=False)
    products = [
        PRODUCT | {"gpu": "rtx-3090", "dtype": "bfloat16", "tflop_per_s": 70.0},
        PRODUCT | {"gpu": "rtx-3090", "dtype": "bfloat16", "tflop_per_s": 100.0},
        PRODUCT | {"gpu": "l4", "dtype": "float16", "tflop_per_s": 36.0, "m": 8192, "n": 8192, "k": 8192},
        PRODUCT | {"gpu": "l4", "dtype": "float32", "tflop_per_s": 1.0, "note": "emulated"},
    ]
    pd.DataFrame(products).to_parquet(tmp_path / "matmul-rates" / "matmul_rates.parquet")
    return tmp_path


def test_every_gpu_has_a_copy_and_a_product_in_every_dtype(few: None, data: Path, predictor: Predictor) -> None:
    rows = {(row["gpu"], row["what"]): row for row in evaluate_rates(data, predictor)["rows"]}
    assert {what for gpu, what in rows if gpu == "a100-sxm-80gb"} == {
        "copy", "float64", "float32", "tf32", "float16", "bfloat16", "int8"
    }  # fmt: skip
    for (gpu, what), row in rows.items():
        assert 0 < row["rate"] <= row["peak"], (gpu, what)
        assert row["share"] == pytest.approx(100 * row["rate"] / row["peak"])
    copied = requested("copy", {"elements": 2**28, "dtype": "float32"})
    costs = predictor.kernels(copied, load_device("l4"), conditions=Conditions.of(1, timing="profiler"))
    assert rows["l4", "copy"]["rate"] == pytest.approx(2 * 2**30 / costs.latency_s[0])


def test_the_best_published_rate_stands_beside_the_same_kernel(few: None, data: Path, predictor: Predictor) -> None:
    answer = evaluate_rates(data, predictor)
    rows = {(row["gpu"], row["what"]): row for row in answer["rows"] if row["measured"] is not None}
    measured = {key: row["measured"] for key, row in rows.items()}
    assert measured == {("l4", "copy"): 230e9, ("rtx-3090", "bfloat16"): 100e12, ("l4", "float16"): 36e12}
    # A power limit acts on averages: a burst is never slower than the middle of work.
    assert rows["l4", "float16"]["predicted"] >= rows["l4", "float16"]["rate"]
    assert rows["rtx-3090", "bfloat16"]["outlier"] == "board clocks above its datasheet"
    assert rows["l4", "float16"]["outlier"] == "held to 72 W, not in bursts"
    assert all((row["outlier"] is None) == (row["ape"] <= rates.NEAR) for row in rows.values())
    assert answer["total"]["count"] == sum(each["count"] for each in answer["means"]) == 3


def test_a_folder_without_published_rates_is_no_data(tmp_path: Path, predictor: Predictor) -> None:
    with pytest.raises(DataError, match=r"dram_stream\.csv is not there"):
        evaluate_rates(tmp_path, predictor)


@pytest.mark.skipif("NEUSIGHT_DATA" not in os.environ, reason="needs the measured data")
def test_published_rates_are_met(predictor: Predictor) -> None:
    answer = evaluate_rates(Path(os.environ["NEUSIGHT_DATA"]), predictor)
    assert answer["total"]["count"] > 80
    assert answer["total"]["median"] < 10
