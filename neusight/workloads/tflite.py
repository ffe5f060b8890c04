"""A graph of TensorFlow Lite (``model.tflite``) as a module whose weights have shapes and no values.

Shapes of all results stand in the file, so that nothing is inferred; images lie with their channels last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tflite
import torch
from torch import nn
from torch.nn import functional

from neusight.errors import CoverageError, nearest

NAMES = {value: name for name, value in vars(tflite.BuiltinOperator).items() if isinstance(value, int)}
_TYPES = {value: name.lower() for name, value in vars(tflite.TensorType).items() if isinstance(value, int)}
_SAME = tflite.Padding.SAME
_ACTIVATIONS: dict[int, Callable[[torch.Tensor], torch.Tensor]] = {
    tflite.ActivationFunctionType.RELU: functional.relu,
    tflite.ActivationFunctionType.RELU6: functional.relu6,
    tflite.ActivationFunctionType.RELU_N1_TO_1: functional.hardtanh,
    tflite.ActivationFunctionType.TANH: torch.tanh,
}


@dataclass(frozen=True)
class GraphLayer:
    """An operator of the file with the values of its inputs; ``made`` are the shapes of its results."""

    name: str
    options: Any
    values: Sequence[Any]
    made: Sequence[tuple[int, ...]]

    @property
    def x(self) -> torch.Tensor:
        """The first input."""
        return self.tensor(0)

    def tensor(self, place: int) -> Any:
        """An input, None where it is left out."""
        return self.values[place] if place < len(self.values) else None

    def numbers(self, place: int) -> list[int]:
        """The values of a constant input."""
        return np.atleast_1d(self.values[place]).tolist()

    def activate(self, result: torch.Tensor) -> torch.Tensor:
        """A result with the activation that the operator ends in."""
        function = _ACTIVATIONS.get(self.options.FusedActivationFunction())
        return result if function is None else function(result)


def _first(image: torch.Tensor) -> torch.Tensor:
    return image.permute(0, 3, 1, 2)


def _last(image: torch.Tensor) -> torch.Tensor:
    return image.permute(0, 2, 3, 1)


def _padding(layer: GraphLayer, window: Sequence[int], dilations: Sequence[int] = (1, 1)) -> list[int]:
    """Padding of both ends alike that leaves at least as many results as the file states."""
    if layer.options.Padding() != _SAME:
        return [0, 0]
    steps = (layer.options.StrideH(), layer.options.StrideW())
    sizes = zip(layer.x.shape[1:3], layer.made[0][1:3], window, steps, dilations, strict=True)
    return [
        max(0, -(-((made - 1) * step + (width - 1) * gap + 1 - size) // 2)) for size, made, width, step, gap in sizes
    ]


def _cut(layer: GraphLayer, image: torch.Tensor) -> torch.Tensor:
    """The part of an image, channels last, that the file states."""
    height, width = layer.made[0][1:3]
    return image[:, :height, :width]


def _convolution(layer: GraphLayer, weight: torch.Tensor, groups: int) -> torch.Tensor:
    options = layer.options
    dilations = (options.DilationHFactor(), options.DilationWFactor())
    padding = _padding(layer, weight.shape[2:], dilations)
    steps = (options.StrideH(), options.StrideW())
    made = functional.conv2d(_first(layer.x), weight, layer.tensor(2), steps, padding, dilations, groups)
    return layer.activate(_cut(layer, _last(made)))


def _conv(layer: GraphLayer) -> torch.Tensor:
    weight = _first(layer.tensor(1))
    return _convolution(layer, weight, layer.x.shape[3] // weight.shape[1])


def _depthwise(layer: GraphLayer) -> torch.Tensor:
    return _convolution(layer, layer.tensor(1).permute(3, 0, 1, 2), layer.x.shape[3])


def _transpose(layer: GraphLayer) -> torch.Tensor:
    image, weight = layer.tensor(2), layer.tensor(1).permute(3, 0, 1, 2)
    steps = (layer.options.StrideH(), layer.options.StrideW())
    made = functional.conv_transpose2d(_first(image), weight, layer.tensor(3), steps)
    return _cut(layer, _last(made))


def _dense(layer: GraphLayer) -> torch.Tensor:
    weight = layer.tensor(1)
    made = functional.linear(layer.x.reshape(-1, weight.shape[1]), weight, layer.tensor(2))
    return layer.activate(made.reshape(layer.made[0]))


def _pool(function: Callable[..., torch.Tensor]) -> Callable[[GraphLayer], torch.Tensor]:
    def pool(layer: GraphLayer) -> torch.Tensor:
        options = layer.options
        window = (options.FilterHeight(), options.FilterWidth())
        steps = (options.StrideH(), options.StrideW())
        made = function(_first(layer.x), window, steps, _padding(layer, window))
        return layer.activate(_cut(layer, _last(made)))

    return pool


def _binary(function: Callable[..., torch.Tensor], *, ends: bool = True) -> Callable[[GraphLayer], torch.Tensor]:
    """Form of an operator of two operands; ``ends`` in an activation."""

    def apply(layer: GraphLayer) -> torch.Tensor:
        made = function(layer.x, layer.tensor(1))
        return layer.activate(made) if ends else made

    return apply


def _unary(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[GraphLayer], torch.Tensor]:
    return lambda layer: function(layer.x)


def _reduce(function: Callable[..., torch.Tensor]) -> Callable[[GraphLayer], torch.Tensor]:
    return lambda layer: function(layer.x, layer.numbers(1), keepdim=bool(layer.options.KeepDims()))


def _pad(layer: GraphLayer) -> torch.Tensor:
    ends = layer.values[1].reshape(-1, 2)[::-1].reshape(-1).tolist()
    return functional.pad(layer.x, ends)


def _part(layer: GraphLayer) -> torch.Tensor:
    """A part of a tensor: where it begins changes no kernel."""
    dropped = layer.options.ShrinkAxisMask() if layer.name == "STRIDED_SLICE" else 0
    left, part = iter(layer.made[0]), layer.x
    for axis in range(part.dim()):
        part = part.narrow(axis, 0, 1 if dropped >> axis & 1 else next(left))
    return part.reshape(layer.made[0]).contiguous()


def _split(layer: GraphLayer) -> Sequence[torch.Tensor]:
    axis = layer.numbers(0)[0]
    parts = torch.split(layer.tensor(1), [shape[axis] for shape in layer.made], axis)
    return [part.contiguous() for part in parts]


def _resize(mode: str) -> Callable[[GraphLayer], torch.Tensor]:
    return lambda layer: _last(functional.interpolate(_first(layer.x), tuple(layer.made[0][1:3]), mode=mode))


OPERATORS: dict[str, Callable[[GraphLayer], Any]] = {
    "CONV_2D": _conv,
    "DEPTHWISE_CONV_2D": _depthwise,
    "TRANSPOSE_CONV": _transpose,
    "FULLY_CONNECTED": _dense,
    "BATCH_MATMUL": _binary(torch.matmul, ends=False),
    "AVERAGE_POOL_2D": _pool(functional.avg_pool2d),
    "MAX_POOL_2D": _pool(functional.max_pool2d),
    "ADD": _binary(torch.add),
    "SUB": _binary(torch.sub),
    "MUL": _binary(torch.mul),
    "DIV": _binary(torch.div),
    "MAXIMUM": _binary(torch.maximum, ends=False),
    "MINIMUM": _binary(torch.minimum, ends=False),
    "PRELU": _binary(lambda x, slope: torch.where(x > 0, x, slope * x), ends=False),
    "SOFTMAX": _unary(lambda x: torch.softmax(x, -1)),
    "LOGISTIC": _unary(torch.sigmoid),
    "TANH": _unary(torch.tanh),
    "RELU": _unary(functional.relu),
    "RELU6": _unary(functional.relu6),
    "LEAKY_RELU": _unary(functional.leaky_relu),
    "HARD_SWISH": _unary(functional.hardswish),
    "QUANTIZE": _unary(torch.clone),
    "DEQUANTIZE": _unary(torch.clone),
    "MEAN": _reduce(torch.mean),
    "SUM": _reduce(torch.sum),
    "CONCATENATION": lambda layer: layer.activate(torch.cat(list(layer.values), layer.options.Axis())),
    "PAD": _pad,
    "RESHAPE": lambda layer: layer.x.reshape(layer.made[0]),
    "SQUEEZE": lambda layer: layer.x.reshape(layer.made[0]),
    "EXPAND_DIMS": lambda layer: layer.x.reshape(layer.made[0]),
    "TRANSPOSE": lambda layer: layer.x.permute(layer.numbers(1)).contiguous(),
    "SLICE": _part,
    "STRIDED_SLICE": _part,
    "SPLIT": _split,
    "RESIZE_BILINEAR": _resize("bilinear"),
    "RESIZE_NEAREST_NEIGHBOR": _resize("nearest"),
}
"""Forms of operators by the names of ``schema.fbs``."""
_NUMBERS = {
    **dict.fromkeys(("RESHAPE", "PAD", "MEAN", "SUM", "TRANSPOSE", "EXPAND_DIMS"), (1,)),
    **{"SLICE": (1, 2), "STRIDED_SLICE": (1, 2, 3), "SPLIT": (0,), "TRANSPOSE_CONV": (0,)},
    **dict.fromkeys(("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR"), (1,)),
}
"""Inputs that an operator takes as numbers."""


class TfliteModule(nn.Module):
    """The first graph of a file; its inputs go by name."""

    def __init__(self, model: Any) -> None:
        """Read a ``tflite.Model``; of weights nothing is read but their shapes.

        Raises:
            CoverageError: an operator has no form here.
        """
        super().__init__()
        self._model, self._graph = model, model.Subgraphs(0)
        self._shapes = [_shape(self._graph.Tensors(at)) for at in range(self._graph.TensorsLength())]
        self._layers = [self._graph.Operators(at) for at in range(self._graph.OperatorsLength())]
        names = [self._name(layer) for layer in self._layers]
        if missing := sorted(set(names) - OPERATORS.keys()):
            raise CoverageError(
                f"no form of the graph's operators {', '.join(missing[:8])}{nearest(missing[0], OPERATORS)}: "
                "pass the model as package.module:function"
            )
        for layer, name in zip(self._layers, names, strict=True):
            for place in range(layer.InputsLength()):
                self._keep(layer.Inputs(place), numbers=place in _NUMBERS.get(name, ()))

    def forward(self, **inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The graph's outputs, in its order."""
        places = {text: at for text, (at, _) in inputs_of(self._model).items()}
        values: dict[int, Any] = {places[name]: value for name, value in inputs.items()}
        for layer in self._layers:
            made = [self._shapes[layer.Outputs(at)] for at in range(layer.OutputsLength())]
            read = [self._value(layer.Inputs(at), values) for at in range(layer.InputsLength())]
            name = self._name(layer)
            results = OPERATORS[name](GraphLayer(name, _options(layer), read, made))
            for at, result in enumerate(results if isinstance(results, Sequence) else [results]):
                values[layer.Outputs(at)] = result
        return tuple(values[self._graph.Outputs(at)] for at in range(self._graph.OutputsLength()))

    def _name(self, layer: Any) -> str:
        code = self._model.OperatorCodes(layer.OpcodeIndex())
        # Files before operator 127 had a byte of their own for it.
        number = max(code.BuiltinCode(), code.DeprecatedBuiltinCode())
        return NAMES.get(number, str(number))

    def _keep(self, at: int, *, numbers: bool) -> None:
        """A constant as a parameter, or with its values where an operator takes them as numbers."""
        data = None if at < 0 else self._model.Buffers(self._graph.Tensors(at).Buffer()).DataAsNumpy()
        if not isinstance(data, np.ndarray) or hasattr(self, f"constant_{at}"):
            return
        if numbers:
            kind = _TYPES[self._graph.Tensors(at).Type()]
            setattr(self, f"constant_{at}", data.view(kind).reshape(self._shapes[at]))
        else:
            self.register_parameter(f"constant_{at}", nn.Parameter(torch.empty(self._shapes[at])))

    def _value(self, at: int, values: dict[int, Any]) -> Any:
        return None if at < 0 else values[at] if at in values else getattr(self, f"constant_{at}")


