"""How devices share a training step, and what they exchange."""

from __future__ import annotations

from dataclasses import replace

from neusight.distributed.training_run import TrainingRun
from neusight.errors import InapplicableError
from neusight.kernels.precision import stored_bytes
from neusight.plans.stages import most_chunks
from neusight.what_if.transforms import transform
from neusight.workloads.decoders.decoder import Decoder


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


def _encoded(run: TrainingRun, bits: float, *, gathers: bool = False) -> TrainingRun:
    """With gradients of so many bits a value; ``gathers``: no sum of them has as few."""
    if run.plan.dp * run.plan.cp == 1 or run.plan.shard != "none":
        raise InapplicableError("no replicas with whole gradients exchange them: raise dp, with shard none")
    share = bits / (8.0 * stored_bytes(run.plan.gradient_dtype))
    return replace(run, engine=replace(run.engine, gradient_share=share, gathers_gradients=gathers))


@transform(
    "gradient-1bit", group="parallelism", source="Seide et al. 2014, 1-bit stochastic gradient descent",
    effort="a library", accuracy="as without, where what signs lose is added to the next gradient",
)  # fmt: skip
def gradient_1bit(run: TrainingRun) -> TrainingRun:
    """Replicas exchange signs of gradients."""
    return _encoded(run, 1.0)


@transform(
    "gradient-top-k", group="parallelism", source="Lin et al. 2018, Deep gradient compression, section 3",
    effort="a library", accuracy="as without, with momentum corrected",
)  # fmt: skip
def gradient_top_k(run: TrainingRun) -> TrainingRun:
    """Replicas exchange the largest thousandth of gradients, each with its place."""
    return _encoded(run, 64.0 / 1000.0, gathers=True)
