"""How devices share a training step, and what they exchange."""

from __future__ import annotations

from dataclasses import replace

from neusight.distributed.training_run import TrainingRun
from neusight.errors import InapplicableError
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
