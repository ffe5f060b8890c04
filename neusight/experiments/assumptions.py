"""Numbers in the path of a prediction that no fit found: what the code itself says of each."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

ROOMS = ("kernels", "laws", "engines", "executors/costs", "executors/gpu", "executors/link", "schedule", "serving")
"""Below ``neusight``: everything that a prediction asks but the constants that are fitted."""
WORD = "assum"


@dataclass(frozen=True, kw_only=True)
class Assumption:
    """A constant of a module, its value as written, and the sentence that says why."""

    module: str
    name: str
    value: str
    why: str


def assumptions() -> list[Assumption]:
    """Constants whose docstring calls them an assumption, in the order of their modules."""
    package = Path(__file__).resolve().parent.parent
    numbers = []
    for room in ROOMS:
        for file in sorted((package / room).rglob("*.py")) or [(package / room).with_suffix(".py")]:
            module = str(file.relative_to(package))
            numbers += list(_of_body(ast.parse(file.read_text(encoding="utf-8")).body, module))
    return numbers


def _of_body(body: list[ast.stmt], module: str) -> Iterator[Assumption]:
    for statement, after in pairwise(body):
        text = _text(after)
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None and WORD in text.lower():
            target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
            value = " ".join(ast.unparse(statement.value).split())
            yield Assumption(module=module, name=ast.unparse(target).strip("()"), value=value, why=_sentence(text))
    for statement in body:
        if isinstance(statement, ast.ClassDef):
            yield from _of_body(statement.body, module)


def _text(statement: ast.stmt) -> str:
    held = statement.value if isinstance(statement, ast.Expr) else None
    return " ".join(held.value.split()) if isinstance(held, ast.Constant) and isinstance(held.value, str) else ""


def _sentence(text: str) -> str:
    """The sentence that has the word, or all where it is short."""
    sentences = [part for part in text.replace("; ", ". ").split(". ") if WORD in part.lower()]
    return sentences[0].rstrip(".") if len(text) > 160 and sentences else text.rstrip(".")
