"""Commands run in this process, and what came of them."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from typing import Any

import typer
from typer.testing import CliRunner, Result

from neusight.cli.app import app


def tree(group: Any, *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command below a group, and groups themselves, with the words that call it."""
    for name, command in group.commands.items():
        yield (*path, name), command
        yield from tree(command, *path, name) if hasattr(command, "commands") else ()


ROOT: Any = typer.main.get_command(app)
COMMANDS = dict(tree(ROOT))
"""Commands and groups by the words that call them."""


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments])


def run(*arguments: object) -> Result:
    """A command that does what it should."""
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output
    return result


def as_json(*arguments: object) -> Any:
    return json.loads(run(*arguments, "--format", "json").stdout)


def as_csv(*arguments: object) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(run(*arguments, "--format", "csv").stdout)))


def error(*arguments: object) -> str:
    """The one line on stderr of a command that fails with bad input, and writes no data."""
    result = invoke(*arguments)
    assert result.exit_code in (1, 2), result.output
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


def unsaid(wrong: dict[tuple[object, ...], str]) -> dict[tuple[object, ...], str]:
    """Of wrong commands, by what their line must say, those that say something else."""
    answer = {arguments: error(*arguments) for arguments in wrong}
    return {arguments: line for arguments, line in answer.items() if wrong[arguments] not in line}
