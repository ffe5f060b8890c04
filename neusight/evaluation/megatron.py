"""Runs of Megatron-LM as rows of a table: which model, plan and habits their columns and flags stand for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from neusight.devices.spec import DeviceSpec
from neusight.engines import AttentionForm, Engine, engine_named
from neusight.errors import DataError
from neusight.plans.memory import TrainingStep
from neusight.plans.plan import Plan
from neusight.plans.workspaces import HOPPER
from neusight.workloads.decoders.decoder import Decoder
from neusight.workloads.decoders.layers import Experts, FeedForward, Layer, Norm, SelfAttention

Row = Mapping[str, Any]
NEEDED = (
    "gpu", "layers", "hidden", "heads", "head_dim", "ffn", "vocab_padded", "seq_len", "micro_batch", "global_batch",
)  # fmt: skip
"""Columns without which a row is no run; others take Megatron-LM's defaults."""
DEFAULTS: dict[str, Any] = {
    "family": "gpt", "tp": 1, "pp": 1, "vp": 1, "cp": 1, "ep": 1, "dp": 1, "sequence_parallel": False,
    "distributed_optimizer": False, "optimizer_instances": 1, "overlap_grad_reduce": False,
    "overlap_param_gather": False, "grad_reduce_in_bf16": False, "dtype": "bfloat16",
    "transformer_impl": "transformer_engine", "attention_backend": "auto", "attention_dropout": 0.1,
    "hidden_dropout": 0.1, "deterministic": False, "activation": "gelu", "normalization": "LayerNorm", "bias": True,
    "qk_layernorm": False, "tied_embeddings": True, "position_embedding": "learned_absolute", "recompute": "none",
    "optimizer": "adam", "top_k": 2, "moe_grouped_gemm": False, "softmax_in_fp32": False,
}  # fmt: skip
"""What a cell means that is not told (megatron/training/arguments.py)."""
_SWIGLU = ("swiglu", "geglu")


def _flags(row: Row) -> dict[str, Any]:
    """What stands in ``other_args``: a JSON of all flags."""
    try:
        flags = json.loads(row.get("other_args") or "{}")
    except (TypeError, ValueError):
        flags = None
    if not isinstance(flags, dict):
        raise DataError('other_args is no JSON of flags: write them as {"flag": value}')
    return flags


