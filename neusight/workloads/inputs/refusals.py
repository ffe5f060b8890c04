"""What a model says that it was not given: names of inputs in its refusal, or in the line of it that met a None."""

from __future__ import annotations

import re
from collections.abc import Sequence
from traceback import extract_tb
from types import TracebackType

_WORD = re.compile(r"[A-Za-z_]\w*")
_LINES = 3
"""Innermost lines of a model's own code that are looked at."""
_OTHERS = ("neusight", "torch", "contextlib")
"""Packages whose lines are no model's."""


def missed(refusal: BaseException, names: Sequence[str]) -> str | None:
    """The first of these names that a model asks for.

    Args:
        refusal: what a trace raised, with the model's own error as its cause.
        names: inputs that the model could still be given.
    """
    cause = refusal.__cause__
    found = _WORD.findall(str(refusal if cause is None else cause))
    if cause is not None and "None" in str(cause):
        found += [word for line in _model_lines(cause.__traceback__) for word in _WORD.findall(line)]
    return next((word for word in found if word in names), None)


def _model_lines(traceback: TracebackType | None) -> list[str]:
    """Lines of code from the failing one outwards, those of libraries left out."""
    frames = [frame for frame in extract_tb(traceback) if not _of_library(frame.filename)]
    return [frame.line or "" for frame in reversed(frames[-_LINES:])]


def _of_library(file: str) -> bool:
    return any(part in _OTHERS for part in file.replace(".py", "").split("/")[:-1]) or file.endswith("contextlib.py")
