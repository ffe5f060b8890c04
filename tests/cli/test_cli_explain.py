"""``--explain``: the doubts of an answer by size, each with what lessens it."""

from __future__ import annotations

import re

import pytest
from cli_runs import invoke, run

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


def test_explain_lists_no_open_field_that_is_given() -> None:
    assert "--engine-version" not in run(*SERVED, "--engine-version", "0.19.0", "--explain").stdout


def test_explain_is_refused_where_it_has_no_place() -> None:
    assert "leave out --format json" in invoke(*SERVED, "--explain", "--format", "json").output
    assert "leave out --slo" in invoke(*SERVED[:-2], "--slo", "ttft=1s", "--explain").output
