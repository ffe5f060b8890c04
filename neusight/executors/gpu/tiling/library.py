"""Which tile a BLAS library picks: a discrete-choice model over the tiles that its kernels are compiled for.

The probability of a tile is ``softmax(intercept[table, op, tile] + weights[op] · features(tile, shape, device))``
(McFadden 1974). The intercepts say what a table of the library prefers, the features what a tile costs on a device. A
library keeps a table for each compute capability; on one that was never seen the tile of least cost by physics is the
better guess, among those of nearly that cost the one that its generation prefers. Trained on kernel names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from neusight.devices.spec import DeviceSpec
from neusight.errors import ArtifactError
from neusight.laws.bounds import l2_bytes_per_s
from neusight.laws.dram import VOLTA
from neusight.laws.physics import DEFAULT
from neusight.laws.waves import rounds
from neusight.paths import read_json, tile_models_dir

PROTOCOL = 3
TILES: tuple[tuple[int, int], ...] = (
    *((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (128, 32), (32, 128)),
    *((64, 64), (64, 32), (32, 64), (32, 32)),
)
"""(tile_m, tile_n) in elements of row-major C[m,n]."""
FEATURES = ("log_cost", "log_whole_cost", "padding", "idle", "idle_times_depth", "streaming", "streaming_when_full")
SLACK = {"linear": 0.0, "bmm": 0.1}
"""By how much (logarithm) the time of a tile may exceed the least for the preference of a library's generation to count
where a compute capability was not seen; chosen by leaving each out. Preferences for ``linear`` do not carry over (P4
runs 128x128, P100 128x32), those for ``bmm`` do."""
ANY = "any"
"""What all libraries share."""
_TILE_M = np.array([t[0] for t in TILES], dtype=float)[:, None]
_TILE_N = np.array([t[1] for t in TILES], dtype=float)[:, None]


def library_of(device: DeviceSpec) -> str:
    """Generation of BLAS kernels that a device runs: cuBLAS names them after the first architecture they ran on.

    Raises:
        DeviceError: a compute capability that is no number.
    """
    if device.vendor != "nvidia":
        return "tensile" if device.vendor == "amd" else "other"
    newest = 8.0
    capability = device.capability or newest
    return "maxwell" if capability < VOLTA else "volta" if capability < newest else "ampere"


def table_of(device: DeviceSpec) -> str:
    """The library's table of tiles that a device uses: one for each compute capability."""
    if device.vendor == "nvidia" and device.compute_capability:
        return device.compute_capability
    return library_of(device)


def choice_features(
    m: np.ndarray, n: np.ndarray, k: np.ndarray, b: np.ndarray, device: DeviceSpec
) -> tuple[np.ndarray, ...]:
    """What each tile of the library would cost, one array of shape (tiles, n) for each of ``FEATURES``.

    The cost is rounds of tiles on the busiest SM, at an efficiency that grows with the tile's intensity. Streaming is
    DRAM time over arithmetic time if no read hit the cache: bandwidth-poor devices get larger tiles.
    """
    down, across = np.ceil(m / _TILE_M), np.ceil(n / _TILE_N)
    waves = b * down * across / device.sm_count
    intensity = _TILE_M * _TILE_N / (_TILE_M + _TILE_N)
    cost = np.maximum(waves, 1.0) * _TILE_M * _TILE_N * (1 + 4.0 / intensity)
    whole = np.ceil(waves) * _TILE_M * _TILE_N * (1 + 4.0 / intensity)
    log_cost, log_whole = np.log(cost / cost.min(axis=0)), np.log(whole / whole.min(axis=0))
    padding = np.log(down * _TILE_M * across * _TILE_N / (m * n))
    idle = np.maximum(0.0, -np.log2(waves))
    depth = idle * np.log2(np.maximum(k, 1) / 256.0)
    balance = device.gemm_flops_per_s("float32") / device.dram_bandwidth_bytes_per_s
    streaming = np.broadcast_to(np.log1p(2.0 * balance / intensity), waves.shape)
    full = streaming * np.clip(np.log2(waves), 0.0, 4.0)
    return log_cost, log_whole, padding, idle, depth, streaming, full


