"""Collectives of clusters whose network is told: formulas of trees and switches, published runs, what must hold."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest

from neusight.devices import Cluster, cluster_of, load_cluster, load_device
from neusight.errors import DeviceError
from neusight.executors.link import TOLD_FACTORS
from neusight.kernels import KernelBatch
from neusight.kernels.conditions import Conditions
from neusight.kernels.named import COLLECTIVES
from neusight.laws.fitted import shipped_links
from neusight.laws.links import TREE_SHARE, collective_s, least_out_s, least_s, nccl_s, tree

LINKS = shipped_links().physics

SIZES = 2 ** np.arange(0, 34)
CLUSTERS = ("dgx-a100", "dgx-h100", "aws-p4d", "l40s-server", "gb200-nvl72", "mi300x-platform", "gcp-a2-ultragpu")
FITTED = shipped_links().physics


def collectives(ranks: int, per_node: int, op: str = "all_reduce", size: np.ndarray | int = SIZES) -> KernelBatch:
    return KernelBatch.from_columns("collective", op=op, ranks=ranks, per_node=per_node, bytes=np.atleast_1d(size))


def changed(cluster: Cluster, **figures: object) -> Cluster:
    assert cluster.network
    return cluster.model_copy(update={"network": cluster.network.model_copy(update=figures)})


@pytest.mark.parametrize("op", COLLECTIVES)
@pytest.mark.parametrize("gpu", ["a100-sxm-80gb", "h100-sxm-80gb", "l40s"])
def test_a_cluster_whose_network_nobody_tells_is_as_its_device(gpu: str, op: str) -> None:
    cluster, device = cluster_of(gpu, 8, 4), load_device(gpu)
    for ranks, per_node in ((8, 0), (2, 1), (32, 8)):
        batch = collectives(ranks, per_node, op)
        conditions = Conditions.of(len(batch), timing="graph", engine="vllm")
        for links in (LINKS, FITTED):
            both = [collective_s(batch, place, conditions, links)[1] for place in (cluster, device)]
            assert np.array_equal(*both)
        assert np.array_equal(least_s(batch, cluster), least_s(batch, device))


def test_what_a_network_is_changes_nothing_inside_a_node() -> None:
    slow, fast = (cluster_of("h100-sxm-80gb", 8, 2, words) for words in ("25Gb/s ethernet", "800Gb/s"))
    batch = collectives(8, 8)
    assert np.array_equal(nccl_s(batch, slow, FITTED), nccl_s(batch, fast, FITTED))
    assert np.array_equal(least_s(batch, slow), least_s(batch, load_device("h100-sxm-80gb")))


def test_a_long_ring_goes_through_all_adapters_of_its_ranks() -> None:
    # Four nodes of eight: 2 (n - 1) / n of the bytes through eight adapters of 25 GB/s, of which 96 % are sustained.
    cluster, size = load_cluster("dgx-a100", 4), 2.0**40
    copied = size / 32 / (LINKS.nccl.copy_bytes_per_cycle * cluster.device.boost_clock_hz)
    expected = 2 * 31 / 32 * size / (0.96 * 8 * 25e9) + copied
    found = nccl_s(collectives(32, 8, size=2**40), changed(cluster, sustained=0.96), LINKS)
    assert found == pytest.approx(expected, rel=0.01)
    # A group with one rank a node has one adapter.
    alone = nccl_s(collectives(4, 1, size=2**40), cluster, LINKS)
    copied = size / 4 / (LINKS.nccl.copy_bytes_per_cycle * cluster.device.boost_clock_hz)
    assert alone == pytest.approx(2 * 3 / 4 * size / (0.96 * 25e9) + copied, rel=0.01)


def test_a_tree_has_hops_along_a_node_and_up_the_nodes() -> None:
    cluster = load_cluster("dgx-a100", 16)
    way = tree(collectives(128, 8, size=2**30), cluster, LINKS)
    assert way.steps == pytest.approx(2 * (7 + 4))
    assert way.crossings == pytest.approx(2 * 4)
    assert way.sent_s == pytest.approx(2 * 127 / 128 * 2**30 / (0.96 * 8 * 25e9) / TREE_SHARE)
    # Of two nodes one sends all bytes up, the other all down; then the links of a node are what binds.
    pair = tree(collectives(16, 8, size=2**30), changed(cluster, bandwidth_bytes_per_s=1e9), LINKS)
    assert pair.sent_s == pytest.approx(2**30 / (0.96 * 8e9) / TREE_SHARE)


def test_a_short_all_reduce_of_many_nodes_takes_the_logarithm_of_hops() -> None:
    cluster, links = load_cluster("dgx-a100", 64), FITTED
    rings = nccl_s(collectives(512, 8, "all_gather", 1), cluster, links)
    trees = nccl_s(collectives(512, 8, size=1), cluster, links)
    assert trees < 0.3 * rings
    hops_s = 14 * links.nccl.nvlink_hop_cycles / cluster.device.boost_clock_hz + 12 * links.rates.network_hop_s
    assert trees > hops_s


def test_switches_of_the_network_pass_every_byte_once() -> None:
    cluster = load_cluster("dgx-a100", 8)
    batch = collectives(64, 8, size=2**38)
    plain, reducing = (nccl_s(batch, changed(cluster, reduces=flag), LINKS) for flag in (False, True))
    assert 0.5 < reducing / plain < 0.85
    gathered = collectives(64, 8, "all_gather")
    assert np.array_equal(*(nccl_s(gathered, changed(cluster, reduces=flag), LINKS) for flag in (False, True)))


def test_an_oversubscribed_spine_slows_what_leaves_its_rails() -> None:
    rails = load_cluster("dgx-h100", 8)
    thin, flat = changed(rails, oversubscription=4.0), changed(rails, oversubscription=4.0, rails=False)
    ring, exchange = collectives(64, 8, "all_gather", 2**34), collectives(64, 8, "all_to_all", 2**34)
    assert nccl_s(ring, thin, FITTED) == pytest.approx(nccl_s(ring, rails, FITTED))
    assert nccl_s(exchange, thin, FITTED) > 3.5 * nccl_s(exchange, rails, FITTED)
    assert nccl_s(ring, flat, FITTED) > 3.5 * nccl_s(ring, rails, FITTED)


@pytest.mark.parametrize(
    ("name", "nodes", "size", "bus_gb_per_s"),
    # all_reduce_perf of nccl-tests as told in public: NVIDIA/nccl issue 812 (DGX A100, eight adapters), nccl-tests
    # issue 283 (248 nodes of H200), NVIDIA/nccl issues 1368 (four adapters of 400 Gb/s) and 527 (p4d).
    [
        ("dgx-a100", 4, 2**33, 192.0),
        ("dgx-h200", 248, 2**29, 350.0),
        ("dgx-h100 4 adapters", 5, 2**30, 190.0),
        ("aws-p4d", 2, 2**30, 57.2),
        ("aws-p4d", 3, 2**30, 31.8),
        ("aws-p4d", 4, 2**30, 29.6),
    ],
)
def test_published_all_reduces_lie_within_the_interval(name: str, nodes: int, size: int, bus_gb_per_s: float) -> None:
    words = name.split()
    cluster = load_cluster(words[0], nodes, ["network.kind=roce", "network.adapters=4"] if len(words) > 1 else ())
    ranks = cluster.devices
    found = 2 * (ranks - 1) / ranks * size / nccl_s(collectives(ranks, 8, size=size), cluster, FITTED)[0]
    assert TOLD_FACTORS[0] < found / (bus_gb_per_s * 1e9) < TOLD_FACTORS[1]


@pytest.mark.parametrize(
    ("name", "seconds"),
    # 8 bytes between two nodes of eight: NVIDIA/nccl issue 1244 (InfiniBand NDR), dstack pull request 3961 (EFA).
    [("hgx-h20", 46e-6), ("aws-p6-b200", 51e-6)],
)
def test_published_latencies_lie_within_the_interval(name: str, seconds: float) -> None:
    found = nccl_s(collectives(16, 8, size=8), load_cluster(name, 2), FITTED)[0]
    assert TOLD_FACTORS[0] < seconds / found < TOLD_FACTORS[1]


def shapes(cluster: Cluster) -> list[tuple[int, int]]:
    whole = cluster.per_node
    return [(2, 1), (8, 1), (2 * whole, whole), (3 * whole, whole), (8 * whole, whole), (whole, 0), (4, 2)]


@pytest.mark.parametrize("name", CLUSTERS)
@pytest.mark.parametrize("op", COLLECTIVES)
def test_bounds_bytes_and_bandwidths(name: str, op: str) -> None:
    plain = load_cluster(name, 8)
    assert plain.network
    rate = plain.network.bandwidth_bytes_per_s
    for reduces, (ranks, per_node), links in product((False, True), shapes(plain), (LINKS, FITTED)):
        if op == "send_recv" and ranks != 2:
            continue
        batch = collectives(ranks, per_node, op)
        times = []
        for factor in (0.5, 1.0, 4.0):
            cluster = changed(plain, reduces=reduces, bandwidth_bytes_per_s=factor * rate)
            times.append(nccl_s(batch, cluster, links))
            assert (times[-1] >= least_s(batch, cluster) * (1 - 1e-12)).all()
            assert (np.diff(times[-1]) >= -1e-12 * times[-1][:-1]).all()
        assert all((fast <= slow * (1 + 1e-12)).all() for slow, fast in pairwise(times))


@pytest.mark.parametrize("name", CLUSTERS)
@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_more_nodes_are_never_faster(name: str, op: str) -> None:
    cluster = load_cluster(name, 64)
    for per_node in (1, cluster.per_node):
        grown = []
        for ranks in per_node * np.array([2, 3, 4, 8, 32, 64]):
            # An exchange of more ranks sends each of them as much as before.
            sizes = SIZES * ranks if op == "all_to_all" else SIZES
            grown.append(nccl_s(collectives(int(ranks), per_node, op, sizes), cluster, FITTED))
        assert all((more >= fewer * (1 - 1e-9)).all() for fewer, more in pairwise(grown))


def test_a_bound_between_nodes_is_what_must_leave_one() -> None:
    cluster = load_cluster("dgx-h100", 8)
    assert cluster.network
    for op, shares in (("all_reduce", 2 * 7 / 8), ("all_gather", 7 / 8), ("all_to_all", 8 * 56 / 64)):
        found = least_out_s(collectives(64, 8, op, 2**30), cluster, cluster.network)
        assert found == pytest.approx(shares * 2**30 / (8 * 50e9))
    pair = least_s(collectives(2, 1, "send_recv", 2**30), cluster)
    assert pair == pytest.approx(2**30 / 50e9)


def test_ranks_that_a_cluster_has_no_room_for_are_refused() -> None:
    cluster = load_cluster("dgx-h100", 2)
    with pytest.raises(DeviceError, match="16 ranks in one node of dgx-h100, which has 8: give per_node"):
        nccl_s(collectives(16, 0), cluster, FITTED)
    with pytest.raises(DeviceError, match="ranks on 4 nodes of dgx-h100, of which there are 2"):
        nccl_s(collectives(32, 8), cluster, FITTED)
