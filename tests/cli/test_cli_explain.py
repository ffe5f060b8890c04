"""``--explain``: the doubts of an answer by size, each with what lessens it."""

from __future__ import annotations

import re

import pytest
from cli_runs import invoke, run

from neusight.cli.explain import words_of

SERVED = ("serving", "Qwen/Qwen3-8B", "--gpu", "h100-sxm-80gb", "--isl", "512", "--osl", "32", "--batch", "4")


def sizes_of(output: str) -> list[float]:
    return [float(size) for size in re.findall(r"± ([\d.]+)%", output.partition("what lessens it")[2])]


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (SERVED, "--engine-version"),
        (("kernel", "all_reduce", "bytes=67108864", "ranks=16", "--gpu", "h100-sxm-80gb"), "give --network"),
        (("predict", "bert-large-uncased", "--gpu", "v100-sxm2-32gb"), "neusight calibrate"),
        (("training", "gpt2", "--gpu", "h100-sxm-80gb", "-b", "8", "--tp", "2"), "a step measured"),
    ],
    ids=["serving", "kernel", "predict", "training"],
)
def test_explain_lists_doubts_by_size_with_remedies(arguments: tuple[str, ...], remedy: str) -> None:
    output = run(*arguments, "--explain").stdout
    sizes = sizes_of(output)
    assert sizes == sorted(sizes, reverse=True) and len(sizes) > 1
    assert remedy in output


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("device:gh100/gemm", "matrix products on gh100"),
        ("own:ga100/linear 1x1000x2048 tn", "each kernel by itself"),
        ("composition:throughput/Qwen/Qwen3-8B h100-sxm-80gb", "this setup by itself"),
        ("composition:llama-2-7b", "a step as the sum of its kernels, llama-2-7b"),
        ("scheme:q4_k_m", "kernels of q4_k_m"),
        ("first:vllm before 0.8", "time of the server before a first token"),
        ("source:tpot", "host, versions and way of measuring of whoever measures"),
    ],
)
def test_words_of_names_doubts_plainly(key: str, words: str) -> None:
    assert words_of(key) == words


def test_explain_names_no_key() -> None:
    output = run("predict", "gpt2-large", "--gpu", "a100-sxm-80gb,mi300x", "--explain").stdout
    assert not re.search(r"\b(device|own|composition|host|launch):\w", output)
    assert "doubt of a100-sxm-80gb" in output and "doubt of mi300x" in output


def test_explain_asks_for_network_of_lone_collective_first() -> None:
    asked = ("kernel", "all_reduce", "bytes=67108864", "ranks=16", "--gpu", "h100-sxm-80gb", "--explain")
    open_network, given = run(*asked).stdout, run(*asked, "--network", "8 x 400Gb/s").stdout
    assert re.search(r"each kernel by itself.*give --network", open_network)
    assert "give --network" not in given


def test_explain_lists_no_open_field_that_is_given() -> None:
    assert "--engine-version" not in run(*SERVED, "--engine-version", "0.19.0", "--explain").stdout


def test_explain_is_refused_where_it_has_no_place() -> None:
    assert "leave out --format json" in invoke(*SERVED, "--explain", "--format", "json").output
    assert "leave out --slo" in invoke(*SERVED[:-2], "--slo", "ttft=1s", "--explain").output
