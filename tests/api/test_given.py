"""Measurements of one's own correct answers as far as they share doubts, and not below bounds."""

from math import log
from pathlib import Path

import numpy as np
import pytest

from neusight import Predictor, read_given
from neusight.api.given import FAR, NOISE, doubts_of, moved
from neusight.errors import DataError, ModelError
from neusight.laws.doubts import Anchors, spread

HEAD = "family,m,n,k,dtype,gpu,latency_ms\n"


@pytest.fixture
def product(predictor: Predictor):
    return predictor.kernel("gemm", "a100-sxm-80gb", m=4096, n=4096, k=4096, dtype="bf16")


def given(predictor: Predictor, folder: Path, *rows: str) -> Predictor:
    file = folder / "mine.csv"
    file.write_text(HEAD + "\n".join(rows) + "\n")
    return predictor.given(read_given(file))


def test_moved_is_normal_conditioning_by_shared_keys() -> None:
    one = Anchors([{"a": 0.3, "b": 0.4}], np.array([0.5]), np.array([0.0]))
    move = moved(one, {"a": 0.3, "c": 0.1})
    assert move.shift == pytest.approx(0.09 / 0.25 * 0.5)
    assert move.after**2 == pytest.approx(0.1 - 0.09**2 / 0.25)
    assert move.shifts.keys() == {"a"}


def test_moved_of_no_shared_key_changes_nothing() -> None:
    move = moved(Anchors([{"a": 0.3}], np.array([2.0]), np.array([0.05])), {"b": 0.2})
    assert (move.shift, move.before, move.after, move.counts) == (0.0, 0.2, 0.2, False)


@pytest.mark.parametrize("gpu, least, most", [("a100-sxm-80gb", 1.15, 1.3), ("h100-sxm-80gb", 1.0, 1.15)])
def test_given_moves_the_same_kernel_most_and_another_device_less(
    predictor, product, tmp_path, gpu, least, most
) -> None:
    slow = given(predictor, tmp_path, f"gemm,4096,4096,4096,bf16,a100-sxm-80gb,{1300 * product.latency_s}")
    before, after = (p.kernel("gemm", gpu, m=4096, n=4096, k=4096, dtype="bf16") for p in (predictor, slow))
    assert least < after.latency_s / before.latency_s < most
    assert log(after.high_s / after.low_s) < log(before.high_s / before.low_s)
    assert after.low_s <= after.latency_s <= after.high_s


def test_given_never_moves_a_time_below_its_bound(predictor, product, tmp_path) -> None:
    bounds_ms = {k: 1e3 * product.bound_s * k / 4096 for k in (4096, 8192, 2048)}
    fast = given(predictor, tmp_path, *[f"gemm,4096,4096,{k},bf16,a100,{time}" for k, time in bounds_ms.items()])
    answer = fast.kernel("gemm", "a100-sxm-80gb", m=4096, n=4096, k=4096, dtype="bf16")
    assert answer.bound_s <= answer.low_s <= answer.latency_s < product.latency_s
    assert answer.utilisation <= 1.0


@pytest.mark.parametrize(
    "head, cells",
    [
        ("gpu", "a100"),
        ("gpu", "A100-SXM4-80GB"),
        ("gpu,timer", "a100,events"),
        ("gpu,operands,random", "a100-sxm-80gb,cold,true"),
    ],
)
def test_given_answers_a_measured_question_as_measured(predictor, product, tmp_path, head, cells) -> None:
    measured_s = 1.2 * product.latency_s
    file = tmp_path / "mine.csv"
    file.write_text(f"name,m,n,k,dtype,{head},latency_ms\ngemm,4096,4096,4096,bf16,{cells},{1e3 * measured_s}\n")
    answer = predictor.given(read_given(file)).kernel("gemm", "a100-sxm-80gb", m=4096, n=4096, k=4096, dtype="bf16")
    assert abs(log(answer.latency_s / measured_s)) < NOISE
    assert answer.low_s < measured_s < answer.high_s
    assert log(answer.high_s / answer.low_s) < 2.0 * 1.645 * NOISE * 1.1


