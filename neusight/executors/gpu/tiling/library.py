"""Which tile a BLAS library picks: a discrete-choice model over the tiles that its kernels are compiled for.

The probability of a tile is ``softmax(intercept[table, op, tile] + weights[op] · features(tile, shape, device))``
(McFadden 1974). The intercepts say what a table of the library prefers, the features what a tile costs on a device. A
library keeps a table for each compute capability; on one that was never seen the tile of least cost by physics is the
better guess, among those of nearly that cost the one that its generation prefers. Trained on kernel names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from neusight.devices.spec import GpuSpec
from neusight.errors import ArtifactError
from neusight.kernels.work import ACCUMULATOR_BYTES
from neusight.laws.physics import Physics
from neusight.laws.waves import idle_factor, issue_share, operand_factor, resident_blocks, rounds, tile_overhead_s
from neusight.paths import read_json, tile_models_dir
from neusight.quick_dataclasses import dataclass

PROTOCOL = 3
"""Version of the file that a fitted choice is stored in (definition)."""
TILES: tuple[tuple[int, int], ...] = (
    *((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (128, 32), (32, 128)),
    *((64, 64), (64, 32), (32, 64), (32, 32)),
)
"""(tile_m, tile_n) in elements of row-major C[m,n] (cited: the names of float32 kernels of cuBLAS 10 to 12)."""
FEATURES = ("log_cost", "log_whole_cost", "padding", "idle", "idle_times_depth", "streaming", "streaming_when_full")
"""What a tile's score is made of, see ``choice_features``."""
NARROW = 4.0
"""By how much a tile of intensity 1 is slower than one without end, in the cost that the choice is fitted on
(definition: of a feature, which the fit scales)."""
SLACK = {"linear": 0.0, "bmm": 0.1}
"""By how much (logarithm) the time of a tile may exceed the least for the preference of a library's generation to count
where a compute capability was not seen; chosen by leaving each out (fitted: by hand). Preferences for ``linear`` do not
carry over (P4 runs 128x128, P100 128x32), those for ``bmm`` do."""
ANY = "any"
"""What all libraries share."""
SPLITS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
"""Parts that are considered; those seen in the grids of measured kernels reach from 2 to about 16 (cited: those
grids)."""
LEAST_DEPTH = 256.0
"""Inner extent [elements] that is left to a part, at least (assumption: as much as hides the sum of two parts; grids of
products in float32 would tell)."""
_TILE_M = np.array([t[0] for t in TILES], dtype=float)[:, None]
_TILE_N = np.array([t[1] for t in TILES], dtype=float)[:, None]
_ALL_TILES = _TILE_M, _TILE_N


def table_of(device: GpuSpec) -> str:
    """The library's table of tiles that a device uses: one for each compute capability."""
    if device.vendor == "nvidia" and device.compute_capability:
        return device.compute_capability
    return device.facts.blas_generation


class Products(NamedTuple):
    """``b`` products C[m,n] = A[m,k] B[k,n] a kernel: extents [elements] as floats, each of shape (n,)."""

    m: np.ndarray
    n: np.ndarray
    k: np.ndarray
    b: np.ndarray

    def take(self, rows: np.ndarray) -> Products:
        """The rows that ``rows`` selects."""
        return Products(*(extent[rows] for extent in self))


