"""What README shows of a command is what the command prints."""

from __future__ import annotations

import re
import shlex

import pytest
from cli_runs import run

from neusight.paths import checkout_dir

README = checkout_dir("README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```console\n\$ neusight (.+?[^\\])\n(.+?)^```", README, re.M | re.S)


def test_readme_shows_a_step_a_served_model_and_training() -> None:
    assert [command.partition(" ")[0] for command, _ in EXAMPLES] == ["predict", "serving", "training"]


@pytest.mark.parametrize(("command", "shown"), EXAMPLES, ids=[command.split()[0] for command, _ in EXAMPLES])
def test_an_example_prints_what_readme_shows(command: str, shown: str) -> None:
    """All of it, or its beginning where an ellipsis stands below."""
    printed = run(*shlex.split(command.replace("\\\n", " "))).stdout
    assert printed.startswith(shown.removesuffix("…\n"))
    assert shown.endswith("…\n") or printed == shown
