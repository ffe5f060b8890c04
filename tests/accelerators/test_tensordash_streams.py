"""Convolutions and matrix products as streams: by formula, and against every multiplication of tiny convolutions."""

from collections import Counter
from itertools import product

import numpy as np
import pytest

from neusight.errors import CoverageError
from neusight.executors.tensordash.masks import filled_slots
from neusight.executors.tensordash.streams import Streams, dense_cycles, scheduled, streams_of
from neusight.kernels import Conv2d, KernelBatch, work_of
from neusight.kernels.work import conv_output

TINY = [
    Conv2d(batch=2, in_channels=3, out_channels=5, height=6, width=7, kernel_height=3, kernel_width=3, **more)
    for more in (
        {},
        {"padding": 1},
        {"stride": 2, "padding": 1},
        {"stride": 2},
        {"stride": 3, "padding": 2},
        {"dilation": 2, "padding": 2},
        {"dilation": 2, "stride": 2, "padding": 3},
        {"stride": 4},
    )
]
TINY += [
    Conv2d(batch=1, in_channels=4, out_channels=6, height=5, width=5, kernel_height=1, kernel_width=1, stride=2),
    Conv2d(
        batch=2, in_channels=4, out_channels=6, height=8, width=5, kernel_height=5, kernel_width=2, groups=2, padding=1
    ),
    Conv2d(
        batch=1, in_channels=6, out_channels=6, height=7, width=9, kernel_height=7, kernel_width=3, stride=2, padding=3
    ),
]


def conv(**columns: object) -> KernelBatch:
    shape = {"batch": 8, "in_channels": 64, "out_channels": 128, "height": 56, "width": 56, "padding": 1}
    return KernelBatch.from_columns("conv2d", **shape | {"kernel_height": 3, "kernel_width": 3} | columns)


def of(kernel: Conv2d, op: str, lanes: int = 16) -> Streams:
    return streams_of(KernelBatch.of([Conv2d(**vars(kernel) | {"op": op})]), lanes)


def output_of(kernel: Conv2d) -> tuple[int, int]:
    height, width = conv_output(KernelBatch.of([kernel]))
    return int(height[0]), int(width[0])


def places(kernel: Conv2d, axis: int) -> list[tuple[int, int, int]]:
    """Along one axis, every (output, tap, input) of the loops of a convolution that lies within the image."""
    taps = (kernel.kernel_height, kernel.kernel_width)[axis]
    extent = (kernel.height, kernel.width)[axis]
    triples = (
        (o, k, o * kernel.stride + k * kernel.dilation - kernel.padding)
        for o, k in product(range(output_of(kernel)[axis]), range(taps))
    )
    return [(o, k, i) for o, k, i in triples if 0 <= i < extent]


def multiplications(kernel: Conv2d) -> int:
    """Of real pixels with weights, without the padding's zeros."""
    channels = kernel.in_channels * kernel.out_channels // kernel.groups
    return kernel.batch * len(places(kernel, 0)) * len(places(kernel, 1)) * channels


def slots(streams: Streams) -> np.ndarray:
    return streams.repeats * streams.first * streams.second * streams.taps * streams.channels


@pytest.mark.parametrize("op", ["forward", "input_grad", "weight_grad"])
@pytest.mark.parametrize("kernel", TINY, ids=range(len(TINY)))
def test_streams_hold_every_multiplication_once(kernel: Conv2d, op: str) -> None:
    streams = of(kernel, op)
    inside = slots(streams) * streams.first_inside * streams.second_inside
    assert inside.sum() == pytest.approx(multiplications(kernel), rel=1e-12)
    assert (streams.length == streams.taps * np.ceil(streams.channels / 16)).all()


