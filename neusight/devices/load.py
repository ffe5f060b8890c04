"""Find a device: by the id of the catalogue, by the name that its driver reports, or in the user's own file."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from neusight.devices.override import override
from neusight.devices.read import Table, read_table
from neusight.devices.spec import DeviceSpec
from neusight.errors import DeviceError, nearest

_CATALOGUE = Path(__file__).resolve().parent / "catalogue"


def load_device(name_or_path: str, overrides: Sequence[str] = ()) -> DeviceSpec:
    """Load one device and, on request, change figures of it.

    Args:
        name_or_path: id of the catalogue or name that the driver reports (case does not matter), or a TOML file.
        overrides: ``key=value`` with keys of the device file, such as ``dram_bandwidth=4.8TB/s``, ``sm_count=144``,
            ``matrix_flops.bfloat16=2PFLOP/s`` or ``links.nvlink=900GB/s``; noted in ``hypothetical``.

    Raises:
        DeviceError: unknown device, unreadable or malformed file, impossible value.
        UnitError: a value without its unit or with another one.
    """
    path = _find(name_or_path)
    return override(_parse(path), overrides, path.name) if overrides else read_file(path)


def list_devices() -> list[DeviceSpec]:
    """All devices of the catalogue, in order of release."""
    specs = [read_file(_CATALOGUE / f"{name}.toml") for name in device_ids()]
    return sorted(specs, key=lambda spec: (spec.release_date, spec.id))


def device_ids() -> list[str]:
    """Ids of the catalogue, in alphabetical order."""
    return list(_ids())


def read_file(path: Path) -> DeviceSpec:
    """Read one device file.

    Raises:
        DeviceError: unreadable, malformed, or a value that cannot be.
        UnitError: a value without its unit or with another one.
    """
    return read_table(_parse(path), path.name)


@cache
def _ids() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in _CATALOGUE.glob("*.toml")))


def _find(name_or_path: str) -> Path:
    name = name_or_path.strip().lower()
    if name.endswith(".toml"):
        return Path(name_or_path).expanduser()
    owner = name if name in _ids() else _aliases().get(name)
    if owner is not None:
        return _CATALOGUE / f"{owner}.toml"
    # After the aliases, because some drivers report names with a slash.
    if any(mark in name for mark in (os.sep, os.altsep) if mark):
        return Path(name_or_path).expanduser()
    hint = nearest(name, _ids()) or nearest(name, _aliases()) or ": see `neusight devices list`"
    raise DeviceError(f"unknown device '{name_or_path}'{hint}")


@cache
def _aliases() -> dict[str, str]:
    """Alias in lower case → id; the whole catalogue is read only when a name is no id."""
    return {alias.lower(): spec.id for spec in list_devices() for alias in (spec.name, *spec.aliases)}


def _parse(path: Path) -> Table:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise DeviceError(f"{path.name}: not valid TOML: {str(error).lower()}: correct that line") from None
    except UnicodeDecodeError:
        raise DeviceError(f"{path.name}: not a text file in UTF-8: a device file is TOML") from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise DeviceError(f"cannot read device file {path}: {reason}: check the path") from None
