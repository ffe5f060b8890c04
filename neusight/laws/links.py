r"""What collectives take: latency and bandwidth of rings, exchanges and reductions over the links of a node.

The model is the alpha-beta one (Hockney 1994; Thakur, Rabenseifner and Gropp 2005): a start, hops one after another,
and the bytes that each rank sends over what its links sustain. Of algorithms and protocols the one of least time runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from neusight.devices.spec import DeviceSpec, Link
from neusight.errors import DeviceError
from neusight.kernels.conditions import Conditions
from neusight.kernels.families import KernelBatch
from neusight.kernels.work import work_of
from neusight.laws.bounds import TINY_S
from neusight.laws.link_constants import LinkPhysics

OWN_ENGINES = ("vllm", "sglang", "trtllm")
"""Engines with an all-reduce of their own; everyone else calls NCCL."""
TWO_SHOT = ("vllm", "sglang")
"""Those whose all-reduce also runs in two halves (``custom_all_reduce.cuh``)."""
ONE_SHOT_BYTES = (512 * 1024, 256 * 1024)
"""From how many bytes on they do with up to 4 ranks, and with more; two ranks never (``custom_all_reduce.cuh``)."""
REDUCING_SWITCH = 9.0
"""Compute capability from which NVSwitch reduces on the way (NVLink SHARP, NVIDIA H100 whitepaper 2022)."""
MESH_PEERS = 7.0
"""Peers among which the lanes of a mesh are divided: nodes of eight (assumption; MI300X has a link to each)."""
ADAPTER_SHARE = 25.0 / 31.5
"""Network adapter of a device over its PCIe link, one adapter a device: 200 Gb/s at PCIe 4.0 x16 and 400 Gb/s at 5.0
(NVIDIA DGX A100 and DGX H100 datasheets: eight ConnectX-6 and ConnectX-7 for eight GPUs)."""


@dataclass(frozen=True, kw_only=True)
class Route:
    """What the messages of collectives pass; columns of shape (n,).

    ``bytes_per_s`` is what a rank can send while all do, ``hop_s`` a step between two ranks in NCCL's fastest protocol,
    ``through_s`` a step between nodes on top. ``carried``: links of their own join the ranks of a node, not the host.
    ``reducing``: they are joined by a switch that reduces. ``across``: the ranks are in several nodes.
    """

    bytes_per_s: np.ndarray
    hop_s: np.ndarray
    through_s: np.ndarray
    carried: np.ndarray
    reducing: np.ndarray
    across: np.ndarray
    own_bytes_per_s: float
    """Bandwidth of the device's fastest links, as its datasheet has it [B/s]."""


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


def network_bytes_per_s(device: DeviceSpec) -> float:
    """Network bandwidth of a device of a node, one direction [B/s]: see ``ADAPTER_SHARE``."""
    return ADAPTER_SHARE * host_link(device).bandwidth_bytes_per_s


def ranks_of(batch: KernelBatch) -> tuple[np.ndarray, np.ndarray]:
    """(ranks, ranks that share a node) of collectives."""
    ranks = np.maximum(batch["ranks"].astype(float), 1.0)
    return ranks, np.where(batch["per_node"] > 0, np.minimum(batch["per_node"], ranks), ranks)


def inside(device: DeviceSpec, within: np.ndarray, links: LinkPhysics) -> tuple[np.ndarray, np.ndarray]:
    r"""(bandwidth of a rank [B/s], whether its own links carry it) among so many devices of a node.

    A switch gives every rank the whole of its links, a mesh as many of its lanes as it has peers, a bridge one other
    device. What is left passes the host, whose paths p pairs share:

    .. math:: b = s\,b_{PCIe}\,\max(1, p / 2)^{-c}

    Args:
        device: its links.
        within: devices of the node that take part.
        links: s ``rates.host_share``, c ``rates.contention`` [-].

    Source: form of the last fitted, to L40S on PCIe with 2, 4 and 8 ranks. Validity: one node of at most 16 devices.
    """
    own, host = fastest(device), host_link(device)
    peers = np.maximum(within - 1.0, 1.0)
    lanes = np.minimum(peers / MESH_PEERS, 1.0) if own.joins == "mesh" else np.ones_like(peers)
    alone = {"switch": np.full(within.shape, True), "mesh": np.full(within.shape, True), "bridge": within <= 2}
    carried = alone.get(own.joins, np.full(within.shape, False))
    # In a ring of bridged pairs every second edge is a bridge.
    pairs = np.where(own.joins == "bridge", np.ceil(within / 2.0), within)
    shared = np.maximum(pairs / 2.0, 1.0) ** -links.rates.contention
    through_host = links.rates.host_share * host.bandwidth_bytes_per_s * shared
    return np.where(carried, links.rates.nvlink_share * own.bandwidth_bytes_per_s * lanes, through_host), carried