@pytest.mark.parametrize("kernel", TINY, ids=range(len(TINY)))
def test_input_pixels_meet_the_taps_of_their_phase_alone(kernel: Conv2d) -> None:
    met: Counter[tuple[int, int, int]] = Counter()
    inside: Counter[tuple[int, int]] = Counter()
    for y, x in product(range(kernel.height), range(kernel.width)):
        rows = [ky for ky in range(kernel.kernel_height) if reaches(kernel, y, ky)]
        columns = [kx for kx in range(kernel.kernel_width) if reaches(kernel, x, kx)]
        if rows and columns:
            met[y % kernel.stride, x % kernel.stride, len(rows) * len(columns)] += 1
            pairs = sum(i == y for _, _, i in places(kernel, 0)) * sum(i == x for _, _, i in places(kernel, 1))
            inside[y % kernel.stride, x % kernel.stride] += pairs
    streams = of(kernel, "input_grad")
    expected = sorted((taps, kernel.batch * pixels) for (_, _, taps), pixels in met.items())
    assert sorted(zip(streams.taps.tolist(), streams.first.tolist(), strict=True)) == expected
    values = streams.taps * streams.first * streams.first_inside / kernel.batch
    assert sorted(values) == pytest.approx(sorted(inside.values()))
    assert set(streams.second.tolist()) == {kernel.in_channels // kernel.groups}
    assert set(streams.channels.tolist()) == {kernel.out_channels // kernel.groups}


def reaches(kernel: Conv2d, position: int, tap: int) -> bool:
    return (position + kernel.padding - tap * kernel.dilation) % kernel.stride == 0


@pytest.mark.parametrize("kernel", TINY, ids=range(len(TINY)))
def test_windows_of_an_image_without_zeros_fill_their_streams(kernel: Conv2d) -> None:
    height, width = output_of(kernel)
    taps, channels = kernel.kernel_height * kernel.kernel_width, kernel.in_channels // kernel.groups
    rows, columns = ({(o, k) for o, k, _ in places(kernel, axis)} for axis in (0, 1))
    windows = [
        [
            [(oy, ky) in rows and (ox, kx) in columns]
            for ky in range(kernel.kernel_height)
            for kx in range(kernel.kernel_width)
        ]
        for _ in range(kernel.batch)
        for oy in range(height)
        for ox in range(width)
    ]
    mask = np.repeat(windows, -(-channels // 16), axis=1) & filled_slots(taps, channels)
    streams = of(kernel, "forward")
    assert mask.shape[:2] == (streams.first[0], streams.length[0])
    assert mask.sum() == pytest.approx(streams.first * taps * channels * streams.first_inside)
    assert streams.second.tolist() == [kernel.out_channels // kernel.groups]
    assert streams.repeats.tolist() == [kernel.groups]


@pytest.mark.parametrize("kernel", TINY, ids=range(len(TINY)))
def test_weight_gradients_run_over_the_pixels_of_one_image(kernel: Conv2d) -> None:
    height, width = output_of(kernel)
    streams = of(kernel, "weight_grad")
    taps = kernel.kernel_height * kernel.kernel_width
    assert streams.length.tolist() == [-(-height * width // 16)]
    assert streams.first.tolist() == [kernel.out_channels // kernel.groups]
    assert streams.second.tolist() == [kernel.in_channels // kernel.groups]
    assert streams.repeats.tolist() == [kernel.batch * taps * kernel.groups]
    # Gradients have no padding; a shifted image has.
    assert streams.first_inside.tolist() == [1.0]
    shifted = len(places(kernel, 0)) * len(places(kernel, 1)) / (taps * height * width)
    assert streams.second_inside == pytest.approx([shifted])


def test_lengths_by_formula() -> None:
    forward = streams_of(conv(in_channels=np.array([3, 16, 64, 100, 512])))
    assert forward.length.tolist() == [9, 9, 36, 63, 288]
    assert streams_of(conv(kernel_height=7, kernel_width=7, stride=2, padding=3, in_channels=3)).length.tolist() == [49]
    # Stride 1: taps times the gradient's channels, of which the layer has 128.
    assert streams_of(conv(op="input_grad")).length.tolist() == [9 * 8]
    # Stride 2 on 3x3: four sub-kernels of 4, 2, 2 and 1 taps. Each pixel of the input lies in one of them.
    strided = streams_of(conv(op="input_grad", stride=2))
    assert sorted(strided.taps.tolist()) == [1, 2, 2, 4]
    assert sorted(strided.length.tolist()) == [8, 16, 16, 32]
    assert strided.first.sum() == 8 * 56 * 56
    # 56² pixels, and the 7² of a last layer, of which 15 slots of 64 stay empty.
    assert streams_of(conv(op="weight_grad", height=np.array([56, 7]), width=np.array([56, 7]))).length.tolist() == [
        196,
        4,
    ]
    assert streams_of(conv(in_channels=100), lanes=8).length.tolist() == [9 * 13]


def test_a_strided_pointwise_convolution_leaves_most_input_pixels_without_gradient() -> None:
    shortcut = conv(op="input_grad", kernel_height=1, kernel_width=1, stride=2, padding=0)
    streams = streams_of(shortcut)
    assert (streams.taps.tolist(), streams.first.tolist()) == ([1], [8 * 28 * 28])
    assert slots(streams).sum() == work_of(shortcut).flops[0] / 2


def test_groups_are_products_of_their_own() -> None:
    depthwise = streams_of(conv(in_channels=128, groups=128))
    assert (depthwise.channels.tolist(), depthwise.second.tolist(), depthwise.repeats.tolist()) == ([1], [1], [128])
    assert depthwise.length.tolist() == [9]


@pytest.mark.parametrize("layout", ["tn", "nn", "nt"])
def test_matrix_products_run_over_their_inner_size(layout: str) -> None:
    products = KernelBatch.from_columns("gemm", op="bmm", batch=12, m=np.array([128, 5]), n=64, k=np.array([1024, 33]))
    streams = streams_of(products)
    assert streams.length.tolist() == [64, 3]
    assert streams.first.tolist() == [128, 5]
    assert streams.second.tolist() == [64, 64]
    assert streams.repeats.tolist() == [12, 12]
    assert (slots(streams) == work_of(products).flops / 2).all()
    assert streams.first_inside.tolist() == streams.second_inside.tolist() == [1.0, 1.0]


def test_a_mixed_batch_keeps_its_order() -> None:
    ops = ["weight_grad", "input_grad", "forward", "input_grad"]
    mixed = conv(op=np.array(ops), stride=np.array([1, 2, 2, 1]), in_channels=np.array([16, 32, 48, 64]))
    streams = streams_of(mixed)
    assert streams.kernel.tolist() == [0, 1, 1, 1, 1, 2, 3]
    for row in range(4):
        alone = streams_of(mixed.take(np.array([row])))
        ours = streams.take(streams.kernel == row)
        for name in ("taps", "channels", "length", "first", "second", "repeats", "first_inside", "second_inside"):
            assert getattr(ours, name).tolist() == getattr(alone, name).tolist()


@pytest.mark.parametrize("op", ["forward", "input_grad", "weight_grad"])
def test_kernels_of_other_sizes_beside_do_not_change_a_line(op: str) -> None:
    sizes = np.array([1, 3, 7, 5])
    shape = {"op": op, "kernel_height": sizes, "kernel_width": sizes[::-1], "padding": sizes // 2}
    together = streams_of(conv(stride=np.array([1, 2, 2, 1]), **shape))
    for row, kernel in enumerate(zip(sizes, sizes[::-1], sizes // 2, (1, 2, 2, 1), strict=True)):
        names = ("kernel_height", "kernel_width", "padding", "stride")
        alone, ours = streams_of(conv(op=op, **dict(zip(names, kernel, strict=True)))), together.kernel == row
        for name in ("taps", "first", "first_inside", "second_inside"):
            assert getattr(together, name)[ours].tolist() == getattr(alone, name).tolist()


def zeros(*sparsity: float, cluster: str = "stream") -> dict[str, np.ndarray]:
    return {"sparsity": np.array(sparsity), "cluster": np.array([cluster] * len(sparsity))}


def test_the_operand_with_more_zeros_goes_to_the_rows() -> None:
    streams = streams_of(KernelBatch.from_columns("gemm", m=np.array([100, 100, 100]), n=30, k=64))
    columns = scheduled(streams, zeros(0.6, 0.2, 0.5), zeros(0.1, 0.9, 0.5, cluster="slot"))
    assert columns["cluster"].tolist() == ["stream", "slot", "stream"]
    rows, others = columns["row_streams"], columns["column_streams"]
    assert rows.tolist() == [100, 30, 100]
    assert others.tolist() == [30, 100, 30]
    assert columns["sparsity"] == pytest.approx([0.6, 0.9, 0.5])
    # 25 x 8 blocks of 4 x 4, of four steps each; the other way round 8 x 25, which is as many.
    assert dense_cycles(rows, others, streams.length).tolist() == [800, 800, 800]
    assert dense_cycles(rows, others, streams.length, 16, 1).tolist() == [840, 800, 840]


def test_padding_adds_zeros_to_what_is_scheduled() -> None:
    streams = streams_of(conv(height=7, width=7))
    inside = (19 / 21) ** 2
    # Weights have no padding.
    for first, second, sparsity in ((0.0, 0.0, 1 - inside), (0.5, 0.0, 1 - 0.5 * inside), (0.5, 0.6, 0.6)):
        assert scheduled(streams, zeros(first), zeros(second))["sparsity"] == pytest.approx([sparsity])


def test_one_multiplier_takes_as_many_cycles_as_there_are_multiplications() -> None:
    layers = conv(op=np.array(["forward", "weight_grad"]), padding=0)
    streams = streams_of(layers, lanes=1)
    cycles = streams.repeats * dense_cycles(streams.first, streams.second, streams.length, rows=1, columns=1)
    assert (cycles == work_of(layers).flops / 2).all()


def test_what_has_no_streams_ends_in_one_line() -> None:
    copies = KernelBatch.from_columns("memory", op="copy", elements=1, read_bytes=4, write_bytes=4)
    with pytest.raises(CoverageError, match="no reduction streams for kernel family 'memory': one of conv2d, gemm"):
        streams_of(copies)
    with pytest.raises(CoverageError, match="unknown direction of conv2d 'backward': one of forward, input_grad"):
        streams_of(conv(op="backward"))
