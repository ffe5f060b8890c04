"""Find a device: by the id of the catalogue, by the name that its driver reports, by a short name that people use, or
in the user's own file.
"""

from __future__ import annotations

import os
import re
import tomllib
import warnings
from collections.abc import Iterator, Sequence
from copy import deepcopy
from functools import cache
from math import log, prod
from pathlib import Path

from neusight.devices.kinship import NEAR
from neusight.devices.prices import price_lists, with_prices
from neusight.devices.read import Table, figure, kind_of, known, parse_file, read_table
from neusight.devices.schema import FIGURES, LINK_KINDS, RATES, key_of
from neusight.devices.spec import DeviceSpec, GpuSpec
from neusight.errors import DeviceError, nearest, shown
from neusight.paths import user_path
from neusight.quick_dataclasses import dataclass


def override(table: Table, changes: Sequence[str], where: str) -> DeviceSpec:
    """Apply ``key=value`` changes to the table of a device and check the result like a file.

    Peak rates are lanes × clock: where ``sm_count`` or ``boost_clock`` of a GPU changes, rates that are not changed
    themselves follow in proportion (``sets_rates`` of its kind), and so does the usable memory where the capacity
    changes. Everything changed is listed in ``hypothetical``.

    Raises:
        DeviceError: no ``key=value``, unknown key or one twice, impossible value.
        UnitError: a value without its unit or with another one.
    """
    before = read_table(table, where)
    _refuse_repeated(changes)
    stripped = tuple(change.strip() for change in changes)
    keys = {change.partition("=")[0].strip() for change in stripped}
    # A driver's figure of the memory does not apply to a changed memory.
    stale = {"dram_usable"} & set(table) if "dram_capacity" in keys else set()
    changed = {key: deepcopy(value) for key, value in table.items() if key not in stale}
    for change in stripped:
        _apply(changed, change)
    where = f"--set {' --set '.join(stripped)}"
    followed = _base_clock(before, changed, keys, where)
    # A price changes no figure that anything is predicted from.
    figures = [*(change for change in stripped if not change.startswith("price")), *followed]
    if "hypothetical" in table or figures:
        changed["hypothetical"] = [*table.get("hypothetical", []), *figures]
    # A user's figure needs no document: the change itself is its source.
    if "sources" in table:
        changed["sources"] = _with_sources(table["sources"], (*stripped, *followed), stale)
    after = read_table(changed, where)
    if not figures:
        return after
    if stale - keys:
        share = before.usable_bytes / before.dram_capacity_bytes
        after = after.model_copy(update={"dram_usable_bytes": share * after.dram_capacity_bytes})
    return _follow(before, after.model_copy(update={"original": before.original or with_prices([before])[0]}), keys)


def _base_clock(before: DeviceSpec, changed: Table, keys: set[str], where: str) -> tuple[str, ...]:
    """Lower the base clock to a boost clock that is set below it, as ``key=value`` in a tuple; () where it stays."""
    if "boost_clock" not in keys or "base_clock" in keys or not isinstance(before, GpuSpec):
        return ()
    if figure("boost_clock", changed["boost_clock"], where) >= before.base_clock_hz:
        return ()
    changed["base_clock"] = changed["boost_clock"]
    return (f"base_clock={changed['boost_clock']}",)


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
        known(key, _changeable(kind_of(table, "--set")), "key", f"--set {change}")
        table[key] = _value(key, value)


def _changeable(kind: str) -> Iterator[str]:
    for key, described in FIGURES.items():
        if described.describes(kind) and described.quantity != "plain" and key not in RATES:
            yield key


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
    remaining = {document: [key for key in listed if key not in gone] for document, listed in sources.items()}
    return remaining | {f"set by the user: {change}": [key] for change, key in keys.items()}


