"""``neusight ask``: a file of questions, and JSON of an answer, give the digits of the commands."""

import json
from pathlib import Path

import pytest
from cli_runs import as_json, error, invoke, run

from neusight.questions import Serving

FILE = """version = 1

[[question]]
kind = "kernel"
name = "gemm"
shape = ["m=64", "n=64", "k=64"]
gpu = "l4"
"""
SECOND = """
[[question]]
kind = "predict"
model = "gpt2"
gpu = "t4"
seq_len = 64
"""
KERNEL = ("kernel", "gemm", "m=64", "n=64", "k=64", "--gpu", "l4")


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_ask_answers_one_question_as_its_command_does(tmp_path: Path) -> None:
    file = written(tmp_path / "question.toml", FILE)
    assert as_json("ask", file) == as_json(*KERNEL)
    assert run("ask", file).stdout == run(*KERNEL).stdout


@pytest.mark.parametrize(
    "command",
    [
        KERNEL,
        ("predict", "gpt2", "--gpu", "l4", "--mode", "training", "--batch", 2, "--set", "tdp=60W"),
        ("training", "gpt3-13b", "--cluster", "dgx-h100", "--nodes", 1, "--tp", 8, "-b", 8, "--sequence-parallel"),
        ("serving", "Qwen/Qwen3-8B", "--gpu", "l40s", "--isl", 64, "--osl", 8, "--concurrency", 2),
        ("serving", "Qwen/Qwen3-8B", "--gpu", "l40s", "--isl", 64, "--osl", 8, "--max-num-seqs", 2, "--frontier"),
        ("memory", "gpt3-13b", "--gpu", "h100-sxm-80gb", "--tp", 8, "--shard", "zero1"),
        ("plan", "gpt3-13b", "--cluster", "dgx-h100", "-b", 8, "-n", 2, "--schedules", "1f1b,gpipe"),
        ("what-if", "gpt2", "--gpu", "l4", "--set", "tdp=60W", "--apply", "amp,compile"),
        ("what-if", "gpt3-13b", "--gpu", "h100-sxm-80gb", "--mode", "training", "--tp", 8, "--etp", 8, "--apply",
         "checkpointing"),
        ("training", "gpt3-13b", "--cluster", "dgx-h100", "--tp", 8, "-b", 8, "--within-days", 300, "--gpu-mtbf", 900),
        ("serving", "Qwen/Qwen3-8B", "--gpu", "l40s", "--isl", 64, "--osl", 8, "--batch", 2, "--slo", "tpot=40ms"),
        ("predict", "gpt2", "--gpu", "l4", "--must-fit", 0.9),
        ("what-if", "Qwen/Qwen3-8B", "--gpu", "l40s", "--isl", 64, "--osl", 8, "--all", "--fit", "20GB"),
    ],
    ids=lambda command: " ".join(map(str, command[:2])),
)  # fmt: skip
def test_ask_repeats_the_question_of_an_answer(command: tuple[object, ...], tmp_path: Path) -> None:
    answer = run(*command, "--format", "json").stdout
    assert run("ask", written(tmp_path / "answer.json", answer), "--format", "json").stdout == answer


def test_ask_repeats_the_deployments_that_a_search_found(tmp_path: Path) -> None:
    found = run("serving", "Qwen/Qwen3-8B", "--gpu", "l40s", "--isl", 64, "--osl", 8, "--slo", "ttft=1s", "-f", "json")
    repeated = as_json("ask", written(tmp_path / "answer.json", found.stdout))
    answers = [choice["estimate"] for choice in json.loads(found.stdout) if choice["estimate"]]
    # A level is of the search; the question of a deployment has none.
    assert repeated == [answer | {"slo_probability": None} for answer in answers]


def test_record_keeps_whole_numbers() -> None:
    assert str(Serving(model="gpt2", isl=64, osl=8.5).record()["isl"]) == "64"


def test_ask_lists_several_answers(tmp_path: Path) -> None:
    file = written(tmp_path / "questions.toml", FILE + SECOND)
    kernel, step = as_json("ask", file)
    assert kernel == as_json(*KERNEL)
    assert step == as_json("predict", "gpt2", "--gpu", "t4", "--seq-len", 64)
    assert run("ask", file).stdout.count("\n") == 4


def test_ask_answers_the_others_where_one_fails(tmp_path: Path) -> None:
    result = invoke(
        "ask", written(tmp_path / "questions.toml", (FILE + SECOND).replace('"t4"', '"t44"')), "--format", "json"
    )
    first, second = json.loads(result.stdout)
    assert (first["gpu"], second, result.exit_code) == ("l4", {}, 0)
    assert "unknown device 't44'" in result.stderr


def test_ask_names_what_is_wrong_with_a_file(tmp_path: Path) -> None:
    for text, words in (
        ("version = 2", "has version 2: write `version = 1` on top"),
        ("", "has no version: write"),
        (FILE.replace("gemm", "gemmm"), "did you mean gemm"),
        (FILE.replace("kernel", "kernle"), "did you mean kernel"),
        (FILE.replace("shape", "shap"), "did you mean shape"),
        ("version =", "does not read as TOML"),
    ):
        assert words in error("ask", written(tmp_path / "question.toml", text))
    assert "does not read as JSON" in error("ask", written(tmp_path / "answer.json", "{"))
    assert "nowhere.toml" in error("ask", "nowhere.toml")
