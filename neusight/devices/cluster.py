"""Clusters: nodes of equal devices and the network between them, by name, from a file, or from a few words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import field
from functools import cache
from math import inf
from pathlib import Path
from typing import Any, Literal

from neusight import units
from neusight.devices.load import load_device
from neusight.devices.read import Table, is_words, known, parse_file
from neusight.devices.record import PositiveFloat, PositiveInt, Record
from neusight.devices.spec import DeviceSpec
from neusight.errors import DeviceError, UnitError, nearest, shown
from neusight.paths import user_path
from neusight.quick_dataclasses import dataclass

NetworkKind = Literal["infiniband", "roce", "efa", "tcpx", "slingshot", "ethernet"]


@dataclass(frozen=True, kw_only=True)
class Network(Record):
    """The network between the nodes of a cluster; bandwidths are one direction.

    ``sustained`` is the share of the line rate that long messages reach, ``added_hop_s`` the additional time of a
    message over that on InfiniBand; both default to those of the kind (``fabrics.toml``). ``reduces``: switches
    form sums on the way (SHARP). ``rails``: adapters of one place in all nodes meet at one leaf switch, so that
    neighbours of rings and trees do; ``oversubscription`` is the bandwidth of adapters over that of the spine.
    """

    kind: NetworkKind
    generation: str = ""
    bandwidth_bytes_per_s: PositiveFloat
    """Line rate of one adapter."""
    adapters: PositiveInt
    """Number of adapters of a node, all of one rate, that its devices share."""
    sustained: PositiveFloat
    added_hop_s: float = 0.0
    reduces: bool = False
    rails: bool = True
    oversubscription: PositiveFloat = 1.0


@dataclass(frozen=True, kw_only=True)
class Cluster(Record):
    """``nodes`` of ``per_node`` equal devices each.

    A node is what the devices' own links join: of a rack whose switches join 72 devices, the rack. Without a network
    several nodes have that of the catalogue's clusters of the device, see ``usual_network`` of ``laws/routes``.
    """

    id: str
    name: str
    device: DeviceSpec
    per_node: PositiveInt
    nodes: PositiveInt = 1
    network: Network | None = None
    redirected: bool = False
    """PCIe access control services send what its devices exchange through the host's root complex (``lspci -vvv``:
    ACSCtl with SrcValid+), as they must in virtual machines."""
    aliases: tuple[str, ...] = ()
    sources: dict[str, str] = field(default_factory=dict)
    """Document behind each figure, by key of the cluster's file."""
    notes: str = ""
    hypothetical: tuple[str, ...] = ()
    """Figures changed by the user, as ``key=value``."""

    @property
    def devices(self) -> int:
        """Number of devices of all nodes."""
        return self.per_node * self.nodes

    @property
    def size_words(self) -> str:
        """Its number of devices, for messages, with the options that decide it."""
        option = "--set per_node=" if self.sources else "--per-node "
        many = f"{self.nodes} nodes" if self.nodes > 1 else "1 node"
        fewer = max(1, self.per_node // 2)
        return f"{self.devices} devices ({many} of {self.per_node}: --nodes, or {option}{fewer}, takes another number)"

    @property
    def network_bytes_per_s(self) -> float | None:
        """Line rate of the network for one device, one direction [B/s]: the adapters of a node are shared evenly, since
        its devices communicate at once, as ranks of a plan do. None where no network is told.
        """
        if self.network is None:
            return None
        return self.network.adapters * self.network.bandwidth_bytes_per_s / self.per_node

    def __post_init__(self) -> None:
        """Raises:
        DeviceError: several devices without links among them, or none.
        """
        super().__post_init__()
        if self.devices > 1 and not self.device.links:
            raise DeviceError(
                f"{self.device.id} states no links to other devices: use one device, add [[links]] to its device file, "
                "or override links.pcie=64GB/s"
            )


USUAL_PER_NODE = 8
"""Devices of a node where no cluster of the catalogue says otherwise."""
_HERE = Path(__file__).resolve().parent
_CATALOGUE = _HERE / "clusters"
_KEYS = ("id", "name", "device", "per_node", "nodes", "redirected", "aliases", "notes", "network", "sources")
_REQUIRED = ("id", "name", "device", "per_node")
_SOURCED = ("device", "per_node", "redirected", "network")
_QUANTITIES = {"bandwidth": "bits_per_s", "added_hop": "s"}
_NETWORK = ("kind", "generation", "adapters", "sustained", "reduces", "rails", "oversubscription", *_QUANTITIES)
_OVERRIDES = ("per_node", "redirected", "network.", "device.")
_SWITCHES = ("redirected", "reduces", "rails")
_RANGES = {
    "adapters": (1, inf, "a whole number of at least 1"),
    "sustained": (1e-9, 1.0, "a share above 0 and at most 1"),
    "oversubscription": (1.0, inf, "a ratio of at least 1"),
    "bandwidth": (1e-9, inf, "a rate above zero"),
    "added_hop": (0.0, inf, "a time of at least zero"),
}
"""Least and most of each number of a network, and the words for both."""
_WORDS = re.compile(r"(?:(\d+)\s*x\s*)?(\d+(?:\.\d+)?)\s*([kmgt])?(?:b/s|bit/s|bps)(?:\s+(\w+))?", re.IGNORECASE)


def load_cluster(name_or_path: str, nodes: int = 0, overrides: Sequence[str] = ()) -> Cluster:
    """Load one cluster and, on request, change figures of it.

    Args:
        name_or_path: a name of the catalogue, such as ``dgx-h100`` or ``p4d.24xlarge`` (case does not matter), or a
            TOML file.
        nodes: how many; 0: as the file says, else one.
        overrides: ``key=value`` with ``per_node``, ``redirected``, keys of ``[network]`` such as
            ``network.bandwidth=800Gb/s`` or ``network.reduces=true``, and keys of the device such as
            ``device.dram_bandwidth=4TB/s``; noted in ``hypothetical``.

    Raises:
        DeviceError: unknown cluster, unreadable or malformed file, impossible value.
        UnitError: a value without its unit or with another one.
    """
    path = _path(name_or_path)
    table = parse_file(path)
    of_device = [change.strip().removeprefix("device.") for change in overrides if change.strip().startswith("device.")]
    for change in overrides:
        if not change.strip().startswith("device."):
            _apply(table, change)
    return _read(table, nodes, of_device, tuple(change.strip() for change in overrides), path.name)


def usual_per_node(device: DeviceSpec) -> int:
    """Devices of a node: the most of the catalogue's clusters of that device, whose racks are nodes; else 8."""
    return max((int(table["per_node"]) for table in _tables_of(device.id)), default=USUAL_PER_NODE)


def default_per_node(device: DeviceSpec) -> int:
    """Devices of a node that a question does not give: 8, or 1 where a device has no links to others."""
    return USUAL_PER_NODE if device.links else 1


def cluster_of(
    device: str | DeviceSpec, per_node: int = 0, nodes: int = 1, network: str = "", overrides: Sequence[str] = ()
) -> Cluster:
    """A cluster in a few words.

    Args:
        device: as ``load_device`` takes it, or a specification.
        per_node: devices of a node; 0: as ``default_per_node``.
        nodes: how many.
        network: ``[adapters x] rate [kind]``, such as ``400Gb/s`` or ``4 x 100Gb/s efa``; one adapter a device and
            InfiniBand unless said. "": not told, see ``Cluster``.
        overrides: changes of the device, as ``load_device`` takes them.

    Raises:
        DeviceError: unknown device or words, several devices without links, impossible numbers.
    """
    spec = device if isinstance(device, DeviceSpec) else load_device(device, overrides)
    per_node = per_node or default_per_node(spec)
    optional = {"network": network_of_words(network, per_node)} if network.strip() else {}
    name = f"{nodes} x {per_node} x {spec.name}"
    return _build({"id": f"{per_node}x{spec.id}", "name": name, "device": spec, **optional}, per_node, nodes, "cluster")


def list_clusters() -> list[Cluster]:
    """All clusters of the catalogue, one node each, by name."""
    return [load_cluster(name) for name in _ids()]


def cluster_ids() -> list[str]:
    """Names of the catalogue, in alphabetical order."""
    return list(_ids())


@cache
def _ids() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in _CATALOGUE.glob("*.toml")))


