"""Work is exact: every figure against a count of its own."""

from itertools import product

import numpy as np
import pytest
from kernel_grids import MAKERS, grid

from neusight.errors import CoverageError
from neusight.kernels import KernelBatch, work_of
from neusight.kernels.work import attention_pairs, conv_gemm, conv_output, winograd_gain


def one(family: str, **columns: object) -> KernelBatch:
    return KernelBatch.from_columns(family, **columns)


def conv(**columns: object) -> KernelBatch:
    shape = {"batch": 2, "in_channels": 8, "out_channels": 12, "height": 9, "width": 11}
    return one("conv2d", **shape | {"kernel_height": 3, "kernel_width": 3} | columns)


def test_gemm_counts_a_multiply_and_an_add_for_each_of_bmnk() -> None:
    work = work_of(one("gemm", op="bmm", batch=3, m=5, n=7, k=11))
    assert work.flops == 2 * 3 * 5 * 7 * 11
    assert work.least_flops == work.flops
    # A is m x k, B k x n, C m x n, four bytes an element, once for each of three products.
    assert work.read_bytes == 4 * 3 * (5 * 11 + 11 * 7)
    assert work.write_bytes == 4 * 3 * 5 * 7
    assert work.bytes == work.read_bytes + work.write_bytes


def test_a_bias_is_read_once_and_adds_no_product() -> None:
    plain, biased = (work_of(one("gemm", m=5, n=7, k=11, bias=bias, dtype="float16")) for bias in (False, True))
    assert biased.read_bytes - plain.read_bytes == 2 * 7
    assert biased.flops == plain.flops


def test_bytes_go_with_the_dtype(subtests: pytest.Subtests) -> None:
    # What 8-bit operands make has 16 bits.
    for dtype, size, result in [("float64", 8, 8), ("float32", 4, 4), ("bfloat16", 2, 2), ("float8", 1, 2)]:
        with subtests.test(dtype=dtype, size=size):
            work = work_of(one("gemm", m=2, n=3, k=4, dtype=dtype))
            assert (work.read_bytes, work.write_bytes) == (size * (8 + 12), result * 6)


def direct_multiplications(batch: KernelBatch) -> int:
    """Multiplications of the seven loops of a convolution, padding multiplied like any other pixel."""
    c = {name: batch[name][0] for name in batch.columns}

    def places(extent: int, kernel: int) -> int:
        # Every offset at which the dilated filter lies wholly within the padded input.
        last = extent + 2 * c["padding"] - c["dilation"] * (kernel - 1)
        return len(range(0, last, c["stride"]))

    outputs = places(c["height"], c["kernel_height"]) * places(c["width"], c["kernel_width"]) * c["out_channels"]
    return c["batch"] * outputs * c["in_channels"] // c["groups"] * c["kernel_height"] * c["kernel_width"]


def test_convolution_flops_are_those_of_its_loops_in_all_three_directions(subtests: pytest.Subtests) -> None:
    for columns in [
        {},
        {"padding": 1},
        {"stride": 2},
        {"stride": 2, "padding": 1},
        {"stride": 3, "padding": 2},
        {"groups": 4},
        {"dilation": 2},
        {"dilation": 2, "stride": 2, "padding": 2, "groups": 2},
        {"kernel_height": 1, "kernel_width": 5, "padding": 2},
    ]:
        with subtests.test(columns=columns):
            batch = conv(**columns)
            expected = 2 * direct_multiplications(batch)
            for op in ("forward", "input_grad", "weight_grad"):
                # Each gradient sums over the same triples (input, weight, output) as the forward pass does.
                assert work_of(conv(op=op, **columns)).flops == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("kernel", "extents", "outputs"),
    [((1, 3), (1, 129), (1, 64)), ((4, 4), (34, 18), (16, 8)), ((9, 3), (15 * 17, 19), (7 * 8, 9))],
    ids=["1-d", "2-d", "3-d, whose depth is counted into the height"],
)
def test_gradients_of_strided_convolutions_have_the_operations_of_the_forward_one(kernel, extents, outputs) -> None:
    stated = {"kernel_height": kernel[0], "kernel_width": kernel[1], "height": extents[0], "width": extents[1]}
    stated |= {"stride": 2, "output_height": outputs[0], "output_width": outputs[1]}
    expected = 2 * 2 * np.prod(outputs) * 8 * 12 * np.prod(kernel)
    for op in ("forward", "input_grad", "weight_grad"):
        assert work_of(conv(op=op, **stated)).flops == pytest.approx(expected, rel=1e-12)


def test_convolution_sizes_are_torch_s() -> None:
    import torch

    for stride, padding, dilation in product((1, 2, 3), (0, 1, 3), (1, 2)):
        batch = conv(stride=stride, padding=padding, dilation=dilation)
        out = torch.nn.Conv2d(8, 12, 3, stride, padding, dilation)(torch.zeros(2, 8, 9, 11))
        assert [float(v[0]) for v in conv_output(batch)] == [float(v) for v in out.shape[2:]]


def test_convolution_bytes_read_two_tensors_and_write_the_third() -> None:
    source, filters, target = 4 * 2 * 8 * 9 * 11, 4 * 12 * 4 * 9, 4 * 2 * 12 * 7 * 9
    for op, written in (("forward", target), ("input_grad", source), ("weight_grad", filters)):
        work = work_of(conv(op=op, groups=2))
        assert work.write_bytes == written
        assert work.read_bytes == source + filters + target - written


def test_implicit_products_have_the_shapes_of_im2col() -> None:
    # Output 7 x 9 for two images: 126 pixels; four groups of 2 channels, 3 filters, 9 taps.
    assert [float(v[0]) for v in conv_gemm(conv(groups=4))] == [4, 126, 3, 18]
    assert [float(v[0]) for v in conv_gemm(conv(groups=4, op="weight_grad"))] == [4, 3, 18, 126]


