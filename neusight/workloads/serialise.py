"""Workloads as plain lists and numbers, and back: exact, versioned, no tensor library needed to read one.

The same form holds a workload whose numbers are not yet known: wherever a number stands, there may be a text, the name
of a value that the reader is given. Traces are kept in it between runs, by content: a changed model, option or library
version is another entry.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, cast

import neusight
from neusight.errors import DataError
from neusight.kernels.families import KERNEL_CLASSES, Kernel
from neusight.paths import cache_dir
from neusight.requests import Request
from neusight.workloads.workload import PHASES, ModulePath, Node, Reference, Tensor, Workload

VERSION = 2
_KINDS = ("weight", "gradient", "state", "input", "intermediate")
_FIELDS = {family: [f.name for f in fields(kind)] for family, kind in KERNEL_CLASSES.items()}
_DEFAULTS = {family: {f.name: f.default for f in fields(kind)} for family, kind in KERNEL_CLASSES.items()}
Number = Callable[[Any], int]


def content_of(workload: Workload) -> dict[str, Any]:
    """The workload without its request, as lists of lists; equal parts are not yet shared, see ``deduplicate``."""
    return {
        "parameters": workload.parameters,
        "uncovered": list(workload.uncovered),
        "warnings": list(workload.warnings),
        "tensors": [_tensor_row(t) for t in workload.tensors],
        "nodes": [_node_row(n) for n in workload.nodes],
    }


def deduplicate(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content with equal kernels, layers, shapes and operators once, in tables, and referred to by place."""
    tables: dict[str, dict[str, int]] = {name: {} for name in ("operators", "layers", "kernels", "shapes")}

    def at(table: str, value: Any) -> int:
        return tables[table].setdefault(json.dumps(value, separators=(",", ":")), len(tables[table]))

    tensors = [
        [at("shapes", shape), dtype, kind, at("layers", layer), *rest]
        for shape, dtype, kind, layer, *rest in content["tensors"]
    ]
    nodes = [
        [at("operators", operator), phase, [at("kernels", k) for k in kernels], at("layers", layer), *rest]
        for operator, phase, kernels, layer, *rest in content["nodes"]
    ]
    listed = {name: [json.loads(text) for text in table] for name, table in tables.items()}
    return {**content, "tensors": tensors, "nodes": nodes, **listed}


def workload_of(content: Mapping[str, Any], request: Request, values: Mapping[str, int] | None = None) -> Workload:
    """The workload that ``deduplicate`` content describes.

    Args:
        content: what ``deduplicate`` gave, some numbers perhaps replaced by names.
        request: the question that it answers.
        values: a number for each name.

    Raises:
        DataError: the content is not of this form, or names a value that is not there.
    """
    numbers = {} if values is None else values

    def number(value: Any) -> int:
        return numbers[value] if type(value) is str else value

    try:
        shapes = [tuple(map(number, shape)) for shape in content["shapes"]]
        layers = [ModulePath(p, tuple(map(number, n)), tuple(map(number, s))) for p, n, s in content["layers"]]
        kernels = [_kernel(entry, number, request.dtype) for entry in content["kernels"]]
        operators = content["operators"]
        return Workload(
            request=request,
            parameters=number(content["parameters"]),
            uncovered=tuple(content["uncovered"]),
            warnings=tuple(content["warnings"]),
            inputs=tuple(content.get("inputs", ())),
            target=tuple((name, value) for name, value in content.get("target", ())),
            launch=content.get("launch", ""),
            tensors=tuple(_tensor(row, shapes, layers, number, request.dtype) for row in content["tensors"]),
            nodes=tuple(_node(row, operators, kernels, layers, number) for row in content["nodes"]),
        )
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise DataError(f"a stored workload is malformed ({error}): delete it and trace the model again") from None


def to_json(workload: Workload) -> str:
    """One line of JSON."""
    head = {
        "version": VERSION,
        "request": workload.request.to_dict(),
        **{name: getattr(workload, name) for name in ("inputs", "target", "launch")},
    }
    content = {**head, **deduplicate(content_of(workload))}
    return json.dumps(content, separators=(",", ":"))