@cache
def _aliases() -> dict[str, str]:
    tables = (parse_file(_CATALOGUE / f"{id_}.toml") for id_ in _ids())
    return {alias.lower(): table["id"] for table in tables for alias in (table["name"], *table.get("aliases", ()))}


def _path(name_or_path: str) -> Path:
    name = name_or_path.strip().lower()
    if name.endswith(".toml"):
        return user_path(name_or_path)
    if name in _ids() or name in _aliases():
        return _CATALOGUE / f"{_aliases().get(name, name)}.toml"
    hint = nearest(name, (*_ids(), *_aliases())) or ": see `neusight clusters list`"
    raise DeviceError(f"unknown cluster '{shown(name_or_path)}'{hint}")


def _read(table: Table, nodes: int, of_device: Sequence[str], changes: tuple[str, ...], where: str) -> Cluster:
    for key in table:
        known(key, _KEYS, "key", where)
    if missing := [key for key in _REQUIRED if key not in table]:
        raise DeviceError(f"{where}: {', '.join(missing)} missing: add {'it' if len(missing) == 1 else 'them'}")
    for key in ("id", "name", "device", "notes"):
        if not isinstance(table.get(key, ""), str):
            raise DeviceError(f'{where}: {key} must be text: write it like {key} = "…"')
    if not is_words(table.get("aliases", [])):
        raise DeviceError(f'{where}: aliases must be a list of strings: write it like aliases = ["…"]')
    values: Table = {key: table[key] for key in ("id", "name", "notes") if key in table}
    values["aliases"] = tuple(table.get("aliases", ()))
    values["redirected"] = _figure("redirected", table.get("redirected", False), where)
    if "network" in table:
        values["network"] = _network(table["network"], where)
    values |= {"device": load_device(table["device"], of_device), "hypothetical": changes}
    values["sources"] = _sources(table, where)
    return _build(values, table["per_node"], nodes or table.get("nodes", 1), where)


