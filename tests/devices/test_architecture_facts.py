"""What laws, libraries and engines need to know of an architecture is read from one file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import neusight
from neusight.devices import list_devices, load_device
from neusight.devices.architectures import ArchitectureFacts, architecture_facts
from neusight.errors import DeviceError

PACKAGE = Path(neusight.__file__).parent


def test_facts_of_an_architecture_hold_from_its_first_capability_on() -> None:
    capabilities = ("5.2", "6.1", "7.0", "7.5", "8.0", "8.6", "8.9", "9.0", "10.3", "11.0", "12.0", "13.0")
    of = {capability: architecture_facts("nvidia", capability) for capability in capabilities}
    assert [f.blas_generation for f in of.values()] == ["maxwell"] * 2 + ["volta"] * 2 + ["ampere"] * 8
    assert [f.l2_partitions for f in of.values()] == [1, 1, 1, 1, 2, 1, 1, 2, 1, 1, 1, 1]
    assert [c for c, f in of.items() if f.reads_shared_memory] == ["9.0", "10.3", "11.0"]
    assert [c for c, f in of.items() if f.panel_sharing_levels == 3] == ["10.3", "11.0"]
    assert [c for c, f in of.items() if f.early_memory_controller] == ["5.2", "6.1"]
    assert [c for c, f in of.items() if f.small_serving_limits] == ["8.0"]
    assert of["13.0"] == of["12.0"]


def test_others_have_facts_of_their_vendor_and_who_tells_nothing_those_of_common_boards() -> None:
    assert architecture_facts("nvidia", None) == architecture_facts("nvidia", "8.6")
    assert architecture_facts("amd", "gfx942").blas_generation == "tensile"
    assert isinstance(architecture_facts("intel", None), ArchitectureFacts)
    with pytest.raises(DeviceError, match=r"Odd: compute capability 'sm_89' is not a number such as 8\.9"):
        architecture_facts("nvidia", "sm_89", "Odd")


def test_every_device_has_facts_and_consumer_boards_their_clock() -> None:
    above = {device.id for device in list_devices() if device.kind == "gpu" and device.facts.clock_above_boost}
    assert {"rtx-4090", "titan-v", "gtx-1080", "rtx-3090"} <= above
    assert above.isdisjoint({"l4", "rtx-a6000", "quadro-rtx-8000", "a100-sxm-80gb", "mi300x", "rx-7900-xtx"})


def test_twins_of_different_memory_copy_alike() -> None:
    small, large = load_device("rtx-5060-ti"), load_device("rtx-5060-ti-16gb")
    assert small.inline_ecc is large.inline_ecc is False


def test_no_room_but_devices_compares_a_compute_capability_or_reads_a_product_name() -> None:
    compares = re.compile(r"capability\b[^\n]*[<>]=?|\bin device\.name|[<>]=? *[A-Z_]*CAPABILIT")
    offending = [
        f"{path.relative_to(PACKAGE)}:{number}"
        for path in PACKAGE.rglob("*.py")
        if not path.is_relative_to(PACKAGE / "devices") and "drafting" not in path.parts
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if compares.search(line)
    ]
    assert offending == []
