"""Write a device as the file that reads back to it."""

from __future__ import annotations

import json
from typing import Any

from neusight import units
from neusight.devices.schema import FIGURES, LINK_BANDWIDTH, LINK_HOP, RATES, WORDS, key_of
from neusight.devices.spec import DeviceSpec

_WIDTH = 120


def to_toml(spec: DeviceSpec) -> str:
    """Text of a device file, with units and sources; loading it gives an equal ``DeviceSpec``."""
    lines = [_line(key, getattr(spec, key)) for key in WORDS if getattr(spec, key)]
    lines.append("")
    for key, figure in FIGURES.items():
        value = getattr(spec, figure.field, None) if figure.describes(spec.kind) else None
        if key not in (*RATES, "links") and value is not None:
            lines.append(_line(key, _write(key, value)))
    return "\n".join([*lines, *_rates(spec), *_links(spec), *_sources(spec)]) + "\n"


def _write(key: str, value: Any) -> Any:
    quantity = FIGURES[key].quantity
    if quantity in ("plain", "count"):
        return value
    # The node's own number of nanometres: 1e-9 has no exact binary form to divide by.
    return f"{value:g} nm" if key == "process" else units.exact(value, quantity)


def _rates(spec: DeviceSpec) -> list[str]:
    lines = []
    for key in RATES:
        rates: dict[str, float] = getattr(spec, FIGURES[key].field)
        if rates:
            lines += ["", f"[{key}]"]
            lines += [_line(dtype, units.exact(rate, "flops_per_s")) for dtype, rate in rates.items()]
    return lines


def _links(spec: DeviceSpec) -> list[str]:
    lines = []
    for link in spec.links:
        bandwidth = units.exact(link.bandwidth_bytes_per_s, LINK_BANDWIDTH.quantity)
        lines += ["", "[[links]]", _line("kind", link.kind), _line("generation", link.generation)]
        lines.append(_line("bandwidth", bandwidth))
        lines += [_line("topology", link.topology)] if link.topology else []
        lines += [_line("hop", units.exact(link.hop_s, LINK_HOP.quantity))] if link.hop_s else []
    return lines


def _sources(spec: DeviceSpec) -> list[str]:
    keys: dict[str, list[str]] = {}
    for field, document in spec.sources.items():
        keys.setdefault(document, []).append(key_of(field, spec.kind))
    return ["", "[sources]", *(_list(document, names) for document, names in keys.items())]


def _list(document: str, names: list[str]) -> str:
    """A list on one line where it fits, else one name a line."""
    line = f"{_value(document)} = {_value(names)}"
    if len(line) <= _WIDTH:
        return line
    return "\n".join([f"{_value(document)} = [", *(f"    {_value(name)}," for name in names), "]"])


def _line(key: str, value: Any) -> str:
    return f"{key} = {_value(value)}"


def _value(value: Any) -> str:
    """A TOML value: JSON writes strings, numbers and lists of them the same way; dates stand bare."""
    if isinstance(value, (str, int, float)):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, (list, tuple)):
        return json.dumps(list(value), ensure_ascii=False)
    return str(value)
