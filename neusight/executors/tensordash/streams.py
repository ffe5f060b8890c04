"""Convolutions and matrix products as reduction streams: what a tile's PE rows and columns work through.

A product has two operands, each a set of streams that run over the same reduction, 16 values a step, channels
innermost. Every pair of a stream of the first and one of the second operand gives one output.

| product | first operand, streams | second operand, streams | steps T |
|---|---|---|---|
| forward | activations, N·Ox·Oy | weights, K | Kx·Ky·⌈C/16⌉ |
| input gradient, stride 1 | gradients, N·X·Y | weights, C | Kx·Ky·⌈K/16⌉ |
| input gradient, stride s: s² phases, a line each | gradients, pixels of a phase | weights, C | its taps·⌈K/16⌉ |
| weight gradient, N·Kx·Ky times | gradients, K | activations, C | ⌈Ox·Oy/16⌉ |
| matrix product, batch times | rows of A, m | columns of B, n | ⌈k/16⌉ |

C and K are those of a group of channels, and every group is a product of its own. The operand with the larger zero
fraction is scheduled: its streams go to the PE rows, the other's to the PE columns, which follow the rows' schedule.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from neusight.errors import CoverageError
from neusight.executors.tensordash.schedule import LANES
from neusight.kernels import KernelBatch
from neusight.kernels.columns import ColumnRecord
from neusight.kernels.work import conv_output

ROWS = 4
"""PE rows of a tile (assumption: recalled from the paper; its table of configurations would tell)."""

COLUMNS = 4
"""PE columns of a tile (assumption: recalled from the paper; its table of configurations would tell)."""


@dataclass(frozen=True, kw_only=True)
class Streams(ColumnRecord):
    """Columns of shape (lines,), one line a product of equal streams; a strided input gradient has a line a phase.

    ``kernel``: row of the batch that a line belongs to. ``taps``, ``channels``: the reduction, kernel positions times
    what is innermost. ``length``: steps T of a stream. ``first``, ``second``: streams of either operand. ``repeats``:
    how many such products there are. ``first_inside``, ``second_inside``: share of the operand's values that lie
    within its tensor, not in the padding, whose zeros are skipped like any others.
    """

    kernel: np.ndarray
    taps: np.ndarray
    channels: np.ndarray
    length: np.ndarray
    first: np.ndarray
    second: np.ndarray
    repeats: np.ndarray
    first_inside: np.ndarray
    second_inside: np.ndarray


def streams_of(batch: KernelBatch, lanes: int = LANES) -> Streams:
    """Reduction streams of each kernel of a batch, in its order.

    Raises:
        CoverageError: a family other than ``conv2d`` and ``gemm``, or an unknown direction of a convolution.
    """
    if batch.family == "gemm":
        return _products(batch, lanes)
    if batch.family != "conv2d":
        raise CoverageError(f"no reduction streams for kernel family '{batch.family}': one of conv2d, gemm")
    if unknown := set(batch["op"].tolist()) - _DIRECTIONS.keys():
        raise CoverageError(f"unknown direction of conv2d '{min(unknown)}': one of {', '.join(_DIRECTIONS)}")
    index = [np.flatnonzero(batch["op"] == op) for op in _DIRECTIONS]
    parts = [_DIRECTIONS[op](batch.take(i), i, lanes) for op, i in zip(_DIRECTIONS, index, strict=True) if len(i)]
    joined = Streams.joined(parts)
    return joined.take(np.argsort(joined.kernel, kind="stable"))


def scheduled(
    streams: Streams, first: Mapping[str, np.ndarray], second: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Of the scheduled operand, the one with the larger zero fraction, at a tie the first; columns of shape (lines,).

    Zeros of either operand (``sparsity`` in [0, 1], ``clustering``, ``cluster``) are those of the tensors; padding adds
    its own zeros to what a stream holds, but the choice is made by tensor.

    Returns:
        ``row_streams`` on the PE rows, ``column_streams`` of the other operand, and the zeros of its streams' values.
    """
    by_first = first["sparsity"] >= second["sparsity"]
    inside = np.where(by_first, streams.first_inside, streams.second_inside)
    zeros = {name: np.where(by_first, first[name], second[name]) for name in first}
    return {
        "row_streams": np.where(by_first, streams.first, streams.second),
        "column_streams": np.where(by_first, streams.second, streams.first),
        **zeros,
        "sparsity": 1 - (1 - zeros["sparsity"]) * inside,
    }


def dense_cycles(
    row_streams: np.ndarray,
    column_streams: np.ndarray,
    length: np.ndarray,
    rows: np.ndarray | int = ROWS,
    columns: np.ndarray | int = COLUMNS,
) -> np.ndarray:
    """Cycles of one product on one dense tile, shape (lines,): ``⌈row streams/rows⌉ · ⌈column streams/columns⌉ · T``.

    Times a line's ``repeats``, and shared by a device's tiles, that is what a machine without skipping takes.
    """
    return _ceil(row_streams, rows) * _ceil(column_streams, columns) * length


