"""Commands that measure a question, and lines for what they do not say."""

import shlex

import pytest
from cli_runs import run, unsaid

from neusight.check.bench import _entries
from neusight.questions.launch import read_launch

SERVED = ("serving", "llama-3.1-8b", "--gpu", "h100-sxm-80gb", "--isl", "64", "--osl", "8")


def bench(*arguments: str) -> list[str]:
    """Lines of the command, which stand below the answer."""
    lines = run(*arguments, "--bench-command").stdout.rstrip().split("\n")
    return lines[len(lines) - lines[::-1].index("") :]


@pytest.mark.parametrize(
    ("options", "words", "remarks"),
    [
        (["--concurrency", "8"], ["vllm bench serve", "--max-concurrency 8", "--num-prompts 80"], []),
        (["--batch", "4"], ["vllm bench latency", "--batch-size 4 ", "--max-num-seqs "], []),
        (["--request-rate", "4", "--burstiness", "0.5"], ["--request-rate 4", "--burstiness 0.5"], []),
        (["--request-rate", "4", "--osl-cv", "0.5"], ["--request-rate 4"], ["# does not say osl_cv 0.5"]),
        (["--batch", "2", "--engine", "sglang"], ["bench_one_batch", "--batch-size 2", "--chunked-prefill-size "], []),
        (
            ["--concurrency", "2", "--engine", "tensorrt-llm"],
            ["prepare-dataset", "--input-mean 64", "--concurrency 2"],
            [],
        ),
        (["--batch", "2", "--engine", "llama.cpp"], ["llama-batched-bench", "-npp 64", "-ntg 8", "-npl 2"], []),
        (["--batch", "2", "--engine", "lmdeploy"], [], ["# no tool measures this"]),
    ],
)
def test_bench_command_of_a_load(options: list[str], words: list[str], remarks: list[str]) -> None:
    lines = bench(*SERVED, *options)
    text = " ".join(line for line in lines if not line.startswith("#")) + " "
    assert [word for word in words if word not in text] == []
    assert [line for line in lines if line.startswith("#")] == [
        line for line in lines if line.startswith(tuple(remarks))
    ]
    assert len(remarks) == sum(line.startswith("#") for line in lines)


def test_bench_command_draws_lengths_from_the_range() -> None:
    served = ("serving", "llama-3.1-8b", "--gpu", "h100-sxm-80gb", "--concurrency", "2", "--isl", "80..120", "--osl")
    assert "--random-input-len 100 --random-output-len 100 --random-range-ratio 0.2" in bench(*served, "80..120")[-1]
    assert bench(*served, "8")[0] == "# draws isl and osl from ranges of one ratio"
    sglang = bench(*served, "80..120", "--engine", "sglang")
    assert "--random-input-len 120 --random-output-len 120 --random-range-ratio 0.6667" in sglang[-1]


def test_bench_command_of_a_step_is_read_back_as_its_plan() -> None:
    plan = ("--tp", "4", "--pp", "2", "-b", "16", "--seq-len", "2048", "--recompute", "full", "--per-node", "8")
    *remarks, command = bench("training", "llama-3.1-8b", "--gpu", "h100-sxm-80gb", *plan)
    words = read_launch(command.partition("|")[0]).words
    expected = {"tp": 4, "pp": 2, "global_batch_size": 16, "seq_len": 2048, "micro_batch_size": 1, "dtype": "bfloat16"}
    assert {name: words[name] for name in expected} == expected
    assert "# does not say recompute full" in remarks


def test_bench_command_of_kernels() -> None:
    reduced = ("kernel", "all_reduce", "ranks=16", "bytes=1024", "--gpu", "h100-sxm-80gb", "--algorithm", "ring")
    remark, command = bench(*reduced)
    assert remark == "# does not say algorithm ring"
    assert command.startswith("mpirun -np 16 -N 8 all_reduce_perf -b 1024 -e 1024 ")
    gemm = ("kernel", "gemm", "m=64", "n=32", "k=16", "dtype=bf16", "--gpu", "l4", "--timer", "wall")
    *remarks, command = bench(*gemm)
    assert remarks == ["# measures operands resident, where the question has cold"]
    compile(shlex.split(command)[2], "command", "exec")
    assert "((1, 64, 16), (1, 16, 32))" in command


def test_bench_command_is_refused_among_data() -> None:
    wrong: dict[tuple[object, ...], str] = {
        (*SERVED, "--batch", "1", "--bench-command", "--format", "json"): "leave out --format json",
        (*SERVED, "--slo", "ttft=1s", "--bench-command"): "leave out --slo",
    }
    assert unsaid(wrong) == {}
    assert all(entry["of"]["kind"] for entry in _entries())
