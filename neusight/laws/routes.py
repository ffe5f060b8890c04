"""What the messages of collectives pass: links of a node's devices, the path through the host, the network."""

from __future__ import annotations

import numpy as np

from neusight.devices.cluster import Cluster, Network, network_of_clusters, network_of_words
from neusight.devices.spec import DeviceSpec, Link
from neusight.errors import DeviceError
from neusight.kernels.families import KernelBatch
from neusight.laws.link_constants import LinkPhysics
from neusight.quick_dataclasses import dataclass

MESH_PEERS = 7.0
"""Peers among which the lanes of a mesh are divided: nodes of eight (datasheet: MI300X has a link to each of the seven
others)."""
TORUS = {"torus-2d": 2.0, "torus-3d": 3.0}
"""Dimensions of links that close, by what a link's topology says (definition)."""
TORUS_BLOCK = 4.0
"""Devices along a dimension from which on its links close to a ring (cited: Google Cloud, TPU v4: links wrap around in
multiples of 4 x 4 x 4)."""
ADAPTER_SHARE = 25.0 / 31.5
"""Network adapter of a device over its PCIe link where no network is known, one adapter a device: 200 Gb/s at PCIe 4.0
x16 and 400 Gb/s at 5.0 (datasheet: NVIDIA DGX A100 and DGX H100 datasheets: eight ConnectX-6 and ConnectX-7 for eight
GPUs)."""

Place = DeviceSpec | Cluster
"""Where collectives run: nodes of a device with its usual network, or a cluster."""


@dataclass(frozen=True, kw_only=True)
class Route:
    """What the messages of collectives pass; columns of shape (n,).

    ``bytes_per_s`` is what a rank can send while all do, ``hop_s`` a step between two ranks in NCCL's fastest protocol,
    ``crossed`` the share of steps that pass the network, which then take ``network_hop_s`` on top. ``carried``: links
    of their own join the ranks of a node, not the host. ``reducing``: they are joined by a switch that reduces.
    ``across``: the ranks are in several nodes. ``own_hop``: the links state what a step takes, whatever the protocol.
    """

    bytes_per_s: np.ndarray
    hop_s: np.ndarray
    crossed: np.ndarray
    network_hop_s: float
    carried: np.ndarray
    reducing: np.ndarray
    across: np.ndarray
    own_hop: np.ndarray
    own_bytes_per_s: float
    """Bandwidth of the device's fastest links, as its datasheet has it [B/s]."""


def device_of(place: Place) -> DeviceSpec:
    """The device at a place."""
    return place.device if isinstance(place, Cluster) else place


def network_of(place: Place) -> Network | None:
    """The network that is told of a place."""
    return place.network if isinstance(place, Cluster) else None


def fastest(device: DeviceSpec) -> Link:
    """The links over which devices of a kind reach each other fastest.

    Raises:
        DeviceError: the device states no links.
    """
    if not device.links:
        raise DeviceError(f"{device.id} states no links, over which collectives run: add [[links]] to its device file")
    return max(device.links, key=lambda link: link.bandwidth_bytes_per_s)


def host_link(device: DeviceSpec) -> Link:
    """The link to the host: PCIe, or the fastest there is where none is stated."""
    return next((link for link in device.links if link.kind == "pcie"), None) or fastest(device)


def network_bytes_per_s(place: Place) -> float:
    """Line rate of the network for one device of a node, one direction [B/s].

    Where none is given, see ``usual_network``.
    """
    if isinstance(place, Cluster) and (line_rate := place.network_bytes_per_s):
        return line_rate
    return usual_network(device_of(place))[1]


def usual_network(device: DeviceSpec) -> tuple[Network, float]:
    """(network, line rate for one device [B/s]) between nodes of a device where none is given: that of its clusters in
    the catalogue, else an InfiniBand adapter a device, see ``ADAPTER_SHARE``.
    """
    usual = network_of_clusters((device.original or device).id)
    return usual or (network_of_words("400Gb/s", 1), ADAPTER_SHARE * host_link(device).bandwidth_bytes_per_s)