def route(batch: KernelBatch, device: DeviceSpec, links: LinkPhysics) -> Route:
    """What the messages of a batch of collectives pass on nodes of a device.

    Rings enter and leave a node once a channel, through all of its adapters together; an exchange sends what goes to
    other nodes through each rank's own.
    """
    ranks, within = ranks_of(batch)
    local, carried = inside(device, within, links)
    adapter = network_bytes_per_s(device)
    leaving = (ranks - within) / np.maximum(ranks - 1.0, 1.0)
    exchange = _exchanges(batch)
    ring = np.minimum(local, links.rates.network_ring_share * adapter * within)
    scattered = 1.0 / np.maximum(leaving / (links.rates.network_share * adapter), (1.0 - leaving) / local)
    across = within < ranks
    joined = fastest(device)
    reducing = joined.joins == "switch" and (device.capability or 0.0) >= REDUCING_SWITCH
    return Route(
        bytes_per_s=np.where(across, np.where(exchange, scattered, ring), local),
        hop_s=np.where(carried, links.nccl.nvlink_hop_cycles / device.boost_clock_hz, links.nccl.host_hop_s),
        through_s=np.where(across, np.where(exchange, 1.0, 1.0 / within) * links.rates.network_hop_s, 0.0),
        carried=carried,
        reducing=~across & reducing,
        across=across,
        own_bytes_per_s=joined.bandwidth_bytes_per_s,
    )


def nccl_s(batch: KernelBatch, device: DeviceSpec, links: LinkPhysics) -> np.ndarray:
    r"""Time of NCCL's collectives [s], the least over its protocols and algorithms.

    .. math:: t = a_p + S h_p + \frac{T}{r_p} + c \sqrt{S h_p T}, \qquad T = \frac{W}{b} + \frac{w}{b_0}

    with steps S, 2 (n - 1) of an all-reduce, n - 1 of an all-gather or reduce-scatter, 1 of an exchange.

    Args:
        batch: W bytes that a rank sends, and w = bytes / n of its own share, which is copied inside the device [B].
        device: b, what its links sustain, and its clock for a_p and b_0.
        links: a_p start, h_p hop and r_p share of protocol p (LL, LL128, Simple); c ``nccl.pipelining``.

    Source: NCCL's cost model (``src/graph/tuning.cc``); the root is what is left of filling and draining a pipeline of
    chunks of the best size. Validity: bandwidths of long messages within some percent, latencies within 20 %.
    """
    found, nccl = route(batch, device, links), links.nccl
    ranks, _ = ranks_of(batch)
    sent = work_of(batch).read_bytes / found.bytes_per_s
    held = np.where(batch["op"] == "send_recv", 0.0, batch["bytes"] / ranks)
    transfer_s = sent + held / (nccl.copy_bytes_per_cycle * device.boost_clock_hz)
    exchange, steps = _exchanges(batch), _steps(batch, ranks)
    start_s = (
        nccl.start_cycles / device.boost_clock_hz * np.where(batch["op"] == "all_to_all", nccl.exchange_start, 1.0)
    )
    few = work_of(batch).read_bytes / np.where(exchange, np.maximum(ranks - 1.0, 1.0), 1.0)
    narrow_s = few / (nccl.ll_bytes_per_cycle * device.boost_clock_hz)
    simple_start = np.where(exchange, nccl.exchange_simple, nccl.simple_start)
    protocols = (
        (1.0, 1.0, np.maximum(transfer_s / nccl.ll_rate, narrow_s)),
        # Sends and receives have no LL128.
        (nccl.ll128_start, nccl.ll128_hop, np.where(exchange, np.inf, transfer_s / nccl.ll128_rate)),
        (simple_start, nccl.simple_hop, transfer_s),
    )
    times = []
    for start, hop, moving_s in protocols:
        hops_s = steps * (hop * found.hop_s + found.through_s)
        times.append(start * start_s + hops_s + moving_s + nccl.pipelining * np.sqrt(hops_s * transfer_s))
    reduced_s = nccl.switch_start * start_s + _through_switch_s(batch, found, links.rates.switch_share)
    able = found.reducing & (batch["op"] == "all_reduce")
    return _least([*times, np.where(able, reduced_s, np.inf)])


