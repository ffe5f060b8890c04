"""``Training``: one training step of a language model on the devices of a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

from neusight.engines import engine_names
from neusight.questions.field import FieldError, required, switch, text, whole
from neusight.questions.parts import ENGINE, MODEL, PLAN, RECORDED, OnCluster, TrainedPlan
from neusight.quick_dataclasses import dataclass

OPTIMIZERS = ("none", "sgd", "adam", "adamw", "muon")
ADAPTERS = ("lora", "qlora", "dora")
TRAINERS = engine_names(serves=False)


@dataclass(frozen=True, kw_only=True)
class Training(OnCluster, TrainedPlan):
    """A step of ``global_batch_size`` sequences; what is left open is the usual choice of the engine's users."""

    HELP: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "shard": "Sharding across replicas of optimizer states (zero1), gradients too (zero2), weights too "
            "(zero3), within groups (hsdp). Default: the usual choice of the engine's users.",
            "per_node": "Devices of a node. Default: 8, or 1 without links.",
        }
    )

    model: str = required(
        "A name of `neusight models list --decoders`, a config.json, or the folder that has it; under PyTorch itself "
        "whatever `neusight predict` takes.",
        MODEL, listable=True, objects=True,
    )  # fmt: skip
    config: str = text("Configuration of the model as JSON, in place of the one that its name has.", MODEL)
    decoder: str = text("Layers of the model as JSON, where no configuration describes it.", MODEL)
    global_batch_size: int | None = whole(
        "Sequences of a step, over all replicas.",
        MODEL, short="-b", listable=True, former=("global_batch", "batch"),
    )  # fmt: skip
    micro_batches: int | None = whole("Micro-batches of a replica, in place of --global-batch-size.", PLAN)
    seq_len: int | None = whole(
        "Sequence length in tokens. Default: as many as the model takes, up to 2,048.",
        MODEL, short="-s", listable=True,
    )  # fmt: skip
    source_len: int | None = whole("Tokens of a sample that an encoder reads. Default: --seq-len.", MODEL)
    mtp_layers: int | None = whole("Depths of multi-token prediction that are trained too.", MODEL)
    dtype: str = text(
        "Precision of weights and activations: bf16, fp16, fp32; of large products alone: fp8, fp8_current, fp8_row, "
        "fp8_block, mxfp8, nvfp4. Default: that of the model's configuration, else bf16.",
        ENGINE, metavar="NAME", listable=True,
    )  # fmt: skip
    engine: str = text(
        "Software that trains: its kernels, and its users' usual choices where one is left out. Default: megatron-te; "
        "maxtext on TPUs, neuron on Trainium, whose degrees count cores.",
        ENGINE, choices=TRAINERS, listable=True, metavar="NAME",
    )  # fmt: skip
    engine_options: str = text("Traits of the engine that differ, as a JSON object.", RECORDED, metavar="JSON")
    optimizer: str = text(
        "Optimizer whose update is part of the step.", MODEL, "adam", choices=OPTIMIZERS,
    )  # fmt: skip
    attention_kernel: str = text(
        "Attention whose results wait for the backward pass. Default: the engine's.",
        ENGINE, choices=("eager", "flash", "cudnn"),
    )  # fmt: skip
    dropout: bool = switch("Dropout of attention and of the residual stream.", MODEL)
    lora_rank: int | None = whole(
        "Rank of LoRA adapters, which are trained in place of all weights. Default: all weights are trained.",
        MODEL, former=("lora",),
    )  # fmt: skip
    adapter: str = text(
        "What --lora-rank adapts: weights as they are, in NF4 (qlora), or scaled by their columns (dora).",
        MODEL, "lora", choices=ADAPTERS,
    )  # fmt: skip
    adapted: str = text(
        "Projections that --lora-rank adapts: attention (qkv, output), feed_forward (up, down), or single ones.",
        MODEL, "attention,feed_forward", metavar="WORD[,WORD…]",
    )  # fmt: skip
    graphed: str = text("Parts of layers that run as CUDA graphs.", RECORDED)
    chunk_layers: str = text("Layers of each chunk of an uneven pipeline.", RECORDED)
    chunk_group: int | None = whole("Micro-batches of a chunk before the next chunk's.", RECORDED)
    embedding_shard: bool = switch("Embedding tables are split over devices by rows.", RECORDED)

    def check(self) -> None:
        """Relations between fields."""
        if self.cluster and self.gpu:
            raise FieldError("gpu", "is named by --cluster, which has its own devices: give one of both")
        if self.cluster and (self.per_node or self.network):
            raise FieldError(
                "cluster",
                "has its own nodes and network: change them by --set per_node=4 or --set network.bandwidth=…",
            )