def choice_features(products: Products, device: GpuSpec) -> tuple[np.ndarray, ...]:
    r"""What each tile of the library would cost [-], one array of shape (tiles, n) for each of ``FEATURES``.

    .. math::
        w = b \lceil m / t_m \rceil \lceil n / t_n \rceil / N,\quad
        c = \max(w, 1)\, t_m t_n (1 + 4 / i),\quad i = t_m t_n / (t_m + t_n)

    ``log_cost`` and ``log_whole_cost`` (whole waves) are logarithms of c over the cheapest tile's, ``padding`` that of
    covered over useful elements, ``idle`` the octaves of waves below one. ``streaming`` is DRAM time over arithmetic
    time if no read hit the cache: bandwidth-poor devices get larger tiles.

    Args:
        products: extents [elements].
        device: N its SMs; its float32 rate [FLOP/s] and DRAM bandwidth [B/s].

    Source: assumption (candidates); their weights are fitted to kernel names (McFadden 1974).
    Validity: float32 products; 16-bit and narrower ones take the tile of least cost.
    """
    m, n, k, b = products
    down, across = np.ceil(m / _TILE_M), np.ceil(n / _TILE_N)
    waves = b * down * across / device.sm_count
    intensity = _TILE_M * _TILE_N / (_TILE_M + _TILE_N)
    cost = np.maximum(waves, 1.0) * _TILE_M * _TILE_N * (1 + NARROW / intensity)
    whole = np.ceil(waves) * _TILE_M * _TILE_N * (1 + NARROW / intensity)
    log_cost, log_whole = np.log(cost / cost.min(axis=0)), np.log(whole / whole.min(axis=0))
    padding = np.log(down * _TILE_M * across * _TILE_N / (m * n))
    idle = np.maximum(0.0, -np.log2(waves))
    depth = idle * np.log2(np.maximum(k, 1) / 256.0)
    balance = device.gemm_flops_per_s("float32") / device.dram_bandwidth_bytes_per_s
    streaming = np.broadcast_to(np.log1p(2.0 * balance / intensity), waves.shape)
    full = streaming * np.clip(np.log2(waves), 0.0, 4.0)
    return log_cost, log_whole, padding, idle, depth, streaming, full


def tile_costs(
    products: Products,
    tiles: tuple[np.ndarray, np.ndarray],
    element_bytes: np.ndarray,
    flops_per_s: np.ndarray | float,
    parts: float = 1.0,
    *,
    device: GpuSpec,
    physics: Physics,
) -> np.ndarray:
    r"""Time of products by physics alone [s, up to a factor], each tile's inner extent cut into ``parts``.

    .. math::
        t = \left(t_a^p + t_2^p\right)^{1/p},\quad
        t_a = r \left(f \frac{2 t_m t_n k / s}{R / N} + t_0\right),\quad
        t_2 = \frac{T (t_m + t_n) (k / s) e + 8\, s\, C}{\eta W_2}

    Arithmetic of the busiest SM's rounds r, slower where a narrow tile needs more operands from shared memory, and
    the L2 traffic of all T blocks, with partial results of C elements, written and read. Matrix units are fast enough
    to make the last count, and so get larger tiles.

    Args:
        products: extents [elements].
        tiles: t_m and t_n, rows and columns of a block, columns that go with those of ``products``.
        element_bytes: e [B].
        flops_per_s: R, peak for their dtype [FLOP/s].
        device: N its SMs, W_2 its L2 bandwidth [B/s].
        physics: the constants.
        parts: s, of the inner extent.

    Source: the laws of ``waves`` (r, f, t_0) and the constants of ``Physics`` (p, η); split-K as in CUTLASS.
    Validity: no kernel name needed. Held-out compute capabilities: of float32 ``linear`` it does better than another
    capability's preferences, see ``SLACK``.
    """
    (tile_m, tile_n), depth, overlap = tiles, products.k / parts, physics.cuda_cores.overlap
    blocks = parts * products.b * np.ceil(products.m / tile_m) * np.ceil(products.n / tile_n)
    compute_s = arithmetic_s(tiles, blocks, depth, flops_per_s, device=device, physics=physics)
    partial_bytes = 2.0 * ACCUMULATOR_BYTES * parts * products.b * products.m * products.n if parts > 1.0 else 0.0
    l2_bytes = blocks * (tile_m + tile_n) * depth * element_bytes + partial_bytes
    l2_s = l2_bytes / (device.sustained_l2_bytes_per_s * physics.memory.l2_share)
    return np.asarray((compute_s**overlap + l2_s**overlap) ** (1.0 / overlap))


