"""A variant of a device: change figures of its table and say so."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy

from neusight.devices.read import Table, known, read_table
from neusight.devices.schema import FIGURES, LINK_KINDS, RATES
from neusight.devices.spec import DeviceSpec
from neusight.errors import DeviceError

_CHANGEABLE = tuple(key for key, figure in FIGURES.items() if figure.quantity != "plain" and key not in RATES)


def override(table: Table, changes: Sequence[str], where: str) -> DeviceSpec:
    """Apply ``key=value`` changes to the table of a device and check the result like a file.

    Peak rates are lanes × SMs × clock: where ``sm_count`` or ``boost_clock`` changes, rates that are not changed
    themselves follow in proportion, and so does the usable memory where the capacity changes. Everything changed is
    listed in ``hypothetical``.

    Raises:
        DeviceError: no ``key=value``, unknown key or one twice, impossible value.
        UnitError: a value without its unit or with another one.
    """
    before = read_table(table, where)
    _refuse_repeated(changes)
    given = tuple(change.strip() for change in changes)
    keys = {change.partition("=")[0].strip() for change in given}
    # What a driver told of the memory as it is says nothing of another one.
    stale = {"dram_usable"} & set(table) if "dram_capacity" in keys else set()
    changed = {key: deepcopy(value) for key, value in table.items() if key not in stale}
    for change in given:
        _apply(changed, change)
    changed["hypothetical"] = [*table.get("hypothetical", []), *given]
    # A user's figure needs no document: the change itself is its source.
    changed["sources"] = _with_sources(table.get("sources", {}), given, stale)
    after = read_table(changed, f"--set on {where}")
    if stale - keys:
        share = before.usable_bytes / before.dram_capacity_bytes
        after = after.model_copy(update={"dram_usable_bytes": share * after.dram_capacity_bytes})
    return _follow(before, after.model_copy(update={"original": before.original or before}), keys)


def _refuse_repeated(changes: Sequence[str]) -> None:
    keys = [change.partition("=")[0].strip() for change in changes]
    if repeated := next((key for place, key in enumerate(keys) if key in keys[:place]), None):
        raise DeviceError(f"--set {repeated}: given twice: leave out one of them")


def _apply(table: Table, change: str) -> None:
    key, equals, value = (part.strip() for part in change.partition("="))
    if not (key and equals and value):
        raise DeviceError(f"--set {change}: not key=value: write it like dram_bandwidth=4.8TB/s")
    name, dot, part = key.partition(".")
    if name == "links" and dot:
        _set_link(table, part, value)
    elif name in RATES and dot:
        table.setdefault(name, {})[part] = value
    elif name in RATES:
        raise DeviceError(f"--set {change}: a rate needs its dtype: write it like {name}.float32=19.5TFLOP/s")
    else:
        known(key, _CHANGEABLE, "key", f"--set {change}")
        table[key] = _value(key, value)


def _value(key: str, text: str) -> object:
    if FIGURES[key].quantity != "count":
        return text
    try:
        return int(text)
    except ValueError:
        raise DeviceError(f"--set {key}={text}: not a whole number: write it like {key}=144") from None


def _set_link(table: Table, kind: str, bandwidth: str) -> None:
    known(kind, LINK_KINDS, "kind of link", f"--set links.{kind}")
    others = [link for link in table.get("links", []) if link["kind"] != kind]
    same = [link for link in table.get("links", []) if link["kind"] == kind] or [{"generation": "assumed"}]
    table["links"] = [*others, {**same[0], "kind": kind, "bandwidth": bandwidth}]


def _with_sources(sources: Table, given: tuple[str, ...], stale: set[str]) -> Table:
    keys = {change: change.partition("=")[0].strip() for change in given}
    keys = {change: "links" if key.startswith("links.") else key for change, key in keys.items()}
    gone = {*keys.values(), *stale}
    kept = {document: [key for key in listed if key not in gone] for document, listed in sources.items()}
    return kept | {f"set by the user: {change}": [key] for change, key in keys.items()}


def _follow(before: DeviceSpec, after: DeviceSpec, keys: set[str]) -> DeviceSpec:
    """Scale the rates that the user left alone with SMs × boost clock."""
    scale = after.sm_count * after.boost_clock_hz / (before.sm_count * before.boost_clock_hz)
    if scale == 1:
        return after
    update: Table = {"hypothetical": (*after.hypothetical, f"rates=x{scale:.3g} with sm_count and boost_clock")}
    for key in RATES:
        field = FIGURES[key].field
        rates: dict[str, float] = getattr(after, field)
        update[field] = {d: rate if f"{key}.{d}" in keys else rate * scale for d, rate in rates.items()}
    return after.model_copy(update=update)
