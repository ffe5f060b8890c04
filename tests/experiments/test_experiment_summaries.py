"""Summaries by formula, on rows made here."""

from statistics import NormalDist
from typing import Any

import numpy as np
import pandas as pd
import pytest

from neusight.evaluation import Scored
from neusight.experiments.declare import Targets
from neusight.experiments.judge import verdicts
from neusight.experiments.kernels import NOMINAL, averaged, calibration, kernel_cells, kernel_ids, sample
from neusight.experiments.models import (
    layer_count,
    model_errors,
    sum_of_step,
    summarise_models,
    summarise_oracle,
    with_oracle,
)
from neusight.experiments.page import table
from neusight.experiments.results import gpus_in
from neusight.experiments.sparse import summarised, tile_model_errors
from neusight.experiments.sparse import verdicts as sparse_verdicts
from neusight.kernels import Gemm, KernelBatch


def test_a_kernel_keeps_its_id_in_any_company() -> None:
    one, other = Gemm(m=64, n=32, k=16), Gemm(m=32, n=64, k=16)
    ids = kernel_ids(KernelBatch.of([one, other, one]))
    assert ids[0] == ids[2] != ids[1]
    assert kernel_ids(KernelBatch.of([other])) == [ids[1]]


def kernel_rows(predictor: str = "ours", seed: int = 0, factor: float = 1.0) -> pd.DataFrame:
    """On an L4 off by +10 % and -30 %, on a T4 by +50 %, on an MI100 by +200 %, times a factor."""
    rows = [
        {"gpu": "l4", "id": "b", "measured": 1.0, "predicted": 1.1, "roofline": 0.5},
        {"gpu": "l4", "id": "a", "measured": 0.01, "predicted": 0.007, "roofline": 0.0},
        {"gpu": "t4", "id": "a", "measured": 1.0, "predicted": 1.5, "roofline": 0.5},
        {"gpu": "mi100", "id": "a", "measured": 1.0, "predicted": 3.0, "roofline": 0.5},
    ]
    base = {"fold": "f", "kind": "bmm", "op": "bmm", "flops": 2.0, "bytes": 1.0, "predictor": predictor, "seed": seed}
    frame = pd.DataFrame([base | row for row in rows])
    frame["predicted"] *= factor
    return frame.assign(low=0.5 * frame["predicted"], high=1.25 * frame["predicted"])


def scored(rows: pd.DataFrame) -> Scored:
    """The same in columns; without the launch nothing is known unless rows say so."""
    frame = pd.DataFrame({"execution": np.nan, "executed": np.nan}, rows.index) if "executed" not in rows else rows
    keys = rows.assign(execution=frame["execution"], executed=frame["executed"]).reset_index(drop=True)
    return Scored(keys, *(rows[name].to_numpy(float) for name in ("predicted", "low", "high", "measured")))


GROUPS = {("f", "l4"): "held_out", ("f", "t4"): "held_out", ("f", "mi100"): "other_vendor"}


def test_kernel_errors_by_gpu() -> None:
    l4, _, mi100 = kernel_cells(scored(kernel_rows()), GROUPS)
    assert (l4["gpu"], l4["kind"], l4["group"], l4["count"]) == ("l4", "bmm", "held_out", 2)
    assert (l4["mape"], l4["bias"], l4["roofline_mape"]) == pytest.approx((20, -10, 75))
    # 1.0 lies between 0.55 and 1.375; 0.01 does not between 0.0035 and 0.00875.
    assert (l4["inside"], l4["width"]) == pytest.approx((50, 75))
    assert l4["quantiles"] == pytest.approx([-28, -20, -10, 0, 8])
    assert (mi100["group"], mi100["mape"]) == ("other_vendor", pytest.approx(200))
    assert l4["grown_mape"] is None


def test_where_launches_grew_rows_are_compared_with_their_own_launch_beside() -> None:
    executions = kernel_rows().assign(execution=[0.9, 0.006, 1.2, 3.0], executed=[0.8, 0.005, np.nan, np.nan])
    l4, t4, _ = kernel_cells(scored(executions), GROUPS)
    # Of 1 ms 0.2 were the launch, of 0.01 ms half.
    assert l4["grown_mape"] == pytest.approx((10 + 10) / 2)
    assert t4["grown_mape"] is None


def test_every_gpu_counts_once_in_the_mean_and_other_vendors_apart() -> None:
    held, other = averaged(kernel_cells(scored(kernel_rows()), GROUPS))
    assert (held["group"], held["gpus"], held["worst_gpu"]) == ("held_out", 2, "t4")
    assert (held["mean"], held["worst"], held["roofline"]) == pytest.approx(((20 + 50) / 2, 50, (75 + 50) / 2))
    # Of three rows on the two GPUs two are inside.
    assert held["inside"] == pytest.approx(200 / 3)
    assert (other["group"], other["mean"]) == ("other_vendor", pytest.approx(200))