def inputs_of(model: Any) -> dict[str, tuple[int, tuple[int, ...]]]:
    """Number and shape of each input by its name."""
    graph = model.Subgraphs(0)
    numbers = [graph.Inputs(at) for at in range(graph.InputsLength())]
    return {_word(graph.Tensors(at).Name()): (at, _shape(graph.Tensors(at))) for at in numbers}


def dtype_of(model: Any) -> str:
    """``int8`` where the results of most operators are integers of 8 bits, else ``float32``."""
    graph = model.Subgraphs(0)
    made = [graph.Operators(at).Outputs(0) for at in range(graph.OperatorsLength())]
    kinds = [_TYPES[graph.Tensors(at).Type()] for at in made]
    return "int8" if 2 * sum(kind in ("int8", "uint8") for kind in kinds) > len(kinds) else "float32"


def _word(name: bytes) -> str:
    """A name that an argument of a function can have."""
    return "".join(letter if letter.isalnum() else "_" for letter in name.decode())


def _shape(tensor: Any) -> tuple[int, ...]:
    return tuple(tensor.Shape(at) for at in range(tensor.ShapeLength()))


def _options(layer: Any) -> Any:
    """Options of an operator as its own table; None where it has none."""
    kinds = {value: name for name, value in vars(tflite.BuiltinOptions).items() if isinstance(value, int)}
    name, table = kinds[layer.BuiltinOptionsType()], layer.BuiltinOptions()
    if table is None:
        return None
    options = getattr(tflite, name)()
    options.Init(table.Bytes, table.Pos)
    return options
