"""Files of measured rows compared: figures of groups, choices, other predictors, any number of workers."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from neusight.api import Predictor
from neusight.errors import DataError
from neusight.estimates import Estimate
from neusight.measured import (
    RowChoice,
    compare_peers,
    decisions,
    evaluate,
    files_of,
    peers_of,
    ratios,
    summarise,
)
from neusight.measured.columns import KINDS, described_columns
from neusight.measured.errors import crps
from neusight.measured.pairs import row_codes, summarise_ratios
from neusight.questions import Step
from neusight.steps.questions import StepQuestion

GEMMS = pd.DataFrame(
    {
        "source": "mine", "table": "gemm", "row": range(24), "family": "gemm", "gpu": ["l4", "t4"] * 12,
        "m": np.repeat(np.arange(1, 13) * 256, 2), "n": 512, "k": 512, "dtype": "float16", "latency_ms": 0.1,
        "split": ["train"] * 12 + ["test"] * 12, "suspect": ["noise", *[None] * 23],
    }
)  # fmt: skip


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    return Predictor.load()


@pytest.fixture
def gemms(tmp_path: Path) -> Path:
    GEMMS.to_parquet(tmp_path / "gemm.parquet")
    return tmp_path / "gemm.parquet"


def lines(predicted: list[float], measured: list[float], quantity: str = "latency_ms") -> pd.DataFrame:
    values = {"predicted": predicted, "low": np.nan, "high": np.nan, "measured": measured}
    return pd.DataFrame({"quantity": quantity, "kind": "kernel", **values})


def test_crps_is_the_integral_of_its_definition() -> None:
    low, high, measured = 1.0, 3.0, 2.5
    middle, sigma = 0.5 * np.log(low * high), np.log(high / low) / (2 * 1.6448536)
    from scipy.stats import norm

    x = np.linspace(middle - 8 * sigma, middle + 8 * sigma, 200001)
    step = x >= np.log(measured)
    integral = 100 * np.sum((norm.cdf(x, middle, sigma) - step) ** 2) * (x[1] - x[0])
    assert crps(*map(np.atleast_1d, (low, high, measured)))[0] == pytest.approx(integral, rel=1e-3)


def test_crps_of_a_certain_prediction_is_its_error() -> None:
    assert crps(np.array([2.0]), np.array([2.0]), np.array([4.0]))[0] == pytest.approx(100 * np.log(2), rel=1e-6)


def test_summarise_counts_what_has_no_answer() -> None:
    (row,) = summarise(lines([1.1, 0.8, np.nan], [1.0, 1.0, 1.0]), ["quantity"])
    assert (row["rows"], row["answered"]) == (3, pytest.approx(200 / 3))
    assert [row[name] for name in ("median", "mean", "bias", "worst")] == pytest.approx([15, 15, -5, 20])
    assert "inside" not in row


def test_summarise_tells_both_mistakes_of_verdicts() -> None:
    (row,) = summarise(lines([1, 1, 0, 0], [1, 0, 1, 0], "fits"), ["quantity"])
    assert (row["right"], row["wrongly_true"], row["wrongly_false"]) == (50, 25, 25)


def test_summarise_scores_probabilities_of_verdicts() -> None:
    columns = {"quantity": "fits", "predicted": [0.9, 0.6, 0.2], "low": None, "high": None, "measured": [1, 0, 0]}
    (row,) = summarise(pd.DataFrame(columns), ())
    assert (row["right"], row["brier"]) == pytest.approx((200 / 3, (0.01 + 0.36 + 0.04) / 3))
    assert (row["said"], row["true"]) == pytest.approx((170 / 3, 100 / 3))


def test_evaluate_scores_service_levels_where_all_their_times_are_measured(
    tmp_path: Path, predictor: Predictor
) -> None:
    row = {"model": "Qwen/Qwen3-8B", "gpu": "l40s", "isl": 64, "osl": 8, "batch": 1, "tpot_ms": 30.0}
    rows = [{**row, "ttft_ms": 90.0}, {**row, "ttft_ms": 900.0}, row]
    pd.DataFrame(rows).to_csv(tmp_path / "served.csv", index=False)
    choice = RowChoice(slos=("ttft=500ms,tpot=9s", "tpot=1us"))
    answer = evaluate([tmp_path / "served.csv"], predictor, choice)
    both, never = summarise(answer.columns(["quantity"]), ["quantity"])[-2:]
    assert (both["rows"], both["true"], never["rows"], never["true"]) == (2, 50.0, 3, 0.0)
    assert both["said"] > 90
    assert never["brier"] == pytest.approx(0.0)
    parts = summarise(answer.columns(["chance"]), ["chance"])
    assert [(part["chance"], part["rows"], part["true"]) for part in parts if "true" in part] == [
        ("0-5%", 3, 0.0), ("95-100%", 2, 50.0)
    ]  # fmt: skip


def test_decisions_are_regretted_by_what_is_lost() -> None:
    count = 10
    table = lines([1.0, 2.0] * count, [3.0, 2.0] * count).assign(gpu=["l4", "t4"] * count)
    table = table.assign(m=np.repeat(np.arange(count), 2))
    (cost,) = decisions([table])
    assert (cost["column"], cost["choices"], cost["best"], cost["rank"]) == ("gpu", count, 0.0, -1.0)
    assert cost["regret"] == cost["worst"] == pytest.approx(50)
    assert decisions([table.iloc[2:]]) == []
    assert len(decisions([table.iloc[2:]], ["gpu"], least=1)) == 1


def test_row_codes_tell_columns_apart() -> None:
    assert len(set(row_codes(pd.DataFrame({"m": [1, 2], "n": [2, 1]}), ["m", "n"]))) == 2


def test_ratios_are_of_rows_that_differ_in_one_column() -> None:
    table = lines([8.0, 4.0, 2.0, 9.0], [9.0, 3.0, 3.0, 9.0]).assign(
        launch=[None, "compiled", "graph", "graph"], batch=[1, 1, 1, 2]
    )
    found = ratios(table, "launch").sort_values("launch")
    assert list(found["predicted"]) == [2, 4]
    assert list(found["measured"]) == [3, 3]
    assert set(found["of"]) == {"latency_ms"}
    rates = ratios(table.assign(quantity="tokens_per_s"), "launch")
    assert sorted(rates["predicted"]) == [0.25, 0.5]
    (every, first, _) = summarise_ratios([table], "launch")
    assert (every["value"], every["pairs"], every["median"]) == ("all", 2, pytest.approx(100 / 3))
    assert (first["base"], first["value"], first["pairs"], first["measured"]) == (None, "compiled", 1, 3)


@pytest.mark.parametrize(
    ("predicted", "measured", "large", "sign"),
    [
        ([8.0, 4.0, 9.0], [9.0, 3.0, 12.0], 2, 100.0),
        ([8.0, 4.0, 7.0], [9.0, 3.0, 12.0], 2, 50.0),
        ([8.0, 8.0, 8.0], [9.0, 3.0, 12.0], 2, 0.0),
        ([8.0, 9.0, 7.0], [9.0, 8.8, 12.0], 1, 0.0),
        ([8.0, 9.0, 7.0], [9.0, 8.8, 9.2], 0, None),
    ],
)
def test_summarise_ratios_counts_signs_of_large_gains(
    predicted: list[float], measured: list[float], large: int, sign: float | None
) -> None:
    table = lines(predicted, measured).assign(tp=[1, 2, 4], batch=1)
    every = summarise_ratios([table], "tp")[0]
    assert (every["pairs"], every["large"], every["sign"]) == (2, large, sign)


def test_ratios_of_clients_may_differ_in_what_follows_from_them() -> None:
    clients = {"concurrency": [4, 8], "num_prompts": [40, 80], "warmup_requests": [8, 16], "max_num_seqs": [4, 8]}
    table = lines([4.0, 5.0], [4.0, 6.0]).assign(**clients, kind="serving", tp=1)
    assert list(ratios(table, "concurrency")["measured"]) == pytest.approx([4 / 6])
    assert len(ratios(table.assign(max_num_seqs=256), "concurrency")) == 1
    for other in ({"tp": [1, 2]}, {"num_prompts": 40}, {"warmup_requests": [8, 8]}, {"max_num_seqs": 4}):
        assert ratios(table.assign(**other), "concurrency").empty


def test_evaluate_leaves_out_what_is_suspect_or_not_chosen(gemms: Path, predictor: Predictor) -> None:
    everything = evaluate([gemms], predictor)
    assert len(everything.tables[0]) == 23
    assert everything.skipped[0]["rows"] == 1
    assert len(evaluate([gemms], predictor, RowChoice(suspect=True)).tables[0]) == 24
    assert len(evaluate([gemms], predictor, RowChoice(gpus=("t4",), split="test")).tables[0]) == 6
    few = [evaluate([gemms], predictor, RowChoice(limit=5, seed=seed)).tables[0] for seed in (1, 1, 2)]
    assert few[0].equals(few[1]) and not few[0].equals(few[2])
    with pytest.raises(DataError, match="none is of this choice"):
        evaluate([gemms], predictor, RowChoice(source="yours"))


def test_evaluate_answers_the_same_with_any_number_of_workers(tmp_path: Path, predictor: Predictor) -> None:
    steps = pd.DataFrame({"model": "gpt2", "gpu": "l4", "batch": range(1, 19), "seq_len": 64, "latency_ms": 5.0})
    steps.to_csv(tmp_path / "steps.csv", index=False)
    one, two = (evaluate([tmp_path / "steps.csv"], predictor, jobs=jobs) for jobs in (1, 2))
    assert one.tables[0]["predicted"].notna().all()
    assert one.tables[0].equals(two.tables[0])


def test_evaluate_asks_questions_of_several_rows_once(
    tmp_path: Path, predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    ask, answer = Predictor.ask, Predictor.answer

    def counted(self: Predictor, question: Step) -> Estimate:
        asked.append(question.batch)
        return ask(self, question)

    def compared(self: Predictor, question: StepQuestion) -> Estimate:
        asked.append(question.request.batch)
        return answer(self, question)

    monkeypatch.setattr(Predictor, "ask", counted)
    monkeypatch.setattr(Predictor, "answer", compared)
    step = {"model": "gpt2", "gpu": "l4", "seq_len": 64}
    pd.DataFrame([{**step, "batch": batch, "latency_ms": 5.0} for batch in (2, 1, 2, 1)]).to_csv(
        tmp_path / "steps.csv", index=False
    )
    rows = evaluate([tmp_path / "steps.csv"], predictor).tables[0]
    assert asked == [1, 2]
    assert rows["predicted"][0] == rows["predicted"][2] != rows["predicted"][1]
    gains = [{**step, "batch": 1, "command": "predict", "apply": apply} for apply in ("amp", "amp,compile")]
    pd.DataFrame(gains).assign(metric="time", gain=1.5, mode="training").to_csv(tmp_path / "gains.csv", index=False)
    evaluate([tmp_path / "gains.csv"], predictor)
    # Without either, with the first, and with both.
    assert asked == [1, 2, 1, 1, 1]


def test_executions_have_the_interval_of_their_kernel_without_its_launch(tmp_path: Path, predictor: Predictor) -> None:
    rows = GEMMS.head(1).drop(columns="suspect").assign(execution_ms=0.1, recorded=True)
    rows.to_csv(tmp_path / "mine.csv", index=False)
    lines = evaluate([tmp_path / "mine.csv"], predictor).tables[0]
    whole, execution = (lines[lines["quantity"] == name].iloc[0] for name in ("latency_ms", "execution_ms"))
    assert 0.0 < execution["low"] < execution["predicted"] < execution["high"]
    assert execution["high"] - execution["predicted"] <= whole["high"] - whole["predicted"]


def test_rates_of_lists_are_those_of_the_best_product(tmp_path: Path, predictor: Predictor) -> None:
    sizes = [256, 4096]
    row = {"family": "gemm", "gpu": "l4", "dtype": "float16", "tflop_per_s": 60.0}
    pd.DataFrame([{**row, **dict.fromkeys("mnk", sizes)}]).to_parquet(tmp_path / "best.parquet")
    pd.DataFrame([{**row, **dict.fromkeys("mnk", size)} for size in sizes]).to_parquet(tmp_path / "each.parquet")
    best, each = (evaluate([tmp_path / f"{name}.parquet"], predictor).tables[0] for name in ("best", "each"))
    assert best["predicted"].to_list() == [each["predicted"].max()]


def test_peers_are_compared_where_both_predict(gemms: Path, predictor: Predictor, tmp_path: Path) -> None:
    evaluation = evaluate([gemms], predictor)
    GEMMS[["source", "table", "row"]].assign(latency_ms=0.2).iloc[2:7].to_csv(tmp_path / "theirs.csv", index=False)
    columns = evaluation.columns(["gpu", "source", "table", "row"])
    rows = compare_peers(columns, peers_of(tmp_path / "theirs.csv"), ["gpu"])
    assert [(row["peer"], row["gpu"], row["rows"]) for row in rows] == [("theirs", "l4", 3), ("theirs", "t4", 2)]
    assert rows[0]["their_bias"] == pytest.approx(100)
    assert all(row["ahead"] == ("ours" if row["median"] < 100 else "theirs") for row in rows)


def test_worst_rows_are_told_as_questions(gemms: Path, predictor: Predictor) -> None:
    evaluation = evaluate([gemms], predictor)
    (row,) = evaluation.worst(1)
    errors = np.abs(np.log(evaluation.tables[0]["predicted"] / 0.1))
    assert abs(np.log(row["predicted"] / 0.1)) == pytest.approx(errors.max())
    assert f"gpu={row['gpu']}" in row["question"] and "n=512" in row["question"]
    evaluation.tables[0].loc[:2, "predicted"] = np.nan
    answered = int(evaluation.tables[0]["predicted"].notna().sum())
    assert len(evaluation.worst(len(evaluation.tables[0]))) == answered


def test_files_of_expands_patterns(tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).touch()
    assert files_of([tmp_path / "b.csv", tmp_path / "*.csv"]) == [tmp_path / "b.csv", tmp_path / "a.csv"]
    with pytest.raises(DataError, match="no file matches"):
        files_of([tmp_path / "*.parquet"])


@pytest.mark.parametrize("kind", KINDS)
def test_every_column_has_a_meaning(kind: str) -> None:
    rows = described_columns(kind)
    assert {"question", "quantity", "provenance"} == {row["part"] for row in rows}
    assert all(row["name"] and row["meaning"] for row in rows)
