"""Inputs that a person writes out, ``pixel_values=1x3x448x448:float32``, and a model's inputs in the same form."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from neusight.errors import ModelError, nearest, shown
from neusight.workloads.tensors import Known, TensorSpec

_FORM = re.compile(r"(?P<name>[A-Za-z_]\w*)=(?P<shape>\d+([x,]\d+)*)(:(?P<dtype>\w+))?")
_DTYPES = ("float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")


def given_inputs(texts: Sequence[str], parameters: Collection[str]) -> dict[str, TensorSpec]:
    """Inputs by name; those without a dtype are ids, by their name, or floating, and take the request's.

    Args:
        texts: ``name=shape:dtype`` each, extents with ``x`` or ``,`` between them.
        parameters: names that the model's ``forward`` takes.

    Raises:
        ModelError: not of that form, an unknown dtype, or no such input.
    """
    specs = {}
    for text in texts:
        match = _FORM.fullmatch(text.strip())
        if match is None:
            raise ModelError(f"--input '{shown(text)}' is not NAME=SHAPE:DTYPE: write it like input_ids=1x128:int64")
        name, dtype = match["name"], match["dtype"] or ("int64" if match["name"].endswith("_ids") else "float32")
        if name not in parameters:
            raise ModelError(f"the model takes no input '{name}'{nearest(name, parameters)}: {', '.join(parameters)}")
        if dtype not in _DTYPES:
            raise ModelError(f"--input {name}: unknown dtype '{dtype}'{nearest(dtype, _DTYPES)}: {', '.join(_DTYPES)}")
        specs[name] = TensorSpec(tuple(int(size) for size in re.split("[x,]", match["shape"])), dtype)
    return specs


def as_inputs(inputs: Any) -> Any:
    """Inputs by name or in order; a tensor, or any other object that is no collection, is the only one."""
    return inputs if isinstance(inputs, Mapping | tuple | list) else (inputs,)


def described(inputs: Any, dtype: str) -> tuple[str, ...]:
    """What a model was given, one text an input, with names where there are; floating inputs in the dtype given.

    Nested lists and dictionaries are described tensor by tensor, other objects that hold tensors, such as a cache of
    keys and values, by how many they hold of each shape.
    """
    named = inputs.items() if isinstance(inputs, Mapping) else (("", value) for value in inputs)
    return tuple(text for name, value in named for text in _texts(str(name), value, dtype))


def tensors_of(value: Any, *, in_lists: bool = True) -> list[Any]:
    """All tensors and specs that a value holds, in dictionaries, attributes of objects and lists, each once."""
    leaves: dict[int, Any] = {}
    seen: set[int] = set()
    waiting = [value]
    while waiting:
        part = waiting.pop(0)
        if id(part) in seen:
            continue
        seen.add(id(part))
        if hasattr(part, "shape") and hasattr(part, "dtype"):
            leaves[id(part)] = part
        elif isinstance(part, Mapping):
            waiting.extend(part.values())
        elif isinstance(part, list | tuple):
            waiting.extend(part if in_lists else ())
        elif hasattr(part, "__dict__") and not isinstance(part, type):
            waiting.extend(vars(part).values())
    return list(leaves.values())


def _texts(name: str, value: Any, dtype: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        parts = [(str(key), part) for key, part in value.items()]
    elif isinstance(value, list | tuple) and tensors_of(value):
        parts = [(str(place) if name else "", part) for place, part in enumerate(value)]
    else:
        yield f"{name}={_text(value, dtype)}" if name else _text(value, dtype)
        return
    for key, part in parts:
        yield from _texts(".".join(filter(None, (name, key))), part, dtype)


def _text(value: Any, dtype: str) -> str:
    if isinstance(value, Known):
        if value.shape:
            return f"{'x'.join(map(str, value.shape))}:{value.dtype}"
        return f"{value.values}" if len(str(value.values)) <= 40 else f"{_shape(value.values)}:{value.dtype}"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        stored = str(value.dtype).removeprefix("torch.")
        extents = "x".join(map(str, value.shape)) or "scalar"
        return f"{extents}:{dtype if stored.startswith(('float', 'bfloat')) else stored}"
    counts = Counter(_text(tensor, dtype) for tensor in tensors_of(value))
    if counts:
        return f"{type(value).__name__}({', '.join(f'{count} of {text}' for text, count in counts.items())})"
    return shown(repr(value))


def _shape(values: Any) -> str:
    extents = []
    while isinstance(values, list):
        extents.append(str(len(values)))
        values = values[0] if values else None
    return "x".join(extents)
