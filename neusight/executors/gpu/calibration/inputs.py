"""What a correction may depend on: points in a space of dimensionless inputs, a few for each tile model."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from neusight.executors.gpu.expected.laws import answering_model
from neusight.executors.gpu.features import Situation, feature_matrix
from neusight.executors.gpu.tile_models.artifact import kernel_kinds
from neusight.kernels import KernelBatch
from neusight.kernels.columns import ColumnRecord
from neusight.kernels.conditions import USUAL_ENGINE, Conditions
from neusight.quick_dataclasses import dataclass

_LANES = {
    "log2_duration": 16.0,
    "log2_waves": 4.0,
    "wave_efficiency": 0.1,
    "padding_efficiency": 1.0,
    "log2_depth": 4.0,
    "log2_tile_m": 0.7,
    "log2_tile_n": 1.5,
    "compute_over_dram": 1.0,
    "log2_throttle": 0.25,
}
"""Of products in float32 (fitted: as ``LENGTHS``)."""
_CONVOLUTIONS = {
    **{"log2_duration": 1.5, "compute_over_dram": 4.0, "log2_throttle": 0.5, "log2_images": 2.0, "log2_image": 8.0},
    **{"log2_in_channels": 10.0, "log2_out_channels": 10.0, "winograd_fill": 1.0, "plan_log2_waves": 8.0},
    **{"plan_wave_efficiency": 0.5, "plan_behind_implicit": 2.0, "plan_behind_fused": 1.0, "plan_behind_steps": 2.0},
}
"""Of convolutions in float32 (fitted: as ``LENGTHS``)."""
_LIMITS = {"log2_duration": 4.0, "compute_share": 1.0, "dram_share": 2.5, "added_share": 2.5, "log2_throttle": 0.25}
"""What limits a kernel with a law of its own (fitted: as ``LENGTHS``)."""
_RUN = {"hot": 0.5, "in_graph": 1.0}
"""What is in caches, and how it is launched (fitted: as ``LENGTHS``)."""

LENGTHS: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "gemm": _LANES,
        "conv2d": _CONVOLUTIONS,
        "matrix": {
            **(_LIMITS | _RUN),
            **{"log2_products_waves": 2.0, "wave_efficiency": 0.25, "padding_efficiency": 0.5, "log2_depth": 2.0},
            **{"log2_rows": 2.0, "log2_parts": 1.0, "equal_values": 1.0},
        },
        "attention": {
            **(_LIMITS | _RUN | {"log2_duration": 8.0, "serial_share": 2.5}),
            **{"attention_log2_blocks_per_sm": 4.0, "attention_round_fill": 0.5, "attention_log2_parts": 1.0},
            **{"attention_log2_queries": 8.0, "attention_log2_keys": 4.0, "attention_log2_group": 2.0},
            **{"attention_log2_width": 0.25, "attention_cache_size": 1.0, "attention_window_share": 0.25},
        },
        "moe": {
            **(_LIMITS | _RUN),
            **{"moe_rows": 2.0, "moe_waves": 2.0, "moe_wave_fill": 0.25, "moe_groups": 2.0, "moe_skew": 1.0},
            **{"moe_intensity": 2.0, "moe_width": 2.0, "moe_depth": 2.0},
        },
        "stream": {
            **{"log2_duration": 16.0, "dram_share": 1.0, "added_share": 1.0, "serial_share": 0.5, "in_graph": 1.0},
            **{"stream_hot": 0.25, "stream_l2_fill": 8.0, "stream_cols": 0.2, "stream_flops": 8.0, "stream_bytes": 2.0},
        },
    }
)
"""Inputs of each tile model with the distance at which kernels begin to say little of each other, in units of the
formulas of ``neusight.executors.gpu.features``: those under which the errors of physics alone on measured GPUs are most
probable, by a coarse search (fitted: to their likelihood)."""


@dataclass(frozen=True)
class Points(ColumnRecord):
    """Kernels as points of the correction; every column has n rows.

    ``model`` is the tile model that answers them, ``kind`` what errors are told by, see ``kinds_of``, ``run`` who runs
    them with what: programs of their own for the same work. ``inputs`` has shape (n, width): a model's inputs over
    their lengths, in the order of ``LENGTHS``, and zeros after them. They mean something between kernels of one model
    only.
    """

    model: np.ndarray
    kind: np.ndarray
    op: np.ndarray
    run: np.ndarray
    inputs: np.ndarray


WIDTH = max(len(lengths) for lengths in LENGTHS.values())


def kinds_of(batch: KernelBatch) -> np.ndarray:
    """``kernel_kinds`` of products and of row-wise kernels, shape (n,); others have their family for an operator."""
    if batch.family in ("gemm", "row_reduction"):
        return kernel_kinds(batch)
    return kernel_kinds(KernelBatch(batch.family, {**batch.columns, "op": np.full(len(batch), batch.family)}))


def points_of(s: Situation) -> Points:
    """The kernels of a situation, which one tile model answers."""
    batch = s.batch
    model = str(answering_model(batch, s.device)[0])
    lengths = LENGTHS[model]
    inputs = np.zeros((len(batch), WIDTH))
    inputs[:, : len(lengths)] = feature_matrix(s, list(lengths)) / list(lengths.values())
    return Points(np.full(len(batch), model), kinds_of(batch), batch["op"].astype(str), _runs(s.conditions), inputs)


def _runs(conditions: Conditions) -> np.ndarray:
    """Engine and variant; rows that name no engine count as what is asked for without one, PyTorch's."""
    engine = conditions.engine.astype(str)
    return np.char.add(np.char.add(np.where(engine == "", USUAL_ENGINE, engine), "/"), conditions.variant.astype(str))
