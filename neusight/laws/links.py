r"""What collectives take: latency and bandwidth of rings, exchanges and reductions over the links of a node.

The model is the alpha-beta one (Hockney 1994; Thakur, Rabenseifner and Gropp 2005): a start, hops one after another,
and the bytes that each rank sends over what its links sustain. Of algorithms and protocols the one of least time runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from neusight.devices.cluster import Cluster, Network
from neusight.devices.spec import DeviceSpec
from neusight.kernels.conditions import Conditions
from neusight.kernels.families import KernelBatch
from neusight.kernels.implementations import traits_of
from neusight.kernels.work import work_of
from neusight.laws.bounds import TINY_S
from neusight.laws.link_constants import LinkPhysics
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
from neusight.laws.tuning import allowed, tuning_of

TREE_SHARE = 0.92
"""Of what links and adapters sustain, for a tree (cited: NCCL 2.28.3, ``src/graph/tuning.cc``: bus bandwidth times
0.92)."""


@dataclass(frozen=True, kw_only=True)
class Way:
    """How an algorithm passes the ranks; columns of shape (n,).

    ``steps`` follow one another, each a hop of the protocol, of which ``crossings`` pass the network as well;
    ``sent_s`` is the time of the bytes at what their route sustains.
    """

    steps: np.ndarray
    crossings: np.ndarray
    sent_s: np.ndarray


def tree(batch: KernelBatch, cluster: Place, links: LinkPhysics) -> Way:
    r"""All-reduces in a double binary tree of N nodes of w ranks, whose ranks form a chain; see ``tree_bytes``.

    .. math:: S = 2 (w - 1) + 2 \log_2 N

    Source: Sanders, Speck and Träff 2009 (two trees); NCCL ``src/graph/tuning.cc`` (hops); NVIDIA developer blog
    "Massively Scale Your Deep Learning Training with NCCL 2.4" (2019).
    """
    ranks, within = ranks_of(batch)
    local_bytes_per_s, _ = among(batch, cluster, links)
    bytes_per_s, _, _ = crossing(cluster, links)
    levels = np.log2(np.maximum(ranks / within, 1.0))
    local_s = np.where(within > 1, work_of(batch).read_bytes / local_bytes_per_s, 0.0)
    sent_s = np.maximum(local_s, tree_bytes(batch) / (bytes_per_s * within))
    return Way(steps=2.0 * (within - 1.0 + levels), crossings=2.0 * levels, sent_s=sent_s / TREE_SHARE)


def tree_bytes(batch: KernelBatch) -> np.ndarray:
    r"""Bytes W that a node sends in trees over N nodes: as many as in a ring of all n ranks, or half of two nodes.

    .. math:: W = B \; (N = 2), \qquad W = 2 B (n - 1) / n \; (N > 2)

    Source: in two trees a node has two children once and none once; of two nodes one sends its sum up, the other the
    whole down (NCCL's maintainers in NVIDIA/nccl issue 946).
    """
    ranks, within = ranks_of(batch)
    return np.where(ranks <= 2.0 * within, batch["bytes"].astype(float), work_of(batch).read_bytes)


def tree_of_switches_s(batch: KernelBatch, cluster: Place, links: LinkPhysics) -> np.ndarray:
    """Time of all-reduces in trees of nodes whose switches form the sums [s]; infinite where none do.

    Switches of nodes (NVLink SHARP) take the place of the chain in a tree of nodes, in protocol Simple.

    Source: NCCL's algorithm NVLSTree.
    """
    ranks, within = ranks_of(batch)
    bytes_per_s, _, hop_s = crossing(cluster, links)
    levels = np.log2(np.maximum(ranks / within, 1.0))
    hops_s = 2.0 * levels * (hop_s + tuning_of(device_of(cluster).vendor).added_hop_s[-1])
    sent_s = tree_bytes(batch) / (bytes_per_s * within)
    return hops_s + _switched_s(np.maximum(_in_node_switch_s(batch, cluster, links), sent_s), cluster, links)


def through_network_s(batch: KernelBatch, cluster: Cluster, network: Network, links: LinkPhysics) -> np.ndarray:
    """Time of all-reduces whose sums switches of the network form (SHARP) [s]; infinite where none do.

    They take the place of a tree of nodes: a node's adapters pass each byte once up and once down.

    Source: NCCL's algorithm CollNet; Graham et al. 2016 (SHARP).
    """
    if not network.reduces:
        return np.full(len(batch), np.inf)
    _, within = ranks_of(batch)
    bytes_per_s, _, hop_s = crossing(cluster, links)
    local_bytes_per_s, _ = among(batch, cluster, links)
    halves_s = 2.0 * (within - 1.0) / within * batch["bytes"] / local_bytes_per_s
    switch_s = np.where(allowed(batch, "nvls"), _in_node_switch_s(batch, cluster, links), np.inf)
    once_s = batch["bytes"] / (bytes_per_s * within)
    return 2.0 * hop_s + _switched_s(np.maximum(np.minimum(switch_s, halves_s), once_s), cluster, links)


def _switched_s(moved_s: np.ndarray, place: Place, links: LinkPhysics) -> np.ndarray:
    """Time of a sum in switches [s]: its start, and what it moves in chunks that have to fill them first."""
    start_s = links.nccl.switch_start * links.nccl.start_cycles / device_of(place).core_clock_hz
    return np.asarray(start_s + links.nccl.switch_pipelining * np.sqrt(start_s * moved_s) + moved_s)


def _in_node_switch_s(batch: KernelBatch, place: Place, links: LinkPhysics) -> np.ndarray:
    """Of a node's switch for all bytes once and the share that a rank gives out; infinite where it cannot reduce."""
    _, within = ranks_of(batch)
    device = device_of(place)
    if not reduces(device):
        return np.full(len(batch), np.inf)
    bytes_per_s = links.rates.switch_share * device.facts.switch_share * fastest(device).bandwidth_bytes_per_s
    moved = batch["bytes"] * (1.0 + 1.0 / within)
    switch_s = np.maximum(moved / bytes_per_s, through_blocks_s(batch, moved, device))
    return np.where(within > 1, switch_s, np.inf)


def through_blocks_s(batch: KernelBatch, moved: np.ndarray, device: DeviceSpec) -> np.ndarray:
    """Time [s] in which as many thread blocks as a collective may take move ``moved`` bytes; 0 where nobody says."""
    limited = (batch["max_ctas"] > 0) & (device.facts.channel_bytes_per_s > 0.0)
    bytes_per_s = np.where(limited, batch["max_ctas"] * device.facts.channel_bytes_per_s, np.inf)
    return np.asarray(moved / bytes_per_s)


def blocks_of(batch: KernelBatch, device: DeviceSpec) -> np.ndarray:
    """Thread blocks of NCCL's collectives, each of which takes a multiprocessor."""
    usual = device.facts.channels
    return np.where(batch["max_ctas"] > 0, np.minimum(batch["max_ctas"], usual), usual)


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
does; with two ranks never (cited: vLLM, ``custom_all_reduce.cuh``)."""


def nccl_s(batch: KernelBatch, place: Place, links: LinkPhysics) -> np.ndarray:
    r"""Time of NCCL's collectives [s], the least over its protocols and algorithms.

    .. math:: t = a_p + S h_p + \frac{T}{r_p} + c \sqrt{S h_p T}, \qquad T = \frac{W}{b} + \frac{w}{b_0}

    with steps S, 2 (n - 1) of an all-reduce, n - 1 of an all-gather or reduce-scatter, 1 of an exchange; along each of
    d dimensions of a torus, one after another, n is the d-th root of the ranks. Links that state what a hop takes have
    one protocol, the last, with hops of that. All-reduces may also run in trees, between nodes above all, or through
    switches that reduce. What other libraries than NCCL take of starts and hops is in proportion, see ``Tuning``.

    Args:
        batch: W bytes that a rank sends, and w = bytes / n of its own share, which is copied inside the device [B].
        place: b, what its links and network sustain, and the clock of its device for a_p and b_0.
        links: a_p start, h_p hop and r_p share of protocol p (LL, LL128, Simple); c ``nccl.pipelining``.

    Raises:
        DeviceError: the device states no links, or the cluster has fewer devices.

    Source: NCCL's cost model (``src/graph/tuning.cc``); the root is what is left of filling and draining a pipeline of
    chunks of the best size. Validity: bandwidths of long messages within some percent, latencies within 20 %.
    """
    path, device = route(batch, place, links), device_of(place)
    ranks, within = ranks_of(batch)
    steps = _steps(batch, ranks, crossed_dimensions(fastest(device).joins, within))
    ring = Way(steps=steps, crossings=steps * path.crossed, sent_s=work_of(batch).read_bytes / path.bytes_per_s)
    ring_s = _protocols_s(batch, ring, path, links, device)
    sums = batch["op"] == "all_reduce"
    if not sums.any():
        return ring_s
    times = {"ring": ring_s, **_sums_s(batch, place, path, links)}
    able = np.stack([np.where(allowed(batch, name) & sums, time, np.inf) for name, time in times.items()])
    least_s = np.asarray(able.min(axis=0))
    # NCCL falls back to rings where it has none of the algorithms.
    return np.where(np.isfinite(least_s), least_s, ring_s)


def _sums_s(batch: KernelBatch, place: Place, path: Route, links: LinkPhysics) -> dict[str, np.ndarray]:
    """Times of all-reduces [s] by algorithm, but for rings; infinite where one does not run."""
    in_switch_s = _switched_s(_in_node_switch_s(batch, place, links), place, links)
    times = {
        "nvls": np.where(path.across, np.inf, in_switch_s),
        "tree": _protocols_s(batch, tree(batch, place, links), path, links, device_of(place)),
    }
    if path.across.any():
        times["nvlstree"] = np.where(path.across, tree_of_switches_s(batch, place, links), np.inf)
    if isinstance(place, Cluster) and place.network:
        sharp_s = through_network_s(batch, place, place.network, links)
        times["collnet"] = np.where(path.across, sharp_s, np.inf)
    return times


def _protocols_s(batch: KernelBatch, way: Way, path: Route, links: LinkPhysics, device: DeviceSpec) -> np.ndarray:
    """Time of an algorithm [s], the least of its protocols LL, LL128 and Simple."""
    nccl, clock_hz, tuning = links.nccl, device.core_clock_hz, tuning_of(device.vendor)
    ranks, _ = ranks_of(batch)
    exchange = exchanges(batch)
    held = np.where(np.isin(batch["op"], ("send_recv", "host_copy")), 0.0, batch["bytes"] / ranks)
    sent_s = np.maximum(way.sent_s, through_blocks_s(batch, work_of(batch).read_bytes, device))
    transfer_s = sent_s + held / (nccl.copy_bytes_per_cycle * clock_hz)
    start_s = nccl.start_cycles / clock_hz * np.where(batch["op"] == "all_to_all", nccl.exchange_start, 1.0)
    few = work_of(batch).read_bytes / np.where(exchange, np.maximum(ranks - 1.0, 1.0), 1.0)
    narrow_s = few / (nccl.ll_bytes_per_cycle * clock_hz)
    protocols: Sequence[tuple[Any, float, np.ndarray]] = (
        (1.0, 1.0, np.maximum(transfer_s / nccl.ll_rate, narrow_s)),
        # Neither sends and receives nor paths through the host have LL128 (ncclTopoTuneModel: PATH_NVB at most).
        (nccl.ll128_start, nccl.ll128_hop, np.where(exchange | ~path.carried, np.inf, transfer_s / nccl.ll128_rate)),
        (np.where(exchange, nccl.exchange_simple, nccl.simple_start), nccl.simple_hop, transfer_s),
    )
    times = []
    for number, (start, nccl_hop, moved_s) in enumerate(protocols):
        hop = np.where(path.own_hop, 1.0, nccl_hop * tuning.hop[number])
        network_hop_s = path.network_hop_s + tuning.added_hop_s[number]
        moving_s = np.where(path.own_hop, transfer_s, moved_s)
        hops_s = way.steps * hop * path.hop_s + way.crossings * network_hop_s
        pipeline_s = nccl.pipelining * np.sqrt(hops_s * transfer_s)
        times.append(start * tuning.start[number] * start_s + hops_s + moving_s + pipeline_s)
    return _least(times)


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
    switched = own.switch_s + _through_switch_s(batch, path, own.switch_rate * device_of(place).facts.switch_share)
    times.append(np.where(path.reducing & traits["through_switch"], switched, np.inf))
    return np.where(able & traits["own_all_reduce"], _least(times), np.inf)


def collective_s(
    batch: KernelBatch, place: Place, conditions: Conditions, links: LinkPhysics
) -> tuple[np.ndarray, np.ndarray]:
    """(time on the device [s], the same with its launch [s]) of collectives as an engine runs them.

    An engine takes its own all-reduce where that is faster than NCCL. A launch by itself waits for the call of the
    host; calls in a loop take no less than the host does. An engine's own all-reduce then copies its operand into a
    buffer that peers may read.
    """
    execution_s, traits = nccl_s(batch, place, links), traits_of("collective", conditions)
    own = traits["own_all_reduce"]
    if own.any():
        execution_s = np.minimum(own_s(batch, place, conditions, links), execution_s)
    copies = np.where(own & (batch["op"] == "all_reduce"), 2.0 * batch["bytes"], 0.0)
    alone = np.isin(conditions.timing, ("stream", "wall"))
    copy_rate = links.launch.copy_share * device_of(place).dram_bandwidth_bytes_per_s
    execution_s = np.where(alone, execution_s + copies / copy_rate, execution_s)
    calls_s = traits["launch_calls"] * device_of(place).launch_overhead_s
    host_s = traits.constants("launch_constant", links.launch, 0.0) + calls_s
    longer_s = (execution_s**4 + host_s**4) ** 0.25
    shows = traits["launch_shows"] & (conditions.timing == "stream")
    return execution_s, np.where(alone, np.where(shows, execution_s + host_s, longer_s), execution_s)


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
    in_node = reduces(device) & (allowed(batch, "nvls") | allowed(batch, "nvlstree"))
    once = in_node | (across & (network is not None and network.reduces))
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
    return np.asarray(batch["bytes"] * (1.0 + 1.0 / ranks) / max(share * path.own_bytes_per_s, 1.0))


def _least(times: Sequence[np.ndarray]) -> np.ndarray:
    return np.asarray(np.min(np.stack(times), axis=0))
