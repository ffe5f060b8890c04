"""Published training runs as rows of a table: which model, plan and habits their columns stand for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from neusight.errors import DataError, shown
from neusight.plans.memory import Training
from neusight.plans.plan import Plan
from neusight.workloads.decoders.decoder import Decoder
from neusight.workloads.decoders.layers import Experts, FeedForward, Layer, SelfAttention
from neusight.workloads.training.keeping import COMPOSER, FSDP, MEGATRON, Keeping

Row = Mapping[str, Any]
NEEDED = (
    "gpu", "layers", "hidden", "heads", "ffn", "vocab", "seq_len", "micro_batch", "global_batch", "framework",
)  # fmt: skip
_GATED = ("swiglu", "geglu")
_DTYPES = {"bf16": "bfloat16", "amp_bf16": "bfloat16", "fp16": "float16", "float8": "bfloat16", "fp8": "bfloat16"}


class TrainedRun:
    """One row. What is not told: no recomputation; of NeMo sequence parallelism and gradients in bfloat16, as its
    recipes for performance have them (scripts/performance: ``grad_reduce_in_fp32 = False``).
    """

    def __init__(self, row: Row) -> None:
        self.row = row
        if missing := [name for name in NEEDED if row.get(name) is None]:
            raise DataError(f"no {' and '.join(missing)}: a run without it cannot be asked")

    def whole(self, name: str, default: int = 1) -> int:
        """A cell that counts; words after its number are a comment.

        Raises:
            DataError: it is no whole number.
        """
        value = self.row.get(name)
        if not value:
            return default
        try:
            return int(str(value).split()[0])
        except ValueError:
            raise DataError(f"{name} = '{shown(value)}' must be a whole number: correct that cell") from None

    def runs(self, framework: str) -> bool:
        """Whether the framework is of this name."""
        return framework in str(self.row["framework"]).lower()

    @property
    def decoder(self) -> Decoder:
        """The model, all layers alike."""
        depth, heads = self.whole("layers"), self.whole("heads")
        mixer = SelfAttention(
            heads=heads,
            kv_heads=self.whole("kv_heads", heads),
            head_dim=self.whole("head_dim", self.whole("hidden") // heads),
        )
        gated = self.row.get("activation") in _GATED
        part: FeedForward | Experts = FeedForward(ffn=self.whole("ffn"), gated=gated)
        if self.row.get("experts"):
            expert = FeedForward(ffn=self.whole("moe_ffn", self.whole("ffn")), gated=gated)
            part = Experts(expert=expert, experts=self.whole("experts"), top_k=self.whole("top_k"))
        name = str(self.row.get("model", "a model"))
        return Decoder(
            name=name,
            family=name,
            hidden=self.whole("hidden"),
            vocab=self.whole("vocab"),
            tied=name.startswith("MPT"),
            max_len=self.whole("seq_len"),
            layers=((Layer(attention=mixer, feed_forward=part), depth),),
            order=(0,) * depth,
        )

    @property
    def plan(self) -> Plan:
        """Every second layer computed again is half of each stage's."""
        said = str(self.row.get("recompute") or "none")
        full = said.startswith("full") or said == "every second layer"
        return Plan(
            dp=self.whole("dp"),
            tp=self.whole("tp"),
            pp=self.whole("pp"),
            vp=self.whole("vp"),
            cp=self.whole("cp"),
            ep=self.whole("ep"),
            etp=self.whole("etp", 0),
            micro_batch=self.whole("micro_batch"),
            global_batch=self.whole("global_batch"),
            sequence_parallel=self._sequence_parallel(said),
            shard=str(self.row.get("shard") or "none"),
            gradient_dtype="bfloat16" if self.runs("nemo") else "float32",
            recompute="full" if full else "selective" if said.startswith("selective") else "none",
            recompute_layers=self.whole("layers") // (2 * self.whole("pp")) if said == "every second layer" else 0,
        )

    def _sequence_parallel(self, recompute: str) -> bool:
        """NeMo's recipes have it; Korthikanti et al. 2022 with selective recomputation."""
        return self.whole("tp") > 1 and (self.runs("nemo") or recompute.startswith("selective"))

    @property
    def training(self) -> Training:
        """The step, products in float8 where that is the dtype."""
        said = str(self.row.get("dtype") or "bfloat16").split()[0]
        return Training(
            seq_len=self.whole("seq_len"),
            dtype=_DTYPES.get(said, said),
            products="float8" if said in ("float8", "fp8") else "",
            keeping=self.keeping,
        )

    @property
    def keeping(self) -> Keeping:
        """Of the framework; Megatron-LM of 2022 had unfused attention and dropout."""
        if self.runs("nemo"):
            return MEGATRON
        if not self.runs("megatron"):
            return COMPOSER if self.runs("composer") else FSDP
        return replace(
            MEGATRON, attention="unfused", attention_dropout=True, hidden_dropout=True, transformer_engine=False
        )
