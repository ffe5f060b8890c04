"""Sharing a GPU: a slice of it in place of the whole."""

from __future__ import annotations

from collections.abc import Callable

from neusight.devices import DeviceSpec
from neusight.devices.slices import halves_of, slice_of
from neusight.errors import DeviceError, InapplicableError
from neusight.steps.questions import StepQuestion
from neusight.what_if.transforms import transform

_MIG = "NVIDIA Multi-Instance GPU User Guide"


def _on_slice(step: StepQuestion, compute_slices: int) -> StepQuestion:
    return _on_part(step, lambda device: slice_of(device, compute_slices))


def _on_part(step: StepQuestion, changes: Callable[[DeviceSpec], tuple[str, ...]]) -> StepQuestion:
    """A step on a part of one board.

    Raises:
        InapplicableError: several boards, or one whose figures are changed, or without such parts.
    """
    plan = step.setting.plan
    if step.setting.overrides or (plan and plan.world > 1):
        raise InapplicableError("a slice is of one board as it is: leave out --set and other GPUs")
    try:
        return step.under(overrides=changes(step.device))
    except DeviceError as error:
        raise InapplicableError(str(error)) from None


@transform(
    "half-by-mps", group="sharing", source="NVIDIA Multi-Process Service, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE; Yu et al. "
    "2021, Fluid", effort="an administrator's setting", aliases=("packing",),
)  # fmt: skip
def half_by_mps(step: StepQuestion) -> StepQuestion:
    """Half of the SMs beside a job of the same kind, which takes half of the bandwidth, memory and L2; both together
    give twice this one's throughput.
    """
    return _on_part(step, halves_of)


@transform("mig-1g", group="sharing", source=_MIG, effort="an administrator's setting")
def mig_1g(step: StepQuestion) -> StepQuestion:
    """One compute slice of the GPU, with SMs, memory and L2 of its own."""
    return _on_slice(step, 1)


@transform("mig-2g", group="sharing", source=_MIG, effort="an administrator's setting")
def mig_2g(step: StepQuestion) -> StepQuestion:
    """Two compute slices of the GPU."""
    return _on_slice(step, 2)


@transform("mig-3g", group="sharing", source=_MIG, effort="an administrator's setting")
def mig_3g(step: StepQuestion) -> StepQuestion:
    """Three compute slices of the GPU, and half of its memory."""
    return _on_slice(step, 3)


@transform("mig-4g", group="sharing", source=_MIG, effort="an administrator's setting")
def mig_4g(step: StepQuestion) -> StepQuestion:
    """Four compute slices of the GPU, and half of its memory."""
    return _on_slice(step, 4)


@transform("mig-7g", group="sharing", source=_MIG, effort="an administrator's setting")
def mig_7g(step: StepQuestion) -> StepQuestion:
    """All slices as one, which may be fewer SMs than without MIG."""
    return _on_slice(step, 7)
