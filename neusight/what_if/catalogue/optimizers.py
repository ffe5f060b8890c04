"""The optimizer's step."""

from __future__ import annotations

from neusight.errors import InapplicableError
from neusight.what_if.questions import StepQuestion
from neusight.what_if.transforms import transform


@transform("fused-optimizer", group="optimizer", source="Apex, FusedAdam; PyTorch, torch.optim.Adam(fused=True)")
def fused_optimizer(step: StepQuestion) -> StepQuestion:
    """All parameters updated by one kernel that reads and writes each once."""
    if step.request.optimizer == "none":
        raise InapplicableError("the step has no optimizer: name one, such as --optimizer adam")
    return step.under(fused_optimizer=True)
