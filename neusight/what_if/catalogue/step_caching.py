"""Steps of a diffusion that are not computed whole."""

from __future__ import annotations

from neusight.errors import InapplicableError
from neusight.steps.questions import StepQuestion
from neusight.transforms.passes import LATE, Pass
from neusight.transforms.step_caching import with_cached_features
from neusight.what_if.transforms import transform


@transform(
    "step-caching", group="diffusion", effort="a library", accuracy="0.05 of CLIP score where four of five are cached",
    source="Ma, Fang and Wang 2024, DeepCache: Accelerating Diffusion Models for Free",
)  # fmt: skip
def step_caching(step: StepQuestion) -> StepQuestion:
    """A step between whole ones takes deep features over from the last of them and runs the outermost layers alone."""
    if step.request.steps:
        raise InapplicableError("of several steps some stay whole: ask for one step, between whole ones")
    return step.changed_by(Pass(part="deep features", order=LATE, change=with_cached_features))
