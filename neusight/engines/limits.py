"""Limits that serving engines start with where no flag is given, by version and device: ``defaults.toml``."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neusight.errors import ModelError, shown
from neusight.quick_dataclasses import dataclass

if TYPE_CHECKING:
    from neusight.devices.spec import DeviceSpec

_CONDITIONS = ("from", "vendor", "device", "least_bytes", "least_ranks", "least_stages", "large_passes", "speculates")
_MIB = 1 << 20
"""Bytes of a MiB (definition)."""
NEWEST = (inf,)


@dataclass(frozen=True, kw_only=True)
class Site:
    """The device that a rank of an engine runs on, and how many share a model.

    Attributes:
        device: the rank's.
        ranks: devices of a pipeline stage.
        stages: pipeline stages.
        groups: attention groups, which share the devices of a stage.
        speculates: whether tokens are drafted.
    """

    device: DeviceSpec
    ranks: int = 1
    stages: int = 1
    groups: int = 1
    speculates: bool = False


def release_of(engine: str, version: str) -> tuple[float, ...]:
    """The numbers of a version that begin it, at most three; ``NEWEST`` where it is empty. A build (b3216) counts as
    version 0.3216.

    Raises:
        ModelError: a version that is no number.
    """
    if not version:
        return NEWEST
    match = re.match(r"(?:v?(\d+)\.|b(?=\d))(\d+)(?:\.(\d+))?", version)
    if not match:
        raise ModelError(f"version '{shown(version)}' of {engine} is no release: write it like 0.15.1, or leave it out")
    return tuple(int(number) for number in match.groups(default=0))


def defaults_of(engine: str, version: str, site: Site | None = None) -> dict[str, Any]:
    """Fields of ``Server`` that flags would set: those of a version on any device, or at one site.

    Raises:
        ModelError: a version that is no number.
    """
    release, fields = release_of(engine, version), dict[str, Any]()
    for table in tables_of("defaults.toml").get(engine, ()):
        if release >= release_of(engine, table.get("from", "0.0")) and _is_for(table, site):
            fields |= {name: value for name, value in table.items() if name not in ("source", *_CONDITIONS)}
    kept_mib, shared = fields.pop("kept_mib", {}), fields.pop("shared_by_groups", ())
    if site:
        fields |= {name: max(1, fields[name] // site.groups) for name in shared}
        fields |= {"memory_share": _share_beside(kept_mib, site)} if kept_mib else {}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}


def _share_beside(kept_mib: Mapping[str, float], site: Site) -> float:
    """The share of a device's memory beside what is kept for passes, in thousandths as engines round it."""
    grouped = site.groups > 1
    numbers = {
        "always": 1, "rank": site.ranks * site.stages, "grouped": grouped, "group": grouped * site.groups
    }  # fmt: skip
    kept = sum(numbers[name] * mib for name, mib in kept_mib.items())
    return round(1.0 - kept * _MIB / site.device.usable_bytes, 3)


def _is_for(table: Mapping[str, Any], site: Site | None) -> bool:
    if site is None:
        return not any(name in table for name in _CONDITIONS[1:])
    device = site.device
    board = device.original or device
    return (
        table.get("vendor", device.vendor) == device.vendor
        and table.get("device", board.id) == board.id
        and device.usable_bytes >= table.get("least_bytes", 0)
        and site.ranks >= table.get("least_ranks", 1)
        and site.stages >= table.get("least_stages", 1)
        and site.speculates >= table.get("speculates", False)
        and not (table.get("large_passes") and device.facts.small_serving_limits)
    )


@cache
def tables_of(file: str) -> Mapping[str, list[dict[str, Any]]]:
    """Tables of a file beside this module."""
    return tomllib.loads(Path(__file__).with_name(file).read_text(encoding="utf-8"))
