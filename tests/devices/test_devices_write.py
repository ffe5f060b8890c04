"""What a written device file looks like, and that quantities survive writing."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neusight import units
from neusight.devices import list_devices, load_device, to_toml


def test_quantities_are_written_as_a_datasheet_writes_them() -> None:
    said = {
        (300e9, "bytes_per_s"): "300 GB/s",
        (4.8e12, "bytes_per_s"): "4.8 TB/s",
        (48 * 2**20, "bytes"): "48 MiB",
        (24e9, "bytes"): "24 GB",
        (2.04e9, "hz"): "2040 MHz",
        (121e12, "flops_per_s"): "121 TFLOP/s",
        (72.0, "w"): "72 W",
        (units.parse("4.5us", "s"), "s"): "4.5 us",
    }
    assert {given: units.exact(*given) for given in said} == said


@settings(derandomize=True, database=None)
@given(st.floats(min_value=1e-3, max_value=1e18), st.sampled_from(["bytes", "bytes_per_s", "hz", "flops_per_s", "w"]))
def test_writing_a_quantity_loses_nothing(value: float, quantity: str) -> None:
    assert units.parse(units.exact(value, quantity), quantity) == value


def test_the_written_file_has_the_keys_of_the_catalogue() -> None:
    written = tomllib.loads(to_toml(load_device("l4")))
    assert written["dram_bandwidth"] == "300 GB/s"
    assert written["process"] == "4 nm"
    assert written["matrix_flops"]["float16"] == "121 TFLOP/s"
    assert written["links"] == [{"kind": "pcie", "generation": "4.0 x16", "bandwidth": "31.5 GB/s"}]
    assert any("dram_bandwidth" in keys for keys in written["sources"].values())


def test_optional_figures_that_are_absent_are_not_written() -> None:
    spec = load_device("l4")
    assert spec.l2_bandwidth_bytes_per_s is None
    assert "l2_bandwidth" not in tomllib.loads(to_toml(spec))
    assert tomllib.loads(to_toml(load_device("tensordash")))["kind"] == "tensordash"


def test_usable_memory_follows_a_capacity_that_is_changed() -> None:
    l4, share = load_device("l4"), 22.03 * 2**30 / 24e9
    twice = load_device("l4", ["dram_capacity=48GB"])
    assert twice.usable_bytes == pytest.approx(share * 48e9)
    assert load_device("l4", ["dram_capacity=48GB", "dram_usable=40GiB"]).usable_bytes == 40 * 2**30
    assert load_device("l4", ["sm_count=60"]).usable_bytes == l4.usable_bytes
    assert l4.model_copy(update={"dram_usable_bytes": None}).usable_bytes == pytest.approx(0.985 * 24e9)


def test_devices_are_listed_in_order_of_release() -> None:
    dates = [spec.release_date for spec in list_devices()]
    assert dates == sorted(dates) and len(set(dates)) > 20
