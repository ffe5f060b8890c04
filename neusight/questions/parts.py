"""Fields that several questions share: where something runs, in which precision, and how devices share it."""

from __future__ import annotations

from neusight.devices import Cluster, DeviceSpec, load_cluster, with_prices
from neusight.devices.chosen import as_device
from neusight.engines import ATTENTIONS
from neusight.questions.field import FieldError, number, switch, text, texts, whole
from neusight.questions.question import Question
from neusight.questions.unset import usual
from neusight.quick_dataclasses import dataclass
from neusight.requests import CP_COMMS, MODES, OFFLOADS, SCHEDULES, SHARDS

MODEL, DEVICE, ENGINE = "Model and step", "Device", "Precision and engine"
PLAN, CLUSTER, LOAD = "Parallelism", "Cluster", "Load"
RECORDED, OUTPUT = "Conditions that a measurement recorded", "Prediction and output"
DEGREE = 2**20
"""Devices that share anything, at most."""


@dataclass(frozen=True, kw_only=True)
class Seeded(Question):
    """What is drawn at random."""

    seed: int = whole("Random seed.", OUTPUT, 0, low=0, high=2**32 - 1)


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
        "several devices: `l4.price=1USD/h`. May be repeated.",
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

    def check_device(self) -> None:
        """Raises:
        FieldError: no device is named.
        """
        if not self.gpu:
            raise FieldError("gpu", "names no GPU: give ids of `neusight devices list`")


@dataclass(frozen=True, kw_only=True)
class OnNodes(OnDevices):
    """Devices that share nodes, and the network between these."""

    per_node: int | None = whole(
        "Devices of a node. Default: 8, or 1 without links; in `serving` the usual number of that device.",
        CLUSTER, high=1 << 16,
    )  # fmt: skip
    network: str = text(
        "Network between nodes: '8 x 400Gb/s', '4 x 100Gb/s efa'.", CLUSTER, metavar="WORDS", if_unset=usual("network")
    )


@dataclass(frozen=True, kw_only=True)
class OnCluster(OnNodes):
    """A named cluster, or devices of a node with the number of nodes."""

    cluster: str = text(
        "Cluster: a name of `neusight clusters list`, or a cluster file (.toml).",
        CLUSTER, metavar="NAME", objects=True, of_mode="training", complete="clusters",
    )  # fmt: skip
    nodes: int | None = whole(
        "Nodes of the cluster. Default: those of its file, else 1.",
        CLUSTER,
        high=10**6,
        listable=True,
        of_mode="training",
    )

    def on_cluster(self) -> Cluster:
        """The cluster that is named, with the changes of its figures.

        Raises:
            FieldError: devices are named besides. DeviceError: an unknown cluster.
        """
        self.refuse(
            ("per_node", "network"),
            "is decided by --cluster, which has nodes and a network of its own: change them by --set per_node=4 or "
            "--set network.bandwidth=800Gb/s",
        )
        given: Cluster | str = self.given("cluster")
        if isinstance(given, str):
            given = load_cluster(given, self.nodes or 0, self.overrides)
        else:
            self.refuse(("nodes", "overrides"), f"changes a named cluster: change {given.id} by its model_copy()")
        if self.gpu and as_device(self.given("gpu")).id != given.device.id:
            raise FieldError("gpu", f"is named by --cluster, which has {given.device.id}: leave it out")
        return given