def _follow(before: DeviceSpec, after: DeviceSpec, keys: set[str]) -> DeviceSpec:
    """Scale the rates that the user left alone with what they are proportional to: lanes × clock."""
    scale = prod(getattr(after, field) / getattr(before, field) for field in before.sets_rates)
    if scale == 1:
        return after
    causes = " and ".join(key_of(field, before.kind) for field in before.sets_rates)
    update: Table = {"hypothetical": (*after.hypothetical, f"rates=x{scale:.3g} with {causes}")}
    for key in RATES:
        field = FIGURES[key].field
        rates: dict[str, float] = getattr(after, field)
        update[field] = {d: rate if f"{key}.{d}" in keys else rate * scale for d, rate in rates.items()}
    return after.model_copy(update=update)


_HERE = Path(__file__).resolve().parent
_CATALOGUE = _HERE / "catalogue"
_LISTED = 8
"""Candidates that a message names, at most."""


@dataclass(frozen=True, kw_only=True)
class DeviceMatch:
    """The device that a name stands for.

    ``name`` is its id, or the path of its file. ``others`` are the ids that a short name fits as well. ``request`` is
    that short name; '' where an id, a driver's name or a path was given, which stand for themselves.
    """

    name: str
    others: tuple[str, ...] = ()
    request: str = ""

    @property
    def assumption(self) -> str:
        """Assumption about the requested name, as a line to print; '' for none."""
        rest = f"; others: {_some(self.others)}" if self.others else ""
        return f"{self.request} taken as {self.name}{rest}" if self.request else ""


def load_device(name_or_path: str, overrides: Sequence[str] = ()) -> DeviceSpec:
    """Load one device and, on request, change figures of it.

    Args:
        name_or_path: id of the catalogue, name that the driver reports, or short name (case does not matter), or a
            TOML file. A short name that fits several boards warns which of them it was taken for.
        overrides: ``key=value`` with keys of the device file, such as ``dram_bandwidth=4.8TB/s``, ``sm_count=144``,
            ``matrix_flops.bfloat16=2PFLOP/s`` or ``links.nvlink=900GB/s``; noted in ``hypothetical`` but for a price,
            from which nothing is predicted. A device's name may stand before a key: ``l4.price=1USD/h``.

    Raises:
        DeviceError: unknown device or one of several, unreadable or malformed file, impossible value.
        UnitError: a value without its unit or with another one.
    """
    match = find_device(name_or_path)
    if match.others:
        warnings.warn(match.assumption, stacklevel=2)
    path = _CATALOGUE / f"{match.name}.toml" if match.name in _ids() else user_path(match.name)
    if not overrides:
        return read_file(path)
    changes = [_of_device(change, match, path.stem) for change in overrides]
    return _complete(override(parse_file(path), changes, path.name))


def _of_device(change: str, match: DeviceMatch, stem: str) -> str:
    """A change without the name of the device before its key.

    Raises:
        DeviceError: it is of another device.
    """
    device, rest = named_change(change)
    if device and device not in ("device", match.name, stem):
        raise DeviceError(f"--set {change.strip()}: {device} is not in question, {stem} is: name that, or leave it out")
    return rest if device else change


def named_change(change: str) -> tuple[str, str]:
    """The device before the key of ``l4.price=1USD/h``, as an id or as it is written, and the rest; "" without one."""
    name, dot, rest = change.partition("=")[0].strip().partition(".")
    if not dot or name in ("links", *RATES) or not rest:
        return "", change
    try:
        return find_device(name).name, change.strip().partition(".")[2]
    except DeviceError:
        return name, change.strip().partition(".")[2]


def load_devices(names: Sequence[str], overrides: Sequence[str] = (), prices: str | Path = "") -> list[DeviceSpec]:
    """Load devices that are compared, with prices of one list where one has all of them, see ``with_prices``.

    Args:
        names: as ``load_device`` takes them.
        overrides: as there, of all devices, or of one whose name stands before the key: ``l4.price=1USD/h``;
            ``device.`` before it is any of them.
        prices: a table of the user's, whose lists come before the shipped ones.

    Raises:
        DeviceError, UnitError: as of ``load_device``, or a change of a device that is none of them.
    """
    ids = [find_device(name).name for name in names]
    places = {"device", *ids, *(user_path(name).stem for name in ids)}
    for change in overrides:
        if (device := named_change(change)[0]) and device not in places:
            raise DeviceError(f"--set {change.strip()}: {device} is not among {', '.join(names)}: name one of them")
    changes = [changes_of(name, overrides) for name in ids]
    return with_prices([load_device(name, c) for name, c in zip(names, changes, strict=True)], prices)