def arithmetic_s(
    tiles: tuple[np.ndarray, np.ndarray],
    blocks: np.ndarray,
    depth: np.ndarray,
    flops_per_s: np.ndarray | float,
    *,
    device: GpuSpec,
    physics: Physics,
) -> np.ndarray:
    r"""Time of the arithmetic of so many blocks [s]: rounds on the busiest SM, each at the rate its shape sustains.

    .. math:: t = r \left(f_{idle} f_{operands} \frac{2 t_m t_n k}{\eta R / N} + t_0\right)

    Source: fitted form and constants, see ``Physics``. Validity: tiles of ``TILES``.
    """
    (tile_m, tile_n), lanes, peak = tiles, physics.cuda_cores, flops_per_s / device.sm_count
    elements, rate = tile_m * tile_n, peak * lanes.peak_share * issue_share(device, physics)
    busiest = rounds(blocks, device.sm_count, lanes.tail_share)
    resident = np.minimum(resident_blocks(elements, device), np.maximum(busiest, 1.0))
    slower = operand_factor(tile_m, tile_n, peak, device, physics) * idle_factor(elements, resident, lanes.idle_cost)
    each_s = 2.0 * elements * depth / rate * slower + tile_overhead_s(elements, resident, device, physics)
    return np.asarray(busiest * each_s)


def best_cut(
    products: Products,
    tiles: tuple[np.ndarray, np.ndarray],
    element_bytes: np.ndarray,
    flops_per_s: np.ndarray | float,
    *,
    device: GpuSpec,
    physics: Physics,
    cuttable: bool = True,
) -> tuple[np.ndarray, np.ndarray]:
    r"""Into how many parts [-] the inner extent of each tile is cut, and the time [s, up to a factor] with them.

    .. math:: \min_s t(s),\quad k / s \ge 256

    Arguments as of ``tile_costs``, and whether the library cuts any.

    Source: split-K as in NVIDIA's CUTLASS. Validity: single products; batched ones are not cut. That a cut had to be
    1.1 to 1.3 times as fast, as some libraries have it, was no better on any of nine GPUs.
    """
    cost = partial(tile_costs, products, tiles, element_bytes, flops_per_s, device=device, physics=physics)
    least = cost()
    blocks = np.ceil(products.m / tiles[0]) * np.ceil(products.n / tiles[1])
    best, idle = np.ones_like(least), blocks < physics.matrix.idle_rounds * device.sm_count
    for parts in SPLITS[1:] if cuttable else ():
        able = (products.b == 1.0) & (products.k / parts >= LEAST_DEPTH) & idle
        time_s = cost(float(parts))
        better = able & (time_s < least)
        best, least = np.where(better, parts, best), np.where(better, time_s, least)
    return best, least


