"""Summaries by formula, on rows made here."""

from statistics import NormalDist
from typing import Any

import numpy as np
import pandas as pd
import pytest

from neusight.evaluation import Scored
from neusight.experiments.kernels import (
    NOMINAL,
    averaged,
    by_kinship,
    calibration,
    crps,
    kernel_cells,
    kernel_ids,
    kinship,
    sample,
    scores,
)
from neusight.experiments.models import kept_steps, layer_count, sum_of_step, summarise_models, summarise_oracle
from neusight.experiments.results import gpus_in
from neusight.kernels import Gemm, KernelBatch
from neusight.lab.page import table
from neusight.lab.targets import AccuracyTarget, verdicts


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
    group = np.where(rows["gpu"] == "mi100", "other_vendor", "held_out") if "gpu" in rows else "held_out"
    keys = rows.assign(execution=frame["execution"], executed=frame["executed"], group=group).reset_index(drop=True)
    return Scored(keys, *(rows[name].to_numpy(float) for name in ("predicted", "low", "high", "measured")))


def test_kernel_errors_by_gpu() -> None:
    l4, _, mi100 = kernel_cells(scored(kernel_rows()))
    assert (l4["gpu"], l4["kind"], l4["group"], l4["count"]) == ("l4", "bmm", "held_out", 2)
    assert (l4["mean"], l4["bias"], l4["roofline"]) == pytest.approx((20, -10, 75))
    # 1.0 lies between 0.55 and 1.375; 0.01 does not between 0.0035 and 0.00875.
    assert (l4["inside"], l4["width"]) == pytest.approx((50, 75))
    assert l4["quantiles"] == pytest.approx([-28, -20, -10, 0, 8])
    assert (mi100["group"], mi100["mean"]) == ("other_vendor", pytest.approx(200))
    assert l4["grown"] is None


def test_where_launches_grew_rows_are_compared_with_their_own_launch_beside() -> None:
    executions = kernel_rows().assign(execution=[0.9, 0.006, 1.2, 3.0], executed=[0.8, 0.005, np.nan, np.nan])
    l4, t4, _ = kernel_cells(scored(executions))
    # Of 1 ms 0.2 were the launch, of 0.01 ms half.
    assert l4["grown"] == pytest.approx((10 + 10) / 2)
    assert t4["grown"] is None


def test_every_gpu_counts_once_in_the_mean_and_other_vendors_apart() -> None:
    held, other = averaged(kernel_cells(scored(kernel_rows())), "group", "predictor", "kind")
    assert (held["group"], held["gpus"], held["worst_gpu"]) == ("held_out", 2, "t4")
    assert (held["mean"], held["worst"], held["roofline"]) == pytest.approx(((20 + 50) / 2, 50, (75 + 50) / 2))
    # Of three rows on the two GPUs two are inside.
    assert held["inside"] == pytest.approx(200 / 3)
    assert (other["group"], other["mean"]) == ("other_vendor", pytest.approx(200))


def test_several_trainings_are_pooled_and_their_spread_is_told() -> None:
    rows = pd.concat([kernel_rows("paper", 0), kernel_rows("paper", 1, factor=2.0)], ignore_index=True)
    t4 = kernel_cells(scored(rows[rows["gpu"] == "t4"]))[0]
    assert (t4["count"], t4["mean"]) == (1, pytest.approx((50 + 200) / 2))
    assert t4["spread"] == pytest.approx([50, 200])
    cells = kernel_cells(scored(kernel_rows().assign(low=np.nan, high=np.nan)))
    assert not any({"inside", "width"} & set(cell) for cell in cells)
    assert "inside" not in averaged(cells)[0]


def test_calibration_of_normal_errors_is_the_diagonal() -> None:
    errors = np.random.default_rng(0).normal(0, 0.2, 20000)
    reach = 0.2 * NormalDist().inv_cdf(0.95)
    rows = pd.DataFrame({"kind": "bmm", "predicted": 1.0, "measured": np.exp(errors)})
    found = calibration(scored(rows.assign(low=np.exp(-reach), high=np.exp(reach))))
    assert [row["nominal"] for row in found] == list(NOMINAL)
    assert [row["found"] for row in found] == pytest.approx(NOMINAL, abs=1.5)
    wide = calibration(scored(rows.assign(low=np.exp(-2 * reach), high=np.exp(2 * reach))))
    assert all(row["found"] > row["nominal"] + 4 for row in wide if row["nominal"] < 95)


