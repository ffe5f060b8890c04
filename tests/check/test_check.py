"""Results of benches and logs as measured rows, and beside their predictions.

Files of ``results`` are in the formats that their tools document. Figures of llama-bench (its README) and of nccl-tests
(a run on two nodes of A100) are public, all others are made up.
"""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from cli_runs import as_json, invoke, run, unsaid

from neusight.api import Predictor
from neusight.check import check, read_result, write_rows
from neusight.check.formats import result_formats
from neusight.check.places import value_at
from neusight.errors import DataError
from neusight.measured import evaluate
from neusight.measured.table import NOUNS, is_quantity
from neusight.questions import FieldError, KernelCall

RESULTS = Path(__file__).with_name("results")
ON_8B = {"model": "llama-3.1-8b", "gpu": "h100"}
HF = {"model": "gpt2-large", "gpu": "a100", "seq_len": "1024", "engine": "torch-eager", "per_node": "8"}
GEMM = {"name": "gemm", "shape": ["m=64", "n=64", "k=64"], "gpu": "a100"}


@pytest.mark.parametrize(
    ("file", "options", "words", "figures"),
    [
        ("vllm-serve.json", {"gpu": "h100"}, {"isl": 1024, "osl": 256, "concurrency": 32, "num_prompts": 320},
         {"ttft_ms": 452.1, "tpot_p50_ms": 9.71, "tokens_per_s": 2767.0}),
        ("vllm-throughput.json", {**ON_8B, "isl": "1024", "osl": "256"}, {"num_prompts": 200},
         {"tokens_per_s": 16.5 * 256}),
        ("vllm-latency.json", {**ON_8B, "isl": "64", "osl": "8", "batch": "8"}, {"batch": 8}, {"e2e_ms": 1320.0}),
        ("sglang.jsonl", {**ON_8B, "tp": "2"}, {"engine": "sglang", "concurrency": 16, "isl": 1024, "tp": 2},
         {"tpot_ms": 7.7, "e2e_ms": 2150.0}),
        ("aiperf.json", {"gpu": "h100"}, {"model": "Qwen/Qwen3-8B", "concurrency": 8, "num_prompts": 80, "osl": 256},
         {"ttft_ms": 95.84, "tpot_ms": 9.2, "ttft_p90_ms": 151.45}),
        ("guidellm.json", {"gpu": "h100"}, {"model": "Qwen/Qwen3-8B", "concurrency": 1, "isl": 512},
         {"ttft_ms": 30.0, "e2e_ms": 1968.0}),
        ("trtllm.json", {"gpu": "h100"}, {"dtype": "fp8", "kv_dtype": "fp8", "max_num_seqs": 4096, "isl": 128},
         {"tokens_per_s": 28390.4265}),
        ("llama-bench.json", {}, {"gpu": "rtx-4080", "dtype": "q4_k_m", "isl": 512, "osl": 1}, {"ttft_ms": 72.13564}),
        ("llama-bench.csv", {}, {"model": "Qwen2.5-7B-Instruct", "isl": 512}, {"ttft_ms": 70.28566}),
        ("llama-bench.md", {"gpu": "4080", "model": "Qwen2.5-7B-Instruct"}, {"dtype": "q4_k_m", "isl": 512},
         {"ttft_ms": 512 / 7.34020}),
        ("inferencex.json", {}, {"gpu": "h200-sxm-141gb", "tp": 8, "isl": "819..1024", "engine_version": "0.10.2"},
         {"ttft_ms": 250.0, "tpot_ms": 10.9, "tokens_per_s": 5600.0}),
        ("megatron.log", {"gpu": "h100"}, {"tp": 4, "pp": 2, "global_batch_size": 128, "seq_len": 8192},
         {"step_ms": 11897.55}),
        ("hf-trainer.log", HF, {"global_batch_size": 64, "micro_batch_size": 8}, {"step_ms": 3600.0}),
        ("trainer_state.json", HF, {"global_batch_size": 64, "micro_batch_size": 8}, {"step_ms": 3600.0}),
        ("nccl.log", {}, {"gpu": "a100-sxm-40gb", "per_node": 8}, {"latency_ms": 10.7854}),
        ("torch-benchmark.txt", GEMM, {"timer": "wall", "name": "gemm"}, {"latency_ms": 0.5124}),
        ("torch-benchmark.txt", {"model": "resnet-50", "gpu": "a100"}, {"model": "resnet-50"}, {"latency_ms": 0.5124}),
    ],
)  # fmt: skip
def test_read_result_reads_words_and_figures(
    file: str, options: dict[str, Any], words: dict[str, Any], figures: dict[str, float]
) -> None:
    result = read_result(RESULTS / file, options)
    assert {name: getattr(result.questions[0], name) for name in words} == words
    row = result.table.frame.iloc[0]
    assert {name: row[name] for name in figures} == pytest.approx(figures)
    assert result.empty == 0


