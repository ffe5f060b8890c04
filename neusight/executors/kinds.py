"""Which devices are simulated machines: told apart without loading any of their code."""

from __future__ import annotations

from neusight.devices.spec import DeviceSpec

SPARSE = "TensorDash"
"""``DeviceSpec.architecture`` of the machine; its twin without scheduler and multiplexers has another."""


def is_machine(device: DeviceSpec) -> bool:
    """Whether a device is a TensorDash machine or its dense twin."""
    return device.kind == "tensordash"