def test_the_score_of_intervals_by_formula() -> None:
    sigma, z90 = 0.2, NormalDist().inv_cdf(0.95)
    ends = {"low": np.exp(-z90 * sigma), "high": np.exp(z90 * sigma)}
    rows = pd.DataFrame({"kind": "bmm", "predicted": 1.0, "measured": np.exp([0.0, 30 * sigma]), **ends})
    exact, far = crps(scored(rows))
    assert exact == pytest.approx(sigma * (2**0.5 - 1) / np.pi**0.5)
    # Far off, it is the error less a constant.
    assert far == pytest.approx(30 * sigma - sigma / np.pi**0.5)
    errors = np.random.default_rng(0).normal(0, sigma, 20000)
    many = pd.DataFrame({"kind": "bmm", "predicted": 1.0, "measured": np.exp(errors), "predictor": "ours", "seed": 0})
    (right,) = by_kinship(scored(many.assign(kinship="kin", **ends)))
    assert (right["inside"], right["stretch"]) == (pytest.approx(90, abs=1), pytest.approx(1, abs=0.02))
    assert right["crps"] == pytest.approx(100 * sigma / np.pi**0.5, rel=0.02)
    wide = {name: value**2 for name, value in ends.items()}
    (twice,) = by_kinship(scored(many.assign(kinship="kin", **wide)))
    assert (twice["stretch"], twice["crps"] > right["crps"]) == (pytest.approx(0.5, abs=0.01), True)


def test_kinship_is_what_was_learned_of_a_gpu() -> None:
    ga100 = ("a100-sxm-80gb", "a100-pcie-40gb", "a30")
    for trained, expected in (
        (("a30", "l4"), "own"),
        (("a100-sxm-80gb", "l4"), "sibling"),
        (("l4", "mi100"), "stranger"),
        ((), "stranger"),
    ):
        assert kinship("a30", trained, ga100) == expected
    assert kinship("rtx-3090", ("a10",), ()) == "kin"
    assert kinship("rtx-3090", ("a30",), ()) == "stranger"


def test_the_sample_is_by_hash_and_holds_no_latency_that_was_measured() -> None:
    kept = sample(scored(kernel_rows()))
    assert [(row["gpu"], row["id"]) for row in kept] == [("l4", "a"), ("l4", "b"), ("t4", "a"), ("mi100", "a")]
    assert kept[0]["error"] == pytest.approx(-30)
    assert not {key for key in kept[0] if "measured" in key or "roofline" in key}


def model_rows(gpu: str, group: str, ours: float, published: float) -> list[dict[str, Any]]:
    """A step of 100 ms as predictors of some errors see it; intervals are ours."""
    step = {"fold": "f", "gpu": gpu, "group": group, "model": "m", "mode": "training", "batch": 1, "seq_len": 2}
    step |= {"added": np.nan, "measured": 100.0}
    paper = [{**step, "predictor": "paper", "seed": seed, "predicted": ms} for seed, ms in enumerate((110.0, 70.0))]
    own = {**step, "predictor": "ours", "seed": 0, "predicted": 100 + ours, "low": 80.0, "high": 400.0, "added": 0.0}
    return [own, *paper, {**step, "predictor": "published:neusight", "seed": 0, "predicted": 100 + published}]


def steps() -> Scored:
    """Of a held-out, a training and another vendor's GPU: off by +50, +400 and +200 %."""
    rows = model_rows("l4", "held_out", 50.0, -10.0) + model_rows("t4", "training", -5.0, 0.0)
    frame = pd.DataFrame(rows + model_rows("mi100", "other_vendor", 200.0, 0.0))
    names = ["predicted", "low", "high", "measured"]
    return Scored(frame.drop(columns=names), *(frame[name].to_numpy(float) for name in names))


def test_model_errors_of_every_predictor() -> None:
    ours, paper, published = scores(steps().where(gpu=("l4", "t4")), "predictor")
    assert (ours["count"], ours["mean"], ours["worst"], ours["bias"]) == pytest.approx((2, 27.5, 50, 22.5))
    # 320 of 150 and of 95 ms.
    assert (ours["inside"], ours["width"]) == pytest.approx((100, (32000 / 150 + 32000 / 95) / 2))
    assert published["mean"] == pytest.approx(5)
    assert "inside" not in published
    assert (paper["count"], paper["mean"], paper["bias"]) == pytest.approx((2, 20, -10))
    assert paper["spread"] == pytest.approx([10, 30])


def test_models_of_another_vendor_are_not_in_all() -> None:
    found = summarise_models(steps(), "ours")
    counts = {row["group"]: row["count"] for row in found["groups"] if row["predictor"] == "ours"}
    assert counts == {"all": 2, "held_out": 1, "training": 1, "other_vendor": 1}
    assert list(dict.fromkeys(row["gpu"] for row in found["by_gpu"])) == ["l4", "t4", "mi100"]
    means = {(row["group"], row["predictor"]): row["mean"] for row in found["groups"]}
    assert means["other_vendor", "ours"] == pytest.approx(200)
    by_model = found["by_model"][0]
    assert (by_model["model"], by_model["mode"], by_model["count"]) == ("m", "training", 2)
    others = summarise_models(steps().where(gpu="mi100"), "ours")
    assert others["by_model"][0]["count"] == 1, "where there is nothing else"


def test_rows_of_models_hold_no_latency_but_what_is_predicted_here() -> None:
    own, paper, *_ = kept_steps(steps(), "ours")
    assert (own["error"], own["predicted_ms"], own["inside"]) == (pytest.approx(50), 150, True)
    assert paper["error"] == pytest.approx(10)
    assert not {name for name in paper if name.endswith("_ms")}


BY_GPU = {"where": {"predictor": "ours", "group": "held_out"}, "figure": "mean"}


