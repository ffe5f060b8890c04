"""A draft of a device file: figures set down with where they come from, and how it differs from the catalogue."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from neusight import units
from neusight.devices import GpuSpec, gpu_of, load_gpu, to_toml
from neusight.devices.load import read_text
from neusight.devices.schema import FIGURES, LINK_BANDWIDTH, Figure
from neusight.errors import DeviceError

ASSUMPTION = "assumption: "
"""Begins the source of every figure that nothing on this machine reports."""
TOLERANCE = 0.03
"""Share of the catalogue's figure by which a driver may differ without a remark."""


@cache
def facts() -> dict[str, Any]:
    """Tables of ``facts.toml``."""
    return tomllib.loads(Path(__file__).with_name("facts.toml").read_text(encoding="utf-8"))


_SYMBOLS = {"bytes": "B", "bytes_per_s": "B/s", "hz": "Hz", "w": "W"}


@dataclass
class Sheet:
    """Fields of ``GpuSpec`` and their sources; the first source that gives a figure counts."""

    values: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)

    def put(self, source: str, **figures: Any) -> None:
        """Set down what one source says; None and zero stand for what it does not say."""
        for name, value in figures.items():
            if value and name not in self.values:
                self.values[name] = value
                self.sources[name] = source

    def spec(self, **words: Any) -> GpuSpec:
        """The device as its own file reads back, words such as ``id`` and ``name`` given.

        Raises:
            DeviceError: a figure that cannot be.
        """
        drafted = GpuSpec(**words, **self.values, sources=self.sources)
        return gpu_of(read_text(to_toml(drafted), f"draft of {drafted.name}"))


def slug(name: str) -> str:
    """A device's name as an id: ``NVIDIA H100 64GB`` gives ``nvidia-h100-64gb``."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


@dataclass(frozen=True)
class Draft:
    """A device at hand. ``known``: the catalogue has its driver's name, and ``spec`` is the catalogue's; then
    ``differences`` names each figure in which the driver disagrees.
    """

    spec: GpuSpec
    known: bool
    differences: tuple[str, ...] = ()


def compared(drafted: GpuSpec) -> Draft:
    """The catalogue's device of the draft's name with what differs; the draft itself where there is none."""
    try:
        catalogued = load_gpu(drafted.name)
    except DeviceError:
        return Draft(drafted, known=False)
    return Draft(catalogued, known=True, differences=_differences(drafted, catalogued))


def _differences(drafted: GpuSpec, catalogued: GpuSpec) -> tuple[str, ...]:
    """Figures that the driver reports more than ``TOLERANCE`` off the catalogue, such as
    ``sm_count: driver 132, catalogue 108``. What was assumed or follows from other figures is not compared.
    """
    catalogue_figures, differences = _comparable(catalogued), []
    for key, (field_name, figure, value) in _comparable(drafted).items():
        reported = not drafted.sources.get(field_name, ASSUMPTION).startswith(ASSUMPTION)
        other = catalogue_figures[key][2] if key in catalogue_figures else value
        differs = value != other if isinstance(value, str) else abs(value - other) > TOLERANCE * other
        if reported and differs:
            differences.append(f"{key}: driver {_shown(value, figure)}, catalogue {_shown(other, figure)}")
    return tuple(differences)


def _comparable(spec: GpuSpec) -> dict[str, tuple[str, Figure, Any]]:
    """Single figures by their key in the file, links by kind: the field, what kind of figure it is, and its value."""
    figures: dict[str, tuple[str, Figure, Any]] = {}
    for key, figure in ((key, figure) for key, figure in FIGURES.items() if figure.describes(spec.kind)):
        value = getattr(spec, figure.field)
        if key == "links":
            figures |= {f"links.{link.kind}": ("links", LINK_BANDWIDTH, link.bandwidth_bytes_per_s) for link in value}
        elif value and isinstance(value, int | float | str):
            figures[key] = figure.field, figure, value
    return figures


def _shown(value: float | str, figure: Figure) -> str:
    symbol = _SYMBOLS.get(figure.quantity)
    return units.scaled(float(value), symbol, digits=4) if symbol else str(value)
