"""Sparsity profiles: shares of zeros in the operands of each layer; ``sparsify`` applies them to a workload's kernels.

A file is JSON. What an operand leaves out is not clustered, an operand that a layer leaves out is dense::

    {"protocol": 1, "model": "mine", "source": "assumed",
     "default": {},
     "layers": {"features.3": {"activations": {"sparsity": 0.6, "clustering": 0.1}}}}
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, field, fields, replace
from pathlib import Path
from typing import Any

from neusight.errors import DataError, nearest
from neusight.kernels.sparsity import MAPPED, LayerSparsity, OperandSparsity, operand_names
from neusight.paths import read_json
from neusight.quick_dataclasses import dataclass
from neusight.transforms.unrolled import each_copy
from neusight.workloads.workload import Node, Workload

PROTOCOL = 1
_KEYS = ("protocol", "model", "source", "default", "layers")
_SHOWN = 3
"""Layers that a message names, at most."""


OPERANDS = tuple(f.name for f in fields(LayerSparsity))
_DENSE = {name: OperandSparsity(0.0) for name in OPERANDS}
DENSE = LayerSparsity(**_DENSE)
"""A layer without zeros."""


@dataclass(frozen=True)
class SparsityProfile:
    """Zeros of a model's layers.

    ``layers`` by module path, as in ``Node.layer``; ``default`` applies to all others. ``source`` is the origin of the
    figures: the data they were measured on, or assumed.
    """

    model: str
    layers: Mapping[str, LayerSparsity] = field(default_factory=dict)
    default: LayerSparsity = DENSE
    source: str = "assumed"

    def of(self, layer: str) -> LayerSparsity:
        """The layer with exactly this module path, else the default."""
        return self.layers.get(layer, self.default)

    def check(self, layers: Iterable[str]) -> None:
        """Check that the profile describes a model with these layers. A profile without layers fits any model.

        Raises:
            DataError: the profile names layers that the model lacks, or lacks some of the model's.
        """
        unique = list(dict.fromkeys(layers))
        unknown = [layer for layer in self.layers if layer not in set(unique)]
        missing = [layer for layer in unique if layer not in self.layers] if self.layers else []
        wrong = []
        if unknown:
            wrong.append(f"unknown {_some(unknown)}{nearest(unknown[0], unique)}")
        if missing:
            wrong.append(f"missing {_some(missing)}")
        if wrong:
            raise DataError(
                f"the sparsity profile of {self.model or 'any model'} does not fit the model's layers: "
                f"{', '.join(wrong)}; measure this model with neusight sparsity measure"
            )

    @classmethod
    def uniform(cls, text: str) -> SparsityProfile:
        """The same shares of zeros in every layer, from ``activations=0.6,gradients=0.5,weights=0``.

        Zeros are independent; an operand that is left out is dense.

        Raises:
            DataError: nothing, an unknown or repeated operand, or a value outside [0, 1].
        """
        operands: dict[str, OperandSparsity] = {}
        for part in text.split(","):
            name, equals, value = (piece.strip() for piece in part.partition("="))
            where = f"'{part.strip()}' in sparsity '{text}'"
            if not equals:
                raise DataError(f"cannot read {where}: write activations=0.6,gradients=0.5,weights=0")
            if name in operands:
                raise DataError(f"{where} gives {name} again: give each operand once")
            operands[_operand(name, where)] = _share(value, where)
        return cls(model="", default=LayerSparsity(**(_DENSE | operands)), source=f"assumed: {text}")

    def save(self, path: Path | str) -> Path:
        """Write the profile as JSON, one operand a line."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self._text(), encoding="utf-8")
        return path

    def _text(self) -> str:
        layers = ",\n".join(f"    {_dump(name)}: {_layer_text(layer, 6)}" for name, layer in self.layers.items())
        lines = [
            f'"protocol": {PROTOCOL}',
            f'"model": {_dump(self.model)}',
            f'"source": {_dump(self.source)}',
            f'"default": {_layer_text(self.default, 4)}',
            f'"layers": {{\n{layers}\n  }}' if layers else '"layers": {}',
        ]
        return "{\n  " + ",\n  ".join(lines) + "\n}\n"

    @classmethod
    def load(cls, path: Path | str) -> SparsityProfile:
        """Read a profile that ``save`` or a person wrote.

        Raises:
            DataError: missing, no JSON, of another protocol, or a key or figure that is not what the format has.
        """
        content = _read(Path(path))
        protocol = content.get("protocol")
        if protocol != PROTOCOL:
            raise DataError(f"{path}: protocol {protocol} is not {PROTOCOL}: write it again with {_MEASURE}")
        try:
            return cls(**_parse(content))
        except DataError as error:
            raise DataError(f"{path}: {error}") from None


_MEASURE = "neusight sparsity measure MODEL --out FILE"


