"""Plans are deterministic, cover what they are asked to, and tell more than chance."""

from __future__ import annotations

import numpy as np
import pytest
from calibration_toys import measured, products

from neusight.collect.plan import chosen_tasks
from neusight.devices import DeviceSpec, load_device
from neusight.errors import DataError
from neusight.executors.gpu.predictor import KernelPredictor
from neusight.kernels import Gemm, Kernel, RowReduction
from neusight.learn.calibration import calibration_plan
from neusight.learn.calibration.design import informative
from neusight.learn.calibration.fit import Timings, linearised, timings_of


def some_kernels(count: int) -> list[Kernel]:
    rng = np.random.default_rng(0)
    sizes = np.exp2(rng.uniform(6, 12, (count, 3))).astype(int).tolist()
    gemms: list[Kernel] = [Gemm(m=m, n=n, k=k) for m, n, k in sizes]
    rows = [
        RowReduction(op="softmax", rows=m, cols=n, read_bytes=4 * m * n, write_bytes=4 * m * n, flops=8 * m * n)
        for m, n, _ in sizes[: count // 4]
    ]
    return [*gemms, *rows]


def doubt(rows: Timings, chosen: list[int]) -> float:
    """Mean variance that measuring some rows leaves in the times of all."""
    known = linearised(rows)
    covariance, noise = known.covariance, np.diag(known.noise**2)
    shared = covariance[:, chosen]
    left = covariance - shared @ np.linalg.solve((covariance + noise)[np.ix_(chosen, chosen)], shared.T)
    return float(np.diag(left).mean())


def test_a_plan_is_the_same_each_time_and_begins_the_same(predictor: KernelPredictor, device: DeviceSpec) -> None:
    kernels = some_kernels(80)
    plan = calibration_plan(predictor, device, kernels, 30)
    assert plan == calibration_plan(predictor, device, kernels, 30)
    assert len(set(plan)) == 30
    assert {kernels[place].family for place in plan[:2]} == {"gemm", "row_reduction"}
    assert len(calibration_plan(predictor, device, kernels, 500)) == len(kernels)


def test_each_choice_is_the_best_at_its_place(predictor: KernelPredictor, device: DeviceSpec) -> None:
    """The rank-one updates against solving afresh, for a single kind of kernels."""
    rows = timings_of(predictor, device, measured(products(30), predictor, device))
    chosen = informative(rows, 6)
    for place in range(1, 6):
        left = {row: doubt(rows, [*chosen[:place], row]) for row in range(30) if row not in chosen[:place]}
        assert min(left, key=lambda row: left[row]) == chosen[place]


def test_a_plan_for_a_gpu_covers_families_within_its_limits(predictor: KernelPredictor) -> None:
    gpu = load_device("t4")
    tasks = chosen_tasks(predictor, gpu, 40, dtypes=["float32"])
    families = {task.kernel.family for task in tasks}
    assert families == {
        *("gemm", "attention", "conv2d", "elementwise", "row_reduction", "memory", "optimizer"),
    }
    assert {task.split for task in tasks} == {"train", "test"}
    assert len({task.sample for task in tasks}) == 40
    assert {task.kernel.dtype for task in tasks} == {"float32"}


def test_a_plan_keeps_to_the_families_and_dtypes_that_were_asked_for(predictor: KernelPredictor) -> None:
    gpu = load_device("t4")
    tasks = chosen_tasks(predictor, gpu, 5, families=["memory"], dtypes=["float16"])
    assert {(task.kernel.family, task.kernel.dtype) for task in tasks} == {("memory", "float16")}
    again = chosen_tasks(predictor, gpu, 5, families=["memory"], dtypes=["float16"])
    assert [t.sample for t in tasks] == [t.sample for t in again]
    with pytest.raises(DataError, match="did you mean gemm"):
        chosen_tasks(predictor, gpu, 5, families=["gem"])
