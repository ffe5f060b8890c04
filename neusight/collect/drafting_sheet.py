"""Figures of a device file under way, each set down with where it comes from."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from typing import Any

from neusight.devices import DeviceSpec, to_toml
from neusight.devices.read import read_table

ASSUMPTION = "assumption: "
"""Begins the source of every figure that nothing on this machine reports."""


@dataclass
class Sheet:
    """Fields of ``DeviceSpec`` and their sources; the first source that gives a figure counts."""

    values: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)

    def put(self, source: str, **figures: Any) -> None:
        """Set down what one source says; None and zero stand for what it does not say."""
        for name, value in figures.items():
            if value and name not in self.values:
                self.values[name] = value
                self.sources[name] = source

    def spec(self, **words: Any) -> DeviceSpec:
        """The device as its own file reads back, words such as ``id`` and ``name`` given.

        Raises:
            DeviceError: a figure that cannot be.
        """
        drafted = DeviceSpec(**words, **self.values, sources=self.sources)
        return read_table(tomllib.loads(to_toml(drafted)), f"draft of {drafted.name}")


def slug(name: str) -> str:
    """A device's name as an id: ``NVIDIA H100 64GB`` gives ``nvidia-h100-64gb``."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
