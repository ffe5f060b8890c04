"""Features of kernels with a law of their own: what limits them, how they lie on the device, who runs them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from neusight.errors import CoverageError
from neusight.executors.gpu.features.situation import LawfulSituation, Situation
from neusight.kernels.implementations import trait_names, traits_of
from neusight.kernels.work import element_bytes

LEAST_SHARE = 2.0**-8
"""Of the expected time, below which a resource no longer counts (numerics)."""
SHAPES = {
    "attention": (
        *("log2_blocks_per_sm", "round_fill", "tile_fill", "log2_key_tiles", "log2_parts", "log2_rows", "log2_queries"),
        *("log2_keys", "log2_group", "log2_width", "cache_size", "window_share"),
    ),
    "moe": (
        *("rows", "row_fill", "intensity", "groups", "idle_groups", "skew", "waves", "wave_fill", "elsewhere"),
        *("width", "depth", "block", "narrow", "triton", "usual"),
    ),
    "stream": (*("hot", "l2_fill", "waves", "cols", "flops", "bytes", "passes", "aligned"),),
}
"""Inputs that laws describe, see ``attention_shape``, ``moe_shape`` and ``stream_shape``: ``<law>_<name>``."""


def _share(part_s: np.ndarray, s: Situation) -> np.ndarray:
    """log2 of a part of the expected time, clipped."""
    return np.asarray(np.log2(np.clip(part_s / s.expected_s, LEAST_SHARE, 1.0)))


def _column(s: Situation, name: str, absent: str | bool) -> np.ndarray:
    """A column of the kernels, ``absent`` for families without it."""
    return s.batch[name] if name in s.batch.columns else np.full(len(s.batch), absent)


def _hot(s: Situation) -> np.ndarray:
    """Share of operands that an earlier use left in L2."""
    return s.hot if isinstance(s, LawfulSituation) else np.zeros(len(s.batch))


def _rows_of_tile(s: Situation) -> np.ndarray:
    """Share of the tiles' rows that the product fills."""
    m = s.batch["m"].astype(float) if "m" in s.batch.columns else s.tiling.down * s.tiling.tile_m
    return m / (np.ceil(m / s.tiling.tile_m) * s.tiling.tile_m)


def _log2_products_waves(s: Situation) -> np.ndarray:
    """Tiles of 128x128 an SM: waves that do not hang on the tile that was picked."""
    tiles = s.tiling.tile_count * s.tiling.tile_m * s.tiling.tile_n / (128.0 * 128.0)
    return np.log2(np.clip(tiles / s.device.sm_count, 2.0**-8, 2.0**6))


def _aligned_16_bytes(s: Situation) -> np.ndarray:
    """Inner and outer extent are multiples of eight elements."""
    names = [name for name in ("n", "k") if name in s.batch.columns]
    return np.all([s.batch[name] % 8 == 0 for name in names], axis=0) if names else np.ones(len(s.batch), dtype=bool)


def _trait(s: Situation, name: str) -> np.ndarray:
    """A trait of the implementation that runs, of ``implementations.toml``."""
    return traits_of("inputs", s.conditions)[name]


def _of_shape(s: Situation, law: str, name: str) -> np.ndarray:
    """An input that a law itself describes."""
    if not isinstance(s, LawfulSituation) or s.law != law:
        raise CoverageError(f"{s.batch.family} kernels on {s.device.id} are not of the law '{law}'")
    return np.asarray(s.shape[name], dtype=float)


LAWFUL_FORMULAS: dict[str, Callable[[Situation], np.ndarray]] = {
    # log2 of what takes how much of the expected time: arithmetic, traffic of DRAM and of L2, a chain of dependent
    # accesses; start, end and further small kernels.
    "compute_share": lambda s: _share(s.times.compute_s * s.throttle, s),
    "dram_share": lambda s: _share(s.times.dram_s, s),
    "l2_share": lambda s: _share(s.times.l2_s, s),
    "serial_share": lambda s: _share(s.times.serial_s, s),
    "added_share": lambda s: _share(s.fixed_overhead_s, s),
    # By how much the power limit stretches the kernel.
    "log2_throttle": lambda s: np.asarray(np.log2(s.throttle)),
    "hot": _hot,
    # Bytes touched between two uses of an operand, over L2; cold ones count as 16 times L2.
    "log2_cycled_over_l2": lambda s: np.log2(
        np.clip(s.conditions.cycled_bytes / s.device.l2_capacity_bytes, 2.0**-6, 2.0**4)
    ),
    # Parts into which the inner extent is cut.
    "log2_parts": lambda s: np.log2(np.broadcast_to(np.asarray(s.tiling.parts, dtype=float), (len(s.batch),))),
    # Rows of the product, up to 4096.
    "log2_rows": lambda s: np.log2(np.clip(s.tiling.down * s.tiling.tile_m, 1.0, 4096.0)),
    "rows_of_tile": _rows_of_tile,
    "log2_products_waves": _log2_products_waves,
    "aligned_16_bytes": _aligned_16_bytes,
    # Timed inside of a CUDA graph, or by a profiler, without launch.
    "in_graph": lambda s: s.conditions.timing == "graph",
    "profiled": lambda s: s.conditions.timing == "profiler",
    # Operands that are not random, which draw less power.
    "equal_values": lambda s: ~s.conditions.random.astype(bool),
    # How often the bits of operands are half of 16: 1 for 8-bit arithmetic, 2 for 4-bit.
    "halvings": lambda s: np.maximum(np.log2(2.0 / element_bytes(s.batch)), 0.0),
    # 8-bit operands with a scale for each block; activations that are made 8-bit on the way; weights in fewer bits.
    "scaled_in_blocks": lambda s: _column(s, "scaling", "") == "block",
    "quantises": lambda s: _column(s, "quantised", False),
    "narrow_weights": lambda s: _column(s, "weight_dtype", "") != "",
    **{name: partial(_trait, name=name) for name in trait_names("inputs")},
    **{f"{law}_{name}": partial(_of_shape, law=law, name=name) for law, names in SHAPES.items() for name in names},
}
"""By name."""
