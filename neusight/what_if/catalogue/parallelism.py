"""Sharing of a training step among devices, and their exchanges."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from neusight.distributed.training_run import TrainingRun
from neusight.errors import InapplicableError
from neusight.kernels.precision import stored_bytes
from neusight.plans.stages import most_chunks
from neusight.what_if.transforms import transform
from neusight.workloads.decoders.decoder import Decoder

RANK = 4
"""Rank of the factors of gradients (Vogels et al. 2019, section 5: 1 to 4)."""


@transform(
    "async-tp", group="parallelism", source="H. Wang et al. 2024, Introducing Async Tensor Parallelism in PyTorch"
)
def async_tp(run: TrainingRun) -> TrainingRun:
    """What tensor-parallel ranks gather and scatter runs in pieces beside products."""
    if run.plan.tp == 1 or not run.plan.sequence_parallel:
        raise InapplicableError("no tensor-parallel ranks share the residual stream: raise tp")
    if not run.engine.hidden_tp:
        raise InapplicableError(f"{run.engine.name} gains nothing by products in pieces")
    return replace(run, plan=replace(run.plan, overlap_tp=True))


@transform(
    "interleaving", group="parallelism", source="Narayanan et al. 2021, Efficient large-scale training, section 2.2"
)
def interleaving(run: TrainingRun) -> TrainingRun:
    """Each stage of the pipeline has two chunks of layers, so that its bubble halves."""
    plan = run.plan
    if plan.pp == 1 or plan.vp > 1:
        raise InapplicableError("there is no pipeline, or its stages have several chunks already")
    layers = most_chunks(run.decoder.depth) if isinstance(run.decoder, Decoder) else run.decoder.depth
    if layers < 2 * plan.pp:
        raise InapplicableError(f"{run.decoder.name} has fewer layers than two chunks for each of {plan.pp} stages")
    return replace(run, plan=replace(plan, vp=2))


@transform(
    "no-flush", group="parallelism", source="Yang et al. 2021, PipeMare; Narayanan et al. 2019, PipeDream",
    effort="a framework", accuracy="as without where learning rates and delays are corrected", aliases=("pipemare",),
)  # fmt: skip
def no_flush(run: TrainingRun) -> TrainingRun:
    """Stages go on with the next step's micro-batches while others are at this one's, so that there is no bubble."""
    if run.plan.pp == 1:
        raise InapplicableError("there is no pipeline: raise pp")
    return replace(run, plan=replace(run.plan, schedule="asynchronous", vp=1))


@transform(
    "priority-slices", group="parallelism", source="Jayarajan et al. 2019, Priority-based Parameter Propagation (P3)",
    effort="a library", aliases=("p3",),
)  # fmt: skip
def priority_slices(run: TrainingRun) -> TrainingRun:
    """Gradients leave in slices as layers give them, and weights come back in the order that the next forward pass
    takes them in, beside it; the shares of replicas stand for P3's servers.
    """
    _whole_gradients(run)
    plan = replace(run.plan, shard="zero1", overlap_grad_reduce=True, overlap_param_gather=True)
    return replace(run, plan=plan)


@transform(
    "in-network-sums", group="parallelism", effort="switches that reduce", aliases=("panama", "sharp"),
    source="Gebara et al. 2021, PANAMA; Graham et al. 2016, SHARP",
)  # fmt: skip
def in_network_sums(run: TrainingRun) -> TrainingRun:
    """Switches of the network add gradients up, so that each leaves a node and comes back once."""
    network = run.cluster.network
    if network is None or run.cluster.nodes == 1:
        raise InapplicableError("no network between nodes is stated: name one")
    reducing = network.model_copy(update={"reduces": True})
    return replace(run, cluster=run.cluster.model_copy(update={"network": reducing}))


def _whole_gradients(run: TrainingRun) -> None:
    """Raises:
    InapplicableError: no replicas exchange whole gradients.
    """
    if run.plan.dp * run.plan.cp == 1 or run.plan.shard != "none":
        raise InapplicableError("no replicas with whole gradients exchange them: raise dp, with shard none")


def _with_traits(run: TrainingRun, **traits: Any) -> TrainingRun:
    _whole_gradients(run)
    return replace(run, engine=replace(run.engine, **traits))


@transform(
    "sums-by-level", group="parallelism", source="Cho et al. 2019, BlueConnect", effort="a library",
    aliases=("blueconnect",),
)  # fmt: skip
def sums_by_level(run: TrainingRun) -> TrainingRun:
    """Gradients are added up within nodes, among nodes in as many rings as a node has devices, and within nodes."""
    if run.placement.within("dp-cp") in (1, run.placement.size("dp-cp")):
        raise InapplicableError("replicas are not on several nodes with several each: there is one level")
    return _with_traits(run, sums="levels")


@transform(
    "adasum", group="parallelism", source="Maleki et al. 2021, Scaling distributed training with adaptive summation",
    effort="a library", accuracy="converges in fewer steps at large batches, as the source states it",
)  # fmt: skip
def adasum(run: TrainingRun) -> TrainingRun:
    """Gradients are added up in pairs, each weighed by how far the two agree."""
    return _with_traits(run, sums="adaptive")


@transform(
    "gradient-low-rank", group="parallelism", source="Vogels et al. 2019, PowerSGD", effort="a library",
    accuracy="as without at rank 1 to 4, as the source states it", aliases=("powersgd",),
)  # fmt: skip
def gradient_low_rank(run: TrainingRun) -> TrainingRun:
    """Replicas exchange two factors of four columns for the gradient of each matrix."""
    return _with_traits(run, gradient_rank=RANK)


def _encode_gradients(run: TrainingRun, bits: float, *, gathers: bool = False) -> TrainingRun:
    """The run with gradients of ``bits`` a value; ``gathers``: they are gathered since sums would have more."""
    share = bits / (8.0 * stored_bytes(run.plan.gradient_dtype))
    return _with_traits(run, gradient_share=share, gathers_gradients=gathers)


@transform(
    "gradient-1bit", group="parallelism", source="Seide et al. 2014, 1-bit stochastic gradient descent",
    effort="a library", accuracy="as without, where what signs lose is added to the next gradient",
)  # fmt: skip
def gradient_1bit(run: TrainingRun) -> TrainingRun:
    """Replicas exchange signs of gradients."""
    return _encode_gradients(run, 1.0)


@transform(
    "gradient-top-k", group="parallelism", source="Lin et al. 2018, Deep gradient compression, section 3",
    effort="a library", accuracy="as without, with momentum corrected", aliases=("dgc",),
)  # fmt: skip
def gradient_top_k(run: TrainingRun) -> TrainingRun:
    """Replicas exchange the largest thousandth of gradients, each with its place."""
    return _encode_gradients(run, 64.0 / 1000.0, gathers=True)
