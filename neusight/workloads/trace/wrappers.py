"""Wrappers around modules: ``torch.compile``, and those that spread a module over devices."""

from __future__ import annotations

import sys
from collections.abc import Callable
from inspect import getclosurevars
from typing import Any

import torch
from torch._dynamo import eval_frame
from torch.nn.parallel import DataParallel, DistributedDataParallel

from neusight.errors import ModelError
from neusight.workloads.target import PARTLY_COMPILED, TargetReader
from neusight.workloads.trace.library_forms import Form

_AS_WRITTEN = ("eager", "aot_eager", "pre_dispatch_eager")
"""Backends of ``torch.compile`` that run operators one by one."""
_REPLICAS: dict[type, str] = {
    DataParallel: "one device runs the whole batch; --dp shares it among several",
    DistributedDataParallel: "one device exchanges no gradients; --dp adds replicas",
}


def unwrap(module: Any, notes: dict[str, None]) -> tuple[Any, str]:
    """The module inside all wrappers, and how they launch it, '' where they leave that open.

    Raises:
        ModelError: its weights are split up among devices.
    """
    launch = ""
    while True:
        if context := _compiler_of(module):
            launch = launch or _launch_of(context, notes)
        name = type(module).__name__
        if "FullyShardedDataParallel" in name or any(type(p).__name__ == "DTensor" for p in module.parameters()):
            raise ModelError(
                f"the weights of {name} are split up among devices: give the module as it was before that, and --dp "
                "with --shard zero3"
            )
        if hasattr(module, "_orig_mod"):
            module = module._orig_mod
        elif type(module) in _REPLICAS:
            notes[f"{name} around the module is left out: {_REPLICAS[type(module)]}"] = None
            module = module.module
        else:
            return module, launch


def note_compilers(module: torch.nn.Module, notes: dict[str, None]) -> None:
    """Note which submodules ``torch.compile`` compiles, in one line."""
    paths = [path for path, part in module.named_modules() if (ctx := _compiler_of(part)) and _launch_of(ctx, notes)]
    names = [path.replace("._orig_mod", "") for path in paths if path]
    if names:
        more = f" and {len(names) - 1} more layers are" if len(names) > 1 else " is"
        notes[f"layer '{names[0]}'{more} {PARTLY_COMPILED}"] = None


def strip_compilers(module: torch.nn.Module) -> None:
    """Run every submodule as written."""
    for part in list(module.modules()):
        part._compiled_call_impl = None
        children: dict[str, Any] = part._modules
        for name, child in children.items():
            children[name] = getattr(child, "_orig_mod", child)


def _compiler_of(module: Any) -> Any:
    """The context of ``torch.compile`` that a module runs in; None for one that runs as written."""
    if hasattr(module, "_orig_mod"):
        return module.dynamo_ctx
    call: Any = getattr(module, "_compiled_call_impl", None)
    return getclosurevars(call).nonlocals.get("self") if hasattr(call, "get_compiler_config") else None


def _launch_of(context: Any, notes: dict[str, None]) -> str:
    """The launch that a backend of ``torch.compile`` stands for; '' where it runs operators one by one."""
    backend: Any = eval_frame.innermost_backend(context.callback)
    name = getattr(backend, "compiler_name", "")
    if name == "inductor":
        return "graph" if backend.config.get("triton.cudagraphs") else "compiled"
    if name not in (*_AS_WRITTEN, "cudagraphs"):
        notes[f"backend '{name}' of torch.compile is not estimated: its kernels are priced as PyTorch's"] = None
    return name if name == "cudagraphs" else ""


def compiler_forms(reader: TargetReader) -> list[Form]:
    """Run functions that ``torch.compile`` would compile as written, with a note of each."""

    def callback_of(own: Callable[..., Any]) -> Callable[..., Any]:
        def callback(compiler: Any) -> None:
            function = sys._getframe(1).f_locals.get("fn")
            if callable(compiler) and not _module_of(function).startswith("torch."):
                reader.notes[f"function '{getattr(function, '__qualname__', function)}' is {PARTLY_COMPILED}"] = None

        return callback

    return [(eval_frame, "_callback_from_stance", callback_of)]


def _module_of(function: Any) -> str:
    return getattr(function, "__module__", None) or ""