def _network(table: Any, where: str) -> Network:
    """A ``[network]`` with what its kind sustains where the file does not say."""
    if not isinstance(table, dict):
        raise DeviceError(f"{where}: network must be a table: begin it with [network]")
    for key in table:
        known(key, _NETWORK, "key in network", where)
    if missing := [key for key in ("kind", "bandwidth", "adapters") if key not in table]:
        raise DeviceError(
            f"{where}: network: {', '.join(missing)} missing: add {'it' if len(missing) == 1 else 'them'}"
        )
    known(str(table["kind"]), _fabrics(), "kind of network", where)
    fabric = _fabric(table, where)
    usual = {key: fabric[key] for key in ("sustained", "added_hop")}
    values = {key: _figure(key, value, f"{where}: network") for key, value in (usual | table).items()}
    values["bandwidth_bytes_per_s"] = values.pop("bandwidth") / 8.0
    values["added_hop_s"] = values.pop("added_hop")
    return Network(**values)


def _fabric(table: Table, where: str) -> Table:
    """Sustained shares of networks of a kind and generation, with their source. Without a generation, adapters that are
    faster than those of the first one are of later ones.
    """
    fabric, generation = _fabrics().get(table["kind"], {}), table.get("generation")
    if not (later := fabric.get("later")):
        return fabric
    rate, first = (_figure("bandwidth", words, where) for words in (table["bandwidth"], later["above"]))
    is_later = generation in later["generations"] if generation else rate > first
    return fabric | (later if is_later else {})


def _figure(key: str, value: Any, where: str) -> Any:
    """The value of a key in SI units.

    Raises:
        DeviceError: of the wrong type, or out of range. UnitError: without its unit, or with another one.
    """
    if key in _QUANTITIES:
        try:
            value = units.parse(f"{value}", _QUANTITIES[key])
        except UnitError as error:
            raise UnitError(f"{where}.{key}: {error}") from None
    if key in _SWITCHES:
        if value not in (True, False):
            raise DeviceError(f"{where}: {key} = {value!r} must be true or false: write one of them")
        return bool(value)
    if key not in _RANGES:
        if not isinstance(value, str):
            raise DeviceError(f'{where}: {key} must be text: write it like {key} = "…"')
        return value
    least, most, words = _RANGES[key]
    types = int if key == "adapters" else int | float
    if isinstance(value, bool) or not isinstance(value, types) or not least <= value <= most:
        raise DeviceError(f"{where}: {key} = {value!r} is out of range: give {words}")
    return value


