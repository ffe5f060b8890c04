"""List prices of devices: from ``prices.toml``, or a table of the user, each with provider, region, date and page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from neusight import units
from neusight.devices.read import Table, known, parse_file
from neusight.devices.spec import LISTED, PRICE, DeviceSpec
from neusight.errors import DeviceError, UnitError
from neusight.paths import user_path
from neusight.quick_dataclasses import dataclass

_SHIPPED = Path(__file__).resolve().parent / "prices.toml"
_LIST, _ROW = ("provider", "region", "terms", "date", "page"), ("instance", "count", "price", "date", "page")
_REQUIRED = ("provider", "region", "date", "page")


@dataclass(frozen=True, kw_only=True)
class Price:
    """The price of one device [USD/h], its list in words, and the page that says so."""

    usd_per_hour: float
    source: str
    page: str


@dataclass(frozen=True, kw_only=True)
class PriceList:
    """Prices of one provider in one region by the id of the device."""

    name: str
    prices: Mapping[str, Price]


def with_prices(devices: Sequence[DeviceSpec], file: str | Path = "") -> list[DeviceSpec]:
    """Give devices the prices of one list, the first that has all that any list has; else each the first price found.

    Args:
        devices: those with a price of their own, from ``--set`` or a user's device file, keep it.
        file: a table of the user's, whose lists come before the shipped ones.

    Raises:
        DeviceError, UnitError: as ``price_lists``.
    """
    lists = price_lists(file)
    listed = {device.id for device in devices if not device.has_own_price} & {id_ for p in lists for id_ in p.prices}
    common = [price_list for price_list in lists if listed <= set(price_list.prices)]
    return [device if device.has_own_price else _with_price(device, common[:1] or lists) for device in devices]


def _with_price(device: DeviceSpec, lists: Sequence[PriceList]) -> DeviceSpec:
    price = next((p.prices[device.id] for p in lists if device.id in p.prices), None)
    if price is None or device.sources.get(PRICE) == price.source:
        return device
    return device.model_copy(update={PRICE: price.usd_per_hour, "sources": device.sources | {PRICE: price.source}})


def price_notes(devices: Sequence[DeviceSpec]) -> Iterator[str]:
    """Lines for a comparison of devices: which have no price, and whether prices are of several lists."""
    if missing := [device.id for device in devices if device.price_usd_per_hour is None]:
        yield f"no price of {', '.join(missing)} is known: --set {missing[0]}.price=2.5USD/h or --prices FILE gives one"
    listed = [device for device in devices if device.price_usd_per_hour and not device.has_own_price]
    if len({device.price_list for device in listed}) > 1:
        texts = (f"{device.id}: {device.price_source}" for device in listed)
        yield f"no price list has all devices, so that costs are of several: {'; '.join(texts)}"


def price_lists(file: str | Path = "") -> tuple[PriceList, ...]:
    """All lists, those of a user's table first.

    Raises:
        DeviceError: an unreadable table, an unknown or missing key. UnitError: a price without its unit.
    """
    return (*(_read(user_path(str(file))) if file else ()), *_shipped_lists())


@cache
def _shipped_lists() -> tuple[PriceList, ...]:
    return tuple(_read(_SHIPPED))


def _read(path: Path) -> Iterator[PriceList]:
    table = parse_file(path)
    for key in table:
        known(key, ("lists",), "key", path.name)
    lists = table.get("lists")
    if not isinstance(lists, list) or not lists:
        raise DeviceError(f"{path.name}: has no price list: begin each with [[lists]]")
    for entry in lists:
        where = f"{path.name}: {entry.get('provider', 'a list')}"
        rows = entry.get("devices")
        _check_keys({key: value for key, value in entry.items() if key != "devices"}, _LIST, _REQUIRED, where)
        if not isinstance(rows, dict) or not all(isinstance(row, dict) for row in rows.values()):
            raise DeviceError(f'{where}: devices must be tables: write them like l4 = {{ price = "0.8 USD/h" }}')
        prices = {id_: _price(entry, row, f"{where}: {id_}") for id_, row in rows.items()}
        yield PriceList(name=f"{entry['provider']} {entry['region']}", prices=prices)


def _check_keys(table: Table, keys: Sequence[str], required: Sequence[str], where: str) -> None:
    for key in table:
        known(key, keys, "key", where)
    if missing := [key for key in required if key not in table]:
        raise DeviceError(f"{where}: {', '.join(missing)} missing: add {'it' if len(missing) == 1 else 'them'}")


def _price(one: Table, row: Table, where: str) -> Price:
    _check_keys(row, _ROW, ("price",), where)
    count: Any = row.get("count", 1)
    if not isinstance(count, int) or count < 1:
        raise DeviceError(f"{where}: count = {count!r} must be a whole number above 0: devices of the instance")
    try:
        usd_per_hour = units.parse(str(row["price"]), "usd_per_hour")
    except UnitError as error:
        raise UnitError(f"{where}: price: {error}") from None
    if not usd_per_hour > 0:
        raise DeviceError(f"{where}: price = {row['price']} is not above zero: give what an hour costs")
    merged = one | row
    words = (f"{one['provider']} {one['region']}", merged.get("terms"), str(merged["date"]))
    source = ": ".join(filter(None, (f"{LISTED}{', '.join(filter(None, words))}", merged.get("instance"))))
    return Price(usd_per_hour=usd_per_hour / count, source=source, page=str(merged["page"]))
