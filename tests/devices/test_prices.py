"""List prices: one table, prices of one list in a comparison, a user's own table, a price of one of several devices."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest

from neusight.devices import device_ids, list_devices, listed_gpus, load_device, load_devices, price_notes, to_toml
from neusight.devices.prices import price_lists
from neusight.errors import DeviceError, NeusightError, UnitError

OWN_TABLE = """
[[lists]]
provider = "Ours"
region = "cellar"
date = 2026-11-01
page = "offer 7"
[lists.devices]
l4 = { price = "0.2 USD/h" }
l40s = { instance = "pair", count = 2, price = "0.8 USD/h" }
"""


@pytest.fixture
def table(tmp_path: Path) -> Callable[..., Path]:
    """Write a price table with one text replaced."""

    def write(old: str = "", new: str = "") -> Path:
        assert old in OWN_TABLE
        path = tmp_path / "prices.toml"
        path.write_text(OWN_TABLE.replace(old, new, 1), encoding="utf-8")
        return path

    return write


def test_price_lists_name_devices_of_the_catalogue_and_pages() -> None:
    for one in price_lists():
        assert set(one.prices) <= set(device_ids())
        for price in one.prices.values():
            assert price.page
            assert price.source.startswith(f"price list: {one.name}, on demand")
            when = price.source.partition(": ")[2].partition(": ")[0].rpartition(", ")[2]
            assert int(when) >= 2023 if when.isdigit() else date.fromisoformat(when)


@pytest.mark.parametrize(
    ("smaller", "larger"),
    [
        ("a100-sxm-40gb", "a100-sxm-80gb"),
        ("v100-sxm2-16gb", "v100-sxm2-32gb"),
        ("h100-sxm-80gb", "h200-sxm-141gb"),
        ("l4", "l40s"),
        ("tpu-v5e", "tpu-v6e"),
    ],
)
def test_price_lists_ask_no_more_for_the_smaller_card(smaller: str, larger: str) -> None:
    both = [one.prices for one in price_lists() if {smaller, larger} <= set(one.prices)]
    assert both
    assert all(prices[smaller].usd_per_hour <= prices[larger].usd_per_hour for prices in both)


def test_load_device_has_a_price_of_what_large_clouds_rent() -> None:
    rented = "t4 l4 l40s a10g a100-sxm-40gb h100-sxm-80gb h200-sxm-141gb b200-sxm-180gb mi300x rtx-4090 tpu-v5e tpu-v6e"
    assert all(load_device(name).price_usd_per_hour for name in (*rented.split(), "trainium1", "inferentia2"))
    unpriced = [device for device in list_devices() if device.price_usd_per_hour is None]
    assert all(device.price_source == device.price_list == "" for device in unpriced)


def test_load_device_divides_the_price_of_an_instance() -> None:
    h100 = load_device("h100-sxm-80gb")
    assert (h100.price_usd_per_hour, h100.price_source) == (
        55.04 / 8, "AWS us-east-1, on demand, 2026-02-09: p5.48xlarge"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("names", "name_of_list"),
    [
        (["h100-sxm-80gb", "l40s", "t4"], "AWS us-east-1"),
        (["h100-sxm-80gb", "mi300x"], "RunPod secure cloud"),
        (["a100-sxm-80gb", "a10"], "Lambda all regions"),
        (["a100-pcie-80gb", "h100-nvl-94gb", "a100-sxm-40gb"], "Azure eastus"),
        (["p4", "p100-pcie-16gb", "v100-sxm2-16gb"], "Google Cloud us-central1"),
    ],
)
def test_load_devices_takes_prices_of_one_list(names: list[str], name_of_list: str) -> None:
    devices = load_devices(names)
    assert {device.price_list for device in devices} == {name_of_list}
    assert list(price_notes(devices)) == []


def test_load_devices_ignores_unpriced_devices_when_it_chooses_the_list() -> None:
    devices = load_devices(["h100-sxm-80gb", "rtx-3090", "mi300x"])
    assert [device.price_list for device in devices] == ["RunPod secure cloud", "", "RunPod secure cloud"]
    assert list(price_notes(devices)) == [
        "no price of rtx-3090 is known: --set rtx-3090.price=2.5USD/h or --prices FILE gives one"
    ]


def test_price_notes_names_several_lists() -> None:
    (text,) = price_notes(load_devices(["trainium1", "mi300x"]))
    assert text.startswith("no price list has all devices")
    assert "trainium1: AWS us-east-1" in text
    assert "mi300x: RunPod secure cloud" in text


def test_load_devices_takes_a_price_of_one_of_them() -> None:
    l40s, a10g, h100 = load_devices(["l40s", "a10g", "h100"], ["l40s.price=1USD/h", "h100.price=3USD/h"])
    assert (l40s.price_usd_per_hour, h100.price_usd_per_hour) == (1.0, 3.0)
    assert (l40s.has_own_price, a10g.has_own_price) == (True, False)
    assert a10g.price_usd_per_hour == load_device("a10g").price_usd_per_hour


def test_load_devices_takes_a_figure_of_one_of_them(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text(to_toml(load_device("t4")), encoding="utf-8")
    l4, own = load_devices(["l4", str(mine)], ["l4.sm_count=20", "mine.tdp=50W", "dram_bandwidth=1TB/s"])
    assert (l4.core_count, own.tdp_w) == (20, 50.0)
    assert {l4.dram_bandwidth_bytes_per_s, own.dram_bandwidth_bytes_per_s} == {1e12}


def test_load_device_takes_device_for_the_device_in_question() -> None:
    assert load_device("l4", ["device.price=2USD/h"]).price_usd_per_hour == 2.0
    assert [gpu.tdp_w for gpu in load_devices(["l4", "t4"], ["device.tdp=50W"])] == [50.0, 50.0]


@pytest.mark.parametrize("change", ["a10g.price=1USD/h", "nonsense.price=1USD/h", "t4.sm_count=4"])
def test_load_devices_refuses_a_change_of_another_device(change: str) -> None:
    with pytest.raises(DeviceError, match=f"--set {change}: {change.partition('.')[0]} is not among l4, l40s"):
        load_devices(["l4", "l40s"], [change])
    with pytest.raises(DeviceError, match="is not in question, l4 is"):
        load_device("l4", [change])


def test_load_device_with_another_price_is_no_variant() -> None:
    priced = load_device("l4", ["price=9USD/h"])
    assert (priced.hypothetical, priced.measured_id, priced.distance) == ((), "l4", 0.0)
    assert (priced.price_usd_per_hour, priced.price_source) == (9.0, "set by the user: price=9USD/h")


def test_load_devices_takes_a_table_of_the_user_first(table: Callable[..., Path]) -> None:
    l4, l40s, t4 = load_devices(["l4", "l40s", "t4"], prices=table())
    assert {device.price_list for device in (l4, l40s, t4)} == {"AWS us-east-1"}
    l4, l40s = load_devices(["l4", "l40s"], prices=table())
    assert (l4.price_usd_per_hour, l40s.price_usd_per_hour) == (0.2, 0.4)
    assert l40s.price_source == "Ours cellar, 2026-11-01: pair"
    assert [gpu.id for gpu in listed_gpus(table())] == ["l4", "l40s"]


WRONG: list[tuple[str, str, type[NeusightError], str]] = [
    ('page = "offer 7"\n', "", DeviceError, "prices.toml: Ours: page missing: add it"),
    ("date = 2026-11-01\n", "", DeviceError, "date missing"),
    ("region =", "regio =", DeviceError, "unknown key 'regio'"),
    ('"0.2 USD/h"', '"0.2"', UnitError, "l4: price: .*no unit"),
    ('"0.2 USD/h"', '"-1 USD/h"', DeviceError, "not above zero"),
    ("count = 2", "count = 0", DeviceError, "count = 0 must be a whole number above 0"),
    ("{ price =", "{ prize =", DeviceError, "unknown key 'prize'"),
    ("[[lists]]", "[[list]]", DeviceError, "unknown key 'list'"),
    ('l4 = { price = "0.2 USD/h" }', 'l4 = "0.2 USD/h"', DeviceError, "devices must be tables"),
]


@pytest.mark.parametrize(("old", "new", "kind", "text"), WRONG)
def test_price_lists_refuses_a_malformed_table(
    table: Callable[..., Path], old: str, new: str, kind: type[NeusightError], text: str
) -> None:
    with pytest.raises(kind, match=text):
        price_lists(table(old, new))
