"""The roofline: three laws, the largest binds, and a better device is never bound lower."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_grids import MAKERS, grid

from neusight.devices import DeviceSpec, GpuSpec, device_ids, load_device
from neusight.errors import DeviceError
from neusight.kernels import KernelBatch, work_of
from neusight.laws import Bound, bound_of
from neusight.laws.bounds import flops_per_s

CATALOGUE = {gpu: load_device(gpu) for gpu in device_ids()}
GPUS = {name: device for name, device in CATALOGUE.items() if isinstance(device, GpuSpec)}


def bound(batch: KernelBatch, device: DeviceSpec) -> Bound:
    return bound_of(batch, work_of(batch), device)


def test_the_bound_is_the_largest_law_and_its_limiter_names_it(subtests: pytest.Subtests) -> None:
    for family in MAKERS:
        with subtests.test(family=family):
            for device in CATALOGUE.values():
                found = bound(grid(family), device)
                laws = {"compute": found.compute_s, "dram": found.dram_s, "l2": found.l2_s}
                longest = np.max([*laws.values()], axis=0)
                # A picosecond is the least that a kernel of one element takes.
                assert np.array_equal(found.bound_s, np.maximum(longest, 1e-12))
                assert np.array_equal([laws[name][row] for row, name in enumerate(found.limiter)], longest)


def test_limiter(subtests: pytest.Subtests) -> None:
    for laws, name in [((3, 2, 1), "compute"), ((1, 3, 2), "dram"), ((1, 2, 3), "l2")]:
        with subtests.test(laws=laws, name=name):
            found = Bound(*(np.array([law], dtype=float) for law in laws))
            assert found.limiter.tolist() == [name]
            assert found.bound_s == 3


def test_no_work_is_still_a_kernel() -> None:
    empty = KernelBatch.from_columns("memory", op="fill", elements=0, read_bytes=0, write_bytes=0)
    assert bound(empty, CATALOGUE["l4"]).bound_s > 0


def test_laws_are_work_over_peak() -> None:
    a100 = CATALOGUE["a100-pcie-40gb"]
    batch = KernelBatch.from_columns("gemm", m=8192, n=8192, k=8192)
    found = bound(batch, a100)
    moved = 4 * 3 * 8192**2
    assert found.compute_s == pytest.approx(2 * 8192**3 / 19.5e12, rel=1e-3)  # float32 vector peak, tf32 being off
    assert found.dram_s == pytest.approx((moved - 40 * 2**20) / 1555e9, rel=1e-3)
    assert found.l2_s == pytest.approx(moved / a100.l2_bytes_per_s)
    assert found.limiter == "compute"


def test_what_l2_holds_pays_no_dram() -> None:
    device = CATALOGUE["a100-pcie-40gb"]
    fits = int(device.l2_capacity_bytes) // 2
    for half, pays in ((fits, False), (fits + 4, True)):
        batch = KernelBatch.from_columns("memory", op="copy", elements=half // 4, read_bytes=half, write_bytes=half)
        assert bool((bound(batch, device).dram_s > 0).all()) is pays


@settings(max_examples=60, deadline=None)
@given(
    gpu=st.sampled_from(sorted(GPUS)),
    family=st.sampled_from(sorted(MAKERS)),
    seed=st.integers(0, 10**6),
    factor=st.floats(1.0, 20.0),
    better=st.sampled_from(["dram", "l2_bandwidth", "l2_capacity", "compute", "clock"]),
)
def test_a_better_device_is_never_bound_longer(gpu: str, family: str, seed: int, factor: float, better: str) -> None:
    device = GPUS[gpu]
    changes = {
        "dram": {"dram_bandwidth_bytes_per_s": device.dram_bandwidth_bytes_per_s * factor},
        "l2_bandwidth": {"l2_bandwidth_bytes_per_s": device.l2_bytes_per_s * factor},
        "l2_capacity": {"l2_capacity_bytes": device.l2_capacity_bytes * factor},
        "clock": {"boost_clock_hz": device.boost_clock_hz * factor},
        "compute": {
            "matrix_flops_per_s": {k: v * factor for k, v in device.matrix_flops_per_s.items()},
            "vector_flops_per_s": {k: v * factor for k, v in device.vector_flops_per_s.items()},
        },
    }
    batch = grid(family, n=10, seed=seed)
    before, after = bound(batch, device), bound(batch, device.model_copy(update=changes[better]))
    assert (after.bound_s <= before.bound_s).all()


def test_amd_multiplies_float32_matrices_on_matrix_units() -> None:
    mi100 = CATALOGUE["mi100"]
    # MI100 brochure: 46.1 TFLOP/s float32 matrix, 23.1 vector.
    assert flops_per_s(grid("gemm", 1), mi100) == 46.1e12
    assert flops_per_s(grid("conv2d", 1), mi100) == 46.1e12
    assert flops_per_s(grid("elementwise", 1), mi100) == 23.1e12


def test_dtypes_without_a_vector_rate_compute_in_float32() -> None:
    l4 = CATALOGUE["l4"]
    single = l4.vector_flops_per_s["float32"]
    assert flops_per_s(grid("elementwise", 3, "int8"), l4).tolist() == [single] * 3
    assert flops_per_s(grid("elementwise", 1, "float64"), l4) == l4.vector_flops_per_s["float64"] < single


def test_products_of_16_bits_are_never_slower_than_float32() -> None:
    """Compute capability 6.1 does 1/64 of float32's rate in 16 bits, and its products run in float32."""
    for gpu in ("p4", "gtx-1080-ti"):
        rates = CATALOGUE[gpu].vector_flops_per_s
        assert rates["float16"] < rates["float32"] / 60
        assert flops_per_s(grid("gemm", 1, "float16"), CATALOGUE[gpu]) == rates["float32"]
        assert flops_per_s(grid("elementwise", 1, "float16"), CATALOGUE[gpu]) == rates["float32"]
    for device in CATALOGUE.values():
        for dtype in {"float16", "bfloat16"} & {*device.matrix_flops_per_s, *device.vector_flops_per_s}:
            for family in ("gemm", "conv2d", "elementwise"):
                assert flops_per_s(grid(family, 1, dtype), device) >= device.vector_flops_per_s["float32"], device.id