def test_several_trainings_are_pooled_and_their_spread_is_told() -> None:
    rows = pd.concat([kernel_rows("paper", 0), kernel_rows("paper", 1, factor=2.0)], ignore_index=True)
    t4 = kernel_cells(scored(rows[rows["gpu"] == "t4"]), GROUPS)[0]
    assert (t4["count"], t4["mape"]) == (1, pytest.approx((50 + 200) / 2))
    assert t4["spread"] == pytest.approx([50, 200])
    cells = kernel_cells(scored(kernel_rows().assign(low=np.nan, high=np.nan)), GROUPS)
    assert {(cell["inside"], cell["width"]) for cell in cells} == {(None, None)}
    assert averaged(cells)[0]["inside"] is None


def test_calibration_of_normal_errors_is_the_diagonal() -> None:
    errors = np.random.default_rng(0).normal(0, 0.2, 20000)
    reach = 0.2 * NormalDist().inv_cdf(0.95)
    rows = pd.DataFrame({"kind": "bmm", "predicted": 1.0, "measured": np.exp(errors)})
    found = calibration(scored(rows.assign(low=np.exp(-reach), high=np.exp(reach))))
    assert [row["nominal"] for row in found] == list(NOMINAL)
    assert [row["found"] for row in found] == pytest.approx(NOMINAL, abs=1.5)
    wide = calibration(scored(rows.assign(low=np.exp(-2 * reach), high=np.exp(2 * reach))))
    assert all(row["found"] > row["nominal"] + 4 for row in wide if row["nominal"] < 95)


def test_the_sample_is_by_hash_and_holds_no_latency_that_was_measured() -> None:
    kept = sample(scored(kernel_rows()))
    assert [(row["gpu"], row["id"]) for row in kept] == [("l4", "a"), ("l4", "b"), ("t4", "a"), ("mi100", "a")]
    assert kept[0]["error"] == pytest.approx(-30)
    assert not {key for key in kept[0] if "measured" in key or "roofline" in key}


def model_row(gpu: str, group: str, ours: float, published: float, **others: float | None) -> dict[str, Any]:
    row = {"fold": "f", "gpu": gpu, "group": group, "model": "m", "mode": "training", "batch": 1, "seq_len": 2}
    row |= {"predicted_ms": 100.0, "low_ms": 80.0, "high_ms": 400.0, "inside": gpu == "t4"}
    errors = {"ours": ours, "paper/0": 10.0, "paper/1": -30.0, "published:neusight": published}
    return row | {"errors": errors | {"published:habitat": None, "published:roofline": -50.0} | others}


MODEL_ROWS = [
    model_row("l4", "held_out", 50.0, -10.0),
    model_row("t4", "training", -5.0, 0.0),
    model_row("mi100", "other_vendor", 200.0, 0.0, **{"published:roofline": None}),
]


def test_model_errors_of_every_predictor() -> None:
    found = model_errors(MODEL_ROWS[:2])
    ours = found["predictors"]["ours"]
    assert (ours["count"], ours["mean"], ours["worst"], ours["bias"]) == pytest.approx((2, 27.5, 50, 22.5))
    assert found["predictors"]["published:neusight"]["mean"] == pytest.approx(5)
    assert found["predictors"]["published:roofline"]["bias"] == pytest.approx(-50)
    assert found["predictors"]["published:habitat"] is None
    assert (found["inside"], found["width"]) == pytest.approx((50, 320))
    paper = found["predictors"]["paper"]
    assert (paper["count"], paper["mean"], paper["bias"], paper["spread"]) == (2, 20, -10, [10, 30])


def test_models_of_another_vendor_are_not_in_all() -> None:
    found = summarise_models(MODEL_ROWS)
    counts = {name: group["count"] for name, group in found["groups"].items()}
    assert counts == {"all": 2, "held_out": 1, "training": 1, "other_vendor": 1}
    assert list(found["by_gpu"]) == ["l4", "t4", "mi100"]
    assert found["groups"]["other_vendor"]["predictors"]["ours"]["mean"] == pytest.approx(200)
    (by_model,) = found["by_model"]
    assert (by_model["model"], by_model["mode"], by_model["count"]) == ("m", "training", 2)
    assert summarise_models(MODEL_ROWS[2:])["by_model"][0]["count"] == 1, "where there is nothing else"


def parts() -> dict[str, Any]:
    cells = kernel_cells(scored(pd.concat([kernel_rows(), kernel_rows("paper")], ignore_index=True)), GROUPS)
    kernels = {"cells": cells, "by_kind": averaged(cells)}
    return {"models": {"rows": MODEL_ROWS, **summarise_models(MODEL_ROWS)}, "kernels": kernels}


def judged(**targets: Any) -> list[dict[str, Any]]:
    return verdicts(parts(), Targets(**targets), {"ours": "ours", "paper": "neusight-paper"})