def test_given_answers_a_measured_step_as_measured(predictor, tmp_path) -> None:
    told = predictor.estimate("gpt2", "h100-sxm-80gb", dtype="float16", seq_len=1024, batch=2)
    file = tmp_path / "mine.csv"
    file.write_text(
        f"model,gpu,dtype,seq_len,batch,layout,latency_ms\ngpt2,h100,fp16,1024,2,nchw,{1.2e3 * told.latency_s}\n"
    )
    answer = predictor.given(read_given(file)).estimate("gpt2", "h100-sxm-80gb", dtype="float16", seq_len=1024, batch=2)
    assert abs(log(answer.latency_s / (1.2 * told.latency_s))) < NOISE


def test_given_counts_rows_that_it_leaves_out_and_says_why(predictor, product, tmp_path) -> None:
    right_ms = 1e3 * product.latency_s
    rows = [
        f"gemm,4096,4096,4096,bf16,a100,{right_ms},300",
        f"gemm,4096,4096,4096,bf16,a100,{product.bound_s},",
        f"gemm,4096,4096,4096,bf16,a100,{1e3 * right_ms},",
        f"gemm,4096,4096,4096,bf16,a1000000,{right_ms},",
        "gemm,4096,4096,4096,bf16,a100,,300",
    ]
    file = tmp_path / "mine.csv"
    file.write_text("family,m,n,k,dtype,gpu,latency_ms,power_w\n" + "\n".join(rows) + "\n")
    answer = predictor.given(read_given(file)).kernel("gemm", "a100-sxm-80gb", m=4096, n=4096, k=4096, dtype="bf16")
    (text,) = [warning for warning in answer.warnings if "mine.csv" in warning]
    parts = text.split("; row ")
    assert parts[0] == "--given mine.csv: used 1 of 5 rows"
    assert "2: latency_ms" in parts[1] and "below the bound" in parts[1] and "is the unit ms?" in parts[1]
    assert (
        "3: latency_ms" in parts[2] and "times beyond the 90 % interval" in parts[2] and "is the unit ms?" in parts[2]
    )
    assert parts[3].startswith("4: unknown device 'a1000000'")
    assert parts[4] == "5: nothing is measured; no answer learns of power_w"
    assert answer.given["figures"] == 1


def test_given_keeps_figures_that_doubts_may_explain(predictor, product, tmp_path) -> None:
    slow_ms = 1e3 * product.high_s * 0.9 * FAR
    answer = given(predictor, tmp_path, f"gemm,4096,4096,4096,bf16,a100,{slow_ms}").kernel(
        "gemm", "a100-sxm-80gb", m=4096, n=4096, k=4096, dtype="bf16"
    )
    assert answer.given["figures"] == 1 and not [text for text in answer.warnings if "mine.csv" in text]


def test_given_of_more_rows_narrows_further(predictor, tmp_path) -> None:
    shapes = [{"m": 4096, "n": 4096, "k": k, "dtype": "fp16"} for k in (2048, 4096, 8192, 6144)]
    times_ms = [1e3 * predictor.kernel("gemm", "l40s", **shape).latency_s for shape in shapes]
    rows = [f"gemm,4096,4096,{shape['k']},fp16,l40s,{time}" for shape, time in zip(shapes, times_ms, strict=True)]
    answers = [given(predictor, tmp_path, *rows[:n]).kernel("gemm", "l40s", **shapes[-1]) for n in (1, 3)]
    one, three = (answer.given["moves"]["time"] for answer in answers)
    assert three["after"] < one["after"] < one["before"] == three["before"]


def test_given_that_tells_nothing_is_a_warning(predictor, tmp_path) -> None:
    other = given(predictor, tmp_path, "gemm,4096,4096,4096,bf16,a100,1.0")
    step = other.training("gpt3-175b", cluster="dgx-h100", nodes=16, tp=8, pp=8, global_batch_size=512)
    assert not step.given and "--given has no effect" in step.warnings[-1]