@cache
def network_of_clusters(device_id: str) -> tuple[Network, float] | None:
    """(network, its line rate for one device, one direction [B/s]) that the catalogue's clusters of a device have:
    InfiniBand where one has it, else that of the largest nodes. None: there are none.
    """
    shipped = [
        (_network(table["network"], table["id"]), int(table["per_node"]))
        for table in _tables_of(device_id)
        if "network" in table
    ]
    if not shipped:
        return None
    network, per_node = max(shipped, key=lambda entry: (entry[0].kind == "infiniband", entry[1]))
    return network, network.adapters * network.bandwidth_bytes_per_s / per_node


@cache
def _tables_of(device_id: str) -> tuple[Table, ...]:
    """The catalogue's clusters of a device."""
    paths = (_CATALOGUE / f"{name}.toml" for name in _ids())
    return tuple(parse_file(path) for path in paths if f'device = "{device_id}"' in path.read_text(encoding="utf-8"))


@cache
def _fabrics() -> dict[str, Table]:
    return parse_file(_HERE / "fabrics.toml")


def network_of_words(words: str, per_node: int) -> Network:
    """The network that ``cluster_of`` reads.

    Raises:
        DeviceError: other words, or impossible numbers.
    """
    match = _WORDS.fullmatch(words.strip())
    if not match:
        raise DeviceError(f"network '{shown(words)}': write it like 400Gb/s or 4 x 100Gb/s efa")
    adapters, rate, prefix, kind = match.groups()
    prefix = (prefix or "").upper().replace("K", "k")
    table = {"kind": (kind or "infiniband").lower(), "bandwidth": f"{rate} {prefix}b/s"}
    return _network(table | {"adapters": int(adapters) if adapters else per_node}, f"network '{shown(words)}'")


def _sources(table: Table, where: str) -> dict[str, str]:
    """Key → document, from the file's document → list of keys; all of ``_SOURCED`` must appear."""
    sources = table.get("sources", {})
    if not isinstance(sources, dict) or not all(isinstance(keys, list) for keys in sources.values()):
        raise DeviceError(f'{where}: sources must list keys by document: write it like "X datasheet" = ["network"]')
    documents: dict[str, str] = {}
    for document, keys in sources.items():
        for key in keys:
            known(str(key), _SOURCED, "key in sources", where)
            documents[key] = f"{documents[key]}; {document}" if key in documents else document
    if missing := [key for key in _SOURCED if key in table and key not in documents]:
        raise DeviceError(f"{where}: {', '.join(missing)} without a source: name the document under [sources]")
    if "network" in table:
        documents["network.sustained"] = _fabric(table["network"], where).get("source", "")
    return documents


def _apply(table: Table, change: str) -> None:
    """One ``key=value`` on the table of a cluster."""
    key, equals, value = (part.strip() for part in change.partition("="))
    if not (key and equals and value):
        raise DeviceError(f"--set {change}: not key=value: write it like network.bandwidth=800Gb/s")
    if key.startswith("network."):
        part = key.removeprefix("network.")
        known(part, _NETWORK, "key of a network", f"--set {change}")
        table.setdefault("network", {})[part] = value if part in (*_QUANTITIES, "kind", "generation") else _plain(value)
    elif key in ("per_node", "redirected"):
        table[key] = _plain(value)
    else:
        raise DeviceError(f"--set {change}: unknown key '{key}': begin it with one of {', '.join(_OVERRIDES)}")
    # A user's figure needs no document: the change itself is its source.
    table.setdefault("sources", {})[f"set by the user: {change}"] = [key.partition(".")[0]]


def _plain(text: str) -> Any:
    """A number or a truth value of the command line; anything else stays for the check of its field."""
    words = {"true": True, "yes": True, "false": False, "no": False}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return int(text) if re.fullmatch(r"[+-]?\d+", text) else float(text)
    except ValueError:
        return text


def _build(values: Table, per_node: Any, nodes: Any, where: str) -> Cluster:
    for key, count in (("per_node", per_node), ("nodes", nodes)):
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise DeviceError(
                f"{where}: {key} = {count!r} must be a whole number of at least 1: write it like {key} = 8"
            )
    return Cluster(**values, per_node=per_node, nodes=nodes)
