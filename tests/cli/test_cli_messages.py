"""What messages name is there: commands, their options, and the help of the command in which an error arose."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from cli_runs import COMMANDS, invoke

import neusight
from neusight.questions.files import KINDS

PACKAGE = Path(neusight.__file__).parent
OTHER_PROGRAMS = (
    "engines",
    "plans",
    "questions/engined.py",
    "questions/launch.py",
    "serving",
    "evaluation",
    "learn",
    "workloads/decoders",
    "workloads/build_traces.py",
)
"""Rooms that name options of servers and training frameworks, and of scripts."""
PROSE = ("on", "import", "imports")
"""Words after the program's name that are no command."""


def options(command: Any) -> set[str]:
    names = {name for p in command.params for name in (*p.opts, *p.secondary_opts)}
    return {"--help", *getattr(command.callback, "renamed", ())} | names


@cache
def texts() -> list[tuple[str, str]]:
    """Module and each string in it; what is filled into a string as {}."""
    return list(_strings())


def _strings() -> Iterator[tuple[str, str]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield str(path.relative_to(PACKAGE)), node.value
            if isinstance(node, ast.JoinedStr):
                parts = (each.value if isinstance(each, ast.Constant) else "{}" for each in node.values)
                yield str(path.relative_to(PACKAGE)), "".join(map(str, parts))


def faults(text: str) -> Iterator[str]:
    """Commands and options of commands that a text names, and that are not there."""
    for first, second, rest in re.findall(r"neusight ([a-z][a-z-]*)(?: ([a-z][a-z-]*))?([^`'\n;,:]*)", text):
        command = COMMANDS.get((first,))
        if command is None:
            yield from () if first in PROSE else (f"neusight {first}",)
            continue
        if hasattr(command, "commands") and second:
            command = COMMANDS.get((first, second))
        if command is None:
            yield f"neusight {first} {second}"
            continue
        yield from (f"{first} {name}" for name in re.findall(r"--[a-z][a-z-]+", rest) if name not in options(command))
    for first, second in re.findall(r"`([a-z-]+) ([a-z-]+)`", text):
        if hasattr(COMMANDS.get((first,)), "commands") and (first, second) not in COMMANDS:
            yield f"`{first} {second}`"


def test_faults_of_a_text_are_found() -> None:
    assert list(
        faults("see `datasets clean`, neusight datasets clean, neusight nope, neusight predict gpt2 --nope")
    ) == [
        "neusight datasets clean",
        "neusight nope",
        "predict --nope",
        "`datasets clean`",
    ]
    assert not list(faults("neusight datasets verify SET; `datasets verify`, neusight predict gpt2 --gpu l4"))


def test_every_command_in_a_message_exists() -> None:
    assert [(module, fault) for module, text in texts() for fault in faults(text)] == []


def test_every_option_in_a_message_exists() -> None:
    known = {"--version"}.union(*map(options, COMMANDS.values()))
    known |= {declared.option for noun in KINDS.values() for declared in noun.fields().values()}
    named = {
        (module, name)
        for module, text in texts()
        if not module.startswith(OTHER_PROGRAMS)
        for name in re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z]\b(?!-)", text)
    }
    assert {(module, name) for module, name in named if name not in known} == set()


def _with_value(command: Any) -> str:
    """The first option that takes a value, '' where there is none."""
    takers = (p for p in command.params if p.param_type_name == "option" and not p.is_flag)
    return next((p.opts[0] for p in takers), "")


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_an_error_names_the_help_of_its_command(path: tuple[str, ...]) -> None:
    """A value that is missing, an option that is not there, and a command that a group has not."""
    command = COMMANDS[path]
    wrong = [("--no-such-option",), *([(name,)] if (name := _with_value(command)) else [])]
    wrong += [("no-such-command",)] if hasattr(command, "commands") else []
    for words in wrong:
        result = invoke(*path, *words)
        assert result.exit_code == 2
        assert result.stderr.endswith(f" {' '.join(path)} --help\n"), result.stderr
