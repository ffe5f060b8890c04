"""Reading of a device file's table into a checked spec of its kind; every mistake is one line with file and field."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from datetime import date
from pathlib import Path
from typing import Any

from neusight import units
from neusight.devices.schema import (
    DTYPES,
    FIGURES,
    KINDS,
    LINK_BANDWIDTH,
    LINK_HOP,
    LINK_KINDS,
    RATES,
    TOPOLOGIES,
    VENDORS,
    WORDS,
    Figure,
    keys_of,
)
from neusight.devices.spec import CARRIERS, SPECS, DeviceSpec, Link
from neusight.errors import DeviceError, UnitError, nearest

Table = dict[str, Any]
GIB_OVER_GB = 2**30 / 1e9
"""Datasheets name the GiB of a card in GB."""
OWN = "the device file, which names no source"
ROUNDED = 1.1
"""Rates that documents state over multipliers times clock, at most: Trainium2 has 1.06 by its own."""


def read_table(table: Table, where: str) -> DeviceSpec:
    """Check the table of a device file and turn it into SI units.

    Args:
        table: what the TOML file says.
        where: name of the file, for messages.

    Raises:
        DeviceError: unknown or missing key, impossible value, figure without a source where others have one.
        UnitError: a value without its unit or with another one.
    """
    _check_keys(table, where)
    values: Table = {key: _word(key, table[key], where) for key in WORDS if key in table}
    for key, described in FIGURES.items():
        if key in table:
            values[described.field] = figure(key, table[key], where)
    values["sources"] = _sources(table, where)
    _check_together(values, where)
    return SPECS[values.get("kind", "gpu")](**values)


def parse_file(path: Path) -> Table:
    """The table of a TOML file.

    Raises:
        DeviceError: unreadable, or no TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise DeviceError(f"{path.name}: not valid TOML: {str(error).lower()}: correct that line") from None
    except UnicodeDecodeError:
        raise DeviceError(f"{path.name}: not a text file in UTF-8: give a TOML file") from None
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise DeviceError(f"cannot read {path}: {reason}: check the path") from None


_FEW = 8
"""Options that fit a line."""


def known(name: str, options: Iterable[str], what: str, where: str) -> None:
    """Refuse a name that is none of the options.

    Raises:
        DeviceError: with the nearest options, and all of them where none is near or they are few.
    """
    options = tuple(options)
    if name not in options:
        near, every = nearest(name, options), f": use one of {', '.join(options)}"
        hint = near + (every.replace(":", " Or", 1) if len(options) <= _FEW else "") if near else every
        raise DeviceError(f"{where}: unknown {what} '{name}'{hint}")


def kind_of(table: Table, where: str) -> str:
    """Kind of device that a table describes.

    Raises:
        DeviceError: none that there is.
    """
    return str(_word("kind", table.get("kind", "gpu"), where))


def _check_keys(table: Table, where: str) -> None:
    keys = keys_of(kind_of(table, where))
    for key in table:
        known(key, keys, "key", where)
    optional = {k for k, may in WORDS.items() if may} | {k for k, f in FIGURES.items() if f.optional} | {"sources"}
    missing = [key for key in keys if key not in table and key not in optional]
    if missing:
        raise DeviceError(f"{where}: {', '.join(missing)} missing: add {'it' if len(missing) == 1 else 'them'}")


def _word(key: str, value: Any, where: str) -> Any:
    if key in ("aliases", "hypothetical"):
        if not is_words(value):
            raise DeviceError(f'{where}: {key} must be a list of strings: write it like {key} = ["…"]')
        return tuple(value)
    if not isinstance(value, str) or not value.strip():
        raise DeviceError(f'{where}: {key} = {value!r} must be text: write it like {key} = "…"')
    for word, options in (("vendor", VENDORS), ("kind", KINDS)):
        if key == word:
            known(value, options, word, where)
    return value