def listed_gpus(prices: str | Path = "") -> list[DeviceSpec]:
    """GPUs of the first price list, a user's table before the shipped ones, with its prices."""
    return [gpu for gpu in load_devices(list(price_lists(prices)[0].prices), prices=prices) if gpu.kind == "gpu"]


def changes_of(name: str, overrides: Sequence[str]) -> list[str]:
    """Changes of one of several devices, by its id or file, without the device before their keys."""
    names_of_device = {"", "device", name, user_path(name).stem}
    return [rest for device, rest in map(named_change, overrides) if device in names_of_device]


def load_gpu(name_or_path: str, overrides: Sequence[str] = ()) -> GpuSpec:
    """Load one GPU, as ``load_device`` does.

    Raises:
        DeviceError: another kind of device, or as of ``load_device``.
    """
    return gpu_of(load_device(name_or_path, overrides))


def gpu_of(device: DeviceSpec) -> GpuSpec:
    """A device that must be a GPU.

    Raises:
        DeviceError: another kind of device.
    """
    if not isinstance(device, GpuSpec):
        raise DeviceError(f"{device.id} is a device of kind {device.kind}: name a GPU, see `neusight devices list`")
    return device


def find_device(name_or_path: str) -> DeviceMatch:
    """The device that an id, a driver's name, a short name or a path stands for; no file is opened for an id.

    ``4090``, ``RTX 4090`` and ``rtx4090`` are ``rtx-4090``, and not ``rtx-4090-d``; ``h100`` and ``H100 80GB`` are what
    ``customary.toml`` says, ``h100 pcie`` the only one with both words; of other boards of one architecture, such as
    ``v100 pcie``, the oldest is taken.

    Raises:
        DeviceError: no device has this name, or several of different architectures have and none is customary.
    """
    name = name_or_path.strip().lower()
    if name in _ids():
        return DeviceMatch(name=name)
    if name.endswith(".toml"):
        return DeviceMatch(name=name_or_path)
    if owner := _aliases().get(name):
        return DeviceMatch(name=owner)
    # After the aliases, because some drivers report names with a slash.
    if any(mark in name for mark in (os.sep, os.altsep) if mark):
        return DeviceMatch(name=name_or_path)
    return _short(name, name_or_path)


def list_devices() -> list[DeviceSpec]:
    """All devices of the catalogue, in order of release."""
    specs = [read_file(_CATALOGUE / f"{name}.toml") for name in device_ids()]
    return sorted(specs, key=lambda spec: (spec.release_date, spec.id))


def list_gpus() -> list[GpuSpec]:
    """GPUs of the catalogue, in order of release."""
    return [device for device in list_devices() if isinstance(device, GpuSpec) and device.kind == "gpu"]


def device_ids() -> list[str]:
    """Ids of the catalogue, in alphabetical order."""
    return list(_ids())


def read_file(path: Path) -> DeviceSpec:
    """Read one device file.

    Raises:
        DeviceError: unreadable, malformed, or a value that cannot be.
        UnitError: a value without its unit or with another one.
    """
    return _complete(read_table(parse_file(path), path.name))


def read_text(text: str, name: str) -> DeviceSpec:
    """Read the text of a device file like the file; messages call it by ``name``.

    Raises:
        DeviceError: malformed, or a value that cannot be.
        UnitError: a value without its unit or with another one.
    """
    return _complete(read_table(tomllib.loads(text), name))


def _complete(spec: DeviceSpec) -> DeviceSpec:
    """Add a list price, and to a variant or a board of a known die the device of the catalogue that it is like."""
    if spec.original is None and (original := _known_board(spec)) is not None:
        spec = spec.model_copy(update={"original": original})
    return with_prices([spec])[0]


_WRITTEN = ("vendor", "architecture", "compute_capability", "sm_count")
"""Figures in which boards of one die agree, of those that files write as they are."""
_READ = ("kind", "core_count", "process_nm", "on_chip_bytes")
"""The others."""