def least_cost_tile(
    products: Products,
    element_bytes: np.ndarray,
    flops_per_s: float,
    *,
    device: GpuSpec,
    physics: Physics,
    cuttable: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """The (tile_m, tile_n) [elements] of least cost with its best cut, where no kernel name was ever observed; shape
    (n,).
    """
    _, costs = best_cut(
        products, _ALL_TILES, element_bytes, flops_per_s, device=device, physics=physics, cuttable=cuttable
    )
    best = np.argmin(costs, axis=0)
    return _TILE_M[best, 0], _TILE_N[best, 0]


@dataclass(frozen=True)
class TileChoice:
    """Fitted choice: ``intercepts`` by ``table/op``, ``library/op`` and ``any/op``, one a tile, and ``weights`` by
    ``table/op``, and by op for all tables that were not seen, one a feature.
    """

    intercepts: Mapping[str, np.ndarray]
    weights: Mapping[str, np.ndarray]
    accuracy: Mapping[str, Any]

    def seen(self, op: str, device: GpuSpec) -> bool:
        """Whether tiles of the device's table were observed."""
        return f"{table_of(device)}/{op}" in self.intercepts

    def scores(self, op: str, device: GpuSpec, features: tuple[np.ndarray, ...]) -> np.ndarray:
        """Log-odds of each tile, shape (tiles, n): with the preferences of the device's table, else of its library,
        else of all libraries.
        """
        known = (f"{owner}/{op}" for owner in (table_of(device), device.facts.blas_generation, ANY))
        intercept = next(self.intercepts[key] for key in known if key in self.intercepts)
        score = np.broadcast_to(intercept[:, None], features[0].shape).copy()
        weights = self.weights.get(f"{table_of(device)}/{op}", self.weights[op])
        for weight, feature in zip(weights, features, strict=True):
            score += weight * feature
        return score

    def pick(
        self, op: str, products: Products, device: GpuSpec, physics: Physics, cuttable: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """The likeliest (tile_m, tile_n) [elements] of each float32 product, each of shape (n,)."""
        if self.seen(op, device):
            score = self.scores(op, device, choice_features(products, device))
        else:
            score = self._cheap_and_preferred(op, products, device, physics, cuttable)
        best = np.argmax(score, axis=0)
        return _TILE_M[best, 0], _TILE_N[best, 0]

    def _cheap_and_preferred(
        self, op: str, products: Products, device: GpuSpec, physics: Physics, cuttable: bool
    ) -> np.ndarray:
        """Scores where the table was not seen: preferences among the tiles within ``SLACK`` of the least cost."""
        size, rate = np.full(len(products.m), 4.0), device.gemm_flops_per_s("float32")
        _, costs = best_cut(products, _ALL_TILES, size, rate, device=device, physics=physics, cuttable=cuttable)
        if SLACK[op] == 0.0:
            return -costs
        score = self.scores(op, device, choice_features(products, device))
        return np.where(costs <= costs.min(axis=0) * np.exp(SLACK[op]), score, -np.inf)

    def save(self, path: Path) -> None:
        """Write as JSON."""
        content = {
            "protocol": PROTOCOL,
            "tiles": TILES,
            "features": FEATURES,
            "intercepts": {name: np.round(v, 4).tolist() for name, v in self.intercepts.items()},
            "weights": {name: np.round(v, 4).tolist() for name, v in self.weights.items()},
            "accuracy": self.accuracy,
        }
        path.write_text(json.dumps(content, indent=1) + "\n")

    @staticmethod
    def load(path: Path) -> TileChoice:
        """Read a fitted choice.

        Raises:
            ArtifactError: missing or unreadable file, other protocol, tiles or features.
        """
        try:
            content = read_json(path)
        except (OSError, ValueError) as error:
            raise ArtifactError(f"cannot read the tile choice {path}: {error}; run neusight train") from None
        if not isinstance(content, dict):
            raise ArtifactError(f"{path} is no tile choice: run neusight train")
        for name, expected in (("protocol", PROTOCOL), ("tiles", [list(t) for t in TILES]), ("features", [*FEATURES])):
            if content.get(name) != expected:
                raise ArtifactError(f"{path} has other {name} than this version of neusight: run neusight train")
        try:
            arrays = {key: {name: np.array(v) for name, v in content[key].items()} for key in ("intercepts", "weights")}
            return TileChoice(accuracy=content["accuracy"], **arrays)
        except (KeyError, AttributeError) as error:
            raise ArtifactError(f"{path}: tile choice is not as expected ({error}): run neusight train") from None


def shipped_choice(directory: Path | None = None) -> TileChoice:
    """The tile choice beside the tile models in ``directory`` (default: those that ship)."""
    return _choice((directory or tile_models_dir()) / "tile_choice.json")


@lru_cache(maxsize=8)
def _choice(file: Path) -> TileChoice:
    return TileChoice.load(file)


def filling_parts(tiles: np.ndarray, depth: np.ndarray, room: np.ndarray) -> np.ndarray:
    r"""Parts [-] into which the inner extent is cut where a library fills the device whatever that costs, shape (n,).

    .. math:: s = \max\left(1, \min\left(\lfloor B / T \rfloor, \lfloor k / 256 \rfloor\right)\right)

    Args:
        tiles: T, blocks of the product without a cut [-].
        depth: k, inner extent [elements].
        room: B, blocks that the device holds at a time [-].

    Source: the grids of cuDNN's kernels for gradients of filters, which grow with the device. Validity: products
    whose results are few beside their operands.
    """
    return np.maximum(1.0, np.minimum(np.floor(room / tiles), np.floor(depth / LEAST_DEPTH)))
