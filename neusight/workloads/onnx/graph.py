"""An ONNX graph as a module whose weights have shapes and no values.

What follows from constants and from shapes is computed as ONNX Runtime does: constants once, when the graph is read,
and shapes on the host. Only what depends on inputs runs on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from onnx.external_data_helper import load_external_data_for_tensor, uses_external_data
from onnx.reference import ReferenceEvaluator
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from neusight.errors import CoverageError, nearest
from neusight.workloads.onnx.node import GraphNode
from neusight.workloads.onnx.operators import OPERATORS

_HOST_ELEMENTS = 1
"""Most elements of floating constants that are numbers, such as an epsilon; larger ones are weights."""
_SHAPES: dict[str, Callable[[torch.Tensor], np.ndarray]] = {
    "Shape": lambda x: np.array(x.shape, dtype=np.int64),
    "Size": lambda x: np.array(x.numel(), dtype=np.int64),
}
_FLOATING = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16, onnx.TensorProto.DOUBLE)


class OnnxModule(nn.Module):
    """A graph; its inputs go by name."""

    def __init__(self, model: onnx.ModelProto, folder: Path) -> None:
        """Read a model whose external data may lie in ``folder``; of weights nothing is read but their shapes.

        Raises:
            CoverageError: an operator has no function here.
        """
        super().__init__()
        self._graph, self._folder = model.graph, folder
        self._opset = {opset.domain or "ai.onnx": opset.version for opset in model.opset_import}
        self._nodes = [GraphNode.of(node, self._opset) for node in model.graph.node]
        _check(self._nodes)
        self._tensors = {tensor.name: tensor for tensor in model.graph.initializer}
        self._host: dict[str, np.ndarray] = {}
        self._weights: dict[str, str] = {}
        for name, tensor in self._tensors.items():
            self._keep(name, tensor)
        self._rest = [node for node in self._nodes if not self._fold(node)]

    def forward(self, **inputs: torch.Tensor) -> tuple[Any, ...]:
        """The graph's outputs, in its order."""
        values: dict[str, Any] = {name: getattr(self, place) for name, place in self._weights.items()}
        values |= self._host | inputs
        left = self._uses()
        for node in self._rest:
            results = self._run(node, values)
            values.update(zip(node.outputs, results, strict=False))
            self._forget(node, left, values)
        return tuple(values[output.name] for output in self._graph.output)

    def _keep(self, name: str, tensor: onnx.TensorProto) -> None:
        """A weight as a parameter, a number or integers with their values."""
        if tensor.data_type in _FLOATING and int(np.prod(tensor.dims)) > _HOST_ELEMENTS:
            self._weigh(name, torch.empty(tuple(tensor.dims)))
        else:
            self._host[name] = self._values(tensor)

    def _weigh(self, name: str, value: torch.Tensor) -> None:
        place = f"weight_{len(self._weights)}"
        self._weights[name] = place
        if value.is_floating_point():
            self.register_parameter(place, nn.Parameter(value))
        else:
            self.register_buffer(place, value)

    def _values(self, tensor: onnx.TensorProto) -> np.ndarray:
        if uses_external_data(tensor):
            load_external_data_for_tensor(tensor, str(self._folder))
        return numpy_helper.to_array(tensor)

    def _fold(self, node: GraphNode) -> bool:
        """Compute a node whose inputs are all constants and store its results; False for others."""
        named = [name for name in node.inputs if name]
        if any(name not in self._host and name not in self._weights for name in named):
            return False
        values = {name: getattr(self, place) for name, place in self._weights.items() if name in named}
        for name, value in zip(node.outputs, self._run(node, values | self._host), strict=False):
            if isinstance(value, torch.Tensor):
                self._weigh(name, value.detach())
            else:
                self._host[name] = value
        return True

    def _run(self, node: GraphNode, values: Mapping[str, Any]) -> list[Any]:
        inputs = [values[name] if name else None for name in node.inputs]
        if node.operator in _SHAPES and isinstance(inputs[0], torch.Tensor):
            start, end = node.attributes.get("start", 0), node.attributes.get("end")
            result = _SHAPES[node.operator](inputs[0])
            return [result[start:end] if result.ndim else result]
        if not any(isinstance(value, torch.Tensor) for value in inputs):
            return _on_host(node, inputs)
        return _as_list(OPERATORS[node.operator](node.with_values(inputs, self._constant)))

    def _constant(self, name: str) -> np.ndarray | None:
        """The values of a small weight that an operator takes as numbers, such as the scales of a resize."""
        tensor = self._tensors.get(name)
        return None if tensor is None else self._values(tensor)

    def _uses(self) -> dict[str, int]:
        """Number of reads of each value, so that it can be released after the last one."""
        counts: dict[str, int] = {output.name: 1 for output in self._graph.output}
        for node in self._rest:
            for name in node.inputs:
                counts[name] = counts.get(name, 0) + 1
        return counts

    @staticmethod
    def _forget(node: GraphNode, left: dict[str, int], values: dict[str, Any]) -> None:
        for name in node.inputs:
            left[name] -= 1
            if not left[name]:
                values.pop(name, None)


def _check(nodes: list[GraphNode]) -> None:
    """Check that every operator has a form; one error names all that are missing."""
    forms = {*OPERATORS, *_SHAPES, "Constant", "ConstantOfShape", "Range"}
    missing = sorted({node.operator for node in nodes} - forms)
    if missing:
        raise CoverageError(
            f"no form of the graph's operators {', '.join(missing[:8])}{nearest(missing[0], forms)}: "
            "pass the model as package.module:function, or export it with others"
        )


def _on_host(node: GraphNode, given: list[Any]) -> list[Any]:
    """Results of an operator by ONNX's reference, or by the forms here where that fails, outside of any trace."""
    feeds = {name: value for name, value in zip(node.inputs, given, strict=True) if name}
    with _disable_current_modes():
        try:
            result = ReferenceEvaluator(node.proto, opsets=node.opsets).run(None, feeds)
        except Exception:
            if node.operator not in OPERATORS:
                raise
            result = _as_list(OPERATORS[node.operator](node.with_values(given, lambda _: None)))
    return [np.asarray(value) for value in result]


def _as_list(result: Any) -> list[Any]:
    return list(result) if isinstance(result, tuple | list) else [result]
