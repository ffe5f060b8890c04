r"""What collectives take: latency and bandwidth of rings, exchanges and reductions over the links of a node.

The model is the alpha-beta one (Hockney 1994; Thakur, Rabenseifner and Gropp 2005): a start, hops one after another,
and the bytes that each rank sends over what its links sustain. Of algorithms and protocols the one of least time runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from neusight.devices.cluster import Cluster, Network
from neusight.kernels.conditions import Conditions
from neusight.kernels.families import KernelBatch
from neusight.kernels.implementations import traits_of
from neusight.kernels.work import work_of
from neusight.laws.bounds import TINY_S
from neusight.laws.link_constants import LinkPhysics, Nccl
from neusight.laws.routes import (
    Place,
    Route,
    among,
    crossed_dimensions,
    crossing,
    device_of,
    exchanges,
    fastest,
    host_link,
    network_bytes_per_s,
    network_of,
    ranks_of,
    reduces,
    route,
)

TREE_SHARE = 0.9
"""Of what links and adapters sustain, for a tree (NCCL ``src/graph/tuning.cc``: bus bandwidth times 0.9)."""


@dataclass(frozen=True, kw_only=True)
class Way:
    """How an algorithm passes the ranks; columns of shape (n,).

    ``steps`` follow one another, each a hop of the protocol, those between nodes ``network_s`` longer in all;
    ``sent_s`` is the time of the bytes at what their route sustains.
    """

    steps: np.ndarray
    network_s: np.ndarray
    sent_s: np.ndarray


def tree(batch: KernelBatch, cluster: Cluster, links: LinkPhysics) -> Way:
    r"""All-reduces in a double binary tree of N nodes of w ranks, whose ranks form a chain; see ``tree_bytes``.

    .. math:: S = 2 (w - 1) + 2 \log_2 N

    Source: Sanders, Speck and Träff 2009 (two trees); NCCL ``src/graph/tuning.cc`` (hops); NVIDIA developer blog
    "Massively Scale Your Deep Learning Training with NCCL 2.4" (2019).
    """
    ranks, within = ranks_of(batch)
    local_bytes_per_s, _ = among(batch, cluster, links)
    bytes_per_s, _, hop_s = crossing(cluster, links)
    levels = np.log2(np.maximum(ranks / within, 1.0))
    local_s = np.where(within > 1, work_of(batch).read_bytes / local_bytes_per_s, 0.0)
    sent_s = np.maximum(local_s, tree_bytes(batch) / (bytes_per_s * within))
    return Way(steps=2.0 * (within - 1.0 + levels), network_s=2.0 * levels * hop_s, sent_s=sent_s / TREE_SHARE)


def tree_bytes(batch: KernelBatch) -> np.ndarray:
    r"""Bytes W that a node sends in trees over N nodes: as many as in a ring of all n ranks, or half of two nodes.

    .. math:: W = B \; (N = 2), \qquad W = 2 B (n - 1) / n \; (N > 2)

    Source: in two trees a node has two children once and none once; of two nodes one sends its sum up, the other the
    whole down (NCCL's maintainers in NVIDIA/nccl issue 946).
    """
    ranks, within = ranks_of(batch)
    return np.where(ranks <= 2.0 * within, batch["bytes"].astype(float), work_of(batch).read_bytes)


def through_switches_s(batch: KernelBatch, cluster: Cluster, network: Network, links: LinkPhysics) -> np.ndarray:
    """Time of hops and bytes of all-reduces whose sums are formed in switches [s]; infinite where none reduces.

    Switches of nodes (NVLink SHARP) take the place of the chain in a tree of nodes. Switches of the network (SHARP)
    take that of the tree: a node's adapters pass each byte once up and once down.

    Source: NCCL's algorithms NVLSTree and CollNet; Graham et al. 2016 (SHARP).
    """
    ranks, within = ranks_of(batch)
    bytes_per_s, _, hop_s = crossing(cluster, links)
    levels = np.log2(np.maximum(ranks / within, 1.0))
    switch_s = _in_node_switch_s(batch, cluster, links)
    trees_s = 2.0 * levels * hop_s + np.maximum(switch_s, tree_bytes(batch) / (bytes_per_s * within))
    if not network.reduces:
        return np.asarray(trees_s)
    local_bytes_per_s, _ = among(batch, cluster, links)
    halves_s = 2.0 * (within - 1.0) / within * batch["bytes"] / local_bytes_per_s
    once_s = batch["bytes"] / (bytes_per_s * within)
    return np.minimum(trees_s, 2.0 * hop_s + np.maximum(np.minimum(switch_s, halves_s), once_s))


def _in_node_switch_s(batch: KernelBatch, cluster: Cluster, links: LinkPhysics) -> np.ndarray:
    """Of a node's switch for all bytes once and the share that a rank gives out; infinite where it cannot reduce."""
    _, within = ranks_of(batch)
    if not reduces(cluster.device):
        return np.full(len(batch), np.inf)
    bytes_per_s = links.rates.switch_share * fastest(cluster.device).bandwidth_bytes_per_s
    return np.where(within > 1, batch["bytes"] * (1.0 + 1.0 / within) / bytes_per_s, np.inf)


def least_out_s(batch: KernelBatch, cluster: Cluster, network: Network) -> np.ndarray:
    """Bound [s]: bytes that must leave a node of N over the line rate of its ranks' shares of the adapters.

    An all-reduce sends at least 2 (N - 1) / N of its bytes (Patarasu and Yuan 2009, with nodes for ranks), or all of
    them once where the network reduces; an all-gather and a reduce-scatter half as many; an all-to-all what each of its
    ranks has for those of other nodes.
    """
    ranks, within = ranks_of(batch)
    others = 1.0 - within / ranks
    whole = np.where(batch["op"] == "all_to_all", within, np.where(batch["op"] == "send_recv", 2.0, 1.0))
    shares = np.where(batch["op"] == "all_reduce", 2.0, whole) * others
    if network.reduces:
        shares = np.where(batch["op"] == "all_reduce", np.minimum(shares, 1.0), shares)
    return np.asarray(shares * batch["bytes"] / (network_bytes_per_s(cluster) * within))


ONE_SHOT_BYTES = (512 * 1024, 256 * 1024)
"""From how many bytes on an engine's own all-reduce runs in two halves with up to 4 ranks, and with more, if it ever
does; with two ranks never (``custom_all_reduce.cuh``)."""


def nccl_s(batch: KernelBatch, place: Place, links: LinkPhysics) -> np.ndarray:
    r"""Time of NCCL's collectives [s], the least over its protocols and algorithms.

    .. math:: t = a_p + S h_p + \frac{T}{r_p} + c \sqrt{S h_p T}, \qquad T = \frac{W}{b} + \frac{w}{b_0}

    with steps S, 2 (n - 1) of an all-reduce, n - 1 of an all-gather or reduce-scatter, 1 of an exchange; along each of
    d dimensions of a torus, one after another, n is the d-th root of the ranks. Links that state what a hop takes have
    one protocol, the last, with hops of that. Where the network of a cluster is told, all-reduces across nodes may also
    run in trees or through switches that reduce.

    Args:
        batch: W bytes that a rank sends, and w = bytes / n of its own share, which is copied inside the device [B].
        place: b, what its links and network sustain, and the clock of its device for a_p and b_0.
        links: a_p start, h_p hop and r_p share of protocol p (LL, LL128, Simple); c ``nccl.pipelining``.

    Raises:
        DeviceError: the device states no links, or the cluster has fewer devices.

    Source: NCCL's cost model (``src/graph/tuning.cc``); the root is what is left of filling and draining a pipeline of
    chunks of the best size. Validity: bandwidths of long messages within some percent, latencies within 20 %.
    """
    path, nccl = route(batch, place, links), links.nccl
    clock_hz = device_of(place).core_clock_hz
    ranks, within = ranks_of(batch)
    steps = _steps(batch, ranks, crossed_dimensions(fastest(device_of(place)).joins, within))
    ring = Way(steps=steps, network_s=steps * path.through_s, sent_s=work_of(batch).read_bytes / path.bytes_per_s)
    times = _protocols_s(batch, ring, path, nccl, clock_hz)
    switch_s = nccl.switch_start * nccl.start_cycles / clock_hz
    reduced_s = switch_s + _through_switch_s(batch, path, links.rates.switch_share)
    sums = batch["op"] == "all_reduce"
    times.append(np.where(path.reducing & sums, reduced_s, np.inf))
    if isinstance(place, Cluster) and place.network:
        trees = _protocols_s(batch, tree(batch, place, links), path, nccl, clock_hz)
        trees.append(switch_s + through_switches_s(batch, place, place.network, links))
        times += [np.where(path.across & sums, time, np.inf) for time in trees]
    return _least(times)


def _protocols_s(batch: KernelBatch, way: Way, path: Route, nccl: Nccl, clock_hz: float) -> list[np.ndarray]:
    """Time of an algorithm [s] in each of NCCL's protocols."""
    ranks, _ = ranks_of(batch)
    exchange = exchanges(batch)
    held = np.where(np.isin(batch["op"], ("send_recv", "host_copy")), 0.0, batch["bytes"] / ranks)
    transfer_s = way.sent_s + held / (nccl.copy_bytes_per_cycle * clock_hz)
    start_s = nccl.start_cycles / clock_hz * np.where(batch["op"] == "all_to_all", nccl.exchange_start, 1.0)
    few = work_of(batch).read_bytes / np.where(exchange, np.maximum(ranks - 1.0, 1.0), 1.0)
    narrow_s = few / (nccl.ll_bytes_per_cycle * clock_hz)
    protocols = (
        (1.0, 1.0, np.maximum(transfer_s / nccl.ll_rate, narrow_s)),
        # Sends and receives have no LL128.
        (nccl.ll128_start, nccl.ll128_hop, np.where(exchange, np.inf, transfer_s / nccl.ll128_rate)),
        (np.where(exchange, nccl.exchange_simple, nccl.simple_start), nccl.simple_hop, transfer_s),
    )
    times = []
    for start, stated_hop, stated_s in protocols:
        hop = np.where(path.own_hop, 1.0, stated_hop)
        moving_s = np.where(path.own_hop, transfer_s, stated_s)
        hops_s = way.steps * hop * path.hop_s + way.network_s
        times.append(start * start_s + hops_s + moving_s + nccl.pipelining * np.sqrt(hops_s * transfer_s))
    return times


def own_s(batch: KernelBatch, place: Place, conditions: Conditions, links: LinkPhysics) -> np.ndarray:
    """Time of engines' own all-reduces [s], infinite where one has none for the collective or its links.

    One-shot: each rank reads the whole of all others, (n - 1) bytes, after one barrier. Two-shot: a reduce-scatter and
    an all-gather of reads, 2 (n - 1) / n bytes, with a second barrier. Some let a switch reduce where it can.

    Source: vLLM ``custom_all_reduce.cuh``, which SGLang took over, and ``symm_mem.py``; TensorRT-LLM
    ``customAllReduceKernels.cu``. Validity: one node, devices that read each other's memory; vLLM and SGLang also two
    of them through the host.
    """
    path, own, clock_hz = route(batch, place, links), links.own, device_of(place).core_clock_hz
    (ranks, _), traits = ranks_of(batch), traits_of("collective", conditions)
    cycles, two_shot = traits.constants("cycles_constant", own), traits["two_shot"]
    start_s = cycles / clock_hz + own.peer_s * (ranks - 1.0) + np.where(path.carried, 0.0, own.host_s)
    # ``bytes_per_s`` is NCCL's share of what links have; through the host both sustain the same.
    rate = path.bytes_per_s * np.where(path.carried, own.rate / links.rates.nvlink_share, 1.0)
    once = np.where(two_shot & (ranks > 2), np.where(ranks <= 4, *ONE_SHOT_BYTES), np.inf)
    one_s = start_s + (ranks - 1.0) * np.minimum(batch["bytes"], once) / rate
    halves_s = own.second_cycles / clock_hz + work_of(batch).read_bytes / rate
    # A longer message is never faster: two halves take no less than the longest that is sent at once.
    times = [np.where(batch["bytes"] < once, one_s, np.maximum(one_s, start_s + halves_s))]
    able = ~path.across & (path.carried | (two_shot & (ranks <= 2))) & (batch["op"] == "all_reduce")
    switched = own.switch_s + _through_switch_s(batch, path, own.switch_rate)
    times.append(np.where(path.reducing & traits["through_switch"], switched, np.inf))
    return np.where(able & traits["own_all_reduce"], _least(times), np.inf)


def collective_s(
    batch: KernelBatch, place: Place, conditions: Conditions, links: LinkPhysics
) -> tuple[np.ndarray, np.ndarray]:
    """(time on the device [s], the same with its launch [s]) of collectives as an engine runs them.

    An engine takes its own all-reduce where that is faster than NCCL. What is launched by itself takes no less than the
    host does, and an engine's own all-reduce then copies its operand into a buffer that peers may read.
    """
    execution_s, traits = nccl_s(batch, place, links), traits_of("collective", conditions)
    own = traits["own_all_reduce"]
    if own.any():
        execution_s = np.minimum(own_s(batch, place, conditions, links), execution_s)
    copies = np.where(own & (batch["op"] == "all_reduce"), 2.0 * batch["bytes"], 0.0)
    alone = np.isin(conditions.timing, ("stream", "wall"))
    copy_rate = links.launch.copy_share * device_of(place).dram_bandwidth_bytes_per_s
    execution_s = np.where(alone, execution_s + copies / copy_rate, execution_s)
    host_s = traits.constants("launch_constant", links.launch)
    return execution_s, np.where(alone, (execution_s**4 + host_s**4) ** 0.25, execution_s)


def least_s(batch: KernelBatch, place: Place) -> np.ndarray:
    """Bound [s]: bytes that a rank must send, whatever the algorithm, over what a datasheet allows it.

    An all-reduce sends 2 (n - 1) / n of its bytes (Patarasu and Yuan 2009), or all of them once where a switch reduces.
    Between nodes a rank has its network adapter besides its links; where the network is told, what must leave a node
    passes its adapters.
    """
    ranks, within = ranks_of(batch)
    device, network = device_of(place), network_of(place)
    sent, link = work_of(batch).read_bytes, fastest(device)
    across = within < ranks
    once = reduces(device) | (across & (network is not None and network.reduces))
    sent = np.where(once, np.minimum(sent, batch["bytes"]), sent)
    own = np.where(batch["op"] == "host_copy", host_link(device).bandwidth_bytes_per_s, link.bandwidth_bytes_per_s)
    rate = own + np.where(across, network_bytes_per_s(place), 0.0)
    least = sent / rate
    if isinstance(place, Cluster) and network:
        least = np.maximum(least, least_out_s(batch, place, network))
    return np.asarray(np.maximum(least, TINY_S))


def _steps(batch: KernelBatch, ranks: np.ndarray, dimensions: np.ndarray) -> np.ndarray:
    ring = np.where(batch["op"] == "all_reduce", 2.0, 1.0) * dimensions * (ranks ** (1.0 / dimensions) - 1.0)
    return np.where(exchanges(batch), np.minimum(ranks - 1.0, 1.0), ring)


def _through_switch_s(batch: KernelBatch, path: Route, share: float) -> np.ndarray:
    """A reduction in the switch sends all bytes once, and the share that a rank gives out to all others."""
    ranks, _ = ranks_of(batch)
    return np.asarray(batch["bytes"] * (1.0 + 1.0 / ranks) / (share * path.own_bytes_per_s))


def _least(times: Sequence[np.ndarray]) -> np.ndarray:
    return np.asarray(np.min(np.stack(times), axis=0))