def _known_board(spec: DeviceSpec) -> DeviceSpec | None:
    """The device of the catalogue that a variant has the id of; of a file with another id the board of its die with the
    fewest other figures, if none of those differs by more than figures of sibling boards do.
    """
    if spec.id in _ids():
        return read_file(_CATALOGUE / f"{spec.id}.toml") if spec.hypothetical else None
    tables = ((path, parse_file(path)) for path in sorted(_CATALOGUE.glob("*.toml")))
    files = [path for path, table in tables if all(table.get(key) == getattr(spec, key, None) for key in _WRITTEN)]
    boards = [board for board in map(read_file, files) if all(getattr(board, k) == getattr(spec, k) for k in _READ)]
    near = [board for board in boards if spec.model_copy(update={"original": board}).distance <= log(NEAR)]
    return min(near, key=lambda board: sum(vars(board)[name] != x for name, x in vars(spec).items()), default=None)


@cache
def _ids() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in _CATALOGUE.glob("*.toml")))


def _short(name: str, request: str) -> DeviceMatch:
    """The device that all words of a short name belong to: the plain one (``rtx-4070`` beside ``rtx-4070-ti``), whose
    words all others have as well; of one architecture the customary one, else the oldest, before all one whose id has
    all words.
    """
    words = set(_words(name))
    fitting = [id_ for id_ in _ids() if words <= _vocabulary()[id_] and words & _chips(id_)]
    if not fitting:
        hint = nearest(name, _ids()) or nearest(name, _aliases()) or ": see `neusight devices list`"
        raise DeviceError(f"unknown device '{shown(request)}'{hint}")
    shared = set.intersection(*(set(_words(id_)) for id_ in fitting))
    if plain := next((id_ for id_ in fitting if set(_words(id_)) == shared), None):
        return DeviceMatch(name=plain, request=request.strip())
    tables = [parse_file(_CATALOGUE / f"{id_}.toml") for id_ in fitting]
    if len({table["architecture"] for table in tables}) > 1:
        raise DeviceError(f"'{shown(request)}' may be {_some(fitting)}: name one of them")
    customary = [id_ for id_ in parse_file(_HERE / "customary.toml").values() if id_ in fitting]
    oldest = min(tables, key=lambda t: (not words <= set(_words(t["id"])), t["release_date"], t["id"]))
    chosen = customary[0] if customary else str(oldest["id"])
    return DeviceMatch(name=chosen, others=tuple(id_ for id_ in fitting if id_ != chosen), request=request.strip())


def _words(name: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", name.lower())


@cache
def _vocabulary() -> dict[str, set[str]]:
    """Words of each id and of its names, and those of the id written together: ``rtx4090``, ``a100sxm``."""
    words = {id_: {*_words(id_), *_join(_words(id_))} for id_ in _ids()}
    for alias, id_ in _aliases().items():
        words[id_] |= set(_words(alias))
    return words


def _join(words: Sequence[str]) -> set[str]:
    places = range(len(words) + 1)
    return {"".join(words[start:end]) for end in places for start in range(end)}


def _chips(id_: str) -> set[str]:
    """Words that hold the name of the chip, the first of an id with a digit: ``80gb`` alone names no device."""
    words = _words(id_)
    chip = next((word for word in words if any(map(str.isdigit, word))), words[0])
    return {word for word in _join(words) if chip in word}


def _some(ids: Sequence[str]) -> str:
    rest = f" and {len(ids) - _LISTED} more" if len(ids) > _LISTED else ""
    return ", ".join(ids[:_LISTED]) + rest


@cache
def _aliases() -> dict[str, str]:
    """Alias in lower case → id; files of the catalogue are read only when a name is no id."""
    tables = {id_: _first_paragraph(id_) for id_ in _ids()}
    return {a.lower(): id_ for id_, table in tables.items() for a in (table["name"], *table.get("aliases", ()))}


def _first_paragraph(id_: str) -> Table:
    """The keys of a file of the catalogue that are words: its first paragraph."""
    return tomllib.loads((_CATALOGUE / f"{id_}.toml").read_text(encoding="utf-8").partition("\n\n")[0])
