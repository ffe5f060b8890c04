"""The kernels that calibrate a device best, out of those that a collection would measure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from neusight.collect.plan import plan, usual_limits
from neusight.collect.tasks import KernelTask
from neusight.devices.spec import DeviceSpec
from neusight.executors.gpu.predictor import KernelPredictor
from neusight.learn.calibration import calibration_plan

CANDIDATES = 1000
"""Kernels to choose from: the beginning of a collection's plan, half of it shapes of the ready workloads."""


def chosen_tasks(
    predictor: KernelPredictor,
    device: DeviceSpec,
    count: int,
    families: Sequence[str] = (),
    dtypes: Sequence[str] = (),
    seed: int = 0,
) -> list[KernelTask]:
    """``count`` kernels to measure on a device, the most informative first; the same for the same arguments.

    Args:
        predictor: whose errors on the device are to be found.
        device: the GPU.
        count: at most ``CANDIDATES``.
        families: kernel families; empty for all.
        dtypes: element types; empty for all that the device has.
        seed: of the sampled shapes.

    Raises:
        DataError: an unknown family or dtype, or nothing to measure.
    """
    endless = plan(device, families, dtypes, seed, usual_limits(device, on_gpu=True))
    tasks = list(islice((task for task in endless if task.repeat == 0), CANDIDATES))
    places = calibration_plan(predictor, device, [task.kernel for task in tasks], count)
    return [tasks[place] for place in places]
