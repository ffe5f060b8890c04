"""Completion by a shell: options, choices, ids and names; a prediction does not load it."""

import os
import subprocess
import sys

import pytest


def completed(line: str) -> list[str]:
    """Words that bash completes at the end of a line."""
    words = line.split(" ")
    shell = {"_NEUSIGHT_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    done = subprocess.run(
        [sys.executable, "-c", "from neusight.cli import main; main()"],
        env=os.environ | shell, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("neusight tra", {"train", "training"}),
        ("neusight kernel gemm --gpu l4", {"l4"}),
        ("neusight kernel gemm --gpu l4,t", {"l4,t4", "l4,tpu-v4"}),
        ("neusight kernel gemm --timer ", {"events", "cuda_graph", "profiler", "wall"}),
        ("neusight kernel gemm m=8 --cluster dgx-h1", {"dgx-h100"}),
        ("neusight design phaze --model gpt3-1", {"gpt3-13b", "gpt3-175b"}),
        ("neusight models show gpt2-x", {"gpt2-xl"}),
        ("neusight models list ", {"--decoders", "--format"}),
        ("neusight fit l", {"links"}),
        ("neusight fit --ou", {"--out"}),
    ],
)
def test_shell_completes(line: str, words: set[str]) -> None:
    assert words <= set(completed(line))


def test_show_completion_prints_a_script() -> None:
    shown = subprocess.run(
        [sys.executable, "-c", "from neusight.cli import main; main()", "--show-completion", "bash"],
        env=os.environ | {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert "_NEUSIGHT_COMPLETE=complete_bash" in shown.stdout