def test_kernels_are_judged_by_the_mean_over_gpus_and_by_the_worst_of_them() -> None:
    mean, worst = judged(kernel_mean={"bmm": 30}, kernel_gpu=50)
    assert (mean["target"], mean["value"], mean["met"]) == ("bmm, mean over 2 held-out GPUs", pytest.approx(35), False)
    assert mean["short"] == ["t4 50.0"]
    assert (worst["value"], worst["met"], worst["short"]) == (pytest.approx(50), True, [])
    assert judged() == [], "without a target nothing is judged"


def test_models_are_judged_on_held_out_gpus_and_on_all() -> None:
    mean, worst, every = judged(model_mean=60, model_worst=40, all_model_mean=20)
    assert (mean["value"], mean["met"]) == (pytest.approx(50), True)
    assert (worst["met"], worst["short"]) == (False, ["l4 m training 1 × 2 +50.0"])
    assert (every["target"], every["value"], every["met"]) == ("mean of 2 whole models", pytest.approx(27.5), False)


def test_intervals_may_hold_too_few_or_too_many() -> None:
    kernels, models = judged(coverage=(60, 70))
    assert (kernels["aim"], kernels["value"], kernels["met"]) == ("60 to 70", pytest.approx(200 / 3), True)
    assert (models["value"], models["met"], models["short"]) == (0, False, ["l4 m training 1 × 2"])
    assert not judged(coverage=(0, 10))[0]["met"]
    assert judged(coverage=(80, 100))[0]["short"] == ["l4 bmm 50"]


def test_baselines_are_judged_by_their_published_means() -> None:
    (found,) = judged(baseline_points=10)
    assert found["target"] == "paper: points from its published mean"
    assert (found["value"], found["met"]) == (pytest.approx(abs(20 - 5)), False)


def test_few_shot_is_judged_at_its_number_of_kernels() -> None:
    plan = {"design": "plan", "kind": "bmm"}
    cells = [plan | {"gpu": gpu, "points": 100, "mape": mape} for gpu, mape in (("l4", 4.0), ("t4", 9.0))]
    by_kind = [plan | {"points": 20, "mean": 20.0}, plan | {"points": 100, "mean": 6.5}]
    by_kind.append({"design": "random", "kind": "bmm", "points": 100, "mean": 7.0})
    curve = {"few_shot_curve": {"cells": cells, "by_kind": by_kind}}
    (found,) = verdicts(curve, Targets(few_shot=6), {"ours": "ours"})
    assert (found["value"], found["met"], found["short"]) == (6.5, False, ["t4 9.0"])


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


def test_the_error_of_a_step_is_that_of_its_operators_times_that_of_their_sum() -> None:
    oracle = {("l4", "m", "training", 1, 2): -20.0}
    l4, t4, _ = with_oracle(MODEL_ROWS, oracle, "ours")
    assert l4["parts"] == pytest.approx({"operators": 100 * (1.5 / 0.8 - 1), "composition": -20.0})
    assert t4["parts"] is None
    by_name = {(row["by"], row["name"]): row for row in summarise_oracle([l4, t4], "ours")}
    assert set(by_name) == {("group", "all"), ("group", "held_out"), ("mode", "training"), ("gpu", "l4")}
    found = by_name["mode", "training"]
    assert (found["count"], found["total"]["mean"], found["composition"]["bias"]) == pytest.approx((1, 50, -20))


def test_tables_are_aligned() -> None:
    lines = table(("name", "n"), [("a", "1"), ("long", "1,000")]).split("\n")
    assert lines == ["| name |     n |", "| ---- | ----: |", "| a    |     1 |", "| long | 1,000 |"]


def test_gpus_stand_once_in_the_order_of_the_declaration_then_of_the_folds() -> None:
    told = {"declared": {"gpus": ["t4", "l4"], "folds": [{"held_out": ["l4", "mi100"]}]}}
    assert gpus_in(told, ("mi100", "l4", "t4", "l4")) == ["t4", "l4", "mi100"]


def test_geometric_means_and_verdicts_by_hand() -> None:
    def row(network: str, dense: float, cycles: float, error: float) -> dict[str, Any]:
        energy = {"compute_j": cycles, "dense_compute_j": dense, "memory_j": 0.0}
        known = {"network": network, "layer": "l", "product": "A·W", "model_error": error}
        return {**known, "dense": dense, "cycles": cycles, **energy}

    products = [row("a", 4.0, 1.0, -2.0), row("b", 1.0, 1.0, 5.0)]
    networks = summarised(products)
    assert [n["all"] for n in networks] == [4.0, 1.0, pytest.approx(2.0)]
    assert networks[-1]["G·W"] is None
    targets = {"speedup": 1.9, "compute_energy": 3.0, "energy": 2.0, "layer_error": 3.0}
    simulated = {"networks": networks, "products": products, "tile_model": tile_model_errors(products)}
    found = sparse_verdicts(simulated, targets)
    assert [v["met"] for v in found] == [True, False, True, False]
    assert (found[-1]["value"], found[-1]["short"]) == (5.0, ["b l A·W"])
