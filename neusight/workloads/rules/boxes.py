"""Operators of detectors from torchvision: suppression of boxes that overlap, and regions cut out of images."""

from __future__ import annotations

from math import ceil

from neusight.kernels import Elementwise, Kernel
from neusight.workloads.rules.elementwise import pointwise
from neusight.workloads.rules.registry import rule
from neusight.workloads.rules.sorting import sorted_rows
from neusight.workloads.tensors import Call, TensorSpec

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
    compared = Elementwise(
        op="nms", elements=pairs, read_bytes=boxes.nbytes, write_bytes=table, flops=_OVERLAP_FLOPS * pairs,
        dtype=call.dtype,
    )  # fmt: skip
    walked = Elementwise(
        op="nms", elements=table // 8, read_bytes=table, write_bytes=places.nbytes, flops=table // 8, dtype=call.dtype
    )
    return (*sorted_rows(Call("sort", "", (scores,), {}, (scores, places))), compared, walked)


@rule("torchvision::roi_align")
def regions(call: Call) -> tuple[Kernel, ...]:
    """Every cell of a region averages a few places, each interpolated from four neighbours."""
    each_way = call.args[5] if call.args[5] > 0 else _SAMPLES_EACH_WAY
    return pointwise(call, "roi_align", each_way**2 * 2 * 4)
