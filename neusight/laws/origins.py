"""Numbers that stand in code beside the constants of laws, and where they come from.

The line below a number says so in brackets that begin with one of ``ORIGINS``: ``(cited: PyTorch, Reduce.cuh)``. A
number that nobody set, ``(assumption: …)``, ends with what would tell: ``(assumption: two fit; names of kernels would
tell)``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[1]
ROOMS = ("laws", "executors", "kernels", "engines")
"""Folders whose numbers decide a prediction."""
ORIGINS = ("fitted", "datasheet", "cited", "assumption", "definition", "numerics")
"""Fitted by a command to measured rows; stated by a vendor of a device; stated by a document or a source file; set by
nobody; true by what words mean, counting and units included; a choice of an algorithm that no measured time decides."""
_ORIGIN = re.compile(rf"\(({'|'.join(ORIGINS)})(?:: ([^()]*(?:\([^()]*\)[^()]*)*))?\)")


def numbers_in_code() -> Iterator[dict[str, Any]]:
    """A row a module-level number, as ``FittedConstants.constants`` has them, its value as it is written; an origin of
    "" where the line below has none.
    """
    for path in sorted(path for room in ROOMS for path in (PACKAGE / room).rglob("*.py")):
        body = ast.parse(path.read_text(encoding="utf-8")).body
        for statement, after in zip(body, [*body[1:], None], strict=True):
            if isinstance(statement, ast.Assign | ast.AnnAssign) and _is_numeric(statement.value):
                target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
                row = {"file": str(path.relative_to(PACKAGE)), "name": ast.unparse(target), "unit": "", "prior": None}
                yield row | {"value": ast.unparse(statement.value or target), "kept": None} | _origin(_text(after))


def _origin(text: str) -> dict[str, str]:
    """``origin``, ``why`` and ``moved_by`` of a number by the line below it."""
    origin, why = found.groups("") if (found := _ORIGIN.search(text)) else ("", "")
    reason, _, moved_by = why.rpartition("; ") if why.endswith(" would tell") else (why, "", "")
    return {"origin": origin, "why": reason, "moved_by": moved_by.removesuffix(" would tell")}


def _text(statement: ast.stmt | None) -> str:
    """The string that a statement is, in one line."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return " ".join(str(statement.value.value).split())
    return ""


def _is_numeric(value: ast.AST | None) -> bool:
    """Whether numbers stand in an expression, but for places in a sequence and what functions hold."""
    if isinstance(value, ast.Lambda | ast.Subscript) or value is None:
        return False
    if isinstance(value, ast.Constant):
        return type(value.value) in (int, float)
    return any(map(_is_numeric, ast.iter_child_nodes(value)))
