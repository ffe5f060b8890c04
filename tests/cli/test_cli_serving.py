"""``neusight serving``: every load and form, sweeps, frontiers, service levels, and mistakes in one line."""

import json
from pathlib import Path

import pytest
from cli_runs import as_csv, as_json, error, invoke, run, unsaid

from neusight import Predictor
from neusight.questions import Serving

ON_L40S = ("serving", "Qwen/Qwen3-8B", "--gpu", "l40s", "--isl", "512", "--osl", "64")


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def test_json_is_what_python_answers(predictor: Predictor) -> None:
    answer = as_json(*ON_L40S, "--concurrency", 4, "--num-prompts", 20)
    words = {"concurrency": 4, "num_prompts": 20, "isl": 512, "osl": 64}
    same = predictor.serving("Qwen/Qwen3-8B", "l40s", **words).to_dict()
    assert answer == json.loads(json.dumps(same, default=str))
    assert answer["load"] == {"kind": "closed", "concurrency": 4, "num_prompts": 20, "isl": 512, "osl": 64, "seed": 0}


@pytest.mark.parametrize(
    "options",
    [
        ("--request-rate", 3, "--isl-cv", 0.5, "--osl-cv", 1, "--seed", 3, "--num-prompts", 100),
        ("--batch", 2, "--kv-dtype", "fp8", "--set", "price=2USD/h"),
        ("--concurrency", 3, "--engine", "sglang", "--osl-shape", "uniform", "--osl-cv", 0.2),
    ],
    ids=["rate", "batch", "drawn"],
)
def test_the_question_of_an_answer_gives_the_same_digits(predictor: Predictor, options: tuple[object, ...]) -> None:
    answer = as_json(*ON_L40S, *options)
    words = {name: value for name, value in answer["question"].items() if name != "kind"}
    again = predictor.ask(Serving.named(words)).to_dict()
    assert json.loads(json.dumps(again, default=str)) == answer
    assert {"engine_version", "dtype", "max_num_seqs", "gpu_memory_utilization"} <= set(answer["assumed"])


def test_words_without_effect_are_said() -> None:
    text = " ".join(run(*ON_L40S, "--batch", 1, "--router", "least-loaded", "--isl-shape", "uniform").stderr.split())
    assert "router least-loaded has no effect: there is one replica" in text
    assert "isl_shape has no effect: all lengths are equal" in text


def test_human_answers_are_at_most_eighty_wide_and_say_what_a_planner_asks() -> None:
    text = run(*ON_L40S, "--batch", 8).stdout
    assert max(map(len, text.splitlines())) <= 80
    wanted = ("to first token", "per output token", "whole answer", "output tokens/s", "for each GPU", "weights",
              "KV cache of", "passes with prompts", "limited by", "AWS us-east-1", "J per output token")  # fmt: skip
    assert [word for word in wanted if word not in text] == []


def test_answers_of_one_token_and_long_names_stay_readable() -> None:
    text = run(
        "serving", "deepseek-ai/DeepSeek-V3", "--gpu", "h200-sxm-141gb", "--dp", "8", "--ep", "8", "--replicas", "2",
        "--isl", "64", "--osl", "1", "--concurrency", "1",
    ).stdout  # fmt: skip
    assert max(map(len, text.splitlines())) <= 80
    assert "1 client, 32 requests" in text
    assert "nan" not in text


def test_csv_has_a_row_a_point_and_the_figures_of_json() -> None:
    (row,) = as_csv(*ON_L40S, "--batch", 2)
    answer = as_json(*ON_L40S, "--batch", 2)
    assert float(row["predicted_ttft_p99_ms"]) == pytest.approx(1e3 * answer["ttft_s"]["p99"])
    assert float(row["predicted_output_tokens_per_s"]) == pytest.approx(answer["output_tokens_per_s"]["mean"])
    assert (row["predicted_devices"], row["batch"], row["predicted_error"]) == ("1", "2", "")