def is_words(value: Any) -> bool:
    """True if a value is a list of texts."""
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def figure(key: str, value: Any, where: str) -> Any:
    """Check a figure of a device file and turn it into SI units.

    Raises:
        DeviceError: an impossible value. UnitError: a value without its unit or with another one.
    """
    described = FIGURES[key]
    if key in RATES:
        return _rates(key, value, where)
    if key == "links":
        return _links(value, where)
    if described.quantity == "plain":
        return _plain(key, value, where)
    if described.quantity == "count":
        return _count(key, value, where)
    number = _quantity(key, value, described, where)
    # 7e-9 m is 7.000000000000001 nm in binary: a process node has no such digits.
    return round(number * 1e9, 6) if key == "process" else number


def _plain(key: str, value: Any, where: str) -> Any:
    type_, word, example = (date, "a date", "2023-03-21") if key == "release_date" else (str, "text", '"…"')
    if not isinstance(value, type_):
        raise DeviceError(f"{where}: {key} = {value!r} must be {word}: write it like {key} = {example}")
    return value


def _count(key: str, value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise DeviceError(f"{where}: {key} = {value!r} must be a whole number without quotes: write it like {key} = 32")
    return int(_within(key, value, value, FIGURES[key], where))


def _quantity(key: str, value: Any, figure: Figure, where: str) -> float:
    if not isinstance(value, str):
        value = f"{value}"
    try:
        number = units.parse(value, figure.quantity)
    except UnitError as error:
        raise UnitError(f"{where}: {key}: {error}") from None
    return _within(key, number, value, figure, where)


def _within(key: str, number: float, said: Any, figure: Figure, where: str) -> float:
    if not number > 0:
        raise DeviceError(f"{where}: {key} = {said} is not above zero: give the datasheet's figure")
    if not figure.low <= number <= figure.high:
        side = "small" if number < figure.low else "large"
        raise DeviceError(f"{where}: {key} = {said} is impossibly {side}: check its number and the prefix of its unit")
    return number


def _rates(key: str, value: Any, where: str) -> dict[str, float]:
    if not isinstance(value, dict):
        raise DeviceError(f'{where}: {key} must be a table by dtype: write it like {key}.float32 = "19.5 TFLOP/s"')
    for dtype in value:
        known(dtype, DTYPES, f"dtype in {key}", where)
    return {dtype: _quantity(f"{key}.{dtype}", rate, FIGURES[key], where) for dtype, rate in value.items()}


def _links(value: Any, where: str) -> tuple[Link, ...]:
    if not isinstance(value, list) or not all(isinstance(link, dict) for link in value):
        raise DeviceError(f"{where}: links must be tables: begin each with [[links]]")
    return tuple(_link(link, where) for link in value)


def _link(link: Table, where: str) -> Link:
    for key in link:
        known(key, ("kind", "generation", "bandwidth", "topology", "hop"), "key in links", where)
    for key in ("kind", "generation", "bandwidth"):
        if not isinstance(link.get(key), str):
            raise DeviceError(f'{where}: links: {key} missing or not text: write it like {key} = "…"')
    known(link["kind"], LINK_KINDS, "kind in links", where)
    bandwidth = _quantity("links.bandwidth", link["bandwidth"], LINK_BANDWIDTH, where)
    named = {"topology": link["topology"]} if "topology" in link else {}
    for topology in named.values():
        known(topology, TOPOLOGIES, "topology in links", where)
    if "hop" in link:
        named[LINK_HOP.field] = _quantity("links.hop", link["hop"], LINK_HOP, where)
    return Link(kind=link["kind"], generation=link["generation"], bandwidth_bytes_per_s=bandwidth, **named)


def _sources(table: Table, where: str) -> dict[str, str]:
    """Field → document, from the file's document → list of keys; every figure must appear. A file that names no
    documents speaks for itself.
    """
    listed = table.get("sources", {OWN: [key for key in FIGURES if table.get(key) not in (None, {}, [])]})
    if not isinstance(listed, dict) or not all(is_words(keys) for keys in listed.values()):
        raise DeviceError(f'{where}: sources must list keys by document: write it like "X datasheet" = ["tdp"]')
    documents: dict[str, list[str]] = {}
    for document, keys in listed.items():
        for key in keys:
            known(key, _keys_with_source(table), "key in sources", where)
            documents.setdefault(key, []).append(document)
    missing = [key for key in _required_keys(table, documents) if key not in documents]
    if missing:
        raise DeviceError(f"{where}: {', '.join(missing)} without a source: name the document under [sources]")
    return {_field_of(key): "; ".join(documents[key]) for key in _keys_with_source(table) if key in documents}


def _keys_with_source(table: Table) -> list[str]:
    """Keys of the table that may have a source, rates also by dtype."""
    keys = [key for key in FIGURES if key in table]
    return [name for key in keys for name in (key, *(f"{key}.{dtype}" for dtype in _dtypes(table, key)))]


def _required_keys(table: Table, documents: dict[str, list[str]]) -> list[str]:
    """Keys that must have a source; a rate may have its own in place of its table's."""
    needed = []
    for key in FIGURES:
        if table.get(key) not in (None, {}, []):
            by_dtype = [f"{key}.{dtype}" for dtype in _dtypes(table, key)]
            needed += [key] if key in documents or not by_dtype else by_dtype
    return needed


def _dtypes(table: Table, key: str) -> list[str]:
    return list(table[key]) if key in RATES and isinstance(table.get(key), dict) else []


def _field_of(key: str) -> str:
    name, dot, dtype = key.partition(".")
    return f"{FIGURES[name].field}{dot}{dtype}"


def _check_together(values: Table, where: str) -> None:
    """Refuse figures that each could be true, but not together."""
    if values.get("dram_usable_bytes", 0) > GIB_OVER_GB * values["dram_capacity_bytes"]:
        raise DeviceError(f"{where}: dram_usable is above dram_capacity: correct one of them")
    if not values["vector_flops_per_s"]:
        raise DeviceError(f'{where}: vector_flops is empty: give at least vector_flops.float32 = "… TFLOP/s"')
    if "sm_count" in values:
        _check_gpu(values, where)
    # Rates of a variant follow its arrays after they were read.
    if "array_count" in values and "hypothetical" not in values:
        _check_arrays(values, where)


def _check_arrays(values: Table, where: str) -> None:
    """Refuse rates that arrays cannot sustain at their clock."""
    lanes = values["array_rows"] * values["array_columns"] * values["array_count"]
    peak = 2.0 * lanes * values["clock_hz"]
    rates = values.get("matrix_flops_per_s", {})
    for dtype in rates.keys() & {*CARRIERS, "tf32"}:
        if rates[dtype] > ROUNDED * peak:
            raise DeviceError(
                f"{where}: matrix_flops.{dtype} is above the {peak / 1e12:.3g} TFLOP/s of its arrays at their clock: "
                "correct one of them"
            )


def _check_gpu(values: Table, where: str) -> None:
    if values["base_clock_hz"] > values["boost_clock_hz"]:
        raise DeviceError(f"{where}: base_clock is above boost_clock: exchange or correct them")
    if values["l2_capacity_bytes"] >= values["dram_capacity_bytes"]:
        raise DeviceError(f"{where}: l2_capacity is not below dram_capacity: check the prefixes of their units")
    if ("memory_cache_capacity_bytes" in values) != ("memory_cache_bandwidth_bytes_per_s" in values):
        raise DeviceError(f"{where}: memory_cache_capacity and memory_cache_bandwidth go together: give both or none")
    if values["max_threads_per_sm"] < values["warp_size"]:
        raise DeviceError(f"{where}: max_threads_per_sm is below warp_size: a multiprocessor holds at least one warp")
