"""Rows of a batch that are the same kernel, found without looking at columns that hold one value."""

from __future__ import annotations

from functools import cache

import numpy as np

from neusight.kernels.families import KernelBatch, is_single


@cache
def _factors() -> np.ndarray:
    """Odd numbers, by which the columns of a row are mixed into one number. Made when they are first needed: NumPy's
    generators take longer to load than a cold answer has time for.
    """
    return np.random.default_rng(0).integers(1 << 62, size=64, dtype=np.uint64) * np.uint64(2) + np.uint64(1)


def distinct_rows(batch: KernelBatch) -> tuple[np.ndarray, np.ndarray]:
    """One row of each distinct kernel, and for every row of the batch its place among those; all rows, where columns
    other than numbers differ.
    """
    varying = [column for column in batch.columns.values() if not is_single(column)]
    if not varying:
        return np.zeros(1, np.int64), np.zeros(len(batch), np.int64)
    everything = np.arange(len(batch))
    if any(column.dtype not in (np.int64, np.float64) for column in varying):
        return everything, everything
    mixed = np.zeros(len(batch), np.uint64)
    for factor, column in zip(_factors(), varying, strict=False):
        mixed += np.ascontiguousarray(column).view(np.uint64) * factor
    _, rows, where = np.unique(mixed, return_index=True, return_inverse=True)
    # Two kernels that mix into the same number are as good as impossible, and would be seen here.
    if len(rows) == len(batch) or any((column[rows][where] != column).any() for column in varying):
        return everything, everything
    return rows, where
