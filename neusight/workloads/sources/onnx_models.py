"""ONNX files: ``model.onnx``. Weights are not read; extents that a file leaves open take what was asked for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neusight.errors import ModelError, reason
from neusight.requests import Request
from neusight.workloads.sources.described import Inputs
from neusight.workloads.sources.files import digest, for_inference, sized
from neusight.workloads.sources.libraries import library

if TYPE_CHECKING:
    import torch

SUFFIX = ".onnx"


@dataclass(frozen=True, kw_only=True)
class OnnxModel:
    """A graph in a file, with external data beside it, if any."""

    file: Path

    @property
    def content(self) -> str:
        """The file's; values of weights, which may lie elsewhere, change no kernel."""
        return f"onnx {digest(self.file)}"

    def settled(self, request: Request) -> Request:
        """Inference; extents that the graph leaves open may be asked for.

        Raises:
            ModelError: training was asked for, which a graph does not have.
        """
        return for_inference(request)

    def build(self, request: Request) -> torch.nn.Module:
        """The graph as a module.

        Raises:
            ModelError: onnx is missing, or the file is no graph. CoverageError: an operator has no form.
        """
        library("onnx")
        from neusight.workloads.onnx.graph import OnnxModule

        return OnnxModule(self._model, self.file.parent)

    def inputs(self, request: Request) -> Inputs:
        """By name, all that is no weight."""
        weights = {tensor.name for tensor in self._model.graph.initializer}
        return {
            given.name: self._input(given, request) for given in self._model.graph.input if given.name not in weights
        }

    def _input(self, given: Any, request: Request) -> Any:
        from neusight.workloads.onnx.node import dtype_of

        kind = given.type.tensor_type
        if not given.type.HasField("tensor_type"):
            raise ModelError(
                f"input '{given.name}' of {request.model} is no tensor: export the model with tensors alone"
            )
        extents = [dim.dim_value if dim.HasField("dim_value") else None for dim in kind.shape.dim]
        return sized(given.name, extents, str(dtype_of(kind.elem_type)).removeprefix("torch."), request)

    @cached_property
    def _model(self) -> Any:
        onnx = library("onnx")
        try:
            model = onnx.load(str(self.file), load_external_data=False)
        except Exception as error:
            raise ModelError(
                f"{self.file} is no ONNX graph ({type(error).__name__}: {reason(error)}): write it again with "
                "torch.onnx.export"
            ) from None
        if not model.graph.node:
            raise ModelError(f"{self.file} holds no operators: write it again with torch.onnx.export")
        return model
