"""``Training``: one training step of a language model on the devices of a cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from neusight.devices import Cluster, DeviceSpec, cluster_of, with_prices
from neusight.engines import TRAINERS
from neusight.questions.field import FieldError, required, switch, text, whole
from neusight.questions.parts import ENGINE, MODEL, PLAN, RECORDED, OnCluster, TrainedPlan
from neusight.quick_dataclasses import dataclass

if TYPE_CHECKING:
    from neusight.distributed.training_run import TrainingRun

OPTIMIZERS = ("none", "sgd", "adam", "adamw", "muon")
ADAPTERS = ("lora", "qlora", "dora")
GRAPHED = ("attn", "mlp", "moe", "shared_experts")
_OF_DECODERS = ("attention_kernel", "dropout", "engine_options", "graphed", "chunk_layers", "chunk_group")
"""Fields that a traced model decides itself."""


@dataclass(frozen=True, kw_only=True)
class Training(OnCluster, TrainedPlan):
    """A step of ``global_batch_size`` sequences; what is left open is the usual choice of the engine's users."""

    KIND: ClassVar[str] = "training"

    HELP: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "shard": "Sharding across replicas of optimizer states (zero1), gradients too (zero2), weights too "
            "(zero3), within groups (hsdp). Default: the usual choice of the engine's users.",
            "per_node": "Devices of a node. Default: 8, or 1 without links.",
            "dp": "Data parallel: replicas, each with its share of the sequences. Default: what the cluster leaves.",
            "micro_batch_size": "Sequences of one pass of a replica. Default: 1 under a pipeline or an engine that "
            "accumulates gradients, else all of a replica.",
            "sequence_parallel": "Tensor-parallel devices split norms and the residual stream by tokens. Default: with "
            "--tp, where that is usual with the engine.",
        }
    )

    model: str = required(
        "A name of `neusight models list --decoders`, a config.json, or the folder that has it; under PyTorch itself "
        "whatever `neusight predict` takes.",
        MODEL, listable=True, objects=True, complete="decoders",
    )  # fmt: skip
    config: str = text(
        "Configuration of the model as JSON, in place of the one that its name has.", MODEL, metavar="JSON"
    )
    decoder: str = text("Layers of the model as JSON, where no configuration describes it.", MODEL, metavar="JSON")
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
        f"Software that trains: {', '.join(TRAINERS)}. It decides kernels, and choices that are left out as its users "
        "usually make them. Default: megatron-te; maxtext on TPUs, neuron on Trainium, whose degrees count cores.",
        ENGINE, choices=TRAINERS, listable=True, metavar="NAME",
    )  # fmt: skip
    engine_options: str = text(
        """Traits of the engine that differ, as a JSON object: '{"offloads_activations": true}'.""",
        RECORDED, metavar="JSON",
    )  # fmt: skip
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
        "What --lora-rank adapts: weights as they are (lora), in NF4 (qlora), or scaled by their columns (dora). "
        "Default: lora.",
        MODEL, choices=ADAPTERS,
    )  # fmt: skip
    adapted: str = text(
        "Projections that --lora-rank adapts: attention (qkv, output), feed_forward (up, down), or single ones. "
        "Default: attention,feed_forward.",
        MODEL, metavar="WORD[,WORD…]",
    )  # fmt: skip
    graphed: str = text(
        "Parts of layers that are captured as CUDA graphs, whose memory counts: attn, mlp, moe, shared_experts.",
        RECORDED, metavar="WORD[,WORD…]",
    )  # fmt: skip
    chunk_layers: str = text(
        "Layers of each chunk of an uneven pipeline, from the input on: 2,4,4,2.", RECORDED, metavar="N[,N…]"
    )
    chunk_group: int | None = whole(
        "Micro-batches of a chunk before the next chunk's, whose activations wait. Default: --pp.", RECORDED
    )
    embedding_shard: str = text("How embedding tables are split over devices.", RECORDED)

    def resolve(self, device: DeviceSpec | None = None, inputs: Any = None) -> TrainingRun:
        """The step as objects; fields that are left open are the usual choices of the engine's users.

        Args:
            device: that of ``gpu``, where it is loaded already.
            inputs: of a module, as ``Predictor.estimate`` takes them.

        Raises:
            FieldError: a missing field, or fields that exclude each other.
            ModelError: an unknown model, or sizes that do not divide. DeviceError: a cluster that the plan does not
                fill.
        """
        from neusight.steps.answers import training_run

        return self._as_recorded(training_run(self._model(), self.place(device), self._options(), self.engine, inputs))

    def unplanned(self, device: DeviceSpec | None = None) -> TrainingRun:
        """The step whose plan is to be searched for: of its plan, only the global batch is decided.

        Args:
            device: as ``resolve`` takes it.

        Raises:
            FieldError: a field of the plan is given. As ``resolve``.
        """
        from neusight.requests import Plan

        planned = (name for name, one in self.fields().items() if one.field.panel == PLAN)
        self.refuse((*planned, "chunk_layers", "chunk_group"), "is searched for: leave it out")
        if not self.global_batch_size:
            raise FieldError("global_batch_size", "is missing: give the sequences of a step")
        one_each = self.changed(global_batch_size=None, micro_batches=1, micro_batch_size=1)
        return replace(one_each.resolve(device), plan=Plan(global_batch_size=self.global_batch_size))

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
        device = device or with_prices([self.device()], self.prices)[0]
        return cluster_of(device, self.per_node or 0, self.nodes or 1, self.network)

    def _model(self) -> Any:
        """The decoder that is described, else the model as it was given."""
        from neusight.workloads.decoders.architecture import decoder_of
        from neusight.workloads.decoders.described import decoder_of_text

        if self.decoder:
            self.refuse(("config",), "describes the model as well as decoder: leave out one of them")
            return decoder_of_text(self.decoder)
        if not self.config:
            return self.given("model")
        try:
            config = json.loads(self.config)
        except (ValueError, RecursionError) as error:
            raise FieldError("config", f"is no JSON: {error}: mend it") from None
        if not isinstance(config, dict):
            raise FieldError("config", "is no JSON object: give one, as a config.json has it")
        return decoder_of(config, self.model)

    def _options(self) -> dict[str, Any]:
        """Fields of the plan and the step that are given."""
        from neusight.distributed.training_run import OPTIONS
        from neusight.kernels.precision import dtype_named

        if self.global_batch_size:
            self.refuse(("micro_batches",), "is given in place of global_batch_size: leave out one of them")
        options = {name: value for name, value in self.words().items() if name in OPTIONS}
        gradients = {"gradient_dtype": dtype_named(self.gradient_dtype)} if self.gradient_dtype else {}
        return options | gradients

    def _as_recorded(self, run: TrainingRun) -> TrainingRun:
        """The step with traits of its engine and shares of its pipeline that differ from the usual ones."""
        from neusight.engines.traits import with_traits
        from neusight.workloads.decoders.decoder import Decoder

        if not isinstance(run.decoder, Decoder):
            why = (
                f"has no effect under {run.engine.name}, where the model decides it: name an engine that runs decoders"
            )
            self.refuse(_OF_DECODERS, why)
            return run
        engine = with_traits(run.engine, self.engine_options) if self.engine_options else run.engine
        engine = replace(engine, attention=self.attention_kernel) if self.attention_kernel else engine
        engine = replace(engine, attention_dropout=True, hidden_dropout=True) if self.dropout else engine
        graphed = tuple(word.strip() for word in self.graphed.split(",") if word.strip())
        if unknown := [word for word in graphed if word not in GRAPHED]:
            raise FieldError("graphed", f"'{unknown[0]}' is unknown: one of {', '.join(GRAPHED)}")
        return replace(
            run, engine=engine, graphed=graphed, chunk_layers=self._chunks(), chunk_group=self.chunk_group or 0
        )

    def _chunks(self) -> tuple[int, ...]:
        try:
            return tuple(int(number) for number in self.chunk_layers.split(",") if self.chunk_layers)
        except ValueError:
            raise FieldError("chunk_layers", f"'{self.chunk_layers}': give whole numbers, such as 2,4,4,2") from None

    def without_effect(self, run: TrainingRun) -> Iterator[str]:
        """A line for each field that changes nothing of the step that it resolves to."""
        yield from run.without_effect()
        if self.network and run.cluster.nodes == 1:
            yield "network has no effect: there is one node"
        if self.embedding_shard:
            yield "embedding_shard has no effect: estimates do not know it yet"