def judged(**declared: Any) -> list[dict[str, Any]]:
    cells = kernel_cells(scored(pd.concat([kernel_rows(), kernel_rows("paper")], ignore_index=True)))
    models = {"rows": kept_steps(steps(), "ours"), **summarise_models(steps(), "ours")}
    parts = {"models": models, "kernels": {"cells": cells, "by_kind": averaged(cells, "group", "predictor", "kind")}}
    return verdicts(parts, [AccuracyTarget(**declared)])


def test_a_target_is_held_against_every_row_that_it_means() -> None:
    mean = {**BY_GPU, "target": "{kind}, {gpus} GPUs", "table": "kernels.by_kind", "alike": ("kind",)}
    (found,) = judged(**mean, at_most=30, misses="{gpu} {mean:.1f}", missing="kernels.cells")
    assert (found["target"], found["aim"], found["value"]) == ("bmm, 2 GPUs", "at most 30", pytest.approx(35))
    assert (found["met"], found["short"]) == (False, ["t4 50.0"])
    assert judged(**mean, at_most=40)[0]["met"]
    assert judged(**(mean | {"table": "kernels.nowhere"}), at_most=40) == []
    assert judged(**(mean | {"where": {"predictor": {"not": "ours"}}}), at_most=1)[0]["value"] == pytest.approx(35)


def test_a_target_is_held_against_all_rows_together() -> None:
    cells = {**BY_GPU, "target": "all", "table": "kernels.cells"}
    assert judged(**cells, over="largest", at_most=50)[0]["value"] == pytest.approx(50)
    # Two rows of an l4 and one of a t4.
    weighted = judged(**cells, over="mean", weight="count", at_most=10, misses="{gpu} {kind}")
    assert (weighted[0]["value"], weighted[0]["short"]) == (pytest.approx((2 * 20 + 50) / 3), ["l4 bmm", "t4 bmm"])
    assert judged(**(cells | {"where": {"gpu": "none"}}), over="mean", at_most=1) == []


def test_figures_may_lie_too_low_or_too_high_or_near_what_is_reported() -> None:
    inside = {**BY_GPU, "figure": "inside", "target": "i", "table": "kernels.cells", "over": "mean", "weight": "count"}
    (found,) = judged(**inside, between=(60, 70))
    assert (found["aim"], found["value"], found["met"]) == ("60 to 70", pytest.approx(200 / 3), True)
    assert not judged(**inside, between=(0, 10))[0]["met"]
    assert judged(**inside, between=(80, 100), misses="{gpu} {inside:.0f}")[0]["short"] == ["l4 50"]
    assert [judged(**inside, reported=aim)[0]["met"] for aim in (60, 61, 74, 75)] == [False, True, True, False]


def test_single_steps_are_named_that_miss() -> None:
    worst = {**BY_GPU, "figure": "worst", "target": "worst of {count}", "table": "models.groups"}
    (found,) = judged(**worst, at_most=40, misses="{gpu} {error:+.1f}", missing="models.rows", missed="error")
    assert (found["target"], found["short"]) == ("worst of 1", ["l4 +50.0"])
    inside = {**worst, "figure": "inside", "misses": "{gpu}", "missing": "models.rows"}
    assert judged(**inside, between=(0, 10))[0]["short"] == [], "the one step is inside"


def test_a_limit_may_be_a_multiple_of_another_figure_and_small_samples_are_left_out() -> None:
    rows = [{"die": "D", "count": n, "median": m, "known_median": 10.0} for n, m in ((50, 14.0), (50, 16.0), (3, 99.0))]
    target = AccuracyTarget(target="{die}", table="dies", figure="median", at_most=1.5, times="known_median", least=10)
    found = verdicts({"dies": rows}, [target])
    assert [(v["aim"], v["value"], v["met"]) for v in found] == [("at most 15", 14, True), ("at most 15", 16, False)]


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
    own = steps().where(predictor="ours", gpu=("l4", "t4"))
    by_name = {(r["by"], r["name"]): r for r in summarise_oracle(own, {("l4", "m", "training", 1, 2): 80.0})}
    assert set(by_name) == {("group", "all"), ("group", "held_out"), ("mode", "training"), ("gpu", "l4")}
    found = by_name["mode", "training"]
    assert (found["count"], found["total"]["mean"], found["composition"]["bias"]) == pytest.approx((1, 50, -20))
    assert found["operators"]["bias"] == pytest.approx(100 * (1.5 / 0.8 - 1))


def test_tables_are_aligned() -> None:
    lines = table(("name", "n"), [("a", "1"), ("long", "1,000")]).split("\n")
    assert lines == ["| name |     n |", "| ---- | ----: |", "| a    |     1 |", "| long | 1,000 |"]


def test_gpus_stand_once_in_the_order_of_the_declaration_then_of_the_folds() -> None:
    told = {"declared": {"gpus": ["t4", "l4"], "folds": [{"held_out": ["l4", "mi100"]}]}}
    assert gpus_in(told, ("mi100", "l4", "t4", "l4")) == ["t4", "l4", "mi100"]