def test_given_moves_latencies_and_rates_of_a_served_model(predictor, tmp_path) -> None:
    words = {"isl": 512, "osl": 64, "batch": 4, "engine_version": "0.10.2"}
    known = predictor.serving("llama-3.1-8b", "a100-sxm-80gb", **words)
    file = tmp_path / "mine.csv"
    rates = f"{1.3e3 * known.tpot_s.mean},{known.output_tokens_per_s.mean / 1.3}"
    file.write_text(f"model,gpu,{','.join(words)},tpot_ms,tokens_per_s\n"
                    f"llama-3.1-8b,a100-sxm-80gb,512,64,4,0.10.2,{rates}\n")  # fmt: skip
    other = predictor.given(read_given(file))
    same, before = (
        other.serving("llama-3.1-8b", "a100-sxm-80gb", **words),
        predictor.serving("llama-3.1-8b", "h100-sxm-80gb", **words),
    )
    after = other.serving("llama-3.1-8b", "h100-sxm-80gb", **words)
    assert same.tpot_s.mean == pytest.approx(1.3 * known.tpot_s.mean, rel=0.1)
    assert before.tpot_s.mean < after.tpot_s.mean < 1.3 * before.tpot_s.mean
    assert after.output_tokens_per_s.mean < before.output_tokens_per_s.mean
    for metric in (after.tpot_s, after.e2e_s, after.output_tokens_per_s, same.tpot_s):
        assert metric.low < metric.mean < metric.high
    assert after.usd_per_million_output_tokens > before.usd_per_million_output_tokens


def test_given_moves_a_training_step_within_its_peak(predictor, tmp_path) -> None:
    words = {"cluster": "dgx-h100", "nodes": 1, "global_batch_size": 8, "seq_len": 4096}
    before = predictor.training("llama-3.1-8b", **words)
    time_ms = 1e3 * before.latency_s * max(before.hfu, 0.4)
    file = tmp_path / "mine.csv"
    file.write_text("model,cluster,nodes,global_batch_size,seq_len,step_ms\n" + "\n".join(
        f"llama-3.1-8b,dgx-h100,1,{batch},4096,{time_ms * batch / 8}" for batch in (8, 16, 32)))  # fmt: skip
    after = predictor.given(read_given(file)).training("llama-3.1-8b", **words)
    assert after.latency_s < before.latency_s and after.interval[0] <= after.latency_s <= after.interval[1]
    assert after.hfu <= 1.0 + 1e-9 and after.given["words"]


@pytest.mark.parametrize("search", ["sweep", "plans"])
def test_given_is_refused_by_searches(predictor, tmp_path, search) -> None:
    other = given(predictor, tmp_path, "gemm,4096,4096,4096,bf16,a100,1.0")
    with pytest.raises(ModelError, match="without them"):
        other.sweep("gpt2", "l4") if search == "sweep" else other.plans(None)


def test_doubts_of_keeps_the_spread_of_the_answer(product) -> None:
    doubts = doubts_of(product, "time")
    assert spread(doubts) == pytest.approx(spread(product.doubts))
    assert all(0.0 < abs(doubts[key]) < abs(size) for key, size in product.doubts.items())


@pytest.mark.parametrize(
    "text, reason",
    [
        ("", "is empty"),
        (HEAD, "has no rows"),
        ("family,m,n,k,gpu\ngemm,1,1,1,l4\n", "no measured column"),
        ("family,m,n,k,gpu,power_w\ngemm,512,512,512,l4,70\n", "no figure that predictions can learn from"),
        (HEAD + "gemm,512,512,,fp32,l4,1\n", "no figure that predictions can learn from: row 1: "),
        (HEAD + "gemm,512,512,512,fp32,l4,1e-6\n", "row 1: latency_ms 1e-06 is below the bound"),
        (HEAD + "gemm,512,512,512,fp32,nonesuch,1\n", "row 1: unknown device 'nonesuch'"),
    ],
)
def test_read_given_refuses_files_that_teach_nothing(predictor, tmp_path, text, reason) -> None:
    file = tmp_path / "mine.csv"
    file.write_text(text)
    with pytest.raises(DataError, match=reason):
        predictor.given(read_given(file))


@pytest.mark.parametrize(
    "name, text, reason",
    [("none.json", None, "is not there"), ("cut.json", '{"a": ', "neither a parquet nor a .csv file")],
)
def test_read_given_refuses_files_that_are_no_rows(tmp_path, name, text, reason) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=reason):
        read_given(tmp_path / name)


def test_read_given_takes_results_of_benches() -> None:
    rows = read_given(Path(__file__).parents[1] / "check" / "results" / "llama-bench.csv").table
    assert {"tokens_per_s", "tpot_ms", "ttft_ms"} & {*rows.frame}