def tile_costs(
    m: np.ndarray,
    n: np.ndarray,
    k: np.ndarray,
    b: np.ndarray,
    element_bytes: np.ndarray,
    dtype: str,
    device: DeviceSpec,
) -> np.ndarray:
    """Time of each tile by physics alone, up to a factor, shape (tiles, n).

    In a norm: arithmetic of the busiest SM's rounds, slower where a narrow tile needs more operands from shared
    memory, and the L2 traffic of all blocks. Matrix units are fast enough to make the last count, and so get larger
    tiles.
    """
    tiles = b * np.ceil(m / _TILE_M) * np.ceil(n / _TILE_N)
    rate = device.gemm_flops_per_s(dtype) / device.sm_count
    narrow = (DEFAULT.shared_memory_half * (_TILE_M + _TILE_N) / (_TILE_M * _TILE_N)) ** DEFAULT.shared_memory_sharpness
    operands = (1.0 + narrow) ** (1.0 / DEFAULT.shared_memory_sharpness)
    depth = k + DEFAULT.prologue_depth
    arithmetic_s = rounds(tiles, device.sm_count) * 2.0 * _TILE_M * _TILE_N * depth / rate * operands
    l2_s = tiles * (_TILE_M + _TILE_N) * k * element_bytes / (l2_bytes_per_s(device) * DEFAULT.l2_share)
    return (arithmetic_s**DEFAULT.overlap + l2_s**DEFAULT.overlap) ** (1.0 / DEFAULT.overlap)


def least_cost_tile(
    m: np.ndarray,
    n: np.ndarray,
    k: np.ndarray,
    b: np.ndarray,
    element_bytes: np.ndarray,
    dtype: str,
    device: DeviceSpec,
) -> tuple[np.ndarray, np.ndarray]:
    """The (tile_m, tile_n) of least cost, where no kernel name was ever observed; each of shape (n,)."""
    best = np.argmin(tile_costs(m, n, k, b, element_bytes, dtype, device), axis=0)
    return _TILE_M[best, 0], _TILE_N[best, 0]


@dataclass(frozen=True)
class TileChoice:
    """Fitted choice: ``intercepts`` by ``table/op``, ``library/op`` and ``any/op``, one a tile, and ``weights`` by op,
    one a feature.
    """

    intercepts: Mapping[str, np.ndarray]
    weights: Mapping[str, np.ndarray]
    accuracy: Mapping[str, Any]

    def seen(self, op: str, device: DeviceSpec) -> bool:
        """Whether tiles of the device's table were observed."""
        return f"{table_of(device)}/{op}" in self.intercepts

    def scores(self, op: str, device: DeviceSpec, features: tuple[np.ndarray, ...]) -> np.ndarray:
        """Log-odds of each tile, shape (tiles, n): with the preferences of the device's table, else of its library,
        else of all libraries.
        """
        known = (f"{owner}/{op}" for owner in (table_of(device), library_of(device), ANY))
        intercept = next(self.intercepts[key] for key in known if key in self.intercepts)
        score = np.broadcast_to(intercept[:, None], features[0].shape).copy()
        for weight, feature in zip(self.weights[op], features, strict=True):
            score += weight * feature
        return score

    def pick(
        self, op: str, m: np.ndarray, n: np.ndarray, k: np.ndarray, b: np.ndarray, device: DeviceSpec
    ) -> tuple[np.ndarray, np.ndarray]:
        """The likeliest (tile_m, tile_n) of each float32 product, each of shape (n,)."""
        if self.seen(op, device):
            score = self.scores(op, device, choice_features(m, n, k, b, device))
        else:
            score = self._cheap_and_preferred(op, m, n, k, b, device)
        best = np.argmax(score, axis=0)
        return _TILE_M[best, 0], _TILE_N[best, 0]

    def _cheap_and_preferred(
        self, op: str, m: np.ndarray, n: np.ndarray, k: np.ndarray, b: np.ndarray, device: DeviceSpec
    ) -> np.ndarray:
        """Scores where the table was not seen: preferences among the tiles within ``SLACK`` of the least cost."""
        costs = tile_costs(m, n, k, b, np.full(len(m), 4.0), "float32", device)
        if SLACK[op] == 0.0:
            return -costs
        score = self.scores(op, device, choice_features(m, n, k, b, device))
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


@lru_cache(maxsize=4)
def shipped_choice(directory: Path | None = None) -> TileChoice:
    """The tile choice beside the tile models in ``directory`` (default: those that ship)."""
    return TileChoice.load((directory or tile_models_dir()) / "tile_choice.json")
