"""Devices: the figures of accelerators, each with its source, from the catalogue or from the user's own file."""

from neusight.devices.load import device_ids, list_devices, load_device
from neusight.devices.spec import DeviceSpec, Link
from neusight.devices.write import to_toml

__all__ = ["DeviceSpec", "Link", "device_ids", "list_devices", "load_device", "to_toml"]
