"""One operator of an ONNX graph with what it is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
import torch

from neusight.errors import ModelError

_DTYPES: dict[int, torch.dtype] = {
    onnx.TensorProto.FLOAT: torch.float32,
    onnx.TensorProto.FLOAT16: torch.float16,
    onnx.TensorProto.BFLOAT16: torch.bfloat16,
    onnx.TensorProto.DOUBLE: torch.float64,
    onnx.TensorProto.INT64: torch.int64,
    onnx.TensorProto.INT32: torch.int32,
    onnx.TensorProto.INT16: torch.int16,
    onnx.TensorProto.INT8: torch.int8,
    onnx.TensorProto.UINT8: torch.uint8,
    onnx.TensorProto.BOOL: torch.bool,
}


def dtype_of(kind: int) -> torch.dtype:
    """PyTorch's dtype of ONNX's; floating ones are the one that the step runs in.

    Raises:
        ModelError: PyTorch has none.
    """
    dtype = _DTYPES.get(kind)
    if dtype is None:
        name = onnx.TensorProto.DataType.Name(kind)
        raise ModelError(f"no tensor of PyTorch has ONNX's dtype {name}: export the model with another")
    return torch.get_default_dtype() if dtype.is_floating_point else dtype


@dataclass(frozen=True, kw_only=True)
class GraphNode:
    """An operator: names of its inputs ('' for one left out) and outputs, attributes, and ``given`` values."""

    proto: onnx.NodeProto
    operator: str
    opsets: dict[str, int]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    given: Sequence[Any] = ()
    constant: Callable[[str], np.ndarray | None] = field(default=lambda name: None)

    @classmethod
    def of(cls, proto: onnx.NodeProto, opsets: Mapping[str, int]) -> GraphNode:
        """Read one; operators of other domains have their domain before their name."""
        is_standard = proto.domain in ("", "ai.onnx")
        return cls(
            proto=proto,
            operator=proto.op_type if is_standard else f"{proto.domain}::{proto.op_type}",
            opsets={"" if domain == "ai.onnx" else domain: version for domain, version in opsets.items()},
            inputs=tuple(proto.input),
            outputs=tuple(proto.output),
            attributes={attribute.name: _attribute(attribute) for attribute in proto.attribute},
        )

    def with_values(self, given: Sequence[Any], constant: Callable[[str], np.ndarray | None]) -> GraphNode:
        """The same with the values of its inputs."""
        return replace(self, given=given, constant=constant)

    @property
    def version(self) -> int:
        """Version of the operator set."""
        return int(self.opsets.get("", 1))

    def tensor(self, place: int) -> Any:
        """An input as a tensor, or a number where it is a single constant; None where it is left out."""
        value = self.given[place] if place < len(self.given) else None
        if isinstance(value, np.ndarray):
            if value.size == 1 and not value.ndim:
                return value.item()
            tensor = torch.tensor(value)
            return tensor.to(torch.get_default_dtype()) if tensor.is_floating_point() else tensor
        return value

    def numbers(self, place: int, attribute: str = "") -> list[Any] | None:
        """The values of an input that must be known, or of the attribute that it was in older versions."""
        if attribute in self.attributes:
            setting = self.attributes[attribute]
            return list(setting) if isinstance(setting, list | tuple) else [setting]
        value = self.given[place] if place < len(self.given) else None
        if isinstance(value, torch.Tensor):
            value = self.constant(self.inputs[place])
            if value is None:
                raise ModelError(
                    f"{self.operator} '{self.proto.name}' takes sizes that depend on data: export the model with others"
                )
        return None if value is None else np.asarray(value).reshape(-1).tolist()

    def number(self, place: int, attribute: str = "", default: Any = None) -> Any:
        """The first of ``numbers``, or the default."""
        numbers = self.numbers(place, attribute)
        return numbers[0] if numbers else default

    def get(self, attribute: str, default: Any = None) -> Any:
        """An attribute."""
        return self.attributes.get(attribute, default)


def _attribute(proto: onnx.AttributeProto) -> Any:
    value = onnx.helper.get_attribute_value(proto)
    if isinstance(value, bytes):
        return value.decode()
    return list(value) if not isinstance(value, int | float | str) and hasattr(value, "__len__") else value
