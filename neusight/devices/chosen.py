"""The device that a caller chooses by an id, a file or a specification; those of names are kept."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from neusight.devices.load import load_device
from neusight.devices.spec import DeviceSpec
from neusight.errors import DeviceError, shown

Gpu = str | Path | DeviceSpec
_REMEMBERED = 256
"""Devices that are kept."""


def as_device(gpu: Gpu, overrides: Sequence[str] = ()) -> DeviceSpec:
    """The device that an id, a file or a spec stands for.

    Raises:
        DeviceError: unknown or malformed device, or changes of a spec, which ``model_copy`` makes.
    """
    if not isinstance(gpu, str | Path | DeviceSpec):
        raise DeviceError(f"{shown(gpu)} is no device: give one id, file or spec")
    if not isinstance(gpu, DeviceSpec):
        return _device(str(gpu), version_of(gpu), tuple(overrides))
    if overrides:
        raise DeviceError(f"overrides need the id or file of a device, not the spec of {gpu.id}: use its model_copy()")
    return gpu


@lru_cache(maxsize=_REMEMBERED)
def _device(name: str, _version: int, overrides: tuple[str, ...]) -> DeviceSpec:
    return load_device(name, overrides)


def version_of(name: str | Path) -> int:
    """Changes when the file of that name does; 0 where there is none."""
    try:
        return Path(name).stat().st_mtime_ns
    except (OSError, ValueError):
        return 0