def test_winograd(subtests: pytest.Subtests) -> None:
    for columns, gain in [
        # F(4x4, 3x3): 36 multiplications in place of 144. F(4x4, 5x5): 64 in place of 400.
        ({}, 144 / 36),
        ({"kernel_height": 5, "kernel_width": 5}, 400 / 64),
        ({"kernel_height": 1, "kernel_width": 1}, 1.0),
        ({"kernel_height": 9, "kernel_width": 9}, 1.0),
        ({"kernel_height": 3, "kernel_width": 5}, 1.0),
        ({"stride": 2}, 1.0),
        ({"dilation": 2}, 1.0),
        ({"groups": 2}, 1.0),
    ]:
        with subtests.test(columns=columns, gain=gain):
            assert winograd_gain(conv(**columns)) == pytest.approx(gain)
            work = work_of(conv(**columns))
            assert work.least_flops * gain == pytest.approx(work.flops)


def test_causal_pairs_and_keys_are_those_of_the_mask() -> None:
    for (q, kv), window in product([(1, 1), (6, 6), (1, 7), (4, 9), (9, 4), (8, 2)], [0, 1, 3, 5, 50]):
        # The queries are the last ones: query i stands at key kv - q + i and sees back from there.
        at, key = np.arange(q)[:, None] + kv - q, np.arange(kv)[None]
        seen = (key <= at) & (key > at - window if window else True)
        shape = {"batch": 2, "heads": 6, "kv_heads": 3, "q_len": q, "kv_len": kv, "head_dim": 4, "causal": True}
        batch = one("attention", window=window, **shape)
        assert attention_pairs(batch) == seen.sum()
        # Keys and values that any query sees are read once a head of theirs, four bytes an element.
        queries = 4 * 2 * 6 * q * 4
        assert work_of(batch).read_bytes == queries + 2 * 4 * 2 * 3 * seen.any(axis=0).sum() * 4, (q, kv, window)


def test_an_8_bit_cache_halves_the_bytes_of_keys_and_values_alone() -> None:
    shape = {"batch": 2, "heads": 8, "kv_heads": 2, "q_len": 1, "kv_len": 4096, "head_dim": 128, "dtype": "bfloat16"}
    same, named, narrow = (work_of(one("attention", kv_dtype=kv, **shape)) for kv in ("", "bfloat16", "float8"))
    assert named == same
    cache = 2 * 2 * 2 * 4096 * 128
    assert same.read_bytes - narrow.read_bytes == cache * (2 - 1)
    assert (narrow.flops, narrow.write_bytes) == (same.flops, same.write_bytes)
    # Gradients are not cached: they are written in the dtype that is computed in.
    gradients = [work_of(one("attention", op="backward", kv_dtype=kv, **shape)) for kv in ("", "float8")]
    assert gradients[0].write_bytes == gradients[1].write_bytes
    assert gradients[0].read_bytes > gradients[1].read_bytes


def test_full_attention_sees_every_pair_and_a_window_its_width() -> None:
    shape = {"batch": 1, "heads": 1, "kv_heads": 1, "q_len": 6, "kv_len": 9, "head_dim": 4}
    assert attention_pairs(one("attention", **shape)) == 54
    assert attention_pairs(one("attention", window=4, **shape)) == 24


def test_attention_work() -> None:
    shape = {"batch": 2, "heads": 8, "kv_heads": 2, "q_len": 5, "kv_len": 7, "head_dim": 16, "dtype": "float16"}
    forward = work_of(one("attention", **shape))
    backward = work_of(one("attention", op="backward", **shape))
    pairs = 2 * 8 * 5 * 7
    assert forward.flops == 2 * 2 * pairs * 16  # q k and p v
    assert backward.flops == 5 * 2 * pairs * 16  # q k again, then dv, dp, dq, dk
    q, kv, sums = 2 * 2 * 8 * 5 * 16, 2 * 2 * 2 * 7 * 16, 4 * 2 * 8 * 5
    assert (forward.read_bytes, forward.write_bytes) == (q + 2 * kv, q + sums)
    assert (backward.read_bytes, backward.write_bytes) == (3 * q + 2 * kv + sums, q + 2 * kv)


def test_other_families_have_the_work_they_state() -> None:
    work = work_of(one("elementwise", op="add", elements=10, read_bytes=80, write_bytes=40, flops=10))
    assert (work.flops, work.least_flops, work.read_bytes, work.write_bytes) == (10, 10, 80, 40)
    copied = work_of(one("memory", op="copy", elements=10, read_bytes=40, write_bytes=40))
    assert (copied.flops, copied.bytes) == (0, 80)


def test_work_is_an_algebra(subtests: pytest.Subtests) -> None:
    for family in MAKERS:
        with subtests.test(family=family):
            work = work_of(grid(family))
            assert len(work.flops) == 40
            for name in ("flops", "least_flops", "read_bytes", "write_bytes", "bytes"):
                value = getattr(work, name)
                assert (value >= 0).all()
                assert np.array_equal(getattr(work + work, name), 2 * value)
                assert np.array_equal(getattr(3 * work, name), getattr(work * 3, name))
                assert np.array_equal(getattr(work * 3, name), 3 * value)
            assert (work.least_flops <= work.flops).all()


def test_what_has_no_formula_is_named() -> None:
    with pytest.raises(CoverageError, match="unknown dtype 'float7'"):
        work_of(one("gemm", m=1, n=1, k=1, dtype="float7"))
    with pytest.raises(CoverageError, match="no work formula for kernel family 'scan'"):
        work_of(KernelBatch("scan", {"elements": np.ones(1)}))