def test_lists_combine_and_points_that_cannot_be_keep_their_reason() -> None:
    answer = as_json(*ON_L40S, "--batch", "1,4", "--tp", "1,3")
    assert [(row.get("load", {}).get("batch"), "error" in row) for row in answer] == [
        (1, False), (4, False), (None, True), (None, True),
    ]  # fmt: skip
    assert "choose a tp or ep of 1, 2, 4, 8" in answer[2]["error"]
    rows = as_csv(*ON_L40S, "--batch", "1,4", "--tp", "3,1")
    assert [bool(row["predicted_error"]) for row in rows] == [True, True, False, False]
    assert "no estimate for 2 of 4 (l40s)" in run(*ON_L40S, "--batch", "1,4", "--tp", "1,3").stderr
    assert as_json(*ON_L40S, "--batch", "1,")[0] == as_json(*ON_L40S, "--batch", 1)


def test_no_point_at_all_is_exit_1() -> None:
    assert invoke(*ON_L40S, "--batch", "1,2", "--tp", "3").exit_code == 1


def test_more_clients_give_more_throughput_and_wait_longer(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "frontier.png"
    rows = as_csv(*ON_L40S, "--frontier", "--figure", picture)
    clients = [int(row["concurrency"]) for row in rows]
    assert clients[:4] == [1, 2, 4, 8]
    rates = [float(row["predicted_output_tokens_per_s"]) for row in rows]
    assert rates[:-1] == sorted(rates[:-1])
    assert float(rows[-1]["predicted_tpot_ms"]) > float(rows[0]["predicted_tpot_ms"])
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_rate_beyond_what_is_served_is_called_overload() -> None:
    answer = as_json(*ON_L40S, "--request-rate", "500", "--num-prompts", 400)
    assert "grows without limit" in answer["diverges"]
    assert "OVERLOAD" in run(*ON_L40S, "--request-rate", "500", "--num-prompts", 400).stdout
    assert as_json(*ON_L40S, "--request-rate", "0.5", "--num-prompts", 100)["diverges"] == ""


def test_traces_and_drawn_lengths(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,100,20\n0.5,200,30\n")
    answer = as_json("serving", "Qwen/Qwen3-8B", "--gpu", "l40s", "--trace", trace)
    assert answer["load"] == {"kind": "trace", "requests": 2}
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n-1,100,20\n")
    assert "row 1 of the trace arrives at" in error("serving", "Qwen/Qwen3-8B", "--gpu", "l40s", "--trace", trace)
    drawn = as_json(*ON_L40S, "--num-prompts", 30, "--isl-cv", 0.5, "--osl-cv", 1, "--seed", 3)
    assert drawn["e2e_s"]["p99"] > drawn["e2e_s"]["p50"]
    assert drawn == as_json(*ON_L40S, "--num-prompts", 30, "--isl-cv", 0.5, "--osl-cv", 1, "--seed", 3)


def test_service_levels_are_held_by_what_is_found_and_reasons_are_given() -> None:
    question = ("serving", "Qwen/Qwen3-8B", "--isl", "512", "--osl", "64", "--gpu", "l40s,l4", "--tp", "1,2")
    answer = as_json(*question, "--slo", "tpot=40ms,ttft_p99=4s")
    held = [row for row in answer if row["holds"]]
    assert held
    for row in held:
        assert row["estimate"]["tpot_s"]["mean"] <= 0.04
        assert row["estimate"]["ttft_s"]["p99"] <= 4.0
    assert all(row["reason"] for row in answer if not row["holds"])
    assert "USD" in run(*question, "--slo", "tpot=40ms,ttft_p99=4s").stdout
    nothing = invoke(*question, "--slo", "tpot=1us")
    assert nothing.exit_code == 1
    assert "too slow: with one client tpot takes" in " ".join(nothing.stdout.split())


def test_a_given_load_or_deployment_has_a_probability_that_it_holds_the_level() -> None:
    level = ("--slo", "tpot=40ms")
    alone, shared = (as_json(*ON_L40S, "--batch", batch, *level)["slo_probability"] for batch in (1, 64))
    assert 0 < shared < alone <= 1
    assert as_json(*ON_L40S, "--batch", 1)["slo_probability"] is None
    assert "level        holds with a probability of" in run(*ON_L40S, "--batch", 1, *level).stdout
    points = as_csv(*ON_L40S, "--frontier", *level)
    chances = [float(row["predicted_slo_probability"]) for row in points]
    assert chances == sorted(chances, reverse=True)


def test_recommendations_say_what_to_rent_why_not_others_and_how_to_start_it() -> None:
    question = ("serving", "Qwen/Qwen3-8B", "--isl", "512", "--osl", "64", "--gpu", "h100-sxm-80gb,t4", "--tp", "1,2")
    load = ("--slo", "tpot=20ms,ttft=500ms", "--request-rate", "40", "--recommend")
    answer = as_json(*question, *load)
    best = answer[0]
    assert (best["holds"], best["gpu"], best["excess"]) == (True, "h100-sxm-80gb", 0)
    assert 0.5 <= best["probability"] <= 1
    assert {row["dtype"] for row in answer if row["gpu"] == "h100-sxm-80gb"} == {"", "fp8"}
    assert f"--max-num-batched-tokens {best['max_num_batched_tokens'] or 8192}" in best["estimate"]["launch"]
    assert all(row["reason"] for row in answer if row["gpu"] == "t4")
    text = run(*question, *load).stdout
    assert max(map(len, text.splitlines())) <= 80
    wanted = ("holds with a probability of", "vllm serve Qwen/Qwen3-8B", "more", "not t4")
    assert [word for word in wanted if word not in " ".join(text.split())] == []
    clients = as_json(*question, "--slo", "tpot=20ms", "--concurrency", 64, "--prefer", "gpus", "--slo-confidence", 0.9)
    assert clients[0]["probability"] >= 0.9
    assert clients[0]["estimate"]["load"]["concurrency"] == 64


def test_images_are_encoded_or_refused_in_a_line() -> None:
    question = ("serving", "Qwen/Qwen3-VL-8B-Instruct", "--gpu", "l40s", "--osl", 8, "--batch", 1, "--isl")
    plain, with_images = as_json(*question, 2100), as_json(*question, 2100, "--images", 2)
    assert with_images["ttft_s"]["mean"] > plain["ttft_s"]["mean"]
    assert "--limit-mm-per-prompt '{\"image\": 2}'" in with_images["launch"]
    short = invoke(*question, 2000, "--images", 2)
    assert (short.exit_code, "2000 hold no images of 2048 tokens" in short.output) == (2, True)
    wrong: dict[tuple[object, ...], str] = {
        (*question, 2100, "--images", "2,1x"): "write how many and their size like 2,size=1280x720",
        (*ON_L40S, "--batch", 1, "--images", 1): "tells of no vision encoder",
        (*ON_L40S, "--batch", 1, "--lora-adapters", "x"): "write how many and their rank like 4,rank=16",
    }
    assert unsaid(wrong) == {}


def test_launch_commands_are_printed_for_one_deployment() -> None:
    text = run(*ON_L40S, "--batch", 1, "--engine", "trtllm", "--max-num-seqs", 9, "--launch-command").stdout
    assert "trtllm-serve Qwen/Qwen3-8B" in text
    assert "--max_batch_size 9" in text
    assert "trtllm-serve" not in run(*ON_L40S, "--batch", 1, "--engine", "trtllm").stdout
    assert as_json(*ON_L40S, "--batch", 1)["launch"].startswith("vllm serve Qwen/Qwen3-8B \\\n  --max-model-len 576")


def test_a_price_makes_a_cost() -> None:
    answer = as_json(*ON_L40S, "--batch", 1, "--set", "price=2USD/h")
    per_hour = answer["output_tokens_per_s"]["mean"] * 3600
    assert answer["usd_per_million_output_tokens"] == pytest.approx(2e6 / per_hour)
    assert answer["price_source"] == "set by the user: price=2USD/h"
    listed = as_json(*ON_L40S, "--batch", 1)
    assert listed["usd_per_million_output_tokens"] == pytest.approx(listed["usd_per_hour"] * 1e6 / per_hour)
    assert listed["price_source"].startswith("AWS us-east-1, on demand, 20")


def test_wrong_questions_say_what_would_do() -> None:
    model, on = ("serving", "Qwen/Qwen3-8B"), ("--gpu", "l40s", "--batch", "1")
    short = ("--isl", "64", "--osl", "8")
    wrong: dict[tuple[object, ...], str] = {
        (*model, *on, "--isl", "60000", "--osl", "8"): "exceed its context of 40960",
        (*model, *on, *short, "--tp", "5"): "choose a tp or ep of 1, 2, 4",
        (*model, "--gpu", "t4", "--batch", "1", *short, "--dtype", "fp8"): "does not compute in float8",
        (*model, *on, "--isl", "30000", "--osl", "8", "--gpu-memory-utilization", "0.44"): "the KV cache holds",
        (*model, "--gpu", "t4", "--batch", "1", *short, "--dtype", "fp16"): "does not fit on t4",
        (*model, *on, *short, "--dtype", "fp9"): "unknown precision 'fp9'",
        ("serving", "Qwen/Qwen3-9", *on, *short): "unknown model",
        (*model, "--gpu", "l40s", *short, "--slo", "tpot=3"): "write it like 500ms",
        (*model, "--gpu", "l40s", *short, "--slo", "tbot=3ms"): "did you mean",
    }
    assert unsaid(wrong) == {}


def test_loads_that_contradict_each_other_are_usage_errors() -> None:
    for arguments in (
        ON_L40S,
        (*ON_L40S, "--request-rate", "1", "--concurrency", "2"),
        (*ON_L40S, "--batch", "1", "--frontier"),
        (*ON_L40S, "--batch", "1", "--isl-cv", "0.5"),
        (*ON_L40S, "--request-rate", "nan"),
        (*ON_L40S, "--batch", "1", "--engine", "vlm"),
        (*ON_L40S, "--concurrency", "1000000"),
        (*ON_L40S, "--batch", "1", "--figure", "x.png"),
        (*ON_L40S, "--frontier", "--figure", "x.txt"),
        (*ON_L40S, "--trace", "nowhere.csv"),
        (*ON_L40S, "--slo", "tpot=1s", "--replicas", "2"),
        (*ON_L40S, "--slo", "tpot=1s", "--batch", "1", "--slo-confidence", "0.9"),
        (*ON_L40S, "--slo", "tpot=1s", "--burstiness", "0.5"),
        (*ON_L40S, "--slo", "tpot=3", "--batch", "1"),
        (*ON_L40S, "--slo", "", "--batch", "1"),
        (*ON_L40S, "--prices", " ", "--batch", "1"),
        ("serving", "Qwen/Qwen3-8B", "--gpu", "l40s", "--osl", "8", "--batch", "1"),
        ("serving", "Qwen/Qwen3-8B", "--isl", "8", "--osl", "8", "--batch", "1"),
    ):
        result = invoke(*arguments)
        assert (result.exit_code, result.stdout) == (2, ""), arguments
        assert result.stderr.startswith("error: ")


def test_names_for_serving_are_listed() -> None:
    rows = {row["name"]: row for row in as_json("models", "list", "--decoders")}
    # Llama 3.1 8B: 8 heads of 128 keys and values in 32 layers, in two bytes.
    assert rows["meta-llama/Llama-3.1-8B"]["kv_bytes_per_token"] == 2 * 8 * 128 * 32 * 2
    assert rows["meta-llama/Llama-3.1-8B"]["context"] == 131072