@dataclass(frozen=True, kw_only=True)
class Computed(Question):
    """The precision of a step, and how it computes attention."""

    dtype: str = text(
        "Precision of weights and activations: bf16, fp16, fp32 (convolutions in TF32, PyTorch's default), "
        "float32_ieee, tf32, amp, amp_bf16. Default: that of the model's configuration, else fp32.",
        ENGINE, metavar="NAME", listable=True,
    )  # fmt: skip
    attention: str = text(
        "Form of attention: operator by operator, or one fused kernel. Default: the model's own.",
        ENGINE, choices=ATTENTIONS,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Sized(Question):
    """The sizes of a step."""

    mode: str = text(
        "Inference is the forward pass; training adds the backward pass and the optimizer.",
        MODEL, "inference", choices=MODES, listable=True,
    )  # fmt: skip
    batch: int = whole(
        "Batch size: samples of a step, over all replicas.",
        MODEL, 1, short="-b", listable=True, former=("global_batch",),
    )  # fmt: skip
    seq_len: int | None = whole(
        "Sequence length: tokens of a sample. Default: as many as the model takes, up to 2,048.",
        MODEL, short="-s", listable=True,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Parallel(Question):
    """The degrees of parallelism that training and serving have in common."""

    tp: int = whole(
        "Tensor parallel: devices that share every layer.",
        PLAN, 1, high=DEGREE, listable=True,
    )  # fmt: skip
    pp: int = whole(
        "Pipeline parallel: stages, each of which has a part of the layers.",
        PLAN, 1, high=DEGREE, listable=True,
    )  # fmt: skip
    dp: int | None = whole(
        "Data parallel: replicas, each with its share of the samples. Default: what the cluster leaves, else 1.",
        PLAN, high=DEGREE, listable=True,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class WithExperts(Parallel):
    """Degrees of models that may have experts."""

    ep: int = whole(
        "Expert parallel: devices over which whole experts are spread.",
        PLAN, 1, high=DEGREE, listable=True,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Planned(Parallel):
    """How devices share a step that any framework runs."""

    vp: int = whole(
        "Chunks of layers of a pipeline stage; several are interleaved (virtual pipeline).",
        PLAN, 1, high=DEGREE, listable=True,
    )  # fmt: skip
    cp: int = whole(
        "Context parallel: devices that share every sequence.",
        PLAN, 1, high=DEGREE, listable=True,
    )  # fmt: skip
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
        PLAN,
        "1f1b",
        choices=SCHEDULES,
        listable=True,
        metavar="NAME",
    )
    shard: str = text(
        "Sharding across replicas of optimizer states (zero1), gradients too (zero2), weights too (zero3), within "
        "groups (hsdp). Default: the engine's usual choice; in `predict` none.",
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
        "Tensor-parallel devices split norms and the residual stream by tokens. Default: with --tp in `training` and "
        "`memory`.",
        PLAN, None,
    )  # fmt: skip
    overlap_grad_reduce: bool | None = switch(
        "Replicas sum gradients during the backward pass.",
        PLAN, None, former=("overlap_gradients",), of_mode="training",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TrainedPlan(WithExperts, Planned):
    """How devices share a training step of a language model."""

    cp_comm: str = text(
        "How keys reach devices of --cp: p2p in a ring, or all_gather. Default: the engine's.",
        PLAN, choices=CP_COMMS, metavar="NAME",
    )  # fmt: skip
    etp: int | None = whole(
        "Devices that share each expert. Default: --tp.",
        PLAN, high=DEGREE,
    )  # fmt: skip
    shard_group: int | None = whole("Devices of a group of hsdp. Default: those of a node.", PLAN, high=DEGREE)
    overlap_param_gather: bool | None = switch(
        "Replicas gather parameters while passes run.",
        PLAN, None, former=("overlap_parameters",),
    )  # fmt: skip
    overlap_tp: bool | None = switch(
        "What tensor-parallel devices exchange overlaps with products.",
        PLAN, None,
    )  # fmt: skip
    overlap_experts: bool | None = switch(
        "Tokens travel to experts during the kernels of another micro-batch.",
        PLAN, None,
    )  # fmt: skip
    gradient_dtype: str = text(
        "Precision in which gradients are kept and summed. Default: fp32, or that of weights under engines that keep "
        "no fp32 copies of them.",
        PLAN, metavar="NAME",
    )  # fmt: skip
    offload: str = text("States that the host keeps and updates.", PLAN, "none", choices=OFFLOADS)


@dataclass(frozen=True, kw_only=True)
class Recorded(Question):
    """Constants of the host and of the libraries that ran a measured step."""

    host_call_us: float | None = number(
        "Time of the host before the first operator of a step that is waited for. Default: that of a usual host.",
        RECORDED, low=0.0, high=1e9, metavar="US", if_unset=usual("host_call_us"),
    )  # fmt: skip
    host_operator_us: float | None = number(
        "Time of the host for an operator of one pointwise kernel. Default: the engine's.",
        RECORDED,
        low=0.0,
        high=1e9,
        metavar="US",
    )
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
