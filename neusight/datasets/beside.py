"""Devices that a data set brings along: those it was measured on, whether the catalogue has them or not."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from neusight.devices import DeviceSpec, load_device
from neusight.errors import DeviceError

PARTS = ("kernels", "models")
"""Folders of a data set that hold its tables."""


def devices_beside(path: Path) -> dict[str, DeviceSpec]:
    """Devices by id from ``devices/*.toml`` of a data set; empty where it has none.

    Args:
        path: the folder of the data set, its ``kernels`` or ``models`` folder, or a file in one of them.

    Raises:
        DeviceError: a device file that is malformed.
        UnitError: a value in one without its unit or with another one.
    """
    specs = [load_device(str(file)) for file in sorted((root_of(path) / "devices").glob("*.toml"))]
    return {spec.id: spec for spec in specs}


def root_of(path: Path) -> Path:
    """Folder of the data set that a folder or file belongs to."""
    folder = path.absolute() if path.is_dir() else path.absolute().parent
    within = folder.name in PARTS and not (folder / "devices").is_dir()
    return folder.parent if within else folder


def device_of(gpu: str, beside: Mapping[str, DeviceSpec]) -> DeviceSpec:
    """The device of a measured row: of ``beside`` where it is there, else of the catalogue.

    Raises:
        DeviceError: neither has it.
    """
    if gpu in beside:
        return beside[gpu]
    try:
        return load_device(gpu)
    except DeviceError as error:
        raise DeviceError(f"{error} (or put its device file into devices/ of the data set)") from None
