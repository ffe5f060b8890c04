"""Summaries by formula, on rows made here."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from neusight.devices import load_device
from neusight.errors import DataError
from neusight.experiments.declare import Split, Targets
from neusight.experiments.kernel_step import classic_roofline_s, kernel_errors, summarise_kernels
from neusight.experiments.model_step import PREDICTORS, model_errors, summarise_models
from neusight.experiments.operator_step import layer_count, sum_of_step, summarise_operators
from neusight.experiments.readme import accuracy_block, update_readme
from neusight.experiments.report import table
from neusight.experiments.run import rounded
from neusight.experiments.verdicts import verdicts
from neusight.kernels import Gemm, KernelBatch

SPLIT = Split(training=("t4",), held_out=("l4",), other_vendor=("mi100",))
TARGETS = Targets(model_mean_percent=10, model_worst_percent=40, kernel_share_of_roofline=0.5)


def test_classic_roofline_is_the_larger_of_arithmetic_and_traffic() -> None:
    l4 = load_device("l4")
    kernels = [Gemm(m=4096, n=4096, k=4096, dtype="float32"), Gemm(m=4096, n=4096, k=1, dtype="float32")]
    found = classic_roofline_s(KernelBatch.of(kernels), l4)
    # 2·m·n·k operations; A, B and C once: m·k + k·n + m·n elements of 4 bytes.
    assert found[0] == pytest.approx(2 * 4096**3 / l4.gemm_flops_per_s("float32"))
    assert found[1] == pytest.approx(4 * (4096 + 4096 + 4096**2) / l4.dram_bandwidth_bytes_per_s)


def kernel_rows() -> pd.DataFrame:
    """Ours is off by +10 % and -30 %; the roofline by -50 % and -100 %; the bound by -80 % on both."""
    base = {"family": "gemm", "op": "bmm", "low": 0.5, "high": 1.05}
    rows = [
        {"gpu": "l4", "measured": 1.0, "predicted": 1.1, "roofline": 0.5, "bound": 0.2},
        {"gpu": "l4", "measured": 0.01, "predicted": 0.007, "roofline": 0.0, "bound": 0.002},
        {"gpu": "mi100", "measured": 1.0, "predicted": 3.0, "roofline": 0.5, "bound": 0.5},
    ]
    return pd.DataFrame([base | row for row in rows])


def test_kernel_errors_and_their_ratio_to_the_rooflines() -> None:
    found = kernel_errors(kernel_rows().iloc[:2])
    assert found["count"] == 2
    assert found["mape"] == pytest.approx(20)
    assert found["bias"] == pytest.approx(-10)
    assert found["roofline_mape"] == pytest.approx(75)
    assert found["bound_mape"] == pytest.approx(80)
    assert found["share_of_roofline"] == pytest.approx(20 / 75)
    assert found["share_of_bound"] == pytest.approx(20 / 80)
    assert found["inside"] == pytest.approx(50)


def test_kernels_of_another_vendor_stay_apart_and_long_ones_count_again() -> None:
    found = summarise_kernels(kernel_rows(), SPLIT)
    (held,), (other,) = found["held_out"], found["other_vendor"]
    assert (held["family"], held["count"], held["long"]["count"]) == ("gemm", 2, 1)
    assert held["long"]["mape"] == pytest.approx(10)
    assert other["mape"] == pytest.approx(200)
    assert [row["gpu"] for row in found["by_gpu"]] == ["l4", "mi100"]
    assert sum(row["count"] for row in found["by_op"]) == 2


def model_row(gpu: str, group: str, ours: float, neusight: float, **others: float | None) -> dict[str, Any]:
    row = {"gpu": gpu, "group": group, "model": "m", "mode": "training", "batch": 1, "seq_len": 2}
    row |= {"ours_ms": 100.0 + ours, "low_ms": 80.0, "high_ms": 400.0, "inside": gpu == "t4"}
    return row | {
        "errors": {"ours": ours, "neusight": neusight, "habitat": None, "li": None, "roofline": -50.0} | others
    }


MODEL_ROWS = [
    model_row("l4", "held_out", 50.0, -10.0),
    model_row("t4", "training", -5.0, 0.0),
    model_row("mi100", "other_vendor", 200.0, 0.0, roofline=None),
]


def test_model_errors_of_every_predictor() -> None:
    found = model_errors(MODEL_ROWS[:2])
    ours = found["predictors"]["ours"]
    assert (ours["count"], ours["mean"], ours["worst"], ours["bias"]) == pytest.approx((2, 27.5, 50, 22.5))
    assert found["predictors"]["neusight"]["mean"] == pytest.approx(5)
    assert found["predictors"]["roofline"]["bias"] == pytest.approx(-50)
    assert found["predictors"]["habitat"] is None
    assert found["inside"] == pytest.approx(50)


def test_models_of_another_vendor_are_not_in_all() -> None:
    found = summarise_models(MODEL_ROWS, SPLIT)
    counts = {name: group["count"] for name, group in found["groups"].items()}
    assert counts == {"all": 2, "held_out": 1, "training": 1, "other_vendor": 1}
    assert list(found["by_gpu"]) == ["t4", "l4", "mi100"]
    assert found["groups"]["other_vendor"]["predictors"]["ours"]["mean"] == pytest.approx(200)


def summarised() -> dict[str, Any]:
    return {"models": summarise_models(MODEL_ROWS, SPLIT), "kernels": summarise_kernels(kernel_rows(), SPLIT)}


def test_verdicts_name_what_falls_short() -> None:
    mean, worst, roofline, bound = verdicts(summarised(), TARGETS)
    assert (mean["value"], mean["met"]) == (pytest.approx(27.5), False)
    assert worst["value"] == pytest.approx(50)
    assert worst["short"] == ["l4 m training 1 × 2: +50.0 %"]
    assert (roofline["met"], bound["met"]) == (True, True)
    strict = TARGETS.model_copy(update={"kernel_share_of_roofline": 0.26, "model_mean_percent": 30})
    mean, _, roofline, bound = verdicts(summarised(), strict)
    assert (mean["met"], roofline["short"], bound["met"]) == (True, ["gemm: 0.27"], True)
    assert [row["target"] for row in verdicts({"models": summarised()["models"]}, TARGETS)] == [
        "mean error of 2 whole models, %",
        "worst error of 2 whole models, %",
    ]


def operators() -> pd.DataFrame:
    """Head 5 ms, one layer of 2 + 3 ms and a nameless 1 ms after it, tail 7 ms; a call takes 0.5 ms."""
    rows = [
        ("call_module", "wte", 5.5),
        ("call_function", "<built-in function getitem>", 0.5),
        ("call_module", "h.0.ln", 2.5),
        ("call_function", "matmul", 3.5),
        ("get_attr", "h.0.weight", 0.0),
        ("call_function", "add", 1.5),
        ("call_module", "ln_f", 7.5),
    ]
    return pd.DataFrame(
        [
            {"kind": kind, "target": target, "forward_ms": ms, "backward_ms": np.nan, "accumulate_ms": 0.0}
            for kind, target, ms in rows
        ]
    )


def test_measured_operators_count_once_a_layer_without_the_call() -> None:
    assert sum_of_step(operators(), layers=4) == pytest.approx(5 + 4 * (2 + 3 + 1) + 7)
    assert sum_of_step(operators(), layers=1) == pytest.approx(5 + 6 + 7)


def test_layers_come_from_the_configuration(tmp_path: Any) -> None:
    cases = {"a": '{"n_layer": 36}', "b": '{"num_hidden_layers": 24}'}
    cases["c"] = '{"num_sparse_encoder_layers": 3, "num_hidden_layers": 6}'
    for name, text in cases.items():
        (tmp_path / f"{name}.json").write_text(text)
    assert [layer_count(tmp_path / f"{name}.json") for name in "abcd"] == [36, 24, None, None]


def test_sums_stand_beside_our_estimates() -> None:
    step = {"gpu": "l4", "model": "m", "mode": "training", "batch": 1, "seq_len": 2}
    rows = [{**step, "errors": {"operators": -20.0}}, {**step, "gpu": "p4", "errors": {"operators": 10.0}}]
    found = summarise_operators(rows, MODEL_ROWS)
    groups = found["groups"]
    assert found["rows"] == rows
    assert groups["all"]["operators"]["mean"] == pytest.approx(15)
    assert groups["all"]["ours"] is None
    assert groups["l4"]["ours"]["mean"] == pytest.approx(50)
    assert groups["training"]["operators"]["worst"] == pytest.approx(20)


def test_rounding_reaches_everything_and_leaves_no_nan() -> None:
    assert rounded({1: [0.123456789, float("nan")], "n": 3, "t": (123456.7,)}) == {
        "1": [0.12346, None],
        "n": 3,
        "t": [123460.0],
    }


def test_errors_of_single_rows_are_rounded_to_a_tenth_of_a_percent() -> None:
    found = rounded({"rows": [{"ours_ms": 12.34567, "errors": {"ours": -12.3456, "li": None}}]})
    assert found == {"rows": [{"ours_ms": 12.346, "errors": {"ours": -12.3, "li": None}}]}


def test_tables_are_aligned() -> None:
    lines = table(("name", "n"), [("a", "1"), ("long", "1,000")]).split("\n")
    assert lines == ["| name |     n |", "| ---- | ----: |", "| a    |     1 |", "| long | 1,000 |"]


def results() -> dict[str, Any]:
    run = {"tile_models": "shipped", "provenance": {"training_gpus": ["t4"], "tile_models": {}}, **summarised()}
    return {"experiment": "mine", "split": SPLIT.model_dump(mode="json"), "runs": [run]}


def test_readme_block_shows_every_predictor_and_goes_between_its_marks(tmp_path: Any) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("before\n<!-- accuracy:begin -->\nold\n<!-- accuracy:end -->\nafter\n")
    assert update_readme(readme, results())
    text = readme.read_text()
    assert text.startswith("before\n<!-- accuracy:begin -->\n")
    assert text.endswith("\n<!-- accuracy:end -->\nafter\n")
    assert "old" not in text
    assert all(name in text for name in PREDICTORS.values())
    assert "27.5 (50)" in text
    assert not update_readme(readme, results())
    assert accuracy_block(results()) in text
    readme.write_text("no marks")
    with pytest.raises(DataError, match="accuracy:begin"):
        update_readme(readme, results())