def own_s(batch: KernelBatch, device: DeviceSpec, engine: str, links: LinkPhysics) -> np.ndarray:
    """Time of an engine's own all-reduce [s], infinite where it has none for the collective or its links.

    One-shot: each rank reads the whole of all others, (n - 1) bytes, after one barrier. Two-shot: a reduce-scatter and
    an all-gather of reads, 2 (n - 1) / n bytes, with a second barrier. vLLM lets a switch reduce where it can.

    Source: vLLM ``custom_all_reduce.cuh``, which SGLang took over, and ``symm_mem.py``; TensorRT-LLM
    ``customAllReduceKernels.cu``. Validity: one node, devices that read each other's memory; vLLM and SGLang also two
    of them through the host.
    """
    found, own = route(batch, device, links), links.own
    ranks, _ = ranks_of(batch)
    cycles = {"vllm": own.vllm_cycles, "sglang": own.sglang_cycles, "trtllm": own.trtllm_cycles}[engine]
    start_s = cycles / device.boost_clock_hz + own.peer_s * (ranks - 1.0) + np.where(found.carried, 0.0, own.host_s)
    # ``bytes_per_s`` is NCCL's share of what links have; through the host both sustain the same.
    rate = found.bytes_per_s * np.where(found.carried, own.rate / links.rates.nvlink_share, 1.0)
    once = np.where(ranks <= 2, np.inf, np.where(ranks <= 4, *ONE_SHOT_BYTES)) if engine in TWO_SHOT else np.inf
    one_s = start_s + (ranks - 1.0) * np.minimum(batch["bytes"], once) / rate
    halves_s = own.second_cycles / device.boost_clock_hz + work_of(batch).read_bytes / rate
    # A longer message is never faster: two halves take no less than the longest that is sent at once.
    times = [np.where(batch["bytes"] < once, one_s, np.maximum(one_s, start_s + halves_s))]
    through_host = (ranks <= 2) & (engine in TWO_SHOT)
    able = ~found.across & (found.carried | through_host) & (batch["op"] == "all_reduce")
    if engine == "vllm":
        switched = own.switch_s + _through_switch_s(batch, found, own.switch_rate)
        times.append(np.where(found.reducing, switched, np.inf))
    return np.where(able, _least(times), np.inf)


def collective_s(
    batch: KernelBatch, device: DeviceSpec, conditions: Conditions, links: LinkPhysics
) -> tuple[np.ndarray, np.ndarray]:
    """(time on the device [s], the same with its launch [s]) of collectives as an engine runs them.

    An engine takes its own all-reduce where that is faster than NCCL. What is launched by itself takes no less than the
    host does, and an engine's own all-reduce then copies its operand into a buffer that peers may read.
    """
    execution_s = nccl_s(batch, device, links)
    copies = np.zeros(len(batch))
    alone = np.isin(conditions.timing, ("stream", "wall"))
    for engine in OWN_ENGINES:
        mine = conditions.engine == engine
        if mine.any():
            execution_s = np.where(mine, np.minimum(own_s(batch, device, engine, links), execution_s), execution_s)
            copies = np.where(mine & (batch["op"] == "all_reduce"), 2.0 * batch["bytes"], copies)
    copy_rate = links.launch.copy_share * device.dram_bandwidth_bytes_per_s
    execution_s = np.where(alone, execution_s + copies / copy_rate, execution_s)
    return execution_s, np.where(alone, (execution_s**4 + _host_s(conditions, links) ** 4) ** 0.25, execution_s)


def least_s(batch: KernelBatch, device: DeviceSpec) -> np.ndarray:
    """Bound [s]: bytes that a rank must send, whatever the algorithm, over what a datasheet allows it.

    An all-reduce sends 2 (n - 1) / n of its bytes (Patarasu and Yuan 2009), or all of them once where a switch reduces.
    Between nodes a rank has its network adapter besides its links.
    """
    ranks, within = ranks_of(batch)
    sent, link = work_of(batch).read_bytes, fastest(device)
    if link.joins == "switch" and (device.capability or 0.0) >= REDUCING_SWITCH:
        sent = np.minimum(sent, batch["bytes"])
    rate = link.bandwidth_bytes_per_s + np.where(within < ranks, network_bytes_per_s(device), 0.0)
    return np.asarray(np.maximum(sent / rate, TINY_S))


def _exchanges(batch: KernelBatch) -> np.ndarray:
    return np.isin(batch["op"], ("all_to_all", "send_recv"))


def _steps(batch: KernelBatch, ranks: np.ndarray) -> np.ndarray:
    ring = np.where(batch["op"] == "all_reduce", 2.0, 1.0) * (ranks - 1.0)
    return np.where(_exchanges(batch), np.minimum(ranks - 1.0, 1.0), ring)


def _through_switch_s(batch: KernelBatch, found: Route, share: float) -> np.ndarray:
    """A reduction in the switch sends all bytes once, and the share that a rank gives out to all others."""
    ranks, _ = ranks_of(batch)
    return np.asarray(batch["bytes"] * (1.0 + 1.0 / ranks) / (share * found.own_bytes_per_s))


def _host_s(conditions: Conditions, links: LinkPhysics) -> np.ndarray:
    host = {"vllm": links.launch.vllm_s, "sglang": links.launch.sglang_s}
    return np.select([conditions.engine == e for e in host], list(host.values()), links.launch.torch_s)


def _least(times: Sequence[np.ndarray]) -> np.ndarray:
    return np.asarray(np.min(np.stack(times), axis=0))
