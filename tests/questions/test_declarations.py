"""Every option is declared once, as a field of a question or of a group of options; commands and files follow from it.

Names that several questions declare, because choices, defaults or bounds differ between them, are in ``DIFFERENT``:

- ``model`` has other sources in a step, a training step and a deployment, and ``config`` and ``decoder`` go with it;
- ``dtype``, ``engine``, ``engine_options`` and ``optimizer`` have other words in training, in serving and in a step of
  one device;
- ``batch`` and ``seq_len`` are sizes of one step in ``Step``, of a load or of a training step elsewhere;
- ``operands`` of a kernel may take turns, those of a step may not;
- ``data`` of `sparsity measure` are images to draw, elsewhere files;
- ``all`` are experiments in one command and optimisations in another;
- ``slo`` of `evaluate` are several levels, elsewhere one.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import neusight

PACKAGE = Path(neusight.__file__).parent
DECLARING = {"option", "text", "texts", "path", "whole", "number", "switch", "required", "degree"}
DIFFERENT = frozenset(
    {
        "model",
        "slo",
        "config",
        "decoder",
        "dtype",
        "engine",
        "engine_options",
        "optimizer",
        "batch",
        "seq_len",
        "operands",
        "data",
        "by",
        "all",
    }
)
BY_TYPER = {"cli/app.py", "cli/spread.py"}
"""Modules that make options of typer: of declarations, and ``--version``."""


def calls() -> Iterator[tuple[str, ast.AnnAssign, ast.Call]]:
    """Fields of classes that are made by a call, with their module."""
    for folder in ("questions", "cli"):
        for path in sorted((PACKAGE / folder).glob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Call):
                    yield path.relative_to(PACKAGE).as_posix(), node, node.value


def name_of(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def declarations() -> dict[str, list[str]]:
    """Modules that declare an option, by its name; arguments of commands have no name there."""
    found: dict[str, list[str]] = {}
    for module, node, call in calls():
        given = {word.arg: ast.literal_eval(word.value) for word in call.keywords if word.arg in ("option", "argument")}
        if name_of(call) in DECLARING and not given.get("argument") and not (
            name_of(call) == "required" and module.startswith("cli/")
        ):  # fmt: skip
            option = given.get("option", f"--{ast.unparse(node.target).replace('_', '-')}")
            found.setdefault(option, []).append(module)
    return found


def test_every_option_is_declared_once() -> None:
    found = declarations()
    assert len(found) > 150
    several = {name: modules for name, modules in found.items() if len(modules) > 1}
    names = {name.removeprefix("--").replace("-", "_") for name in several}
    assert {name: several[f"--{name.replace('_', '-')}"] for name in names - DIFFERENT} == {}
    assert names >= {"model", "dtype", "engine"}


def test_no_command_makes_options_itself() -> None:
    makers = {
        path.relative_to(PACKAGE).as_posix()
        for path in (PACKAGE / "cli").glob("*.py")
        if any(text in path.read_text(encoding="utf-8") for text in ("typer.Option(", "typer.Argument("))
    }
    assert makers - BY_TYPER == set()
