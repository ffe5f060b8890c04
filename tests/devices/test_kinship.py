"""Siblings: GPUs of one architecture whose SMs have near-equal figures."""

from __future__ import annotations

import itertools

import pytest

from neusight.devices import device_ids, load_device
from neusight.devices.architectures import architecture_name
from neusight.devices.kinship import NEAR, Silicon

CATALOGUE = {gpu: load_device(gpu) for gpu in device_ids()}


def related(one: str, other: str) -> bool:
    return Silicon.of(load_device(one)).is_sibling_of(Silicon.of(load_device(other)))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("b200-sxm-180gb", "b300-sxm-288gb"),
        ("b200-sxm-180gb", "gb200-186gb"),
        ("h100-sxm-80gb", "h200-sxm-141gb"),
        ("a100-pcie-40gb", "a100-sxm-80gb"),
        ("mi300x", "mi325x"),
        ("rtx-4090", "rtx-4080"),
    ],
)
def test_boards_of_one_kind_are_siblings(one: str, other: str) -> None:
    assert related(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("h100-sxm-80gb", "h20"),  # a cut of the die with a quarter of the matrix units
        ("l40s", "rtx-4090"),  # half of the 16-bit rate, another clock
        ("t4", "v100-pcie-32gb"),
        ("rtx-pro-6000-server", "b200-sxm-180gb"),  # one name, two architectures
        ("rtx-pro-6000-server", "gb10"),  # another kind of memory
        ("mi300x", "mi355x"),
    ],
)
def test_cuts_and_other_architectures_are_strangers(one: str, other: str) -> None:
    assert not related(one, other)


def test_kinship_is_mutual_and_ends_where_a_figure_differs_by_more_than_it_may() -> None:
    silicon = [Silicon.of(device) for device in CATALOGUE.values() if device.kind == "gpu"]
    for a, b in itertools.combinations(silicon, 2):
        assert a.is_sibling_of(b) == b.is_sibling_of(a)
    own = Silicon("nvidia 9.0", [2.0, 3.0])
    assert own.is_sibling_of(Silicon("nvidia 9.0", [1.99 * NEAR, 3.0]))
    assert not own.is_sibling_of(Silicon("nvidia 9.0", [2.01 * NEAR, 3.0]))
    assert not own.is_sibling_of(Silicon("nvidia 8.0", [2.0, 3.0]))


def test_an_architecture_has_the_name_of_the_table_that_holds_its_facts() -> None:
    assert architecture_name("nvidia", "10.3") == "nvidia 10.0"
    assert architecture_name("nvidia", "8.9", "NVIDIA GeForce RTX 4090") == "nvidia 8.6 GeForce"
    assert architecture_name("nvidia", "6.1") == "nvidia 0.0"
    assert architecture_name("amd", "gfx942") == "amd gfx942"
