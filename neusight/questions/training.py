"""``Training``: one training step of a language model on the devices of a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from neusight.devices import DeviceSpec
from neusight.engines import TRAINERS, engine_named
from neusight.errors import ModelError
from neusight.kernels.optimizers import algorithms
from neusight.questions.field import FieldError, required, switch, text, whole
from neusight.questions.parts import DEGREE, ENGINE, MODEL, PLAN, RECORDED, Configured, OnCluster, Planned, WithExperts
from neusight.quick_dataclasses import dataclass
from neusight.requests import CP_COMMS, OFFLOADS
from neusight.workloads.decoders.recipes import METHODS

if TYPE_CHECKING:
    from neusight.distributed.training_run import TrainingRun

OPTIMIZERS = tuple(name for name, optimizer in algorithms().items() if optimizer.described)
EMBEDDING_SHARDS = ("none", "tables")
GRAPHED = ("attn", "mlp", "moe", "shared_experts")
_OF_DECODERS = ("attention_kernel", "dropout", "engine_options", "graphed", "chunk_layers", "chunk_group")
"""Fields that a traced model decides itself."""
_DESCRIBED = ("lora_rank", "engine_options")
"""Fields for which a language model is described, not traced, under engines that trace any model."""


@dataclass(frozen=True, kw_only=True)
class Training(Configured, OnCluster, WithExperts, Planned):
    """A step of ``global_batch_size`` sequences; what is left open is the usual choice of the engine's users."""

    KIND: ClassVar[str] = "training"

    model: str = required(
        "A name of `neusight models list --decoders`, a config.json, or the folder that has it; under PyTorch itself "
        "whatever `neusight predict` takes.",
        MODEL, listable=True, objects=True, complete="decoders",
    )  # fmt: skip
    decoder: str = text("Layers of the model as JSON, where no configuration describes it.", MODEL, metavar="JSON")
    global_batch_size: int | None = whole(
        "Sequences of a step, over all replicas.", MODEL, short="-b", listable=True, former=("global_batch", "batch")
    )
    micro_batches: int | None = whole("Micro-batches of a replica, in place of --global-batch-size.", PLAN)
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
    optimizer: str = text("Optimizer whose update is part of the step.", MODEL, "adam", choices=OPTIMIZERS)
    cp_comm: str = text(
        "How keys reach devices of --cp: p2p in a ring, or all_gather. Default: the engine's.",
        PLAN, choices=CP_COMMS, metavar="NAME",
    )  # fmt: skip
    etp: int | None = whole("Devices that share each expert. Default: --tp.", PLAN, high=DEGREE)
    shard_group: int | None = whole("Devices of a group of hsdp. Default: those of a node.", PLAN, high=DEGREE)
    overlap_param_gather: bool | None = switch(
        "Replicas gather parameters while passes run.", PLAN, None, former=("overlap_parameters",)
    )
    overlap_tp: bool | None = switch("What tensor-parallel devices exchange overlaps with products.", PLAN, None)
    overlap_experts: bool | None = switch(
        "Tokens travel to experts during the kernels of another micro-batch.", PLAN, None
    )
    gradient_dtype: str = text(
        "Precision in which gradients are kept and summed. Default: fp32, or that of weights under engines that keep "
        "no fp32 copies of them.",
        PLAN, metavar="NAME",
    )  # fmt: skip
    offload: str = text(
        "States that the host keeps: the optimizer's, which it steps, or those and shares of zero3's weights "
        "(parameters).",
        PLAN, "none", choices=OFFLOADS,
    )  # fmt: skip
    moment_dtype: str = text(
        "Precision of the optimizer's moments. Default: that of the weights that it steps.",
        PLAN, metavar="NAME",
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
        "What --lora-rank adapts: weights as they are (lora), in NF4 (qlora), scaled by their columns (dora), by whole "
        "matrices of products (loha), columns alone (ia3), or tokens before each sequence (prompt). Default: lora.",
        MODEL, choices=METHODS,
    )  # fmt: skip
    adapted: str = text(
        "Projections that --lora-rank adapts: attention (qkv, output), feed_forward (up, down), or single ones. "
        "Default: attention,feed_forward.",
        MODEL, metavar="WORD[,WORD…]", joined=True,
    )  # fmt: skip
    graphed: str = text(
        "Parts of layers that are captured as CUDA graphs, whose memory counts: attn, mlp, moe, shared_experts.",
        RECORDED, choices=GRAPHED, metavar="WORD[,WORD…]", joined=True,
    )  # fmt: skip
    chunk_layers: str = text(
        "Layers of each chunk of an uneven pipeline, from the input on: 2,4,4,2.",
        RECORDED, metavar="N[,N…]", joined=True,
    )  # fmt: skip
    chunk_group: int | None = whole(
        "Micro-batches of a chunk before the next chunk's, whose activations wait. Default: --pp.", RECORDED
    )
    embedding_shard: str = text(
        "Tables of embeddings of recommendation models: each device has a share of them (tables), or all (none). "
        "Default: tables.",
        PLAN, choices=EMBEDDING_SHARDS, meanings={"rows": "tables", "rows and tables": "tables"},
    )  # fmt: skip

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
        """The step whose plan is searched: of its plan, only the global batch is decided.

        Args:
            device: as ``resolve`` takes it.

        Raises:
            FieldError: a field of the plan is given. As ``resolve``.
        """
        from neusight.requests import Plan

        planned = (name for name, f in self.fields().items() if f.field.panel == PLAN)
        self.refuse((*planned, "chunk_layers", "chunk_group"), "is searched for: leave it out")
        if not self.global_batch_size:
            raise FieldError("global_batch_size", "is missing: give the sequences of a step")
        one_each = self.changed(global_batch_size=None, micro_batches=1, micro_batch_size=1)
        return replace(one_each.resolve(device), plan=Plan(global_batch_size=self.global_batch_size))

    def _model(self) -> Any:
        """The decoder that is described, else the model as it was given."""
        from neusight.workloads.decoders.described import decoder_of_text
        from neusight.workloads.decoders.known import known_decoder

        if self.decoder:
            self.refuse(("config",), "describes the model as well as decoder: leave out one of them")
            return decoder_of_text(self.decoder)
        described = any(getattr(self, name) for name in _DESCRIBED)
        if not described and self.engine and engine_named(self.engine).traces_modules:
            return self.model_or_file()
        model = self.model_or_name()
        if not described or not isinstance(model, str):
            return model
        try:
            return known_decoder(model)
        except ModelError:
            return model

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
            name = run.engine.name
            why = f"has no effect under {name}, where the model decides it: name an engine that runs decoders"
            self.refuse(_OF_DECODERS, why)
            return run
        engine = with_traits(run.engine, self.engine_options) if self.engine_options else run.engine
        engine = replace(engine, attention=self.attention_kernel) if self.attention_kernel else engine
        engine = replace(engine, attention_dropout=True, hidden_dropout=True) if self.dropout else engine
        graphed = tuple(self.graphed.split(",")) if self.graphed else ()
        chunks: dict[str, Any] = {"chunk_layers": self._chunks(), "chunk_group": self.chunk_group or 0}
        return replace(run, engine=engine, graphed=graphed, **chunks)

    def _chunks(self) -> tuple[int, ...]:
        try:
            return tuple(int(number) for number in self.chunk_layers.split(",") if self.chunk_layers)
        except ValueError:
            raise FieldError("chunk_layers", f"'{self.chunk_layers}': give whole numbers, such as 2,4,4,2") from None

    def without_effect(self, run: TrainingRun) -> Iterator[str]:
        """A line for each field that changes nothing of the step that it resolves to."""
        yield from (*run.without_effect(), *self.not_estimated())
        if self.embedding_shard == "tables" and not getattr(run.decoder, "splits", False):
            yield "embedding_shard has no effect: there is one replica, or the model has no bags of embeddings"
        if self.network and run.cluster.nodes == 1:
            yield "network has no effect: there is one node"
