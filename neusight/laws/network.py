r"""All-reduces that span nodes whose network is told: NCCL's trees, and reductions in switches.

Rings pass every rank one after another. A tree reduces along the ranks of a node and then up a binary tree of nodes,
and returns the sum the same way: its hops grow with the logarithm of the nodes, and between two nodes it sends each
byte once a direction where a ring sends it nearly twice.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from neusight.devices.cluster import Cluster, Network
from neusight.kernels.families import KernelBatch
from neusight.kernels.work import work_of
from neusight.laws.link_constants import LinkPhysics
from neusight.laws.routes import crossing, fastest, inside, network_bytes_per_s, ranks_of, reduces

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
    local_bytes_per_s, _ = inside(cluster.device, within, links)
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
    local_bytes_per_s, _ = inside(cluster.device, within, links)
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
