"""Fields that several questions share: where something runs, in which precision, and how devices share it."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from neusight.devices import Cluster, DeviceSpec, cluster_of, load_cluster, with_prices
from neusight.devices.chosen import as_device
from neusight.devices.cluster import network_of_words
from neusight.questions.field import FieldError, number, option, switch, text, texts, whole
from neusight.questions.question import Question
from neusight.questions.unset import usual
from neusight.quick_dataclasses import dataclass
from neusight.requests import SCHEDULES, SHARDS
from neusight.workloads.config_file import stored_config

if TYPE_CHECKING:
    from neusight.workloads.decoders.decoder import Decoder

MODEL, DEVICE, ENGINE = "Model and step", "Device", "Precision and engine"
PLAN, CLUSTER, LOAD = "Parallelism", "Cluster", "Load"
RECORDED, OUTPUT = "Conditions that a measurement recorded", "Prediction and output"
MOST_ARRIVALS = 10**6
"""Requests of a load, by ``num_prompts`` or by the rates of stages."""
DEGREE = 2**20
"""Devices that share anything, at most."""


def degree(help: str, default: int | None = 1) -> Any:
    """Devices or parts that share a step."""
    return whole(help, PLAN, default, high=DEGREE, listable=True)


@dataclass(frozen=True, kw_only=True)
class Seeded(Question):
    """Seed of everything that is drawn at random."""

    seed: int = whole("Random seed.", OUTPUT, 0, low=0, high=2**32 - 1)


@dataclass(frozen=True, kw_only=True)
class Assurance(Question):
    """Limits of an answer, and how probable it must be that it is within them."""

    must_fit: float = number(
        "Least probability that memory is enough, to count as fitting.", OUTPUT, 0.5, low=0.01, high=0.99, metavar="P"
    )
    slo: str = option("level", "Service level, such as ttft=500ms,tpot_p99=40ms.", LOAD, "", metavar="TIME=LIMIT,…")
    slo_confidence: float | None = number(
        "Least probability that a deployment holds --slo. Default: expected times that hold it are enough.",
        LOAD, low=0.01, high=0.99, metavar="P", former=("confidence",),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Configured(Question):
    """A model that a configuration may describe in place of its name."""

    model: str
    config: str = text(
        "Configuration of the model as JSON, in place of the one that its name has.", MODEL, metavar="JSON"
    )

    def model_or_name(self) -> Any:
        """The language model that the configuration describes, else the model as it was given."""
        return _decoder_of(self.config, self.model) if self.config else self.given("model")

    def model_or_file(self) -> Any:
        """The file that holds the configuration, else the model as it was given."""
        if not self.config:
            return self.given("model")
        configuration(self.config)
        return stored_config(self.config, self.model)


def configuration(text: str) -> dict[str, Any]:
    """A model's configuration that is given as JSON.

    Raises:
        FieldError: no JSON object.
    """
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FieldError("config", f"is no JSON: {error}: mend it") from None
    if not isinstance(values, dict):
        raise FieldError("config", "is no JSON object: give the contents of a config.json")
    return values


@lru_cache(maxsize=64)
def _decoder_of(config: str, name: str) -> Decoder:
    """The language model that a configuration in JSON describes.

    Raises:
        FieldError: no JSON object. ModelError: no language model's.
    """
    from neusight.workloads.decoders.architecture import decoder_of

    values = configuration(config)
    return decoder_of(values, name)


@dataclass(frozen=True, kw_only=True)
class OnGpu(Question):
    """Devices by their names."""

    gpu: str = text(
        "Devices: ids of `neusight devices list`, names of drivers, short names (h100, 4090) or .toml files.",
        DEVICE, short="-g", metavar="ID[,ID…]", listable=True, objects=True, complete="devices",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class OnDevices(OnGpu):
    """The devices that something runs on, with changes of their figures and with prices."""

    overrides: tuple[str, ...] = texts(
        "Change a figure of the device or cluster: `dram_bandwidth=4.8TB/s`, `network.bandwidth=800Gb/s`; of one of "
        "several devices: `l4.sm_count=60`. May be repeated.",
        DEVICE, option="--set", metavar="KEY=VALUE", former=("set", "changes"),
    )  # fmt: skip
    prices: str = text("Your price table, used before the shipped prices.toml, in its format.", DEVICE, metavar="FILE")

    def device(self) -> DeviceSpec:
        """The device with the changes of its figures, and the price of a user's table.

        Raises:
            FieldError: no device is named. DeviceError, UnitError: as ``as_device`` and ``with_prices``.
        """
        self.check_device()
        device = as_device(self.given("gpu"), self.overrides)
        return with_prices([device], self.prices)[0] if self.prices else device

    @property
    def vendor(self) -> str:
        """Vendor of the device, "" where none is named."""
        return self.device().vendor if self.gpu else ""

    def check_device(self) -> None:
        """Raises:
        FieldError: no device is named.
        """
        if not self.gpu:
            raise FieldError("gpu", "names no GPU: give ids of `neusight devices list`")


@dataclass(frozen=True, kw_only=True)
class OnNodes(OnDevices):
    """Devices that share nodes, and the network between these."""

    per_node: int | None = whole("Devices of a node. Default: 8, or 1 without links.", CLUSTER, high=1 << 16)
    network: str = text(
        "Network between nodes: '8 x 400Gb/s', '4 x 100Gb/s efa'.", CLUSTER, metavar="WORDS", if_unset=usual("network")
    )

    def check(self) -> None:
        """Raises:
        DeviceError: words that are no network.
        """
        super().check()
        if self.network.strip():
            network_of_words(self.network, self.per_node or 1)


@dataclass(frozen=True, kw_only=True)
class Clustered(OnDevices):
    """A named cluster, and how many of its nodes."""

    cluster: str = text(
        "Cluster of a training step: a name of `neusight clusters list`, or a cluster file (.toml).",
        CLUSTER, metavar="NAME", objects=True, of_mode="training", complete="clusters",
    )  # fmt: skip
    nodes: int | None = whole(
        "Nodes of the cluster. Default: those of its file, else 1.",
        CLUSTER, high=10**6, listable=True, of_mode="training",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class OnCluster(Clustered, OnNodes):
    """A named cluster, or devices of a node with the number of nodes."""

    def place(self, device: DeviceSpec | None = None) -> Cluster:
        """The cluster, with prices of its devices.

        Raises:
            FieldError: no cluster and no device. DeviceError: an unknown one, or one that cannot be.
        """
        if self.cluster:
            named = self.on_cluster()
            return named.model_copy(update={"device": with_prices([named.device], self.prices)[0]})
        if not self.gpu:
            raise FieldError("cluster", "or gpu is missing: give a name of `neusight clusters list`, or a GPU")
        device = device or with_prices([as_device(self.given("gpu"), self.overrides)], self.prices)[0]
        return cluster_of(device, self.per_node or 0, self.nodes or 1, self.network)

    def on_cluster(self) -> Cluster:
        """The cluster that is named, with the changes of its figures.

        Raises:
            FieldError: devices are named besides, or other nodes. DeviceError: an unknown cluster.
        """
        cluster: Cluster | str = self.given("cluster")
        if isinstance(cluster, str):
            cluster = load_cluster(cluster, self.nodes or 0, self.overrides)
        else:
            self.refuse(("nodes", "overrides"), f"changes a named cluster: change {cluster.id} by its model_copy()")
        if self.gpu and as_device(self.given("gpu")).id != cluster.device.id:
            raise FieldError("gpu", f"is named by --cluster, which has {cluster.device.id}: leave it out")
        self.refuse(
            ("network",) if self.per_node in (None, cluster.per_node) else ("per_node",),
            "is decided by --cluster, which has nodes and a network of its own: change them by --set per_node=4 or "
            "--set network.bandwidth=800Gb/s",
        )
        return cluster


@dataclass(frozen=True, kw_only=True)
class Parallel(Question):
    """The degrees of parallelism that training and serving have in common."""

    tp: int = degree("Tensor parallel: devices that share every layer.")
    pp: int = degree("Pipeline parallel: stages, each of which has a part of the layers.")
    dp: int | None = degree(
        "Data parallel: replicas, each with its share of the samples. Default: what the cluster leaves, else 1.", None
    )


@dataclass(frozen=True, kw_only=True)
class WithExperts(Parallel):
    """Degrees of models that may have experts."""

    ep: int = degree("Expert parallel: devices over which whole experts are spread.")


@dataclass(frozen=True, kw_only=True)
class Planned(Parallel):
    """Length of a sample and plan by which devices share a step of any framework."""

    seq_len: int | None = whole(
        "Sequence length: tokens of a sample. Default: as many as the model takes, up to 2,048.",
        MODEL, short="-s", listable=True,
    )  # fmt: skip
    engine_options: str = text(
        """Traits of the engine that differ, as a JSON object: '{"offloads_activations": true}'.""",
        RECORDED, metavar="JSON",
    )  # fmt: skip
    vp: int = degree("Chunks of layers of a pipeline stage; several are interleaved (virtual pipeline).")
    cp: int = degree("Context parallel: devices that share every sequence.")
    ulysses: int = whole(
        "Devices of --cp that exchange heads for tokens (all-to-all) instead of keys.", PLAN, 1, high=DEGREE
    )
    micro_batch_size: int | None = whole(
        "Samples of one pass of a replica. Default: 1 under a pipeline or an engine that accumulates gradients, else "
        "all of a replica.",
        PLAN, listable=True, former=("micro_batch",),
    )  # fmt: skip
    schedule: str = text(
        "Order of passes in a pipeline: 1f1b, gpipe, zero-bubble, dualpipe or asynchronous.",
        PLAN, "1f1b", choices=SCHEDULES, listable=True, metavar="NAME",
    )  # fmt: skip
    shard: str = text(
        "Sharding across replicas of optimizer states (zero1), gradients too (zero2), weights too (zero3), within "
        "groups (hsdp). Default: none, or on a cluster the usual choice of the engine's users.",
        PLAN, choices=SHARDS, listable=True, metavar="NAME",
    )  # fmt: skip
    recompute: str = text(
        "What the backward pass computes again: none, selective, operators, full, or modules such as "
        "layernorm+moe_act.",
        PLAN, "none", listable=True, metavar="NAME", of_mode="training",
    )  # fmt: skip
    recompute_layers: int | None = whole(
        "Layers of a stage that --recompute is for. Default: all.", PLAN, high=10**6, of_mode="training"
    )
    sequence_parallel: bool | None = switch(
        "Tensor-parallel devices split norms and the residual stream by tokens. Default: on a cluster with --tp, where "
        "that is usual with the engine.",
        PLAN, None,
    )  # fmt: skip
    overlap_grad_reduce: bool | None = switch(
        "Replicas sum gradients during the backward pass. Default: with several, where that is usual with the engine.",
        PLAN, None, former=("overlap_gradients",), of_mode="training",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Recorded(Question):
    """Constants of the host and of the libraries that ran a measured step."""

    host_call_us: float | None = number(
        "Time of the host before the first operator of a step that is waited for. Default: that of a usual host.",
        RECORDED, low=0.0, high=1e9, metavar="US", if_unset=usual("host_call_us"),
    )  # fmt: skip
    host_operator_us: float | None = number(
        "Time of the host for an operator of one pointwise kernel. Default: the engine's.",
        RECORDED, low=0.0, high=1e9, metavar="US",
    )  # fmt: skip
    host_spread: float | None = number(
        "Standard deviation of the logarithm of the host's times.", RECORDED, low=0.0, high=10.0
    )
    host_ahead_us: float | None = number(
        "Time that the host is ahead of the device when the step begins.", RECORDED, low=0.0, high=1e9, metavar="US"
    )
    host_bytes: int | None = whole("Bytes that the step copies from the host's memory.", RECORDED, low=0, high=2**50)
    library_factor: float | None = number(
        "Time of kernels of the libraries' version over those of the measured one.", RECORDED, low=1e-3, high=1e3
    )
    library_spread: float | None = number(
        "Standard deviation of the logarithm of --library-factor.", RECORDED, low=0.0, high=10.0
    )