def _ceil(a: np.ndarray, b: np.ndarray | int) -> np.ndarray:
    return -(-a // b)


def _lines(kernel: np.ndarray, lanes: int, *, taps: np.ndarray, channels: np.ndarray, **columns: np.ndarray) -> Streams:
    whole = np.ones(len(kernel))
    given = {"first_inside": whole, "second_inside": whole} | columns
    length = taps * _ceil(channels, lanes)
    return Streams(kernel=kernel, taps=taps, channels=channels, length=length, **given)


def _products(batch: KernelBatch, lanes: int) -> Streams:
    """C[b,m,n] = A[b,m,k] B[b,k,n]: each of the three directions of a linear layer is one with its own m, n, k."""
    one = np.ones(len(batch), dtype=np.int64)
    sides = {"first": batch["m"], "second": batch["n"], "repeats": batch["batch"]}
    return _lines(np.arange(len(batch)), lanes, taps=one, channels=batch["k"], **sides)


def _forward(batch: KernelBatch, kernel: np.ndarray, lanes: int) -> Streams:
    height, width = _output(batch)
    taps = batch["kernel_height"] * batch["kernel_width"]
    return _lines(
        kernel,
        lanes,
        taps=taps,
        channels=batch["in_channels"] // batch["groups"],
        first=batch["batch"] * height * width,
        second=batch["out_channels"] // batch["groups"],
        repeats=batch["groups"],
        first_inside=_inside(batch),
    )


def _weight_grad(batch: KernelBatch, kernel: np.ndarray, lanes: int) -> Streams:
    """The streams of one image at one kernel position; partial sums stay in the tile over images."""
    height, width = _output(batch)
    taps = batch["kernel_height"] * batch["kernel_width"]
    return _lines(
        kernel,
        lanes,
        taps=np.ones(len(batch), dtype=np.int64),
        channels=height * width,
        first=batch["out_channels"] // batch["groups"],
        second=batch["in_channels"] // batch["groups"],
        repeats=batch["groups"] * batch["batch"] * taps,
        second_inside=_inside(batch),
    )


def _input_grad(batch: KernelBatch, kernel: np.ndarray, lanes: int) -> Streams:
    """One line for each of stride² phases of input pixels, which each meet kernel positions of their own.

    Tap ky of output row oy is summed into input row ``y = stride·oy + dilation·ky - padding``: so an input row meets
    exactly the taps with ``dilation·ky ≡ y + padding (mod stride)``, and the zeros that a stride dilates the gradient
    with never come up. Phases that no tap or no pixel falls into have no products.
    """
    phases = batch["stride"] ** 2
    row = np.repeat(np.arange(len(batch)), phases)
    phase = np.arange(len(row)) - np.repeat(np.cumsum(phases) - phases, phases)
    part, stride = batch.take(row), batch["stride"][row]
    pixels_y, taps_y, inside_y = _axis_phase(part, "height", phase // stride)
    pixels_x, taps_x, inside_x = _axis_phase(part, "width", phase % stride)
    taps, pixels = taps_y * taps_x, pixels_y * pixels_x
    lines = _lines(
        kernel[row],
        lanes,
        taps=taps,
        channels=part["out_channels"] // part["groups"],
        first=part["batch"] * pixels,
        second=part["in_channels"] // part["groups"],
        repeats=part["groups"],
        first_inside=inside_y * inside_x / np.maximum(taps * pixels, 1),
    )
    return lines.take(taps * pixels > 0)


_DIRECTIONS = {"forward": _forward, "input_grad": _input_grad, "weight_grad": _weight_grad}


def _output(batch: KernelBatch) -> tuple[np.ndarray, np.ndarray]:
    height, width = conv_output(batch)
    return height.astype(np.int64), width.astype(np.int64)


def _pairs(batch: KernelBatch, axis: str) -> np.ndarray:
    """For each tap along an axis, the outputs whose input lies within the tensor, shape (n, longest kernel).

    Those are the o with ``0 <= stride·o + dilation·tap - padding < extent``; taps beyond a kernel's own have none.
    """
    tap = np.arange(batch[f"kernel_{axis}"].max())
    shift = (batch["padding"] - batch["dilation"] * tap[:, None]).T
    stride, extent = batch["stride"][:, None], batch[axis][:, None]
    outputs = _output(batch)[axis == "width"][:, None]
    begin = np.maximum(_ceil(shift, stride), 0)
    end = np.minimum((extent - 1 + shift) // stride + 1, outputs)
    return np.where(tap < batch[f"kernel_{axis}"][:, None], np.maximum(end - begin, 0), 0)


def _inside(batch: KernelBatch) -> np.ndarray:
    """Share of the pairs of an output and a tap whose input lies within the tensor, shape (n,)."""
    height, width = _output(batch)
    taps = batch["kernel_height"] * batch["kernel_width"]
    return _pairs(batch, "height").sum(1) * _pairs(batch, "width").sum(1) / (taps * height * width)


def _axis_phase(batch: KernelBatch, axis: str, phase: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(input positions, taps, pairs within the tensor) of one phase along an axis: positions y with
    ``y + padding ≡ phase (mod stride)``.
    """
    stride = batch["stride"]
    begin = (phase - batch["padding"]) % stride
    positions = np.maximum(_ceil(batch[axis] - begin, stride), 0)
    tap = np.arange(batch[f"kernel_{axis}"].max())
    own = (batch["dilation"][:, None] * tap - phase[:, None]) % stride[:, None] == 0
    own &= tap < batch[f"kernel_{axis}"][:, None]
    return positions, own.sum(1), (_pairs(batch, axis) * own).sum(1)
