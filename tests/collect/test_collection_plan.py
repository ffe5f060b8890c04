"""The plan: balanced from its beginning, without doubles, the same again, within the device's limits."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import numpy as np
import pytest

from neusight.collect.plan import DTYPE_WEIGHTS, REPEAT_EVERY, Limits, plan, usual_limits, workload_kernels
from neusight.collect.sampling import STRATA, between, points, stratum_of
from neusight.collect.tasks import KernelTask
from neusight.devices import DeviceSpec, load_device
from neusight.errors import DataError
from neusight.kernels import KERNEL_CLASSES, KernelBatch
from neusight.kernels.families import COMPOSED
from neusight.kernels.work import work_of

H200 = load_device("h200-sxm-141gb")
LIMITS = usual_limits(H200, on_gpu=True)


def begin(count: int, device: DeviceSpec = H200, limits: Limits = LIMITS, seed: int = 0) -> list[KernelTask]:
    return list(islice(plan(device, (), (), seed, limits), count))


@pytest.fixture(scope="module")
def tasks() -> list[KernelTask]:
    return begin(1500)


def test_any_beginning_is_balanced(tasks: list[KernelTask]) -> None:
    weights = {(s.name, d): s.weight * DTYPE_WEIGHTS[d] for s in STRATA for d in s.dtypes}
    total = sum(weights.values())
    for count in (100, 400, 1500):
        single = [t for t in tasks[:count] if not t.repeat]
        found = Counter((stratum_of(t.kernel), t.kernel.dtype) for t in single)
        expected = {key: len(single) * weight / total for key, weight in weights.items()}
        assert {key for key in expected if abs(found[key] - expected[key]) > 1.5} == set()
    # All families and dtypes come within the first minute.
    assert {t.kernel.family for t in tasks[:120]} == {*KERNEL_CLASSES} - COMPOSED
    assert {t.kernel.dtype for t in tasks[:120]} == {*DTYPE_WEIGHTS}


def test_nothing_is_planned_twice_and_a_twentieth_again(tasks: list[KernelTask]) -> None:
    assert len({t.sample for t in tasks}) == len(tasks)
    first = {t.kernel for t in tasks if t.repeat == 0}
    again = [t for t in tasks if t.repeat]
    assert all(t.kernel in first for t in again)
    assert len(again) == pytest.approx(len(tasks) / (REPEAT_EVERY + 1), abs=2)


def test_the_same_arguments_give_the_same_plan(tasks: list[KernelTask]) -> None:
    assert begin(200) == tasks[:200]
    other = [t for t in begin(200, seed=1) if t.split == "train"]
    mine = {t.sample for t in tasks[:200] if t.split == "train"}
    assert len(mine & {t.sample for t in other}) < 0.1 * len(mine)


def test_every_kernel_keeps_to_the_limits() -> None:
    tight = Limits(bytes=1e8, seconds=1e-3)
    for task in begin(300, limits=tight):
        work = work_of(KernelBatch.of([task.kernel]))
        assert work.bytes[0] <= 1e8
        assert work.bytes[0] / H200.dram_bandwidth_bytes_per_s <= 1e-3
        assert work.least_flops[0] / H200.gemm_flops_per_s(task.kernel.dtype) <= 1e-3


def test_a_device_is_asked_only_for_its_dtypes() -> None:
    p100 = load_device("p100-pcie-16gb")
    found = {t.kernel.dtype for t in begin(200, p100, usual_limits(p100, on_gpu=True))}
    assert "float32" in found and found <= {*p100.matrix_flops_per_s, *p100.vector_flops_per_s} - {"tf32"}


@pytest.mark.parametrize(
    ("families", "dtypes", "message"),
    [
        (["gem"], [], "no kernel family 'gem': .*did you mean gemm"),
        ([], ["bf16"], "no dtype 'bf16'"),
        (["grouped_gemm"], ["float32"], "has none of these dtypes"),
    ],
)
def test_plan_refuses_in_one_line(families: list[str], dtypes: list[str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        plan(H200, families, dtypes, 0, LIMITS)


def test_workload_shapes_come_by_their_share_of_time() -> None:
    kernels = workload_kernels(H200, "bfloat16")
    assert {"gemm/linear", "attention/forward", "elementwise", "row_reduction", "memory"} <= kernels.keys()
    assert all(k.dtype == "bfloat16" for found in kernels.values() for k in found)
    assert all(stratum_of(k) == name for name, found in kernels.items() for k in found)
    linear = kernels["gemm/linear"]
    flops = work_of(KernelBatch.of(list(linear))).flops
    assert np.median(flops[:20]) > 10 * np.median(flops[-200:])
    # 8-bit products are those of forward passes.
    eight_bit = workload_kernels(H200, "float8")
    assert {*eight_bit} == {"gemm/linear"}
    assert {(k.layout, k.bias) for k in eight_bit["gemm/linear"]} == {("tn", False)}  # type: ignore[union-attr]


def test_samples_fill_their_box_and_extents_are_aligned() -> None:
    """Every eighth of each axis holds an eighth of the points: what random points miss by far more."""
    sample = np.array(list(islice(points(6, 3), 256)))
    assert max(np.ptp(np.histogram(axis, bins=8, range=(0, 1))[0]) for axis in sample.T) <= 2
    values = [between(u, 16, 65536, 64) for u in np.linspace(0, 1, 101)]
    assert (values[0], values[-1], between(0.5, 16, 65536)) == (64, 65536, 1024)
    assert all(v % 64 == 0 for v in values)


def test_every_point_makes_a_kernel_of_its_kind() -> None:
    for stratum in STRATA:
        sample = list(islice(points(stratum.axes, 0), 128))
        found = [stratum.make(point, dtype) for dtype in stratum.dtypes for point in sample]
        made = [kernel for kernel in found if kernel is not None]
        assert len(made) > 0.8 * len(found), stratum.name
        assert stratum.family == "attention" or {stratum_of(kernel) for kernel in made} == {stratum.name}, stratum.name
        assert all(type(value) in (int, str, bool) for kernel in made for value in vars(kernel).values())
