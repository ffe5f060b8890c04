"""Limits that serving engines start with where no flag is given, by version and device: ``defaults.toml``."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neusight.errors import ModelError, shown

if TYPE_CHECKING:
    from neusight.devices.spec import DeviceSpec

_FILE = Path(__file__).with_name("defaults.toml")
_OF_DEVICES = ("vendor", "device", "least_bytes")
NEWEST = (inf, inf)


def release_of(engine: str, version: str) -> tuple[float, float]:
    """The first two numbers of a version; ``NEWEST`` where it is empty.

    Raises:
        ModelError: a version that is no number.
    """
    if not version:
        return NEWEST
    match = re.match(r"v?(\d+)\.(\d+)", version)
    if not match:
        raise ModelError(f"version '{shown(version)}' of {engine} is no number: write it like 0.15.1, or leave it out")
    return int(match[1]), int(match[2])


def defaults_of(engine: str, version: str, device: DeviceSpec | None = None) -> dict[str, Any]:
    """Fields of ``Server`` that flags would set: those of a version on any device, or on one.

    Raises:
        ModelError: a version that is no number.
    """
    fields: dict[str, Any] = {}
    for table in _tables_for(engine, version, device):
        fields |= {name: value for name, value in table.items() if name not in ("from", "source", *_OF_DEVICES)}
    if "seqs_of_cache" in fields:
        fields["seqs_of_cache"] = tuple(fields["seqs_of_cache"])
    return fields


def _tables_for(engine: str, version: str, device: DeviceSpec | None) -> Iterator[Mapping[str, Any]]:
    release = release_of(engine, version)
    for table in _tables().get(engine, ()):
        if release >= release_of(engine, table.get("from", "0.0")) and _is_for(table, device):
            yield table


def _is_for(table: Mapping[str, Any], device: DeviceSpec | None) -> bool:
    if device is None:
        return not any(name in table for name in _OF_DEVICES)
    board = device.original or device
    small = "least_bytes" in table and device.facts.small_serving_limits
    return (
        table.get("vendor", device.vendor) == device.vendor
        and table.get("device", board.id) == board.id
        and device.usable_bytes >= table.get("least_bytes", 0)
        and not small
    )


@cache
def _tables() -> Mapping[str, list[dict[str, Any]]]:
    return tomllib.loads(_FILE.read_text(encoding="utf-8"))
