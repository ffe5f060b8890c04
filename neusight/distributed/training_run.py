"""``TrainingRun``: one training step as a question: a model, how devices share it and its nodes, and what runs it.

What is not given of it is as its engine's users have it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from neusight.defaults import (
    TRAINED_DTYPE,
    Default,
    Defaults,
    chosen,
    default_dtype,
    default_micro_batch,
    default_seq_len,
)
from neusight.devices.cluster import Cluster
from neusight.devices.slices import cores_of
from neusight.engines import Engine, engine_named, usual_trainer
from neusight.errors import DeviceError, ModelError
from neusight.kernels.optimizers import optimizer_named
from neusight.kernels.precision import dtype_named
from neusight.plans.placement import Placement
from neusight.plans.read import PLAN, STEP
from neusight.plans.stages import most_chunks
from neusight.plans.states import TrainingStep
from neusight.requests import Plan
from neusight.workloads.decoders.decoder import Decoder
from neusight.workloads.decoders.recipes import Adapters, is_recipe, recipe_named
from neusight.workloads.decoders.shares import Local

if TYPE_CHECKING:
    from neusight.distributed.sources import TracedModel

OPTIONS = (*PLAN, *STEP)
"""Fields of ``Plan`` and of the step that ``usual_run`` takes."""


@dataclass(frozen=True, kw_only=True)
class TrainingRun(TrainingStep):
    """A step of ``plan.global_batch_size`` sequences of ``seq_len`` tokens, or of samples, whose ``seq_len`` is 1;
    ``optimizer``: adam, adamw, muon, sgd or none. ``traced_in`` is the name of the precision of a module's trace, whose
    products may run in another dtype than ``dtype``, that of weights. ``defaults`` are values that were chosen for its
    fields and those of its plan.
    """

    decoder: Decoder | TracedModel
    cluster: Cluster
    plan: Plan
    traced_in: str = ""
    defaults: Defaults = field(default_factory=dict)

    @property
    def precision(self) -> str:
        """Name of the precision in the words of a question."""
        return self.products or self.traced_in or self.dtype

    @property
    def assumed(self) -> dict[str, str]:
        """Defaults that the run still has, in words."""
        words = {"dtype": self.precision, "engine": self.engine.name}
        return chosen(self.defaults, {**vars(self.plan), **vars(self), **words})

    def checked(self) -> TrainingRun:
        """The run, if plan, model and cluster fit each other.

        Raises:
            DeviceError: a cluster of another size than the plan's. ModelError: layers that stages cannot share, no
                sequence, or experts that ranks cannot share out.
        """
        plan, devices = self.plan, self.cluster.devices
        if plan.world != devices:
            degrees = f"dp {plan.dp} x tp {plan.tp} x pp {plan.pp} x cp {plan.cp} = {plan.world} devices"
            others = plan.world // plan.dp
            fit = f"; dp {devices // others} would fit" if devices % others == 0 else ""
            raise DeviceError(f"a plan of {degrees} on a cluster of {devices}{fit}")
        depth = self.decoder.depth
        # Of a traced model what a chunk receives is what its first layer reads.
        if plan.pp * plan.vp > (most_chunks(depth) if isinstance(self.decoder, Decoder) else max(1, depth)):
            raise ModelError(
                f"{plan.pp} stages of {plan.vp} chunks need as many layers: {self.decoder.name} has "
                f"{depth}, choose a pp x vp that divides it"
            )
        if self.seq_len < 1:
            raise ModelError(f"sequence length {self.seq_len}: give a whole number of at least 1")
        self._check_experts()
        return self

    def without_effect(self) -> Iterator[str]:
        """A line for each choice that changes nothing, and why."""
        yield from self.plan.without_effect(self.decoder.has_experts)
        if self.plan.overlap_tp and not self.engine.hidden_tp:
            yield "overlap_tp has no effect: products in pieces lose what they hide under this engine"
        if self.moment_dtype and optimizer_named(self.optimizer).moment_bytes:
            yield f"moment_dtype has no effect: {self.optimizer} has moments of its own width"
        if self.plan.offload == "optimizer" and self.optimizer == "none":
            yield "offload has no effect: optimizer is none"

    def _check_experts(self) -> None:
        plan = self.plan
        if plan.ep > 1 and not self.decoder.has_experts:
            raise ModelError(f"{self.decoder.name} has no experts that ep {plan.ep} ranks could share: leave ep at 1")
        ranks, wanted = plan.dp * plan.cp * plan.tp, plan.ep * plan.expert_tp
        if plan.ep > 1 and ranks % wanted:
            raise ModelError(
                f"ep {plan.ep} x etp {plan.expert_tp} = {wanted} do not divide the dp x cp x tp = {ranks} ranks of a "
                "stage: choose degrees that do"
            )

    @property
    def local(self) -> Local:
        """What one rank has of a micro-batch."""
        within = self.placement.within("ep") if self.plan.ep > 1 else 0
        transposes = not self.cluster.device.facts.narrow_layouts
        return replace(self.share_of(self.plan), transposes=transposes, ep_within=within)

    @property
    def placement(self) -> Placement:
        """Which ranks share a node."""
        return Placement(plan=self.plan, per_node=self.cluster.per_node)

    @property
    def unit(self) -> str:
        """What a step is counted in: ``tokens``, or ``samples`` of a model without sequences."""
        return "tokens" if self.seq_len > 1 else "samples"

    @property
    def work(self) -> str:
        """What a step works on, in words."""
        batch = f"{self.plan.global_batch_size:,}"
        return f"{batch} x {self.seq_len:,} tokens" if self.unit == "tokens" else f"{batch} samples"

    @property
    def tokens(self) -> int:
        """Of a step, on all devices."""
        return self.plan.global_batch_size * self.seq_len


def usual_run(decoder: Decoder, cluster: Cluster, given: Mapping[str, Any], engine: str = "") -> TrainingRun:
    """A step with what is given of it; ``dp`` follows from the cluster.

    Args:
        decoder: the model.
        cluster: the devices.
        given: fields of ``Plan``, with ``seq_len`` and ``dtype`` (defaults of ``neusight.defaults``; ``fp8``,
            ``mxfp8`` and other recipes: of large products alone), ``optimizer`` (default adam) and
            ``micro_batches`` of a replica, where no ``global_batch_size`` is given; ``source_len`` tokens that an
            encoder reads, ``mtp_layers`` depths of multi-token prediction.
        engine: name of the engine whose habits fill in the rest; default as is usual of the devices.

    Raises:
        ModelError: an unknown word, a batch that is missing or does not divide, stages without layers.
        DeviceError: a cluster that the plan does not fill.
    """
    run_fields(given)
    trainer = Default(usual_trainer(cluster.device), "usual on these devices: give --engine if it is known")
    habits = engine_named(engine or trainer.value)
    cluster = cores_of(cluster) if habits.ranks == "core" else cluster
    defaults = {"seq_len": default_seq_len(decoder.max_len), "dtype": default_dtype(decoder.dtype, habits)}
    defaults = {name: default for name, default in defaults.items() if not given.get(name)}
    defaults |= {} if engine else {"engine": trainer}
    given = {**given, **{name: default.value for name, default in defaults.items()}}
    plan = usual_plan(given, cluster.devices, habits.name, cluster.size_words)
    dtype, products = step_precision(str(given["dtype"]))
    return TrainingRun(
        decoder=with_options(decoder, given),
        source_len=int(given.get("source_len") or 0),
        cluster=cluster,
        plan=plan,
        defaults={**defaults, **plan_defaults(given, plan, habits)},
        seq_len=given["seq_len"],
        engine=habits,
        dtype=dtype,
        products=products,
        optimizer=str(given.get("optimizer") or "adam"),
        moment_dtype=dtype_named(str(given["moment_dtype"])) if given.get("moment_dtype") else "",
        adapters=adapters_of(given),
    ).checked()


def with_options(decoder: Decoder, given: Mapping[str, Any]) -> Decoder:
    """The model with what is given of how it is trained.

    Raises:
        ModelError: a source of a model without an encoder, or depths of prediction of one with it.
    """
    if given.get("source_len") and not decoder.encodes:
        raise ModelError(f"{decoder.name} has no encoder that would read source_len tokens: leave it out")
    depths = int(given.get("mtp_layers") or 0)
    if depths and decoder.encodes:
        raise ModelError(f"mtp_layers {depths}: multi-token prediction of an encoder's decoder is not built")
    return decoder.predicting(depths)


def adapters_of(given: Mapping[str, Any]) -> Adapters:
    """What is given of adapters: ``lora_rank``, their rank; ``adapter``, the method; ``adapted``, projections with
    commas between them.

    Raises:
        ModelError: an unknown word, or a method without a rank.
    """
    targets = tuple(str(given["adapted"]).split(",")) if given.get("adapted") else None
    stated: dict[str, Any] = {"rank": given.get("lora_rank"), "method": given.get("adapter"), "targets": targets}
    adapters = Adapters(**{name: value for name, value in stated.items() if value is not None})
    if not adapters and any(value is not None for value in stated.values()):
        raise ModelError("adapters without a rank: give lora_rank, a whole number of at least 1")
    return adapters


def run_fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """What is given of the step itself, beside its plan: length, dtype, optimizer (default adam).

    Raises:
        ModelError: an unknown word.
    """
    if unknown := [name for name in given if name not in OPTIONS]:
        raise ModelError(f"unknown field '{unknown[0]}' of a training step: one of {', '.join(OPTIONS)}")
    step = {name: given[name] for name in ("seq_len", "dtype") if given.get(name)}
    return {**step, "optimizer": str(given.get("optimizer") or "adam")}


def usual_plan(given: Mapping[str, Any], devices: int, engine: str, size_words: str = "") -> Plan:
    """A plan for so many devices: what is given of it, and of the rest what an engine's users usually choose.
    ``size_words`` say in messages where their number comes from.

    Raises:
        ModelError: as ``Plan``, or a batch that the replicas cannot share.
        DeviceError: degrees that do not divide the devices.
    """
    habits = engine_named(engine)
    stated = {name: value for name, value in given.items() if name in PLAN}
    # Checked before anything is divided by them.
    sizes = Plan(**{name: stated[name] for name in ("tp", "pp", "cp") if name in stated})
    ranks = sizes.tp * sizes.pp * sizes.cp
    if devices % ranks:
        words = f"tp {sizes.tp} x pp {sizes.pp} x cp {sizes.cp} = {ranks} devices of a replica"
        raise DeviceError(f"{words} do not divide a cluster of {size_words or devices}: choose degrees that do")
    dp = int(stated.setdefault("dp", devices // ranks))
    stated["global_batch_size"] = stated.get("global_batch_size") or _global_batch(given, dp)
    if "dp" not in given and (batch := stated["global_batch_size"]) % dp:
        raise ModelError(
            f"global batch {batch} is no multiple of dp {dp}: {max(dp, batch // dp * dp)} would be; dp is by default "
            f"{size_words or devices} over tp x pp x cp = {ranks}"
        )
    if not given.get("micro_batches"):
        samples = stated["global_batch_size"] // dp
        stated.setdefault("micro_batch_size", default_micro_batch(samples, sizes.pp, habits).value)
    dtype, _ = step_precision(str(given.get("dtype") or default_dtype(None, habits).value))
    return Plan(**_habits(habits, stated, dp * sizes.cp, dtype) | stated)


def plan_defaults(given: Mapping[str, Any], plan: Plan, engine: Engine) -> Defaults:
    """Values that ``usual_plan`` chose for what is not given, of those that an answer names."""
    if given.get("micro_batch_size") or given.get("micro_batches"):
        return {}
    return {"micro_batch_size": default_micro_batch(plan.global_batch_size // plan.dp, plan.pp, engine)}


def step_precision(word: str) -> tuple[str, str]:
    """(dtype of activations and weights, recipe of large products) that a word names: recipes leave all else in
    bfloat16.

    Raises:
        CoverageError: an unknown word.
    """
    return (TRAINED_DTYPE, recipe_named(word).name) if is_recipe(word) else (dtype_named(word), "")


def _global_batch(given: Mapping[str, Any], dp: int) -> int:
    if not given.get("micro_batches"):
        raise ModelError("a training step without a batch: give global_batch_size, the sequences of a step")
    return dp * int(given.get("micro_batch_size", 1)) * int(given["micro_batches"])


def _habits(engine: Engine, given: Mapping[str, Any], replicas: int, dtype: str) -> dict[str, Any]:
    # FSDP under a pipeline keeps what it gathered, and reduces once a step (torchtitan, ``reshard_after_forward``).
    usual = "zero1" if engine.shard == "zero3" and int(given.get("pp", 1)) > 1 else engine.shard
    shard = given.get("shard", usual if replicas > 1 else "none")
    sequence = bool(given.get("sequence_parallel", engine.sequence_parallel and int(given.get("tp", 1)) > 1))
    return {
        "sequence_parallel": sequence,
        "shard": shard,
        "overlap_grad_reduce": engine.overlaps_exchanges and replicas > 1,
        "overlap_param_gather": engine.overlaps_exchanges and shard != "none",
        **({"gradient_dtype": dtype} if _sums_narrow(engine, shard, dtype) else {}),
    }


def _sums_narrow(engine: Engine, shard: str, dtype: str) -> bool:
    """Whether gradients are kept in the dtype of weights."""
    return not engine.master_weights or (engine.narrow_sums and (dtype == "float16" or shard not in ("none", "zero1")))
