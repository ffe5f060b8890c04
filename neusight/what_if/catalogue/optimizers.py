"""The optimizer's step."""

from __future__ import annotations

from dataclasses import replace

from neusight.distributed.sources import TracedModel
from neusight.distributed.training_run import TrainingRun
from neusight.errors import InapplicableError
from neusight.kernels.optimizers import optimizer_named
from neusight.transforms.optimizer import paged_moments, stepped_by
from neusight.transforms.passes import LATE, Pass
from neusight.what_if.questions import StepQuestion
from neusight.what_if.transforms import transform


@transform("fused-optimizer", group="optimizer", source="Apex, FusedAdam; PyTorch, torch.optim.Adam(fused=True)")
def fused_optimizer(step: StepQuestion) -> StepQuestion:
    """All parameters updated by one kernel that reads and writes each once."""
    if step.request.optimizer == "none":
        raise InapplicableError("the step has no optimizer: name one, such as --optimizer adam")
    optimizers = {str(p.arguments[0]) for p in step.setting.passes if p.change is stepped_by}
    if unfused := [name for name in (step.request.optimizer, *optimizers) if not optimizer_named(name).fused]:
        raise InapplicableError(f"{unfused[0]} has no fused form")
    return step.under(fused_optimizer=True)


@fused_optimizer.also
def fused_optimizer_of_runs(run: TrainingRun) -> TrainingRun:
    """The same of a run whose optimizer goes over all parameters operation by operation."""
    return replace(run, engine=replace(run.engine, foreach_optimizer=False))


def _of_adam(optimizer: str) -> None:
    if optimizer not in ("adam", "adamw"):
        raise InapplicableError(f"this is of Adam, and the optimizer is {optimizer}")


def _step_by(name: str) -> Pass:
    return Pass(part="optimizer", order=LATE, change=stepped_by, arguments=(name,))


def _in_place_of_adam(name: str, optimizer: str, summary: str, **card: str) -> None:
    """Register a transform to another optimizer, with its card: source, effort and accuracy."""

    def of_step(step: StepQuestion) -> StepQuestion:
        _of_adam(step.request.optimizer)
        if step.setting.fused_optimizer and not optimizer_named(optimizer).fused:
            raise InapplicableError(f"{optimizer} has no fused form")
        return step.changed_by(_step_by(optimizer))

    def of_run(run: TrainingRun) -> TrainingRun:
        # The update is part of a trace.
        _of_adam(run.optimizer)
        decoder = run.decoder.changed_by(_step_by(optimizer)) if isinstance(run.decoder, TracedModel) else run.decoder
        return replace(run, optimizer=optimizer, decoder=decoder)

    of_step.__doc__ = summary
    transform(name, group="optimizer", **card)(of_step).also(of_run)


_in_place_of_adam(
    "adam-8bit", "adamw8bit", "Moments in 8 bits with a scale for each block.", effort="a library",
    source="Dettmers et al. 2022, 8-bit optimizers", accuracy="as in 32 bits on the tasks of the paper",
)  # fmt: skip
_in_place_of_adam(
    "adam-4bit", "adamw4bit", "Moments in 4 bits with a scale for each block.", effort="a library",
    source="B. Li et al. 2023, Memory efficient optimizers with 4-bit states",
    accuracy="comparable to 32 bits on the tasks of the paper",
)  # fmt: skip
_in_place_of_adam(
    "muon", "muon", "Momentum of matrices made orthogonal by five iterations of products, AdamW for all else.",
    source="Jordan et al. 2024, Muon; Megatron Core, get_megatron_muon_optimizer", effort="a library",
    accuracy="fewer steps than AdamW, as the source states it",
)  # fmt: skip
_in_place_of_adam(
    "lion", "lion", "The sign of an interpolated momentum: one moment in place of two.", effort="a library",
    source="Chen et al. 2023, Symbolic discovery of optimization algorithms, algorithm 2",
    accuracy="as AdamW at a third of its rate, as the source states it",
)  # fmt: skip
_in_place_of_adam(
    "adafactor", "adafactor", "Sums of rows and of columns in place of the second moment, and no first, pass by pass.",
    source="Shazeer & Stern 2018, Adafactor; transformers, Adafactor", accuracy="converges more slowly on some tasks",
)  # fmt: skip


@transform(
    "paged-optimizer", group="optimizer", source="Dettmers et al. 2023, QLoRA, section 3; bitsandbytes, PagedAdamW",
    effort="a library", aliases=("paged-adam",),
)  # fmt: skip
def paged_optimizer(step: StepQuestion) -> StepQuestion:
    """Moments are pages of the host's memory, all of which come to the device in each step and go back."""
    _of_adam(step.request.optimizer)
    return step.changed_by(Pass(part="optimizer", order=LATE, change=paged_moments))
