"""What a correction may depend on: points in a space of dimensionless inputs, a few for each family of kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType

import numpy as np

from neusight.executors.gpu.features import Situation, feature_matrix
from neusight.executors.gpu.features.formulas import FORMULAS

_PRODUCT = {
    "log2_duration": 4.0,
    "log2_waves": 4.0,
    "wave_efficiency": 0.25,
    "padding_efficiency": 0.5,
    "log2_depth": 2.0,
    "log2_tile_m": 0.7,
    "log2_tile_n": 0.7,
    "compute_over_dram": 1.0,
    "log2_throttle": 0.25,
}
_STREAM = {"log2_duration": 4.0, "log2_bytes_over_l2": 4.0, "compute_over_dram": 4.0, "write_share": 1.0}

LENGTHS: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "gemm": _PRODUCT,
        "grouped_gemm": _PRODUCT,
        "attention": {name: _PRODUCT[name] for name in _PRODUCT if name != "padding_efficiency"},
        "conv2d": _PRODUCT | {"log2_in_channels": 2.0, "log2_out_channels": 2.0, "log2_image": 2.0},
        "elementwise": _STREAM,
        "memory": _STREAM,
        "optimizer": _STREAM,
        "row_reduction": {
            "log2_cols": 0.4,
            "log2_bytes_over_l2": 2.0,
            "log2_flight_over_l2": 2.0,
            "keeps_row_in_registers": 1.0,
        },
    }
)
"""Inputs of each family with the distance at which kernels begin to say little of each other: a factor of four in
extents and times of products, a step in what is yes or no. In units of the formulas of
``neusight.executors.gpu.features``."""


def _log2_duration(s: Situation) -> np.ndarray:
    """Expected execution over the time between two launches: clocks and power settle over longer times."""
    return np.log2(s.expected_s / s.device.launch_overhead_s)


def _log2_throttle(s: Situation) -> np.ndarray:
    """How much the power limit is expected to stretch the kernel."""
    return np.log2(s.throttle)


_OWN: Mapping[str, Callable[[Situation], np.ndarray]] = MappingProxyType(
    {"log2_duration": _log2_duration, "log2_throttle": _log2_throttle}
)


@dataclass(frozen=True)
class Points:
    """Kernels as points of the correction; every column has n rows.

    ``inputs`` has shape (n, width): a family's inputs over their lengths, in the order of ``LENGTHS``, and zeros after
    them. They mean something between kernels of one family only.
    """

    family: np.ndarray
    op: np.ndarray
    dtype: np.ndarray
    inputs: np.ndarray

    def __len__(self) -> int:
        return len(self.family)

    def take(self, index: np.ndarray) -> Points:
        """The points that ``index`` (integers or a mask) selects."""
        return Points(*(getattr(self, f.name)[index] for f in fields(Points)))

    @property
    def kind(self) -> np.ndarray:
        """Op of products and of row-wise kernels, family of others: what errors are told by."""
        by_op = np.isin(self.family, ["gemm", "row_reduction"])
        return np.where(by_op, self.op, self.family)


WIDTH = max(len(lengths) for lengths in LENGTHS.values())


def points_of(s: Situation) -> Points:
    """The kernels of a situation."""
    lengths = LENGTHS[s.batch.family]
    shared = [name for name in lengths if name in FORMULAS]
    columns = dict(zip(shared, feature_matrix(s, shared).T, strict=True))
    columns |= {name: _OWN[name](s) for name in lengths if name in _OWN}
    inputs = np.zeros((len(s.batch), WIDTH))
    for place, (name, length) in enumerate(lengths.items()):
        inputs[:, place] = columns[name] / length
    return Points(
        family=np.full(len(s.batch), s.batch.family),
        op=s.batch["op"].astype(str),
        dtype=s.batch["dtype"].astype(str),
        inputs=inputs,
    )


def joined(parts: Sequence[Points]) -> Points:
    """Several sets of points as one."""
    return Points(*(np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Points)))
