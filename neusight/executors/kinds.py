"""Which devices are simulated machines: told apart without loading any of their code."""

from __future__ import annotations

from neusight.devices.spec import DeviceSpec

SPARSE, DENSE = "TensorDash", "TensorDash dense twin"
"""``DeviceSpec.architecture`` of the machine, and of the same machine without scheduler and multiplexers."""


def is_machine(device: DeviceSpec) -> bool:
    """Whether a device is a TensorDash machine or its dense twin."""
    return device.architecture in (SPARSE, DENSE)
