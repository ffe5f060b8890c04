"""Inputs that a person writes out: ``pixel_values=1x3x448x448:float32``, and what a model was fed in the same form."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from neusight.errors import ModelError, nearest, shown
from neusight.workloads.tensors import Known, TensorSpec

_FORM = re.compile(r"(?P<name>[A-Za-z_]\w*)=(?P<shape>\d+([x,]\d+)*)(:(?P<dtype>\w+))?")
_DTYPES = ("float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")


def given_inputs(texts: Sequence[str], parameters: Collection[str]) -> dict[str, TensorSpec]:
    """Inputs by name; those without a dtype are floating, and take the request's.

    Args:
        texts: ``name=shape:dtype`` each, extents with ``x`` or ``,`` between them.
        parameters: names that the model's ``forward`` takes.

    Raises:
        ModelError: not of that form, an unknown dtype, or no such input.
    """
    found = {}
    for text in texts:
        match = _FORM.fullmatch(text.strip())
        if match is None:
            raise ModelError(f"--input '{shown(text)}' is not NAME=SHAPE:DTYPE: write it like input_ids=1x128:int64")
        name, dtype = match["name"], match["dtype"] or "float32"
        if name not in parameters:
            raise ModelError(f"the model takes no input '{name}'{nearest(name, parameters)}: {', '.join(parameters)}")
        if dtype not in _DTYPES:
            raise ModelError(f"--input {name}: unknown dtype '{dtype}'{nearest(dtype, _DTYPES)}: {', '.join(_DTYPES)}")
        found[name] = TensorSpec(tuple(int(size) for size in re.split("[x,]", match["shape"])), dtype)
    return found


def told(inputs: Any, dtype: str) -> tuple[str, ...]:
    """What a model was fed, one text an input, with names where there are; floating inputs in the dtype given."""
    if isinstance(inputs, Mapping):
        return tuple(f"{name}={_told(value, dtype)}" for name, value in inputs.items())
    return tuple(_told(value, dtype) for value in inputs)


def _told(value: Any, dtype: str) -> str:
    if isinstance(value, Known) and value.shape:
        return f"{'x'.join(map(str, value.shape))}:{value.dtype}"
    if isinstance(value, Known):
        return f"{value.values}" if len(str(value.values)) <= 40 else f"{_shape(value.values)}:{value.dtype}"
    shape = getattr(value, "shape", None)
    if shape is None:
        return shown(repr(value))
    own = str(value.dtype).removeprefix("torch.")
    extents = "x".join(map(str, shape)) or "scalar"
    return f"{extents}:{dtype if own.startswith(('float', 'bfloat')) else own}"


def _shape(values: Any) -> str:
    extents = []
    while isinstance(values, list):
        extents.append(str(len(values)))
        values = values[0] if values else None
    return "x".join(extents)
