"""Collectives against formulas of their algorithms, and what must hold of them on any device."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest

from neusight.devices import DeviceSpec, device_ids, load_device
from neusight.devices.cluster import Cluster
from neusight.errors import DeviceError
from neusight.kernels import KernelBatch
from neusight.kernels.conditions import Conditions
from neusight.kernels.named import COLLECTIVES
from neusight.kernels.work import work_of
from neusight.laws.fitted import shipped_links
from neusight.laws.links import collective_s, least_s, nccl_s, own_s
from neusight.laws.routes import inside, network_bytes_per_s, usual_network

LINKS = shipped_links().physics

SIZES = 2 ** np.arange(0, 34)
ENGINES = ("torch", "vllm", "sglang", "trtllm")
GPUS = ("a100-sxm-80gb", "h100-sxm-80gb", "l40s", "a100-pcie-80gb", "v100-sxm2-32gb", "mi300x", "t4")
FITTED = shipped_links().physics


def collectives(
    size: np.ndarray | int = SIZES, op: str = "all_reduce", ranks: int = 8, per_node: int = 0
) -> KernelBatch:
    return KernelBatch.from_columns("collective", op=op, ranks=ranks, per_node=per_node, bytes=np.atleast_1d(size))


def with_links_times(device: DeviceSpec, factor: float) -> DeviceSpec:
    faster = [
        link.model_copy(update={"bandwidth_bytes_per_s": factor * link.bandwidth_bytes_per_s}) for link in device.links
    ]
    return device.model_copy(update={"links": tuple(faster)})


def own_kernel_s(batch: KernelBatch, device: DeviceSpec, engine: str) -> np.ndarray:
    return own_s(batch, device, Conditions.of(len(batch), engine=engine), LINKS)


@pytest.mark.parametrize(
    ("op", "share"),
    # Patarasu and Yuan 2009: an all-reduce is a reduce-scatter and an all-gather, each of (n - 1) / n.
    [("all_reduce", 1.75), ("all_gather", 0.875), ("reduce_scatter", 0.875), ("all_to_all", 0.875), ("send_recv", 1.0)],
)
def test_bytes_that_a_rank_sends(op: str, share: float) -> None:
    work = work_of(collectives(4096, op))
    assert work.read_bytes == pytest.approx(share * 4096) and work.write_bytes == work.read_bytes
    assert work.flops == 0
    assert work_of(collectives(4096, op, ranks=1)).read_bytes == 0


def test_a_bound_is_bytes_over_the_datasheet_and_a_switch_that_reduces_passes_them_once() -> None:
    a100, h100 = load_device("a100-sxm-80gb"), load_device("h100-sxm-80gb")
    assert least_s(collectives(2**30), a100) == pytest.approx(1.75 * 2**30 / 300e9)
    assert least_s(collectives(2**30), h100) == pytest.approx(2**30 / 450e9)
    assert least_s(collectives(2**30, "all_gather"), h100) == pytest.approx(0.875 * 2**30 / 450e9)


def test_a_copy_passes_the_link_to_the_host_and_no_other() -> None:
    v100 = load_device("v100-sxm2-16gb")
    copy, peer = (collectives(2**28, op, ranks=2) for op in ("host_copy", "send_recv"))
    assert work_of(copy).read_bytes == 2**28
    assert least_s(copy, v100) == pytest.approx(2**28 / 15.75e9)
    sustained = LINKS.rates.host_share * 15.75e9
    assert nccl_s(copy, v100, LINKS) == pytest.approx(2**28 / sustained, rel=0.05)
    assert (nccl_s(peer, v100, LINKS) < nccl_s(copy, v100, LINKS)).all()


def test_a_short_message_is_a_start_and_hops_one_after_another() -> None:
    device, nccl = load_device("a100-sxm-80gb"), LINKS.nccl
    for op, steps in (("all_reduce", 14), ("all_gather", 7), ("send_recv", 1)):
        cycles = nccl.start_cycles + steps * nccl.nvlink_hop_cycles
        assert nccl_s(collectives(1, op), device, LINKS) == pytest.approx(cycles / device.boost_clock_hz, rel=1e-2)


def test_a_long_message_is_its_bytes_over_what_links_sustain_and_a_copy_of_a_share() -> None:
    device, size = load_device("a100-sxm-80gb"), 2.0**40
    sent = 1.75 * size / (LINKS.rates.nvlink_share * 300e9)
    copied = size / 8 / (LINKS.nccl.copy_bytes_per_cycle * device.boost_clock_hz)
    assert nccl_s(collectives(2**40), device, LINKS) == pytest.approx(sent + copied, rel=0.01)


def test_one_shot_reads_all_of_all_others() -> None:
    device, own = load_device("a100-sxm-80gb"), LINKS.own
    start_s = own.trtllm_cycles / device.boost_clock_hz + 7 * own.peer_s
    expected = start_s + 7 * 2**20 / (own.rate * 300e9)
    assert own_kernel_s(collectives(2**20), device, "trtllm") == pytest.approx(expected)
    # vLLM turns to two halves at 256 KiB among eight, which send less of a long message.
    assert own_kernel_s(collectives(2**26), device, "vllm") < own_kernel_s(collectives(2**26), device, "trtllm")
    below, at = own_kernel_s(collectives(np.array([2**18 - 1, 2**18])), device, "vllm")
    assert 0 < at - below < own.second_cycles / device.boost_clock_hz


def test_engines_call_nccl_where_they_have_nothing_of_their_own() -> None:
    device, batch = load_device("l40s"), collectives(ranks=4)
    assert np.isinf(own_kernel_s(batch, device, "vllm")).all()
    assert np.isinf(own_kernel_s(collectives(op="all_gather"), load_device("h100-sxm-80gb"), "vllm")).all()
    assert np.isfinite(own_kernel_s(collectives(ranks=2), device, "vllm")).all()
    for engine, gpu in product(ENGINES, GPUS):
        conditions = Conditions.of(len(batch), timing="graph", engine=engine)
        found = collective_s(batch, load_device(gpu), conditions, LINKS)[0]
        assert (found <= nccl_s(batch, load_device(gpu), LINKS)).all()


def test_how_devices_are_joined_decides_on_their_bandwidth() -> None:
    among, rates = np.array([2.0, 4.0, 8.0]), LINKS.rates
    share, host = rates.nvlink_share, rates.host_share
    switch, carried = inside(load_device("a100-sxm-80gb"), among, LINKS)
    assert switch == pytest.approx(share * 300e9) and carried.all()
    bridge, carried = inside(load_device("a100-pcie-80gb"), among, LINKS)
    # A bridge joins two; of the four edges of a ring of two pairs two pass the host.
    assert list(carried) == [True, False, False]
    assert bridge == pytest.approx([rates.bridge_share * 300e9, host * 31.5e9, host * 31.5e9])
    slots, carried = inside(load_device("l40s"), among, LINKS)
    assert not carried.any() and slots == pytest.approx(host * 31.5e9)
    # On PCIe 5.0 what two boards have is more than what crosses the host.
    crossing, _ = inside(load_device("rtx-pro-6000-server"), among, LINKS)
    assert crossing == pytest.approx([host * 63e9, rates.crossing_bytes_per_s, rates.crossing_bytes_per_s])
    redirected, _ = inside(load_device("l40s"), among, LINKS, redirected=True)
    assert redirected == pytest.approx(slots / np.array([1.0, 2.0, 4.0]) ** rates.redirected_contention)
    mesh, carried = inside(load_device("mi300x"), among, LINKS)
    assert mesh == pytest.approx(share * 448e9 * np.array([1, 3, 7]) / 7) and carried.all()


def test_a_node_that_redirects_takes_longer_however_that_is_told() -> None:
    node = Cluster(id="node", name="node", device=load_device("l40s"), per_node=8)
    batch, told = collectives(), node.model_copy(update={"redirected": True})
    slower = KernelBatch.from_columns("collective", op="all_reduce", ranks=8, bytes=SIZES, redirected=True)
    assert (nccl_s(batch, told, LINKS) > nccl_s(batch, node, LINKS)).all()
    assert nccl_s(slower, node, LINKS) == pytest.approx(nccl_s(batch, told, LINKS))


def test_a_device_of_a_node_has_a_network_adapter_of_its_slot() -> None:
    # DGX A100: 200 Gb/s a GPU, DGX H100: 400 Gb/s.
    assert network_bytes_per_s(load_device("a100-sxm-80gb")) == pytest.approx(25e9)
    assert network_bytes_per_s(load_device("h100-sxm-80gb")) == pytest.approx(50e9)


@pytest.mark.parametrize("op", ["all_reduce", "all_to_all"])
def test_ranks_of_several_nodes_take_longer_than_those_of_one(op: str) -> None:
    device = load_device("a100-sxm-80gb")
    alone = nccl_s(collectives(op=op, ranks=8), device, FITTED)
    assert (nccl_s(collectives(op=op, ranks=8, per_node=4), device, FITTED) > alone).all()
    assert nccl_s(collectives(op=op, ranks=8, per_node=8), device, FITTED) == pytest.approx(alone)


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("op", COLLECTIVES)
def test_more_bytes_are_never_faster_nor_more_bandwidth_slower(gpu: str, op: str) -> None:
    device, sizes = load_device(gpu), np.unique(np.geomspace(1, 2**34, 400).astype(np.int64))
    for engine, timing, links, shape in product(
        ENGINES, ("graph", "stream"), (LINKS, FITTED), ((2, 0), (3, 0), (4, 0), (8, 0), (16, 8), (2, 1))
    ):
        batch = collectives(sizes, op, *shape)
        conditions = Conditions.of(len(batch), timing=timing, engine=engine)
        times = [collective_s(batch, with_links_times(device, f), conditions, links)[1] for f in (0.5, 1.0, 3.0)]
        assert (np.diff(times[1]) >= -1e-12 * times[1][:-1]).all()
        assert all((fast <= slow * (1 + 1e-12)).all() for slow, fast in pairwise(times))


def test_no_collective_of_any_device_is_faster_than_its_bound() -> None:
    wrong = []
    for gpu, op, ranks in product(device_ids(), COLLECTIVES, (2, 4, 8)):
        device = load_device(gpu)
        if device.kind != "gpu" or not device.links:
            continue
        batch = collectives(op=op, ranks=ranks)
        for engine in ENGINES:
            found = collective_s(batch, device, Conditions.of(len(batch), timing="graph", engine=engine), FITTED)[0]
            wrong += [(gpu, op, ranks, engine)] if (found < least_s(batch, device)).any() else []
    assert wrong == []


def test_a_device_without_links_says_so() -> None:
    lone = load_device("l4").model_copy(update={"links": ()})
    with pytest.raises(DeviceError, match="l4 states no links"):
        least_s(collectives(), lone)


def test_links_that_state_their_hop_take_so_many_of_them() -> None:
    # 2 (n - 1) steps of a ring, along one cycle of Trainium and along both dimensions of a torus of TPUs.
    for gpu, ranks, steps in (("trainium1", 16, 2 * 15), ("tpu-v6e", 16, 2 * 2 * 3), ("tpu-v6e", 256, 2 * 2 * 15)):
        device = load_device(gpu)
        slower = tuple(link.model_copy(update={"hop_s": link.hop_s and 2 * link.hop_s}) for link in device.links)
        small = collectives(8, ranks=ranks)
        both = [nccl_s(small, each, LINKS)[0] for each in (device, device.model_copy(update={"links": slower}))]
        # What pipelines lose grows with the root of hops, and next to nothing is sent.
        assert both[1] - both[0] == pytest.approx(steps * max(link.hop_s or 0.0 for link in device.links), rel=0.01)


def test_usual_network_is_that_of_clusters_of_the_device() -> None:
    cases = (
        ("h100-sxm-80gb", "infiniband", 50e9),
        ("a100-sxm-80gb", "infiniband", 25e9),
        ("tpu-v6e", "ethernet", 6.25e9),
    )
    for gpu, kind, bytes_per_s in (*cases, ("rtx-4090", "infiniband", 25e9)):
        network, rate = usual_network(load_device(gpu))
        assert (network.kind, rate) == (kind, pytest.approx(bytes_per_s))
    variant = load_device("h100-sxm-80gb", ["dram_bandwidth=4TB/s"])
    assert usual_network(variant) == usual_network(load_device("h100-sxm-80gb"))
