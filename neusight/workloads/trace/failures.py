"""Whatever a user's module raises, as one line: where, what, and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import extract_tb, walk_tb
from typing import Any

from neusight.errors import ModelError, NeusightError

_ADDRESS = re.compile(r"<?(?:[\w<>]+\.)*(\w+) (?:object )?at 0x[0-9a-fA-F]+>?")
_HIGHER_ORDER = re.compile(r"HigherOrderOperator (\w+)")
_NO_CUDA = re.compile(
    r"not compiled with CUDA|not linked with support for|No CUDA GPUs|NVIDIA driver|without CUDA|dummy base class"
)
_MISFIT = re.compile(
    r"\b(?:shapes?|sizes?|dimensions?|dims?|dtypes?)\b|scalar type|broadcast|channels|mat1|out of (?:range|bounds)"
    r"|required (?:positional|keyword)|unexpected keyword|positional argument|NoneType|(?:too many|enough) values"
    r"|has no attribute '(?:shape|size|dim)'|[Ee]xpected .*(?:tensor|Tensor|input|got)"
)
"""Messages of PyTorch and Python where the shapes, dtypes or number of inputs do not fit."""


@contextmanager
def explain_failures(name: str, doing: str) -> Iterator[None]:
    """Turn exceptions of a user's module into one line.

    Raises:
        ModelError: which of its layers had been called with which shapes, what it raised, and the remedy.
    """
    try:
        yield
    except NeusightError:
        raise
    except Exception as error:
        raise ModelError(f"cannot {doing} '{name}': {_failed_layer(error)}{_reason(error)}") from error


def _reason(error: Exception) -> str:
    """The first line of an exception without addresses of objects, with a remedy."""
    lines = str(error).strip().splitlines() or ["no message"]
    first = _ADDRESS.sub(r"\1", lines[0]).rstrip(".:( ")
    text = f"{type(error).__name__}: {first}"
    if operator := _HIGHER_ORDER.search(str(error)):
        return f"it calls {operator[1]}, an operator on functions that is not traced: write it as plain Python code"
    if "does not require grad" in lines[0]:
        return "the loss does not depend on its weights, so there is nothing to train: ask for inference"
    if _NO_CUDA.search(lines[0]):
        return f"{text}; that part of torch.cuda is not traced: leave it out"
    if _MISFIT.search(lines[0]):
        return f"{text}; check that the inputs fit its forward()"
    return f"{text} ({_place(error)})"


def _place(error: Exception) -> str:
    """The file and line of the innermost code that belongs neither to PyTorch nor to this package."""
    frames = [f for f in extract_tb(error.__traceback__) if not {"torch", "neusight"} & set(Path(f.filename).parts)]
    return f"{Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else "in PyTorch"


def _failed_layer(error: BaseException) -> str:
    """The innermost layer whose ``forward`` had begun, with the tensors that it was called with; '' without any."""
    import torch

    frames = [frame for frame, _ in walk_tb(error.__traceback__) if frame.f_code.co_name == "forward"]
    owners = [frame.f_locals.get(next(iter(frame.f_code.co_varnames), "")) for frame in frames]
    called = [(owner, f) for owner, f in zip(owners, frames, strict=True) if isinstance(owner, torch.nn.Module)]
    if not called:
        return ""
    module, frame = called[-1]
    path = next((path for path, part in called[0][0].named_modules() if part is module), "")
    arguments = {name: frame.f_locals.get(name) for name in frame.f_code.co_varnames[1 : frame.f_code.co_argcount]}
    shapes = [f"{name} {_extents(value)}" for name, value in arguments.items() if isinstance(value, torch.Tensor)]
    layer = f"layer '{path}' ({type(module).__name__})" if path else "its forward()"
    return f"{layer} called with {', '.join(shapes)}: " if shapes else f"{layer}: "


def _extents(tensor: Any) -> str:
    return "x".join(map(str, tensor.shape)) or "scalar"
