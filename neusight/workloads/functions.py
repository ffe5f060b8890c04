"""Functions of a user that build a module and its inputs: found, imported and called as on the target device."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

from neusight.errors import ModelError, NeusightError, nearest, reason
from neusight.extras import remedy
from neusight.quick_dataclasses import dataclass
from neusight.workloads.target import Facts, TargetReader


def source_file(module_name: str, text: str) -> Path:
    """The file of a module that is to be imported.

    Raises:
        ModelError: there is none, or a package around it fails.
    """
    try:
        spec = importlib.util.find_spec(module_name)
    # A package around the module is imported to find it, and may do what it likes.
    except (Exception, SystemExit) as error:
        raise ModelError(f"cannot import the module of '{text}': {_told(error)}") from None
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        raise ModelError(f"no module '{module_name}' for '{text}': run in the folder that holds it, or install it")
    return Path(spec.origin)


def module_sources(text: str) -> dict[str, str]:
    """Source lines of the classes of each module of ``package.module:function``, as ``file:line`` by the pattern of its
    path, ``h.{}.mlp``.

    Raises:
        ModelError: as ``call_function``.
    """
    module, _ = call_function(text, 1, None)
    lines: dict[str, dict[str, None]] = {}
    for name, part in module.named_modules():
        pattern = re.sub(r"(^|\.)\d+(?=\.|$)", r"\1{}", name)
        line = f"{inspect.getsourcefile(type(part))}:{inspect.getsourcelines(type(part))[1]}"
        lines.setdefault(pattern, {})[line] = None
    return {pattern: ", ".join(places) for pattern, places in lines.items()}


def call_function(text: str, batch: int, seq_len: int | None, reader: TargetReader | None = None) -> tuple[Any, Any]:
    """Call ``package.module:function``; it gives a module and its example inputs.

    Args:
        text: what the user named.
        batch: passed on if the function takes ``batch``; one that does not has 1.
        seq_len: passed on if the function takes ``seq_len`` and it is not None.
        reader: of the device that the function and the modules around it meet; None for that of this machine.

    Raises:
        ModelError: the function is missing, raises or exits, gives something else, or takes no batch or length.
    """
    with _meeting(reader):
        return _call(text, import_function(text, reader), batch, seq_len)


def _meeting(reader: TargetReader | None) -> AbstractContextManager[None]:
    if reader is None:
        return nullcontext()
    from neusight.workloads.trace.target_device import on_target

    return on_target(reader)


def _call(text: str, function: Callable[..., Any], batch: int, seq_len: int | None) -> tuple[Any, Any]:
    options = function_options(function, text, batch, seq_len)
    try:
        with importable_here():
            result = _without_weights(function, options)
    except NeusightError:
        raise
    except (Exception, SystemExit) as error:
        raise ModelError(f"{text} raised {_told(error)}: make it return a module and its example inputs") from error
    if not isinstance(result, tuple) or len(result) != 2 or not callable(result[0]):
        raise ModelError(f"{text} returned {type(result).__name__}: return a module and its example inputs")
    return result


def function_options(function: Callable[..., Any], text: str, batch: int, seq_len: int | None) -> dict[str, int]:
    """Keyword arguments for a user's function. It takes what was asked for, or says that it does not."""
    try:
        parameters = inspect.signature(function).parameters
    except ValueError:
        raise ModelError(f"{text} does not say what it takes: name a function written in Python") from None
    if batch != 1 and "batch" not in parameters:
        raise ModelError(f"{text} takes no batch, it decides that itself: leave out --batch, or give it that parameter")
    if seq_len is not None and "seq_len" not in parameters:
        raise ModelError(f"{text} takes no seq_len: leave out --seq-len, or give the function that parameter")
    requested = {"batch": batch, "seq_len": seq_len}
    return {key: value for key, value in requested.items() if key in parameters and value is not None}


def _told(error: BaseException) -> str:
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    return f"{type(error).__name__}: {reason(error)}{remedy(missing)}"


def _without_weights(function: Callable[..., Any], options: dict[str, Any]) -> Any:
    """The result, whose large tensors have no storage, so that a large model needs no memory; random numbers are the
    same each time.

    A function that reads values from large tensors cannot be called like that, and is called once more as it is.
    """
    from neusight.workloads.trace.building import Sparing

    try:
        return _call_seeded(Sparing(), function, options)
    except (RuntimeError, NotImplementedError):
        return _call_seeded(nullcontext(), function, options)


def _call_seeded(mode: AbstractContextManager[Any], function: Callable[..., Any], options: dict[str, Any]) -> Any:
    import torch

    with torch.random.fork_rng(devices=[]), mode:
        torch.manual_seed(0)
        return function(**options)


def import_function(text: str, reader: TargetReader | None = None) -> Callable[..., Any]:
    """The function that ``package.module:function`` names.

    Raises:
        ModelError: there is none, or its module fails.
    """
    module_name, _, name = text.partition(":")
    with importable_here():
        try:
            module = importlib.import_module(module_name) if reader is None else _import_for(module_name, reader)
        except NeusightError:
            raise
        except (Exception, SystemExit) as error:
            raise ModelError(f"cannot import the module of '{text}': {_told(error)}") from error
    function = getattr(module, name, None)
    if not callable(function):
        names = [n for n, v in vars(module).items() if inspect.isfunction(v) and v.__module__ == module_name]
        hint = nearest(name, names) or f": it has {', '.join(names) or 'none'}"
        raise ModelError(f"module '{module_name}' has no function '{name}'{hint}")
    return function


@dataclass(frozen=True, kw_only=True)
class _Import:
    """An import for a target: the facts that it read of it, the modules that came with it, PyTorch's default dtype."""

    facts: Facts
    modules: tuple[str, ...]
    dtype: Any


_IMPORTS: dict[str, _Import] = {}


def _import_for(name: str, reader: TargetReader) -> ModuleType:
    """The module as it is for a target: imported again where an earlier import has read other facts of another."""
    import torch

    done = _IMPORTS.get(name)
    if done is not None and not reader.target.agrees(done.facts):
        for other in done.modules:
            sys.modules.pop(other, None)
        done = None
    if done is None:
        before, used = set(sys.modules), TargetReader(reader.target)
        with _meeting(used):
            module = importlib.import_module(name)
            folder = str(Path(module.__file__ or "").parent)
            own_modules = (m for m, loaded in sys.modules.items() if m not in before and _lies_in(loaded, folder))
            done = _IMPORTS[name] = _Import(
                facts=used.read_facts, modules=tuple(own_modules), dtype=torch.get_default_dtype()
            )
    reader.facts.update(done.facts)
    torch.set_default_dtype(done.dtype)
    return importlib.import_module(name)


def _lies_in(module: Any, folder: str) -> bool:
    return (getattr(module, "__file__", None) or "").startswith(folder)


@contextmanager
def importable_here() -> Iterator[None]:
    """The current folder on the import path, as for ``python -m``."""
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)
