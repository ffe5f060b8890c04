"""Kernels written by hand for chains of operators, and stretches of a step in slices of its tokens."""

from __future__ import annotations

from dataclasses import replace

from neusight.distributed.training_run import TrainingRun
from neusight.transforms import sliced, written
from neusight.transforms.passes import EARLY, LATE, Change, Pass
from neusight.what_if.questions import StepQuestion
from neusight.what_if.transforms import transform

_HSU = "Hsu et al. 2024, arXiv 2410.10989"
_LIBRARY = "a library"


def _passing(step: StepQuestion, part: str, change: Change, order: int = EARLY) -> StepQuestion:
    return step.changed_by(Pass(part=part, order=order, change=change))


@transform("fused-norm", group="fused kernels", source=f"{_HSU}, section 3.2; Apex, FusedRMSNorm", effort=_LIBRARY)
def fused_norm(step: StepQuestion) -> StepQuestion:
    """Each RMS norm as one kernel."""
    return _passing(step, "norm", written.fused_norms)


@transform("fused-add-norm", group="fused kernels", source=f"{_HSU}, fused add and RMS norm", effort=_LIBRARY)
def fused_add_norm(step: StepQuestion) -> StepQuestion:
    """Each RMS norm in one kernel with the addition to the residual stream before it."""
    return _passing(step, "norm", written.fused_added_norms)


@fused_add_norm.also
def fused_add_norm_of_layers(run: TrainingRun) -> TrainingRun:
    """The same of the layers of a run."""
    return replace(run, engine=replace(run.engine, residual="add_norm"))


@transform("fused-glu", group="fused kernels", source=f"{_HSU}, section 3.2", effort=_LIBRARY)
def fused_glu(step: StepQuestion) -> StepQuestion:
    """Each gated activation as one kernel, which the backward pass computes again."""
    return _passing(step, "gate", written.fused_gates)


@fused_glu.also
def fused_glu_of_layers(run: TrainingRun) -> TrainingRun:
    """The same of the layers of a run."""
    return replace(run, engine=replace(run.engine, activation="fused", keeps_activated_gate=False))


@transform("fused-rope", group="fused kernels", source=f"{_HSU}, section 3.2", effort=_LIBRARY)
def fused_rope(step: StepQuestion) -> StepQuestion:
    """Queries and keys rotated by one kernel."""
    return _passing(step, "rotary", written.fused_rotary)


@fused_rope.also
def fused_rope_of_layers(run: TrainingRun) -> TrainingRun:
    """The same of the layers of a run."""
    return replace(run, engine=replace(run.engine, rotary="fused"))


@transform("fused-cross-entropy", group="fused kernels", source=f"{_HSU}, section 3.2", effort=_LIBRARY)
def fused_cross_entropy(step: StepQuestion) -> StepQuestion:
    """The loss over the vocabulary without probabilities in memory."""
    return _passing(step, "loss", written.fused_losses)


@fused_cross_entropy.also
def fused_cross_entropy_of_runs(run: TrainingRun) -> TrainingRun:
    """The same of a run."""
    return replace(run, engine=replace(run.engine, loss="fused"))


@transform("fused-linear-cross-entropy", group="fused kernels", effort=_LIBRARY,
           source=f"{_HSU}, section 3.2; torchtune, LinearCrossEntropyLoss")  # fmt: skip
def fused_linear_cross_entropy(step: StepQuestion) -> StepQuestion:
    """The last product and the loss in chunks of tokens, so that logits are never there for more than one."""
    return _passing(step, "loss", sliced.chunked_loss)


@transform("fused-pointwise", group="fused kernels", source=_HSU, effort="kernels of one's own")
def fused_pointwise(step: StepQuestion) -> StepQuestion:
    """Every chain of pointwise operators and reductions as a kernel written by hand."""
    return _passing(step, "pointwise", written.fused_chains, LATE)


@transform("tiled-mlp", group="memory", source="Bekman et al. 2025, Arctic Long Sequence Training, TiledMLP",
           effort=_LIBRARY)  # fmt: skip
def tiled_mlp(step: StepQuestion) -> StepQuestion:
    """Each gated MLP in slices of the sequence, which run again before their backward pass."""
    return _passing(step, "MLP", sliced.tiled_mlps, LATE)