def from_json(text: str) -> Workload:
    """The workload that ``to_json`` wrote.

    Raises:
        DataError: not JSON, another version, or not a workload.
    """
    try:
        content = json.loads(text)
        version = content["version"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise DataError("a stored workload is truncated or not one: delete it and trace the model again") from None
    if version != VERSION:
        raise DataError(f"a stored workload has version {version}, this program reads {VERSION}: trace the model again")
    return workload_of(content, Request.from_dict(content["request"]))


MODEL_DTYPE = "model"
"""Stands for the dtype of the request where content is shared by several."""


def _tensor_row(t: Tensor) -> list[Any]:
    numbers = (t.nbytes, t.touched_bytes, t.born, t.died, t.copies, t.born_step, t.died_step)
    return [list(t.shape), t.dtype, _KINDS.index(t.kind), _layer_row(t.layer), *numbers]


def _tensor(row: list[Any], shapes: list[Any], layers: list[ModulePath], number: Number, dtype: str) -> Tensor:
    shape, stored, kind, layer, *rest = row
    nbytes, touched, born, died, copies, born_step, died_step = map(number, rest)
    return Tensor(
        shape=shapes[shape],
        dtype=dtype if stored == MODEL_DTYPE else stored,
        kind=cast(Any, _KINDS[kind]),
        layer=layers[layer],
        nbytes=nbytes,
        touched_bytes=touched,
        born=born,
        died=died,
        copies=copies,
        born_step=born_step,
        died_step=died_step,
    )


def _layer_row(layer: ModulePath) -> list[Any]:
    return [layer.pattern, list(layer.numbers), list(layer.steps)]


def _node_row(n: Node) -> list[Any]:
    kernels = [_kernel_row(k) for k in n.kernels]
    references = [[_reference_row(r) for r in of] for of in (n.reads, n.writes)]
    return [n.operator, PHASES.index(n.phase), kernels, _layer_row(n.layer), n.id, *references, n.copies, n.stride]


def _node(
    row: list[Any], operators: list[str], kernels: list[Kernel], layers: list[ModulePath], number: Number
) -> Node:
    operator, phase, run, layer, place, reads, writes, copies, stride = row
    return Node(
        id=number(place),
        operator=operators[operator],
        phase=PHASES[phase],
        kernels=tuple(kernels[k] for k in run),
        reads=tuple(_reference(r, number) for r in reads),
        writes=tuple(_reference(r, number) for r in writes),
        layer=layers[layer],
        copies=number(copies),
        stride=number(stride),
    )


def _reference_row(r: Reference) -> list[Any]:
    return [r.tensor, r.first, r.step, *(list(edge) for edge in r.edges)]


def _reference(row: list[Any], number: Number) -> Reference:
    tensor, first, step, *edges = row
    if not edges:
        return Reference(tensor, number(first), number(step))
    return Reference(tensor, number(first), number(step), tuple((number(a), b, number(c)) for a, b, c in edges))


def _kernel_row(kernel: Kernel) -> list[Any]:
    """Family, and the fields that differ from their defaults."""
    defaults = _DEFAULTS[kernel.family]
    values = {name: getattr(kernel, name) for name in _FIELDS[kernel.family]}
    return [kernel.family, {name: value for name, value in values.items() if value != defaults[name]}]


def _kernel(entry: list[Any], number: Number, dtype: str) -> Kernel:
    family, entries = entry
    texts = {"op", "layout", "image_layout", "dtype", "kv_dtype"}
    values = {name: value if name in texts else number(value) for name, value in entries.items()}
    if values.get("dtype") == MODEL_DTYPE:
        values["dtype"] = dtype
    return KERNEL_CLASSES[family](**values)


def trace_key(digest: str, options: Mapping[str, Any]) -> str:
    """The name of an entry: content of the model, every option of the trace, and the versions that could change it."""
    libraries = {name: _version(name) for name in ("torch", "transformers")}
    content = {"model": digest, "options": dict(options), "neusight": neusight.__version__, "tracer": _tracer_digest()}
    return hashlib.sha256(json.dumps(content | libraries, sort_keys=True).encode()).hexdigest()


def read_trace(key: str) -> Workload | None:
    """The stored workload, or None when there is none that can be read: a damaged entry is as good as no entry."""
    try:
        return from_json(_file(key).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, DataError):
        return None


def write_trace(key: str, workload: Workload) -> None:
    """Store a workload whole or not at all; a folder that cannot be written only costs the next run its time."""
    file = _file(key)
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=file.parent, suffix=".tmp")
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(to_json(workload))
        Path(temporary).replace(file)


def _file(key: str) -> Path:
    return cache_dir() / "traces" / f"{key}.json"


@lru_cache
def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


@lru_cache
def _tracer_digest() -> str:
    """The rules that turn operators into kernels, as source: a checkout changes without a new version, but not while
    it runs.
    """
    folder = Path(__file__).resolve().parent
    sources = sorted([*folder.rglob("*.py"), *(folder.parent / "kernels").glob("*.py")])
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
