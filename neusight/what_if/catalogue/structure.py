"""Models of another structure that stand for the same: smaller weights, joined products, attention to fewer tokens."""

from __future__ import annotations

from dataclasses import replace

from neusight.distributed.sources import TracedModel
from neusight.distributed.training_run import TrainingRun
from neusight.errors import InapplicableError
from neusight.kernels.families import Conv2d, Gemm
from neusight.steps.questions import StepQuestion
from neusight.transforms.factored import low_rank
from neusight.transforms.layers import joined_products
from neusight.transforms.passes import EARLY, Pass
from neusight.transforms.scanned import with_scanned_gradients
from neusight.transforms.windows import with_window
from neusight.what_if.transforms import check_mode, transform

RANK_SHARE = 0.25
"""Rank of factors over the shorter side of a weight (Wang et al. 2021, section 4)."""
WINDOW = 1024
"""Window of attention [tokens] (assumption; Jiang et al. 2023, Mistral 7B, has 4,096, Gemma 3 1,024)."""


@transform(
    "low-rank", group="structure", source="Wang et al. 2021, Pufferfish", effort="a model of one's own",
    accuracy="as whole after some epochs of whole weights, as the source states it", aliases=("pufferfish",),
)  # fmt: skip
def factors_for_weights(step: StepQuestion) -> StepQuestion:
    """Weights of the second half of the layers as two factors of a quarter of their rank."""
    return step.changed_by(Pass(part="weights", order=EARLY, change=low_rank, arguments=(RANK_SHARE,)))


@factors_for_weights.also
def factors_of_runs(run: TrainingRun) -> TrainingRun:
    """The same of a run of a traced model."""
    if not isinstance(run.decoder, TracedModel):
        raise InapplicableError("factors of a described decoder are not built: name an engine that runs modules")
    return replace(run, decoder=run.decoder.changed_by(Pass(part="weights", change=low_rank, arguments=(RANK_SHARE,))))


@transform("joined-products", group="structure", source="Jia et al. 2019, MetaFlow, section 4", aliases=("metaflow",))
def products_of_one_operand(step: StepQuestion) -> StepQuestion:
    """Products and convolutions of one operand are one, whose weights lie side by side."""
    check_mode(step, "inference")
    change = Pass(part="products of one operand", order=EARLY, change=joined_products, arguments=((Gemm, Conv2d),))
    return step.changed_by(change)


@transform(
    "sliding-window", group="structure", source="Beltagy et al. 2020, Longformer, section 3.1; Jiang et al. 2023",
    accuracy="of models that are trained so", effort="training so",
)  # fmt: skip
def sliding_window(step: StepQuestion) -> StepQuestion:
    """Each token attends to the 1,024 before it, in kernels that skip all other tiles."""
    return step.changed_by(Pass(part="window", order=EARLY, change=with_window, arguments=(WINDOW,)))


@transform(
    "scanned-backward", group="structure", source="Wang et al. 2020, BPPSA", effort="kernels of one's own",
    aliases=("bppsa",),
)  # fmt: skip
def scanned_backward(step: StepQuestion) -> StepQuestion:
    """Gradients of a recurrent layer's steps as a scan: products of Jacobians, level by level."""
    check_mode(step, "training")
    return step.changed_by(Pass(part="recurrent layers", order=EARLY, change=with_scanned_gradients))
