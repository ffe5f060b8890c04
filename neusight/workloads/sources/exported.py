"""Programs of ``torch.export``: ``model.pt2``, as ``torch.export.save`` writes them."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neusight.errors import ModelError, reason
from neusight.requests import Request
from neusight.workloads.sources.described import Inputs
from neusight.workloads.sources.files import digest, for_inference, sized

if TYPE_CHECKING:
    import torch

SUFFIX = ".pt2"


@dataclass(frozen=True, kw_only=True)
class ExportedModel:
    """A program in a file."""

    file: Path

    @property
    def content(self) -> str:
        """The file's."""
        return f"exported {digest(self.file)}"

    def settled(self, request: Request) -> Request:
        """Inference; extents that the program leaves open may be asked for.

        Raises:
            ModelError: training was asked for, which a program does not have.
        """
        return for_inference(request)

    def build(self, request: Request) -> torch.nn.Module:
        """The program as a module without weights."""
        import torch

        from neusight.workloads.trace.building import copy_as_fake
        from neusight.workloads.trace.exported_forms import as_module

        with warnings.catch_warnings():
            # Copies of a program's signature ask for classes by names that PyTorch has changed.
            warnings.simplefilter("ignore", FutureWarning)
            return copy_as_fake(as_module(self._program), torch.get_default_dtype())

    def inputs(self, request: Request) -> Inputs:
        """By name, where the program has names; extents that it leaves open as they were asked for."""
        placeholders = {node.name: node for node in self._program.graph.nodes if node.op == "placeholder"}
        found: dict[str, Any] = {}
        for name in self._program.graph_signature.user_inputs:
            value = placeholders[name].meta.get("val") if isinstance(name, str) and name in placeholders else name
            shape = getattr(value, "shape", None)
            dtype = str(getattr(value, "dtype", "")).removeprefix("torch.")
            found[str(name)] = value if shape is None else sized(name, _extents(shape), dtype, request)
        return found

    @cached_property
    def _program(self) -> torch.export.ExportedProgram:
        from torch.export import load
        from torch.utils._python_dispatch import _disable_current_modes

        try:
            with _disable_current_modes():
                return load(self.file)
        except Exception as error:
            raise ModelError(
                f"{self.file} is no program of this PyTorch ({type(error).__name__}: {reason(error)}): write it again "
                "with torch.export.save"
            ) from None


def _extents(shape: Any) -> list[int | None]:
    """Sizes, with None for those that the program leaves open."""
    return [size if isinstance(size, int) else None for size in shape]
