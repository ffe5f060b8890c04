"""Activations that are kept for the backward pass, and storage of states."""

from __future__ import annotations

from dataclasses import replace

from neusight.distributed.training_run import TrainingRun
from neusight.errors import InapplicableError
from neusight.requests import Plan
from neusight.steps.questions import StepQuestion
from neusight.transforms import kept
from neusight.transforms.checkpointed import checkpoint_blocks
from neusight.transforms.passes import LATE, Change, Pass
from neusight.transforms.tempo import tempo
from neusight.what_if.transforms import check_mode, transform


def _recompute(run: TrainingRun, how: str) -> TrainingRun:
    if run.plan.recompute != "none":
        raise InapplicableError(f"the run recomputes {run.plan.recompute} already")
    return replace(run, plan=replace(run.plan, recompute=how))


def _change_saved(step: StepQuestion, change: Change, *arguments: float) -> StepQuestion:
    check_mode(step, "training")
    return step.changed_by(Pass(part="saved", order=LATE, change=change, arguments=arguments))


@transform("checkpointing", group="memory", source="Chen et al. 2016, Training deep nets with sublinear memory cost")
def checkpointing(step: StepQuestion) -> StepQuestion:
    """Each block keeps its input alone and runs forward again in the backward pass."""
    return _change_saved(step, checkpoint_blocks)


@checkpointing.also
def checkpointing_of_layers(run: TrainingRun) -> TrainingRun:
    """The same of the layers of a run."""
    return _recompute(run, "full")


@transform("selective-checkpointing", group="memory", source="Korthikanti et al. 2022, section 5")
def selective_checkpointing(run: TrainingRun) -> TrainingRun:
    """The core of attention alone runs forward again."""
    return _recompute(run, "selective")


@transform("optimizer-offload", group="memory", source="Ren et al. 2021, ZeRO-Offload")
def optimizer_offload(run: TrainingRun) -> TrainingRun:
    """The optimizer's states and its step are the host's."""
    return replace(run, plan=replace(run.plan, offload="optimizer"))


@transform("activation-offload", group="memory", source="Rhu et al. 2016, vDNN; torchtune, OffloadActivations")
def activation_offload(run: TrainingRun) -> TrainingRun:
    """What layers keep goes to the host and comes back, beside the passes."""
    return replace(run, engine=replace(run.engine, offloads_activations=True))


@activation_offload.also
def activation_offload_of_a_step(step: StepQuestion) -> StepQuestion:
    """The same by hooks of one stream, whose copies stand in the way."""
    return _change_saved(step, kept.on_host)


@transform(
    "tempo", group="memory", effort="a library",
    source="Andoorveedu et al. 2022, Tempo: Accelerating Transformer-Based Model Training",
)  # fmt: skip
def in_place_layers(step: StepQuestion) -> StepQuestion:
    """GELU and layer norm take back what they gave, and attention's dropout is done again in the backward pass."""
    return _change_saved(step, tempo)


@transform("gist", group="memory", effort="a framework", source="Jain et al. 2018, Gist, sections 3.1 and 3.2")
def gist_lossless(step: StepQuestion) -> StepQuestion:
    """What ReLUs give waits for the backward pass as one bit a value, or without its zeros."""
    return _change_saved(step, kept.gist, 4.0)


@transform(
    "gist-16bit", group="memory", effort="a framework", source="Jain et al. 2018, Gist, section 3.3",
    accuracy="none at 16 bits, as the source states it",
)  # fmt: skip
def gist_lossy(step: StepQuestion) -> StepQuestion:
    """The same, and all else that waits has 16 bits a value."""
    return _change_saved(step, kept.gist, 2.0)


@transform("twice-the-batch", group="memory", source="Andoorveedu et al. 2022, Tempo, section 4", effort="an option")
def twice_the_batch(step: StepQuestion) -> StepQuestion:
    """Two times the samples of a step, as memory that is saved elsewhere may allow: read throughput, not time."""
    if step.setting.plan:
        raise InapplicableError("a plan states the batch of its step")
    return step.asking(batch=2 * step.request.batch)


@transform("chunked-loss", group="memory", source="torchtune, CEWithChunkedOutputLoss")
def chunked_loss(run: TrainingRun) -> TrainingRun:
    """The loss of eight pieces of each sequence one after another."""
    return replace(run, engine=replace(run.engine, loss_chunks=8))


@transform(
    "optimizer-in-backward", group="memory", source="Lv et al. 2023, LOMO; PyTorch, register_post_accumulate_grad_hook"
)
def optimizer_in_backward(run: TrainingRun) -> TrainingRun:
    """Each weight is stepped as soon as its gradient is there, which then goes."""
    if run.engine.master_weights or run.plan.micro_batches > 1:
        raise InapplicableError("gradients are summed up over the step: take one micro-batch of an engine without sums")
    if run.optimizer == "none":
        raise InapplicableError("the run has no optimizer")
    return replace(run, engine=replace(run.engine, steps_in_backward=True))


@transform("gradient-accumulation", group="memory", source="Huang et al. 2019, GPipe, section 2.2")
def gradient_accumulation(step: StepQuestion) -> StepQuestion:
    """Samples one by one, whose gradients are summed before the optimizer's step."""
    batch = step.request.batch
    if step.request.mode != "training" or step.setting.plan or batch == 1:
        raise InapplicableError("there is no batch of several samples on one device to split: give --batch")
    return step.asking(batch=1).under(plan=Plan(micro_batch_size=1, global_batch_size=batch))
