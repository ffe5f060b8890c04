"""Features of kernels with a law of their own: what limits them, how they lie on the device, who runs them."""

from __future__ import annotations

import numpy as np

from neusight.errors import CoverageError
from neusight.executors.gpu.features.formulas import formula
from neusight.executors.gpu.features.situation import LawfulSituation, Situation
from neusight.kernels.implementations import trait_names, traits_of
from neusight.kernels.work import element_bytes

LEAST_SHARE = 2.0**-8
"""Of the expected time, below which a resource no longer counts (numerics)."""


def _share(part_s: np.ndarray, s: Situation) -> np.ndarray:
    """log2 of a part of the expected time, clipped."""
    return np.asarray(np.log2(np.clip(part_s / s.expected_s, LEAST_SHARE, 1.0)))


@formula
def compute_share(s: Situation) -> np.ndarray:
    """log2 of the arithmetic's share of the expected time."""
    return _share(s.compute_s * s.throttle, s)


@formula
def dram_share(s: Situation) -> np.ndarray:
    """log2 of the DRAM traffic's share of the expected time."""
    return _share(s.dram_s, s)


@formula
def l2_share(s: Situation) -> np.ndarray:
    """log2 of the L2 traffic's share of the expected time."""
    return _share(s.l2_s, s)


@formula
def serial_share(s: Situation) -> np.ndarray:
    """log2 of the share that a chain of dependent accesses takes of the expected time."""
    return _share(s.times.serial_s, s)


@formula
def added_share(s: Situation) -> np.ndarray:
    """log2 of the share of start, end and further small kernels in the expected time."""
    return _share(s.fixed_overhead_s, s)


@formula
def log2_throttle(s: Situation) -> np.ndarray:
    """By how much the power limit stretches the kernel."""
    return np.asarray(np.log2(s.throttle))


@formula
def hot(s: Situation) -> np.ndarray:
    """Share of operands that an earlier use left in L2."""
    return s.hot if isinstance(s, LawfulSituation) else np.zeros(len(s.batch))


@formula
def log2_cycled_over_l2(s: Situation) -> np.ndarray:
    """Bytes touched between two uses of an operand, over L2; cold ones count as 16 times L2."""
    return np.log2(np.clip(s.conditions.cycled_bytes / s.device.l2_capacity_bytes, 2.0**-6, 2.0**4))


@formula
def log2_parts(s: Situation) -> np.ndarray:
    """Parts into which the inner extent is cut."""
    return np.log2(np.broadcast_to(np.asarray(s.tiling.parts, dtype=float), (len(s.batch),)))


@formula
def log2_rows(s: Situation) -> np.ndarray:
    """Rows of the product, up to 4096."""
    return np.log2(np.clip(s.tiling.down * s.tiling.tile_m, 1.0, 4096.0))


@formula
def rows_of_tile(s: Situation) -> np.ndarray:
    """Share of the tiles' rows that the product fills."""
    m = s.batch["m"].astype(float) if "m" in s.batch.columns else s.tiling.down * s.tiling.tile_m
    return m / (np.ceil(m / s.tiling.tile_m) * s.tiling.tile_m)


@formula
def log2_products_waves(s: Situation) -> np.ndarray:
    """Tiles of 128x128 an SM: waves that do not hang on the tile that was picked."""
    tiles = s.tiling.tile_count * s.tiling.tile_m * s.tiling.tile_n / (128.0 * 128.0)
    return np.log2(np.clip(tiles / s.device.sm_count, 2.0**-8, 2.0**6))


@formula
def aligned_16_bytes(s: Situation) -> np.ndarray:
    """Inner and outer extent are multiples of eight elements."""
    names = [name for name in ("n", "k") if name in s.batch.columns]
    return np.all([s.batch[name] % 8 == 0 for name in names], axis=0) if names else np.ones(len(s.batch), dtype=bool)


@formula
def in_graph(s: Situation) -> np.ndarray:
    """Timed inside of a CUDA graph."""
    return s.conditions.timing == "graph"


@formula
def profiled(s: Situation) -> np.ndarray:
    """Timed by a profiler, without launch."""
    return s.conditions.timing == "profiler"


@formula
def equal_values(s: Situation) -> np.ndarray:
    """Operands that are not random, which draw less power."""
    return ~s.conditions.random.astype(bool)


@formula
def halvings(s: Situation) -> np.ndarray:
    """How often the bits of operands are half of 16: 1 for 8-bit arithmetic, 2 for 4-bit."""
    return np.maximum(np.log2(2.0 / element_bytes(s.batch)), 0.0)


@formula
def scaled_in_blocks(s: Situation) -> np.ndarray:
    """8-bit operands with a scale for each block."""
    return s.batch["scaling"] == "block" if "scaling" in s.batch.columns else np.zeros(len(s.batch), dtype=bool)


@formula
def quantises(s: Situation) -> np.ndarray:
    """Activations arrive in 16 bits and are made 8-bit on the way."""
    return s.batch["quantised"] if "quantised" in s.batch.columns else np.zeros(len(s.batch), dtype=bool)


@formula
def narrow_weights(s: Situation) -> np.ndarray:
    """Weights in fewer bits than the arithmetic."""
    return s.batch["weight_dtype"] != "" if "weight_dtype" in s.batch.columns else np.zeros(len(s.batch), dtype=bool)


def _run_by(name: str) -> None:
    """Register a trait of implementations as an input."""

    def trait(s: Situation) -> np.ndarray:
        return traits_of("inputs", s.conditions)[name]

    trait.__name__ = name
    trait.__doc__ = f"``{name}`` of ``implementations.toml``."
    formula(trait)


for _name in trait_names("inputs"):
    _run_by(_name)


def _of_shape(law: str, name: str) -> None:
    """Register an input that a law itself describes, as ``<law>_<name>``."""

    def shaped(s: Situation) -> np.ndarray:
        if not isinstance(s, LawfulSituation) or s.law != law:
            raise CoverageError(f"{s.batch.family} kernels on {s.device.id} are not of the law '{law}'")
        return np.asarray(s.shape[name], dtype=float)

    shaped.__name__ = f"{law}_{name}"
    shaped.__doc__ = f"``{name}`` of ``{law}_shape``."
    formula(shaped)


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
"""Inputs that laws describe, see ``attention_shape``, ``moe_shape`` and ``stream_shape``."""
for _law, _names in SHAPES.items():
    for _name in _names:
        _of_shape(_law, _name)
