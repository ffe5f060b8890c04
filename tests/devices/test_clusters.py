"""Clusters of the catalogue, of files and of a few words: figures, sources, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from neusight.devices import Cluster, cluster_ids, cluster_of, list_clusters, load_cluster, load_device
from neusight.errors import DeviceError, UnitError

FILE = """
id = "mine"
name = "Mine"
device = "l40s"
per_node = 4
nodes = 2

[network]
kind = "roce"
bandwidth = "200 Gb/s"
adapters = 2

[sources]
"What the seller says" = ["device", "per_node", "network"]
"""


def test_every_cluster_has_sources_links_and_names_of_its_own() -> None:
    found = list_clusters()
    assert [cluster.id for cluster in found] == cluster_ids() and len(found) > 30
    names = [name.lower() for cluster in found for name in (cluster.id, cluster.name, *cluster.aliases)]
    assert len(names) == len(set(names))
    for cluster in found:
        assert cluster.network and cluster.device.links
        assert {"device", "per_node", "network", "network.sustained"} <= set(cluster.sources)
        # No adapter is faster than the slots of its devices together.
        assert cluster.network_bytes_per_s is not None
        assert cluster.network_bytes_per_s <= 2 * max(link.bandwidth_bytes_per_s for link in cluster.device.links)


@pytest.mark.parametrize(
    ("words", "sustained"),
    # Adapters of the first generation have 100 Gb/s; who has more of them, or faster ones, says so by name or by rate.
    [("1 x 100Gb/s efa", 0.8), ("4 x 100Gb/s efa", 0.8), ("16 x 200Gb/s efa", 0.948), ("8 x 400Gb/s efa", 0.948)],
)
def test_network_tells_generations_of_adapters_by_their_rate(words: str, sustained: float) -> None:
    network = cluster_of("h100-sxm-80gb", 8, 4, words).network
    assert network and network.sustained == sustained and network.added_hop_s == 2.1e-6


def test_network_sustains_what_its_generation_does_unless_a_file_says_otherwise() -> None:
    shares = {name: load_cluster(name).network for name in ("aws-p4d", "aws-p5", "aws-p5en", "aws-p6-b200", "dgx-a100")}
    assert [network.sustained for network in shares.values() if network] == [0.8, 0.948, 0.948, 0.948, 0.96]
    assert "fi_rma_bw" in load_cluster("aws-p5").sources["network.sustained"]
    assert "fi_rma_bw" not in load_cluster("aws-p4d").sources["network.sustained"]
    older = load_cluster("aws-p6-b200", 4, ["network.generation=1"]).network
    assert older and older.sustained == 0.8


@pytest.mark.parametrize(
    ("name", "device", "per_node", "gbit_per_s"),
    # Of a node, as the datasheets have it.
    [
        ("dgx-a100", "a100-sxm-80gb", 8, 1600),
        ("HGX-H100", "h100-sxm-80gb", 8, 3200),
        ("p4d.24xlarge", "a100-sxm-40gb", 8, 400),
        ("aws-p5", "h100-sxm-80gb", 8, 3200),
        ("gcp-a3-mega", "h100-sxm-80gb", 8, 1600),
        ("gb200-nvl72", "gb200-186gb", 72, 28800),
        ("frontier", "mi250x", 4, 800),
    ],
)
def test_figures_of_well_known_clusters(name: str, device: str, per_node: int, gbit_per_s: float) -> None:
    cluster = load_cluster(name, 4)
    assert (cluster.device.id, cluster.per_node, cluster.devices) == (device, per_node, 4 * per_node)
    assert cluster.network_bytes_per_s == pytest.approx(gbit_per_s * 1e9 / 8 / per_node)


def test_a_cluster_in_a_few_words() -> None:
    cluster = cluster_of("h100-sxm-80gb", 8, 4, "400gbps")
    assert cluster.network and cluster.network.kind == "infiniband" and cluster.devices == 32
    assert cluster.network_bytes_per_s == 50e9
    efa = cluster_of("a100-sxm-40gb", 8, 2, "4 x 100 Gb/s EFA").network
    assert efa == load_cluster("aws-p4d").network.model_copy(update={"generation": ""})  # type: ignore[union-attr]
    untold = cluster_of("h100-sxm-80gb", 8, 4)
    assert untold.network is None and untold.network_bytes_per_s is None


def test_a_file_of_the_users_own_and_changes_of_it(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(FILE)
    cluster = load_cluster(str(path))
    assert (cluster.id, cluster.nodes, cluster.network_bytes_per_s) == ("mine", 2, 12.5e9)
    changes = ["network.reduces=true", "network.sustained=0.5", "per_node=2", "device.tdp=300W"]
    changed = load_cluster(str(path), 3, changes)
    assert changed.network and changed.network.reduces and changed.network.sustained == 0.5
    assert (changed.nodes, changed.per_node, changed.device.tdp_w) == (3, 2, 300.0)
    assert changed.hypothetical == tuple(changes) and changed.device.hypothetical == ("tdp=300W",)
    assert load_cluster(str(path)) == cluster


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ('device = "l40s"', "", "device missing: add it"),
        ("per_node = 4", "per_node = 0", "per_node = 0 must be a whole number of at least 1"),
        ("per_node = 4", 'per_node = "four"', "per_node = 'four' must be a whole number"),
        ("nodes = 2", "node = 2", "unknown key 'node'; did you mean nodes"),
        ('kind = "roce"', 'kind = "rocee"', "unknown kind of network 'rocee'; did you mean roce"),
        ("adapters = 2", "", "network: adapters missing: add it"),
        (
            "adapters = 2",
            "adapters = 2\nsustained = 2.0",
            "network: sustained = 2.0 is out of range: give a share above 0 and at most 1",
        ),
        ('device", "per_node"', 'device"', "per_node without a source"),
        ('id = "mine"', "id = 3", "id must be text"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_line(tmp_path: Path, before: str, after: str, said: str) -> None:
    path = tmp_path / "mine.toml"
    assert before in FILE
    path.write_text(FILE.replace(before, after))
    with pytest.raises(DeviceError, match=r"mine\.toml: ") as caught:
        load_cluster(str(path))
    assert said in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("network.adaptors=4", "unknown key of a network 'adaptors'; did you mean adapters"),
        ("tdp=300W", "unknown key 'tdp': begin it with one of per_node, redirected, network., device."),
        ("network.adapters", "not key=value"),
        ("device.tpd=300W", "unknown key 'tpd'; did you mean tdp"),
    ],
)
def test_changes_that_mean_nothing_are_refused(change: str, said: str) -> None:
    with pytest.raises(DeviceError) as caught:
        load_cluster("dgx-h100", 1, [change])
    assert said in str(caught.value)


def test_names_words_and_units_that_mean_nothing_are_refused() -> None:
    with pytest.raises(DeviceError, match="unknown cluster 'dgx-h10'; did you mean dgx-h100"):
        load_cluster("dgx-h10")
    with pytest.raises(DeviceError, match="network 'fast': write it like 400Gb/s"):
        cluster_of("h100-sxm-80gb", 8, 2, "fast")
    with pytest.raises(UnitError, match="'400GB/s' has unit 'GB/s'"):
        load_cluster("dgx-h100", 1, ["network.bandwidth=400GB/s"])


def test_several_devices_without_links_say_what_to_add() -> None:
    lone = load_device("l4").model_copy(update={"links": ()})
    with pytest.raises(DeviceError, match="l4 states no links to other devices: use one device, add"):
        Cluster(id="mine", name="Mine", device=lone, per_node=8)
    assert Cluster(id="mine", name="Mine", device=lone, per_node=1).devices == 1