def test_only_what_a_library_has_fast_algorithms_for_is_bound_lower() -> None:
    h100, plain = CATALOGUE["h100-sxm-80gb"], {"batch": 8, "in_channels": 256, "out_channels": 256}
    square = {"height": 56, "width": 56, "kernel_height": 3, "kernel_width": 3, "padding": 1}
    for dtype, gain in (("float32", 4.0), ("tf32", 4.0), ("float16", 4.0), ("bfloat16", 1.0), ("int8", 1.0)):
        batch = KernelBatch.from_columns("conv2d", dtype=dtype, **plain, **square)
        product = 2 * 8 * 56**2 * 256 * 256 * 9 / h100.gemm_flops_per_s(dtype)
        assert bound(batch, h100).compute_s == pytest.approx(product / gain), dtype


def test_a_product_in_a_dtype_that_the_device_lacks_raises(subtests: pytest.Subtests) -> None:
    for family in ["gemm", "conv2d", "attention"]:
        said = pytest.raises(DeviceError, match=r"p4 does not compute in bfloat16: it has .*float32")
        with subtests.test(family=family), said:
            bound(grid(family, 3, "bfloat16"), CATALOGUE["p4"])


def test_l2_bandwidth_is_at_least_that_of_the_ports() -> None:
    for device in GPUS.values():
        ports = 64.0 * device.sm_count * device.boost_clock_hz
        assert device.l2_bytes_per_s == max(ports, device.l2_bandwidth_bytes_per_s or 0.0)