def _some(layers: list[str]) -> str:
    more = f" and {len(layers) - _SHOWN} more" if len(layers) > _SHOWN else ""
    return f"{', '.join(layers[:_SHOWN])}{more}"


def _operand(name: str, where: str) -> str:
    if name not in OPERANDS:
        hint = nearest(name, OPERANDS)
        raise DataError(f"unknown operand '{name}', {where}{hint}: one of {', '.join(OPERANDS)}")
    return name


def _share(value: str, where: str) -> OperandSparsity:
    try:
        return OperandSparsity(float(value))
    except (ValueError, DataError):
        message = f"'{value}' is no share of zeros, {where}: give a number between 0 and 1"
        raise DataError(message) from None


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _layer_text(layer: LayerSparsity, indent: int) -> str:
    pad = "\n" + " " * indent
    lines = (f"{_dump(name)}: {_dump(operand)}" for name, operand in asdict(layer).items())
    return "{" + pad + f",{pad}".join(lines) + pad[:-2] + "}"


def _read(path: Path) -> dict[str, Any]:
    try:
        content = read_json(path)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise DataError(f"cannot read the sparsity profile {path}: {reason}; write one with {_MEASURE}") from None
    except ValueError as error:
        raise DataError(f"{path} is not JSON ({error}): write a profile with {_MEASURE}") from None
    if not isinstance(content, dict):
        raise DataError(f"{path} is no sparsity profile: write one with {_MEASURE}")
    return content


def _parse(content: dict[str, Any]) -> dict[str, Any]:
    """Fields of a profile whose ``protocol`` has been checked."""
    _check_keys(content, _KEYS, "the profile")
    for key in ("model", "source"):
        if not isinstance(content.get(key), str):
            raise DataError(f"'{key}' is missing or no text: add it")
    layers = _mapping(content.get("layers"), "'layers'")
    return {
        "model": content["model"],
        "source": content["source"],
        "default": _layer(content.get("default"), "'default'"),
        "layers": {name: _layer(value, f"layer '{name}'") for name, value in layers.items()},
    }


def _layer(value: Any, where: str) -> LayerSparsity:
    operands = _mapping(value, where)
    _check_keys(operands, OPERANDS, where)
    return LayerSparsity(**(_DENSE | {name: _one(shares, f"{name} of {where}") for name, shares in operands.items()}))


def _one(value: Any, where: str) -> OperandSparsity:
    entries = _mapping(value, where)
    _check_keys(entries, [f.name for f in fields(OperandSparsity)], where)
    if "sparsity" not in entries:
        raise DataError(f"{where} has no 'sparsity': add its share of zeros")
    try:
        return OperandSparsity(**entries)
    except DataError as error:
        raise DataError(f"{where}: {error}") from None


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DataError(f"{where} is missing or no object {{…}}: write it as {_MEASURE} does")
    return value


def _check_keys(given: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    for key in given:
        if key not in known:
            raise DataError(f"unknown key '{key}' in {where}{nearest(key, known)}: one of {', '.join(known)}")


Sparsity = SparsityProfile | Path | str


def as_profile(sparsity: Sparsity) -> SparsityProfile:
    """A profile from a file, from ``activations=0.6,gradients=0.5``, or as it is.

    Raises:
        DataError: a share outside [0, 1], an unknown operand, or a file that is no profile.
    """
    if isinstance(sparsity, SparsityProfile):
        return sparsity
    text = str(sparsity)
    return SparsityProfile.uniform(text) if "=" in text and not Path(text).exists() else SparsityProfile.load(text)


def sparsify(workload: Workload, profile: SparsityProfile) -> Workload:
    """The workload with the zeros of a profile on the operands of its convolutions and matrix products.

    Layers that the profile distinguishes are stored one by one.

    Raises:
        DataError: the profile is of other layers than the workload's.
    """
    if profile.layers:
        profile.check(mapped_layers(workload))
    nodes = (new for node in workload.nodes for new in _sparse(node, profile))
    return replace(workload, nodes=tuple(sorted(nodes, key=lambda n: n.id)))


def mapped_layers(workload: Workload) -> tuple[str, ...]:
    """Layers with weights whose products have a place in a profile, in order of first use."""
    layers = (
        node.layer.name(copy)
        for node, copy in workload.expanded()
        if any(k.family in MAPPED and k.op != "bmm" for k in node.kernels)
    )
    return tuple(layer for layer in dict.fromkeys(layers) if layer)


def _sparse(node: Node, profile: SparsityProfile) -> Iterator[Node]:
    if not any(operand_names(kernel, node.phase) for kernel in node.kernels):
        yield node
        return
    for copy in each_copy(node) if profile.layers else (node,):
        yield replace(copy, zeros=profile.of(copy.layer.name()) if profile.layers else profile.default)