def test_later_results_of_a_file_are_rows() -> None:
    questions = read_result(RESULTS / "llama-bench.md", {"gpu": "4080", "model": "Qwen2.5-7B-Instruct"}).questions
    lengths = [(q.isl, q.osl, q.prefix_cached_tokens) for q in questions]  # type: ignore[attr-defined]
    assert lengths == [(512, 1, 0), (1, 128, 0), (1024, 1, 512), (512, 128, 0)]
    (collective,) = read_result(RESULTS / "nccl.log", {}).questions
    assert collective.shape == ("bytes=1073741824", "ranks=16")  # type: ignore[attr-defined]


@pytest.mark.parametrize("form", result_formats(), ids=lambda form: form.marks[0])
def test_formats_declare_fields_and_quantities(form: Any) -> None:
    fields = {*NOUNS[form.command].fields(), *KernelCall.fields(), *KernelCall.KEYS}
    assert {*form.words, *form.fixed} <= fields
    assert all(map(is_quantity, form.quantities))
    assert {*form.layouts} <= {"json", "table", "lines"}


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("a.b", 3), ("list.0", 1), ("list.-1", 4), ("list", 4), ("none", None), (7, 7), (["none", "a.b"], 3),
        ({"at": "list", "take": "median"}, 2), ({"at": "list", "take": "settled"}, 3),
        ({"at": "list", "take": "count"}, 3), ({"at": "list", "take": "cv"}, 0.5345225),
        ({"at": "a.b", "unit": "s"}, 3000), ({"at": "a.b", "unit": "unit"}, 0.003), ({"at": 1, "over": "a.b"}, 1 / 3),
        ({"at": "a.b", "over": "zero"}, None), ({"at": "a.b", "times": "none"}, None),
        ({"at": "a.b", "plus": "none"}, 3),
        ({"at": "a.b", "when": {"unit": "us"}}, 3), ({"at": "a.b", "unless": {"unit": "us"}}, None),
        ({"at": "text", "pattern": r"pp(\d+)"}, "512"), ({"at": "text", "pattern": "(tg)"}, None),
        ({"at": "unit", "words": {"us": "micro"}}, "micro"), ({"at": "unit", "words": {"ms": "milli"}}, None),
        ({"at": "a.b", "times": 0.8, "digits": 0, "to": "list"}, "2..4"), ({"at": "zero", "least": 1}, 1),
    ],
)  # fmt: skip
def test_value_at_follows_the_place(place: Any, value: Any) -> None:
    record = {"a": {"b": 3}, "list": [1, 2, 4], "unit": "us", "zero": 0, "text": "pp512 @ d8"}
    assert value_at(place, record) == (pytest.approx(value) if isinstance(value, float) else value)


@pytest.mark.parametrize(
    ("file", "options"), [("llama-bench.json", {}), ("nccl.log", {"network": "16 x 100Gb/s roce"})]
)
def test_check_is_an_evaluation_of_its_rows(file: str, options: Any, tmp_path: Path, predictor: Predictor) -> None:
    result = read_result(RESULTS / file, options)
    findings, reasons = check(result, predictor)
    for suffix in (".csv", ".parquet"):
        assert write_rows(result, tmp_path / f"rows{suffix}") == len(result.questions)
        (table,) = evaluate([tmp_path / f"rows{suffix}"], predictor).tables
        assert sorted(table["predicted"]) == pytest.approx(sorted(one.predicted for one in findings), rel=1e-9)
    assert reasons == []
    assert all(one.inside == (one.low <= one.measured <= one.high) for one in findings if one.low and one.high)
    assert all(list(one.errors.values()) == sorted(one.errors.values(), reverse=True) for one in findings)
    assert all(one.limiter for one in findings)