class MegatronRun:
    """One row, cell by cell.

    Raises:
        DataError: cells that are needed are empty or no numbers, or flags that cannot be read.
    """

    def __init__(self, row: Row, device: DeviceSpec) -> None:
        self.row, self.device = row, device
        self.flags = _flags(row)
        if missing := [name for name in NEEDED if row.get(name) is None]:
            raise DataError(f"no {' and '.join(missing)}: a run without it cannot be asked")
        if foreign := [name for name in NEEDED[1:] if not isinstance(row[name], int)]:
            raise DataError(f"{' and '.join(foreign)} must be whole numbers: correct those cells")

    def told(self, name: str) -> Any:
        """A cell, or what Megatron-LM does where it is empty."""
        value = self.row.get(name)
        return DEFAULTS.get(name) if value is None else value

    @property
    def decoder(self) -> Decoder:
        """The model. BERT ends in a dense layer with a norm, a bias of the vocabulary, a pooler and a binary head."""
        hidden, bert = self.row["hidden"], self.told("family") == "bert"
        learned = self.told("position_embedding") == "learned_absolute"
        dense = hidden * hidden + hidden
        return Decoder(
            name=self.row.get("case") or self.told("family"),
            family=self.told("family"),
            hidden=hidden,
            vocab=self.row["vocab_padded"],
            tied=self.told("tied_embeddings"),
            max_len=self.row.get("max_position") or self.row["seq_len"],
            layers=((self.layer, self.row["layers"]),),
            order=(0,) * self.row["layers"],
            norm=self.norm,
            positions=(self.row.get("max_position") or self.row["seq_len"]) if learned else 0,
            head_bias=bert,
            extra=2 * dense + 2 * hidden + 2 * hidden + 2 if bert else 0,
        )

    @property
    def norm(self) -> Norm:
        """Of rows of the stream."""
        layer_norm = self.told("normalization") == "LayerNorm"
        return Norm(op="layer_norm", weights=2) if layer_norm else Norm()

    @property
    def layer(self) -> Layer:
        """All layers are alike."""
        bias, heads = self.told("bias"), self.row["heads"]
        mixer = SelfAttention(
            heads=heads,
            kv_heads=self.row.get("kv_heads") or heads,
            head_dim=self.row["head_dim"],
            qkv_bias=bias,
            out_bias=bias,
            qk_norm="head" if self.told("qk_layernorm") else "",
            qk_norm_weights=self.norm.weights,
        )
        return Layer(attention=mixer, feed_forward=self._feed_forward(), norm=self.norm)

    def _feed_forward(self) -> FeedForward | Experts:
        """Experts are as wide as dense layers where no flag says otherwise."""
        gated, bias = self.told("activation") in _SWIGLU, self.told("bias")
        if not self.row.get("experts"):
            return FeedForward(ffn=self.row["ffn"], gated=gated, bias=bias, activation=self.told("activation"))
        width = int(self.flags.get("moe-ffn-hidden-size") or self.row["ffn"])
        expert = FeedForward(ffn=width, gated=gated, bias=bias)
        beside = self.row.get("shared_expert_ffn")
        shared = FeedForward(ffn=beside, gated=gated, bias=bias) if beside else None
        return Experts(expert=expert, experts=self.row["experts"], top_k=self.told("top_k"), shared=shared)

    @property
    def plan(self) -> Plan:
        """The distributed optimizer is ZeRO 1; its instances share among a part of the replicas each."""
        told, instances = self.told, self.told("optimizer_instances")
        half = "bfloat16" if told("grad_reduce_in_bf16") else "float32"
        return Plan(
            **{name: told(name) for name in ("dp", "tp", "pp", "vp", "cp", "ep")},
            etp=(self.row.get("etp") or 0) if self.row.get("experts") else 0,
            micro_batch=self.row["micro_batch"],
            global_batch=self.row["global_batch"],
            sequence_parallel=told("sequence_parallel"),
            shard="zero1" if told("distributed_optimizer") else "none",
            shard_group=told("dp") * told("cp") // instances if instances > 1 else 0,
            recompute=told("recompute"),
            recompute_layers=0,
            overlap_gradients=told("overlap_grad_reduce"),
            overlap_parameters=told("overlap_param_gather"),
            gradient_dtype="float16" if told("dtype") == "float16" else half,
        )

    @property
    def training(self) -> TrainingStep:
        """The step."""
        return TrainingStep(
            seq_len=self.row["seq_len"],
            dtype=self.told("dtype"),
            optimizer=self.told("optimizer"),
            engine=self.engine,
            chunk_layers=self._chunk_layers(),
            chunk_group=int(self.flags.get("microbatch-group-size-per-virtual-pipeline-stage", 0)),
        )

    @property
    def engine(self) -> Engine:
        """Query-key scaling implies softmax in float32, whose result stays in it where no kernel fuses it."""
        fused = self.told("transformer_impl") == "transformer_engine" and self.flags.get("spec") != "local"
        wide = self.told("softmax_in_fp32") or "apply-query-key-layer-scaling" in self.flags
        deferred = "defer-embedding-wgrad-compute" in self.flags
        return replace(
            engine_named("megatron-te"),
            attention=self._attention(fused),
            attention_dropout=self.told("attention_dropout") > 0,
            hidden_dropout=self.told("hidden_dropout") > 0,
            probability_bytes=4 if wide and "no-masked-softmax-fusion" in self.flags else 2,
            dense_mask=True,
            logit_bytes=10.0 if "cross-entropy-loss-fusion" in self.flags else 6.0,
            deferred_heads=int(self.flags.get("wgrad-deferral-limit", 0)) if deferred else 0,
            deterministic=self.told("deterministic"),
            transformer_engine=fused,
            grouped_experts=self.told("moe_grouped_gemm"),
            score_buffer=not fused,
        )

    def _attention(self, fused: bool) -> AttentionForm:
        """``auto``: Transformer Engine takes cuDNN's from Hopper on, FlashAttention before
        (transformer_engine/pytorch/attention/dot_product_attention/utils.py, ``get_attention_backend``).
        """
        asked = self.told("attention_backend")
        if not fused or asked in ("unfused", "local"):
            return "eager"
        if asked == "flash":
            return "flash"
        return "cudnn" if (self.device.capability or 0.0) >= HOPPER else "flash"

    def _chunk_layers(self) -> tuple[int, ...]:
        """Uneven pipelines: fewer layers at both ends, or one less where embedding and loss count as a layer each."""
        pp, chunks, layers = self.told("pp"), self.told("pp") * self.told("vp"), self.row["layers"]
        first, last = (self.flags.get(f"decoder-{end}-pipeline-num-layers") for end in ("first", "last"))
        if first and last and pp > 2:
            return (int(first), *((layers - int(first) - int(last)) // (pp - 2),) * (pp - 2), int(last))
        if layers % chunks and (layers + 2) % chunks == 0:
            each = (layers + 2) // chunks
            return (each - 1, *(each,) * (chunks - 2), each - 1)
        return ()
