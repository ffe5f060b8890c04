"""``neusight observe``: a log becomes a calibration that later commands take up; mistakes in one line."""

from pathlib import Path

import numpy as np
import pytest
from cli_runs import as_json, invoke, run, unsaid

from neusight.cli.observe import _MEANING
from neusight.engines.server import HOST

MODEL = "Qwen/Qwen3-8B"
ON_L4 = ("--gpu", "l4", "--longest", "1024")


@pytest.fixture
def requests(tmp_path: Path) -> Path:
    """Of a server that takes 150 ms for each token, whatever it has to do."""
    random = np.random.default_rng(0)
    rows = [f"{i * 0.5 + random.uniform():.3f},{random.integers(100, 300)},60,0.3,150" for i in range(200)]
    path = tmp_path / "requests.csv"
    path.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens,ttft_s,tpot_ms", *rows]))
    return path


def test_what_a_server_says_is_taken_up(requests: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out = tmp_path / "l4.json"
    answer = as_json("observe", MODEL, requests, *ON_L4, "--out", out)
    assert (answer["file"], answer["log"], answer["engine"]) == (str(out), "records of requests", "vllm")
    assert answer["error_after"] < 10 < answer["error_before"]
    question = ("serving", MODEL, "--gpu", "l4", "--isl", 200, "--osl", 60, "--concurrency", 18)
    before = as_json(*question, "--calibration", "none")["tpot_s"]["mean"]
    told = as_json(*question, "--calibration", out)["tpot_s"]["mean"]
    assert abs(told - 0.15) < 0.02 < abs(before - 0.15)
    other = (*question[:3], "l40s", *question[4:])
    assert as_json(*other) == as_json(*other, "--calibration", out)
    text = run("observe", MODEL, requests, *ON_L4, "--out", out).stdout
    assert max(len(line) for line in text.splitlines() if line != str(out)) <= 80
    assert "each pass" in text


def test_an_engine_observed_leaves_kernels_and_training_as_they_were(requests: Path, tmp_path: Path) -> None:
    out = tmp_path / "l4.json"
    as_json("observe", MODEL, requests, *ON_L4, "--out", out)
    for question in (
        ("kernel", "gemm", "m=512", "n=512", "k=512", "--gpu", "l4"),
        ("predict", "gpt2-large", "--gpu", "l4"),
    ):
        with_it, without = as_json(*question, "--calibration", out), as_json(*question, "--calibration", "none")
        assert with_it["latency_s"] == without["latency_s"]


def test_wrong_questions_say_what_would_do(requests: Path, tmp_path: Path) -> None:
    nothing = tmp_path / "nothing.log"
    nothing.write_text("hello")
    wrong: dict[tuple[object, ...], str] = {
        ("observe", MODEL, nothing, *ON_L4): "holds no records of requests",
        ("observe", MODEL, tmp_path / "none.csv", *ON_L4): "there is no such file",
        ("observe", "Qwen/Qwen3-32B", requests, *ON_L4): "does not fit on l4 by",
        ("observe", MODEL, requests, "--gpu", "l5"): "unknown device",
    }
    assert unsaid(wrong) == {}
    usage = {
        (requests,): "names no GPU",
        (requests, "--gpu", "l4,t4"): "takes one: a log is of one server",
        (requests, "--gpu", "l4", "--tp", "1,2"): "takes one",
        (requests, "--gpu", "l4", "--replicas", "2"): "one replica",
        (): "Missing argument",
    }
    for arguments, message in usage.items():
        result = invoke("observe", MODEL, *arguments)
        assert (result.exit_code, message in result.output) == (2, True), result.output


def test_every_constant_of_an_engines_own_time_has_words() -> None:
    assert set(HOST) <= set(_MEANING)