def reduces(device: DeviceSpec) -> bool:
    """Whether a switch joins the devices of a node and reduces on the way (NVLink SHARP)."""
    return fastest(device).joins == "switch" and device.facts.switch_share > 0.0


def ranks_of(batch: KernelBatch) -> tuple[np.ndarray, np.ndarray]:
    """(ranks, ranks that share a node) of collectives."""
    ranks = np.maximum(batch["ranks"].astype(float), 1.0)
    return ranks, np.where(batch["per_node"] > 0, np.minimum(batch["per_node"], ranks), ranks)


def exchanges(batch: KernelBatch) -> np.ndarray:
    """Which collectives send to each peer what is its own, where others pass all on along rings and trees."""
    return np.isin(batch["op"], ("all_to_all", "send_recv", "host_copy"))


def inside(
    device: DeviceSpec, within: np.ndarray, links: LinkPhysics, redirected: np.ndarray | bool = False
) -> tuple[np.ndarray, np.ndarray]:
    r"""(bandwidth of a rank [B/s], whether its own links carry it) among so many devices of a node.

    A switch gives every rank the whole of its links, a mesh and a torus what ``_lanes`` says, a bridge one other
    device. What is left of p pairs passes the host; several cross its root complexes or sockets, whose links are the
    same whatever PCIe its boards have:

    .. math:: b = \min(s\,b_{PCIe}, b_c)\,\max(1, p / 2)^{-c}

    Args:
        device: its links.
        within: devices of the node that take part.
        links: s ``rates.host_share``, b_c ``rates.crossing_bytes_per_s``, c ``rates.redirected_contention`` [-].
        redirected: PCIe access control services send what devices exchange through one root complex; else c is 0.

    Source: two machines with 2, 4 and 8 ranks, PCIe 4.0 and redirected, PCIe 5.0 and not; 28 GB/s of eight boards on
    PCIe 5.0 (NVIDIA/nccl issue 1639); NVIDIA, NCCL user guide, Troubleshooting (access control services). Validity: one
    node of at most 16 devices.
    """
    own, host = fastest(device), host_link(device)
    lanes = _lanes(own.joins, within)
    everywhere = dict.fromkeys(("switch", "mesh", "ring", *TORUS), np.full(within.shape, True))
    alone = everywhere | {"bridge": within <= 2}
    carried = alone.get(own.joins, np.full(within.shape, False))
    # In a ring of bridged pairs every second edge is a bridge.
    pairs = np.where(own.joins == "bridge", np.ceil(within / 2.0), within)
    rates = links.rates
    crossing_bytes_per_s = np.where(pairs > 2, rates.crossing_bytes_per_s, np.inf)
    slot_bytes_per_s = np.minimum(rates.host_share * host.bandwidth_bytes_per_s, crossing_bytes_per_s)
    through_host = slot_bytes_per_s * np.maximum(pairs / 2.0, 1.0) ** (-rates.redirected_contention * redirected)
    share = rates.bridge_share if own.joins == "bridge" else rates.nvlink_share
    return np.where(carried, share * own.bandwidth_bytes_per_s * lanes, through_host), carried


def _lanes(joins: str, within: np.ndarray) -> np.ndarray:
    """Share of a device's links that so many devices of a node use.

    A mesh has as many lanes as peers. A torus of d dimensions carries a ring along each in which the devices lie, two
    links a ring (Jouppi et al. 2023, TPU v4, section 2: slices are cuboids of blocks of 4 in each dimension).
    """
    if joins == "mesh":
        return np.minimum(np.maximum(within - 1.0, 1.0) / MESH_PEERS, 1.0)
    if joins not in TORUS:
        return np.ones_like(within)
    return crossed_dimensions(joins, within) / TORUS[joins]