def test_write_rows_adds_to_a_table(tmp_path: Path) -> None:
    for count, file in enumerate(("llama-bench.json", "llama-bench.csv"), 1):
        assert write_rows(read_result(RESULTS / file, {}), tmp_path / "rows.csv") == 2 * count
    frame = pd.read_csv(tmp_path / "rows.csv")
    assert list(frame["table"]) == ["llama-bench.json"] * 2 + ["llama-bench.csv"] * 2
    assert set(frame["source"]) == {"llama-bench"}
    with pytest.raises(DataError):
        write_rows(read_result(RESULTS / "nccl.log", {}), tmp_path / "rows.csv")


def test_words_of_options_count_before_those_of_the_file() -> None:
    result = read_result(RESULTS / "llama-bench.json", {"gpu": "l4", "isl": "512"})
    assert {question.gpu for question in result.questions} == {"l4"}  # type: ignore[attr-defined]
    assert result.replaced == {"gpu": "NVIDIA GeForce RTX 4080", "isl": 1}
    with pytest.raises(FieldError, match="micro_batch_size is no option for a result of llama-bench"):
        read_result(RESULTS / "llama-bench.json", {"micro_batch_size": "1"})


def test_exit_code_says_inside_or_outside(tmp_path: Path) -> None:
    answer = as_json("check", RESULTS / "llama-bench.json", "--out", tmp_path / "mine.csv")
    assert [(one["quantity"], one["inside"]) for one in answer["findings"]] == [("ttft_ms", True), ("tpot_ms", True)]
    assert {question["kind"] for question in answer["questions"]} == {"serving"}
    assert "rows=2" not in run("evaluate", tmp_path / "mine.csv").stderr
    slow = tmp_path / "slow.json"
    slow.write_text((RESULTS / "llama-bench.json").read_text().replace('"avg_ns": 1', '"avg_ns": 91'))
    result = invoke(
        "check", slow, "--from", "vllm serve Qwen/Qwen2.5-7B-Instruct --max-num-seqs 8", "--engine", "llama.cpp"
    )
    assert (result.exit_code, "OUTSIDE" in result.stdout) == (1, True)
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_wrong_files_and_missing_options_are_one_line(tmp_path: Path) -> None:
    whole = {name: (RESULTS / name).read_text() for name in ("vllm-serve.json", "llama-bench.csv", "nccl.log")}
    texts = {
        "empty.json": " \n", "cut.json": whole["vllm-serve.json"][:300], "cut.csv": whole["llama-bench.csv"][:-60],
        "cut.log": whole["nccl.log"][:1500], "other.json": '{"a": 1}', "other.txt": "all is well\n",
        "wrong.json": whole["vllm-serve.json"].replace("452.1", '"fast"'),
        "nothing.json": whole["llama-bench.csv"].partition("\n")[0] + "\n",
        "model.json": whole["vllm-serve.json"].replace('"meta-llama/Llama-3.1-8B-Instruct"', '"my/model"'),
    }  # fmt: skip
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00PAR1")
    served = ("check", RESULTS / "vllm-serve.json")
    of_file = {
        "none.json": "is not there", "": "is a folder", "empty.json": "is empty",
        "cut.json": "is truncated or damaged JSON", "cut.csv": "it is cut off",
        "cut.log": "is no result of a known tool",
        "other.json": "is no result of a known tool", "other.txt": "whole result of one of",
        "bytes.json": "can't decode", "wrong.json": "ttft_ms: 'fast' stands in place of a number",
        "nothing.json": "is no result", "model.json": "'my/model'",
    }  # fmt: skip
    wrong: dict[tuple[object, ...], str] = {
        ("check", tmp_path / name, "--gpu", "l4"): line for name, line in of_file.items()
    }
    served, on_l4 = ("check", RESULTS / "vllm-serve.json"), ("--gpu", "l4")
    wrong |= {
        served: "--gpu", (*served, "--gpu", "h1000"): "unknown device",
        (*served, *on_l4, "--shard", "zero1"): "--shard",
        ("check", RESULTS / "vllm-latency.json", "--model", "llama-3.1-8b", *on_l4): "--concurrency",
        ("check", RESULTS / "torch-benchmark.txt", *on_l4): "--model",
        ("check", RESULTS / "hf-trainer.log", *on_l4): "--model",
        (*served, *on_l4, "--out", tmp_path / "a.txt"): "--out",
    }  # fmt: skip
    assert unsaid(wrong) == {}
    assert {invoke(*arguments).exit_code for arguments in wrong} == {2}
