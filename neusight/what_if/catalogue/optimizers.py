"""The optimizer's step."""

from __future__ import annotations

from dataclasses import replace

from neusight.distributed.training_run import TrainingRun
from neusight.errors import InapplicableError
from neusight.transforms.optimizer import factored_moments, narrow_moments, paged_moments
from neusight.transforms.passes import LATE, Pass
from neusight.what_if.questions import StepQuestion
from neusight.what_if.transforms import transform
from neusight.workloads.decoders.decoder import Decoder


@transform("fused-optimizer", group="optimizer", source="Apex, FusedAdam; PyTorch, torch.optim.Adam(fused=True)")
def fused_optimizer(step: StepQuestion) -> StepQuestion:
    """All parameters updated by one kernel that reads and writes each once."""
    if step.request.optimizer == "none":
        raise InapplicableError("the step has no optimizer: name one, such as --optimizer adam")
    if any(one.change is factored_moments for one in step.setting.passes):
        raise InapplicableError("Adafactor of transformers has no fused form")
    return step.under(fused_optimizer=True)


@fused_optimizer.also
def fused_optimizer_of_runs(run: TrainingRun) -> TrainingRun:
    """The same of a run whose optimizer goes over all parameters operation by operation."""
    return replace(run, engine=replace(run.engine, foreach_optimizer=False))


def _of_adam(optimizer: str) -> None:
    if optimizer not in ("adam", "adamw"):
        raise InapplicableError(f"this is of Adam, and the optimizer is {optimizer}")


def _narrow(step: StepQuestion, name: str) -> StepQuestion:
    _of_adam(step.request.optimizer)
    return step.changed_by(Pass(part="optimizer", order=LATE, change=narrow_moments, arguments=(name,)))


def _narrow_of_runs(run: TrainingRun, name: str) -> TrainingRun:
    _of_adam(run.optimizer)
    return replace(run, optimizer=name)


@transform(
    "adam-8bit", group="optimizer", source="Dettmers et al. 2022, 8-bit optimizers", effort="a library",
    accuracy="as in 32 bits on the tasks of the paper",
)  # fmt: skip
def adam_8bit(step: StepQuestion) -> StepQuestion:
    """Moments in 8 bits with a scale for each block."""
    return _narrow(step, "adamw8bit")


@adam_8bit.also
def adam_8bit_of_runs(run: TrainingRun) -> TrainingRun:
    """The same of a run."""
    return _narrow_of_runs(run, "adamw8bit")


@transform(
    "adam-4bit", group="optimizer", source="B. Li et al. 2023, Memory efficient optimizers with 4-bit states",
    effort="a library", accuracy="comparable to 32 bits on the tasks of the paper",
)  # fmt: skip
def adam_4bit(step: StepQuestion) -> StepQuestion:
    """Moments in 4 bits with a scale for each block."""
    return _narrow(step, "adamw4bit")


@adam_4bit.also
def adam_4bit_of_runs(run: TrainingRun) -> TrainingRun:
    """The same of a run."""
    return _narrow_of_runs(run, "adamw4bit")


@transform(
    "paged-optimizer", group="optimizer", source="Dettmers et al. 2023, QLoRA, section 3; bitsandbytes, PagedAdamW",
    effort="a library", aliases=("paged-adam",),
)  # fmt: skip
def paged_optimizer(step: StepQuestion) -> StepQuestion:
    """Moments are pages of the host's memory, all of which come to the device in each step and go back."""
    _of_adam(step.request.optimizer)
    return step.changed_by(Pass(part="optimizer", order=LATE, change=paged_moments))


@transform(
    "muon", group="optimizer", source="Jordan et al. 2024, Muon; Megatron Core, get_megatron_muon_optimizer",
    effort="a library", accuracy="fewer steps than AdamW, as the source states it",
)  # fmt: skip
def muon(run: TrainingRun) -> TrainingRun:
    """Momentum of matrices made orthogonal by five iterations of products, AdamW for all else."""
    _of_adam(run.optimizer)
    if not isinstance(run.decoder, Decoder):
        raise InapplicableError("Muon of a traced model is not built: name an engine that runs decoders")
    return replace(run, optimizer="muon")


@transform(
    "adafactor", group="optimizer", source="Shazeer & Stern 2018, Adafactor; transformers, Adafactor",
    accuracy="converges more slowly on some tasks",
)  # fmt: skip
def adafactor(step: StepQuestion) -> StepQuestion:
    """Sums of rows and of columns in place of the second moment, and no first, pass by pass."""
    _of_adam(step.request.optimizer)
    if step.setting.fused_optimizer:
        raise InapplicableError("Adafactor of transformers has no fused form")
    return step.changed_by(Pass(part="optimizer", order=LATE, change=factored_moments))