def crossed_dimensions(joins: str, within: np.ndarray) -> np.ndarray:
    """Along how many dimensions of their links so many devices lie; 1 of what is no torus."""
    if joins not in TORUS:
        return np.ones_like(within)
    crossed = np.floor(np.log(np.maximum(within, TORUS_BLOCK)) / np.log(TORUS_BLOCK) + 1e-9)
    return np.minimum(crossed, TORUS[joins])


def among(batch: KernelBatch, place: Place, links: LinkPhysics) -> tuple[np.ndarray, np.ndarray]:
    """``inside``, of each collective of a batch at a place; copies from and to the host pass its own link."""
    device, with_host = device_of(place), batch["op"] == "host_copy"
    redirected = batch["redirected"] | (isinstance(place, Cluster) and place.redirected)
    bytes_per_s, carried = inside(device, ranks_of(batch)[1], links, redirected)
    host_bytes_per_s = links.rates.host_share * host_link(device).bandwidth_bytes_per_s
    return np.where(with_host, host_bytes_per_s, bytes_per_s), carried & ~with_host


def crossing(place: Place, links: LinkPhysics) -> tuple[float, float, float]:
    """(bandwidth of rings and trees, bandwidth of exchanges [B/s], time of a hop [s]) between nodes, for one device.

    They are what the kind of network sustains, see ``usual_network`` where none is given. Neighbours of rings and trees
    of a rail-optimised network meet at one leaf switch; all else passes the spine, which may offer less than the
    adapters. The hop is that of protocol LL.
    """
    network, line = network_of(place) or usual_network(device_of(place))[0], network_bytes_per_s(place)
    spine, hop_s = network.sustained * line / network.oversubscription, links.rates.network_hop_s
    return network.sustained * line if network.rails else spine, spine, hop_s + network.added_hop_s


def route(batch: KernelBatch, place: Place, links: LinkPhysics) -> Route:
    """What the messages of a batch of collectives pass on nodes of a device, or of a cluster.

    Rings enter and leave a node once a channel, through all adapters of their ranks together; an exchange sends what
    goes to other nodes through each rank's own.

    Raises:
        DeviceError: the device states no links, or the cluster has fewer devices.
    """
    device = device_of(place)
    ranks, within = ranks_of(batch)
    if isinstance(place, Cluster):
        _check_room(place, ranks, within)
    local, carried = among(batch, place, links)
    ring_bytes_per_s, exchange_bytes_per_s, hop_s = crossing(place, links)
    leaving = (ranks - within) / np.maximum(ranks - 1.0, 1.0)
    exchange = exchanges(batch)
    ring = np.minimum(local, ring_bytes_per_s * within)
    scattered = 1.0 / np.maximum(leaving / exchange_bytes_per_s, (1.0 - leaving) / local)
    across = within < ranks
    own_hop_s = fastest(device).hop_s
    hop_cycles_s = links.nccl.nvlink_hop_cycles / device.core_clock_hz
    return Route(
        bytes_per_s=np.where(across, np.where(exchange, scattered, ring), local),
        hop_s=np.where(carried, own_hop_s or hop_cycles_s, links.nccl.host_hop_s),
        crossed=np.where(across, np.where(exchange, 1.0, 1.0 / within), 0.0),
        network_hop_s=hop_s,
        carried=carried,
        reducing=~across & reduces(device),
        across=across,
        own_hop=carried & (own_hop_s is not None),
        own_bytes_per_s=fastest(device).bandwidth_bytes_per_s,
    )


def _check_room(cluster: Cluster, ranks: np.ndarray, within: np.ndarray) -> None:
    """Raises:
    DeviceError: more ranks than devices.
    """
    if within.max(initial=0.0) > cluster.per_node:
        raise DeviceError(
            f"{within.max():.0f} ranks in one node of {cluster.id}, which has {cluster.per_node}: give per_node"
        )
    if (nodes := np.ceil(ranks / within).max(initial=0.0)) > cluster.nodes:
        raise DeviceError(f"ranks on {nodes:.0f} nodes of {cluster.id}, of which there are {cluster.nodes}: give nodes")
