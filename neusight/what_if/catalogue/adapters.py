"""Training few weights next to frozen ones."""

from __future__ import annotations

from dataclasses import replace

from neusight.distributed.training_run import TrainingRun
from neusight.errors import InapplicableError
from neusight.steps.questions import StepQuestion
from neusight.transforms.factored import with_adapters
from neusight.transforms.passes import EARLY, Pass
from neusight.what_if.transforms import transform
from neusight.workloads.decoders.recipes import Adapters

RANK = 16
"""Default rank of adapters."""


def _with_adapters(run: TrainingRun, method: str) -> TrainingRun:
    if run.adapters:
        raise InapplicableError(f"the run trains adapters already: {run.adapters.method}")
    return replace(run, adapters=Adapters(rank=RANK, method=method))


@transform("lora", group="adapters", source="Hu et al. 2021, LoRA", effort="a library", accuracy="near full training")
def lora(run: TrainingRun) -> TrainingRun:
    """Adapters of rank 16 beside all projections, whose own weights are frozen."""
    return _with_adapters(run, "lora")


@lora.also
def lora_of_a_step(step: StepQuestion) -> StepQuestion:
    """The same beside all products of a module but the last."""
    return step.changed_by(Pass(part="weights", order=EARLY, change=with_adapters, arguments=(RANK,)))


@transform(
    "qlora",
    group="adapters",
    source="Dettmers et al. 2023, QLoRA",
    effort="a library",
    accuracy="as adapters of 16 bits",
)
def qlora(run: TrainingRun) -> TrainingRun:
    """The same, and frozen projections lie in NF4."""
    return _with_adapters(run, "qlora")


@transform(
    "dora", group="adapters", source="Liu et al. 2024, DoRA", effort="a library", accuracy="between LoRA and full"
)
def dora(run: TrainingRun) -> TrainingRun:
    """Adapters, and a magnitude of each column of what they and frozen weights are together."""
    return _with_adapters(run, "dora")


@transform(
    "loha",
    group="adapters",
    source="Hyeon-Woo et al. 2022, FedPara; PEFT, LoHa",
    effort="a library",
    accuracy="near LoRA",
)
def loha(run: TrainingRun) -> TrainingRun:
    """A whole matrix of the elements of two low-rank products beside each frozen one."""
    return _with_adapters(run, "loha")


@transform(
    "ia3", group="adapters", source="H. Liu et al. 2022, Few-shot parameter-efficient fine-tuning", effort="a library",
    accuracy="below LoRA on larger tasks",
)  # fmt: skip
def ia3(run: TrainingRun) -> TrainingRun:
    """A trained value for each column of frozen products."""
    return _with_adapters(run, "ia3")


@transform(
    "prompt-tuning",
    group="adapters",
    source="Lester et al. 2021, The power of scale",
    effort="a library",
    accuracy="near full training from 10 B parameters on",
)
def prompt_tuning(run: TrainingRun) -> TrainingRun:
    """Sixteen trained tokens before each sequence, and nothing else."""
    return replace(_with_adapters(run, "prompt"), seq_len=run.seq_len + RANK)
