"""Launches of reductions: softmax, normalisations, sums and scans, and their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from neusight.collect.launches import Launch, Operands, Source, factors, launcher, unmeasurable
from neusight.kernels import RowReduction

aten = torch.ops.aten
Makers = tuple[Callable[[Source, RowReduction], Operands], Callable[..., Any]]


def _matrix(source: Source, kernel: RowReduction) -> Operands:
    return (source.normal(kernel.rows, kernel.cols, dtype=kernel.dtype),)


def _result_and_gradient(source: Source, kernel: RowReduction) -> Operands:
    (x,) = _matrix(source, kernel)
    log = kernel.op.startswith("log")
    result = torch.log_softmax(x, -1) if log else torch.softmax(x, -1)
    return source.normal(kernel.rows, kernel.cols, dtype=kernel.dtype), result, x.dtype


def _scale_and_shift(source: Source, kernel: RowReduction) -> Operands:
    weight, bias = (source.normal(kernel.cols, dtype=kernel.dtype) for _ in range(2))
    return (*_matrix(source, kernel), weight, bias)


def _normalised(source: Source, rows: int, cols: int, dtype: str) -> Operands:
    """What a layer norm's gradient takes: gradient, input, statistics, scale and shift."""
    x, weight, bias = (source.normal(*s, dtype=dtype) for s in ((rows, cols), (cols,), (cols,)))
    _, mean, deviation = torch.native_layer_norm(x, [cols], weight, bias, 1e-5)
    return source.normal(rows, cols, dtype=dtype), x, [cols], mean, deviation, weight, bias


def _images(source: Source, kernel: RowReduction) -> torch.Tensor:
    """A batch of at most 64 images, channels as rows."""
    pixels, images = factors(kernel.cols, 64)
    return source.normal(images, kernel.rows, pixels, dtype=kernel.dtype)


def _batch_norm(source: Source, kernel: RowReduction) -> Operands:
    weight, bias, mean = (source.normal(kernel.rows, dtype=kernel.dtype) for _ in range(3))
    return _images(source, kernel), weight, bias, mean, mean.abs() + 1.0


def _batch_norm_backward(source: Source, kernel: RowReduction) -> Operands:
    x, weight, bias, mean, variance = _batch_norm(source, kernel)
    _, saved_mean, saved_deviation = torch.native_batch_norm(x, weight, bias, mean, variance, True, 0.1, 1e-5)
    return _images(source, kernel), x, weight, mean, variance, saved_mean, saved_deviation


_FORMS: dict[str, Makers] = {
    "softmax": (_matrix, lambda x: torch.softmax(x, -1)),
    "log_softmax": (_matrix, lambda x: torch.log_softmax(x, -1)),
    "softmax_backward": (_result_and_gradient, lambda g, y, t: aten._softmax_backward_data(g, y, -1, t)),
    "log_softmax_backward": (_result_and_gradient, lambda g, y, t: aten._log_softmax_backward_data(g, y, -1, t)),
    "layer_norm": (_scale_and_shift, lambda x, w, b: torch.native_layer_norm(x, w.shape, w, b, 1e-5)),
    "layer_norm_backward": (
        lambda source, kernel: _normalised(source, kernel.rows, kernel.cols, kernel.dtype),
        lambda *operands: aten.native_layer_norm_backward(*operands, [True, False, False]),
    ),
    # Its rows are the columns of the layer: one sum of the gradient for each.
    "layer_norm_weight_backward": (
        lambda source, kernel: _normalised(source, kernel.cols, kernel.rows, kernel.dtype),
        lambda *operands: aten.native_layer_norm_backward(*operands, [False, True, True]),
    ),
    "batch_norm": (_batch_norm, lambda *operands: aten.native_batch_norm(*operands, True, 0.1, 1e-5)),
    "batch_norm_backward": (
        _batch_norm_backward,
        lambda *operands: aten.native_batch_norm_backward(*operands, True, 1e-5, [True, True, True]),
    ),
    # Sums in models are mostly those of bias gradients: over the rows of a row-major matrix.
    "sum": (
        lambda source, kernel: (source.normal(kernel.cols, kernel.rows, dtype=kernel.dtype),),
        lambda x: torch.sum(x, 0),
    ),
    "mean": (_matrix, lambda x: torch.mean(x, -1)),
    "max": (_matrix, lambda x: torch.max(x, -1)),
    "argmax": (_matrix, lambda x: torch.argmax(x, -1)),
    "cumsum": (_matrix, lambda x: torch.cumsum(x, -1)),
    "sort": (_matrix, lambda x: torch.sort(x, -1)),
}


@launcher("row_reduction")
def row_reduction(kernel: RowReduction) -> Launch:
    """Rows over the last dimension of a row-major matrix; batch norm over images, sums over the first dimension."""
    if kernel.op not in _FORMS:
        raise unmeasurable(kernel)
    make, run = _FORMS[kernel.op]
    return Launch(kernel=kernel, operands=lambda source: make(source, kernel), run=run)
