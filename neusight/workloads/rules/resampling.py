"""Images resampled, and operators of detectors: regions cut out of images, suppression of boxes that overlap."""

from __future__ import annotations

from math import ceil, prod

from neusight.kernels import Kernel
from neusight.workloads.rules.elementwise import pointwise
from neusight.workloads.rules.memory import move
from neusight.workloads.rules.registry import one_pass, rule
from neusight.workloads.rules.sorting import sorted_rows
from neusight.workloads.tensors import Call, TensorSpec


def _dimensions(name: str) -> int:
    """Number of pooled or resampled dimensions, from the operator's name: ``avg_pool3d``."""
    return next(n for n in (1, 2, 3) if f"{n}d" in name)


@rule("max_pool2d_with_indices", "max_pool3d_with_indices", "max_pool2d", "avg_pool1d", "avg_pool2d", "avg_pool3d",
      "fractional_max_pool2d", "fractional_max_pool3d")  # fmt: skip
def pooling(call: Call) -> tuple[Kernel, ...]:
    """One comparison or addition an element of the window."""
    return pointwise(call, call.name.removesuffix("_with_indices"), prod(_window(call)))


def _window(call: Call) -> tuple[int, ...]:
    """The kernel size along each dimension, at most what there is of the image; one number stands for all."""
    size, dimensions = call.arg(1, "kernel_size"), _dimensions(call.name)
    sizes = size if len(size) > 1 else size * dimensions
    return tuple(map(min, sizes, call.args[0].shape[-dimensions:]))


@rule("_adaptive_avg_pool2d", "adaptive_avg_pool2d", "_adaptive_avg_pool3d", "adaptive_max_pool2d",
      "adaptive_max_pool3d")  # fmt: skip
def adaptive_pooling(call: Call) -> tuple[Kernel, ...]:
    """Every input element is added or compared once or more; once when the output divides the input."""
    window = max(1, call.args[0].elements // max(1, call.output.elements))
    return pointwise(call, call.name.removeprefix("_"), window)


@rule("max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward", "avg_pool2d_backward",
      "avg_pool3d_backward", "_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward",
      "adaptive_max_pool2d_backward", "adaptive_max_pool3d_backward", "fractional_max_pool2d_backward",
      "fractional_max_pool3d_backward")  # fmt: skip
def pooling_backward(call: Call) -> tuple[Kernel, ...]:
    """Reads the output's gradient (and the indices), writes the input's; the input itself gives only its shape."""
    grads = [t for t in call.args if isinstance(t, TensorSpec) and t.shape == call.args[0].shape]
    reads = Call(call.name, call.overload, tuple(grads), {}, call.outputs)
    return pointwise(reads, call.name.replace("_with_indices", "").removeprefix("_"), 1)


@rule("max_unpool2d", "max_unpool3d")
def unpooling(call: Call) -> tuple[Kernel, ...]:
    """Zeroes the result and writes each value to its place."""
    source = call.args[0]
    return (*move("fill", call.output, 0), *move("scatter", source, call.read_bytes, source.nbytes))


_TAPS = {"nearest": 1, "linear": 2, "bilinear": 4, "trilinear": 8, "bicubic": 16}
"""Neighbours that a result is interpolated from."""
_UPSAMPLED = [
    f"{start}{mode}{dims}d{aa}{end}"
    for start, mode, dims, aa in (
        *(("upsample_", "nearest", n, "") for n in (1, 2, 3)),
        *(("_upsample_", "nearest_exact", n, "") for n in (1, 2, 3)),
        ("upsample_", "linear", 1, ""),
        ("upsample_", "bilinear", 2, ""),
        ("upsample_", "trilinear", 3, ""),
        ("upsample_", "bicubic", 2, ""),
        ("_upsample_", "bilinear", 2, "_aa"),
        ("_upsample_", "bicubic", 2, "_aa"),
    )
    for end in ("", "_backward")
]


@rule(*_UPSAMPLED)
def upsampling(call: Call) -> tuple[Kernel, ...]:
    """An interpolation, two operations a neighbour; with anti-aliasing a smaller image averages more of them."""
    mode = call.name.removeprefix("_").removeprefix("upsample_").split("_")[0].rstrip("123d")
    operand = call.args[0]
    shrinks = max(1, operand.elements // max(1, call.output.elements)) if "_aa" in call.name else 1
    # A gradient is spread from the results, of which there are as many as it has elements.
    results = operand.elements if call.name.endswith("_backward") else call.output.elements
    work = 2 * _TAPS[mode] * shrinks * results
    return pointwise(call, call.name.removeprefix("_"), work // max(1, call.output.elements))


@rule("grid_sampler_2d", "grid_sampler_3d", "cudnn_grid_sampler")
def grid_sampling(call: Call) -> tuple[Kernel, ...]:
    """Every channel of a place is interpolated from its neighbours; of the image, at most all is read."""
    return pointwise(call, call.name, 2 * _neighbours(call, call.args[2:3]))


def _neighbours(call: Call, mode: tuple[int, ...]) -> int:
    """PyTorch's modes: 0 linear in each dimension, 1 nearest, 2 cubic in the plane."""
    return {0: 8 if "3d" in call.name else 4, 1: 1, 2: 16}[mode[0] if mode else 0]


@rule("grid_sampler_2d_backward", "grid_sampler_3d_backward")
def grid_sampling_backward(call: Call) -> tuple[Kernel, ...]:
    """Zeroes the image's gradient, then adds to it from every result's neighbours, and derives the grid's."""
    grad, image = call.args[:2]
    size, taps = image.element_bytes, _neighbours(call, call.args[3:4])
    read = call.read_bytes + image.elements * size
    added = one_pass(call, call.name, grad.elements, 6 * taps * grad.elements, read_bytes=read)
    return (*move("fill", TensorSpec(image.shape, image.dtype), 0), *added)


_OVERLAP_FLOPS = 14
"""Of one pair of boxes: four extrema, two extents and a product of the overlap, the areas' sum and the quotient
(``devIoU`` in torchvision's nms_kernel.cu)."""
_WORD_BITS = 64
"""Boxes that one word of the table of overlaps stands for (``threadsPerBlock`` there)."""
_SAMPLES_EACH_WAY = 2
"""Places along each side of a cell where nobody says how many: detectors' regions are about twice the cells pooled
from them, as levels of a pyramid are chosen by size (Lin et al. 2017, equation 1)."""


@rule("torchvision::nms")
def suppression(call: Call) -> tuple[Kernel, ...]:
    """Sorts by score, compares every pair once, and walks along the bits of the table that this makes."""
    boxes, scores = call.args[:2]
    count = scores.elements
    if not count:
        return ()
    places = TensorSpec((count,), "int64")
    table = count * ceil(count / _WORD_BITS) * 8
    pairs = count * (count + 1) // 2
    compared = one_pass(call, "nms", pairs, _OVERLAP_FLOPS * pairs, read_bytes=boxes.nbytes, write_bytes=table)
    walked = one_pass(call, "nms", table // 8, table // 8, read_bytes=table, write_bytes=places.nbytes)
    return (*sorted_rows(Call("sort", "", (scores,), {}, (scores, places))), *compared, *walked)


@rule("torchvision::roi_align")
def regions(call: Call) -> tuple[Kernel, ...]:
    """Every cell of a region averages a few places, each interpolated from four neighbours."""
    each_way = call.args[5] if call.args[5] > 0 else _SAMPLES_EACH_WAY
    return pointwise(call, "roi_align", each_way**2 * 2 * 4)
