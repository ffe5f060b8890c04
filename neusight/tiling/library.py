"""Which tile a BLAS library picks: a discrete-choice model over the tiles that its kernels are compiled for.

The probability of a tile is ``softmax(intercept[library, op, tile] + weights[op] · features(tile, shape, device))``
(McFadden 1974). The intercepts say what a library generation prefers, the features what a tile costs on a device, so
that a GPU that was never seen takes the preferences of its library and its own waves. Trained on kernel names.
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
from neusight.errors import ArtifactError, DeviceError
from neusight.laws.bounds import l2_bytes_per_s
from neusight.laws.physics import DEFAULT
from neusight.laws.waves import rounds
from neusight.paths import tile_models_dir

PROTOCOL = 2
TILES: tuple[tuple[int, int], ...] = (
    *((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (128, 32), (32, 128)),
    *((64, 64), (64, 32), (32, 64), (32, 32)),
)
"""(tile_m, tile_n) in elements of row-major C[m,n]."""
FEATURES = ("log_cost", "log_whole_cost", "padding", "idle", "idle_times_depth", "streaming", "streaming_when_full")
_TILE_M = np.array([t[0] for t in TILES], dtype=float)[:, None]
_TILE_N = np.array([t[1] for t in TILES], dtype=float)[:, None]


def library_of(device: DeviceSpec) -> str:
    """Generation of BLAS kernels that a device runs: cuBLAS names them after the first architecture they ran on.

    Raises:
        DeviceError: a compute capability that is no number.
    """
    if device.vendor != "nvidia":
        return "tensile" if device.vendor == "amd" else "other"
    capability = device.compute_capability or "8.0"
    try:
        major = float(capability)
    except ValueError:
        raise DeviceError(f"{device.id}: compute capability '{capability}' is not a number such as 8.9") from None
    return "maxwell" if major < 7 else "volta" if major < 8 else "ampere"


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


def least_cost_tile(
    m: np.ndarray,
    n: np.ndarray,
    k: np.ndarray,
    b: np.ndarray,
    element_bytes: np.ndarray,
    dtype: str,
    device: DeviceSpec,
) -> tuple[np.ndarray, np.ndarray]:
    """The (tile_m, tile_n) with the smallest time by physics alone, where no kernel name was ever observed.

    Per tile, in a norm: arithmetic of the busiest SM's rounds, slower where a narrow tile needs more operands from
    shared memory, and the L2 traffic of all blocks. Matrix units are fast enough to make the last count, and so get
    larger tiles.
    """
    tiles = b * np.ceil(m / _TILE_M) * np.ceil(n / _TILE_N)
    rate = device.gemm_flops_per_s(dtype) / device.sm_count
    narrow = (DEFAULT.shared_memory_half * (_TILE_M + _TILE_N) / (_TILE_M * _TILE_N)) ** DEFAULT.shared_memory_sharpness
    operands = (1.0 + narrow) ** (1.0 / DEFAULT.shared_memory_sharpness)
    depth = k + DEFAULT.prologue_depth
    arithmetic_s = rounds(tiles, device.sm_count) * 2.0 * _TILE_M * _TILE_N * depth / rate * operands
    l2_s = tiles * (_TILE_M + _TILE_N) * k * element_bytes / (l2_bytes_per_s(device) * DEFAULT.l2_share)
    best = np.argmin(arithmetic_s**DEFAULT.overlap + l2_s**DEFAULT.overlap, axis=0)
    return _TILE_M[best, 0], _TILE_N[best, 0]


@dataclass(frozen=True)
class TileChoice:
    """Fitted choice: ``intercepts`` by ``library/op`` (one a tile), ``weights`` by op (one a feature).

    ``capabilities`` are the compute capabilities that it was learned from: a library keeps a table of its own for each,
    so that on others (P4 beside P100, V100 beside T4) the tile of least cost is the better guess.
    """

    intercepts: Mapping[str, np.ndarray]
    weights: Mapping[str, np.ndarray]
    accuracy: Mapping[str, Any]
    capabilities: tuple[str, ...] = ()

    def scores(self, library: str, op: str, features: tuple[np.ndarray, ...]) -> np.ndarray:
        """Log-odds of each tile, shape (tiles, n). A library never seen takes the newest one's preferences."""
        key = f"{library}/{op}"
        intercept = self.intercepts.get(key, self.intercepts[f"ampere/{op}"])
        score = np.broadcast_to(intercept[:, None], features[0].shape).copy()
        for weight, feature in zip(self.weights[op], features, strict=True):
            score += weight * feature
        return score

    def pick(
        self, op: str, m: np.ndarray, n: np.ndarray, k: np.ndarray, b: np.ndarray, device: DeviceSpec
    ) -> tuple[np.ndarray, np.ndarray]:
        """The likeliest (tile_m, tile_n) of each float32 product, each of shape (n,)."""
        if (device.compute_capability or "") not in self.capabilities:
            return least_cost_tile(m, n, k, b, np.full(len(m), 4.0), "float32", device)
        best = np.argmax(self.scores(library_of(device), op, choice_features(m, n, k, b, device)), axis=0)
        return _TILE_M[best, 0], _TILE_N[best, 0]

    def save(self, path: Path) -> None:
        """Write as JSON."""
        content = {
            "protocol": PROTOCOL,
            "tiles": TILES,
            "features": FEATURES,
            "intercepts": {name: np.round(v, 4).tolist() for name, v in self.intercepts.items()},
            "weights": {name: np.round(v, 4).tolist() for name, v in self.weights.items()},
            "accuracy": self.accuracy,
            "capabilities": self.capabilities,
        }
        path.write_text(json.dumps(content, indent=1) + "\n")

    @staticmethod
    def load(path: Path) -> TileChoice:
        """Read a fitted choice.

        Raises:
            ArtifactError: missing or unreadable file, other protocol, tiles or features.
        """
        try:
            content = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise ArtifactError(f"cannot read the tile choice {path}: {error}; run neusight train") from None
        if not isinstance(content, dict):
            raise ArtifactError(f"{path} is no tile choice: run neusight train")
        for name, expected in (("protocol", PROTOCOL), ("tiles", [list(t) for t in TILES]), ("features", [*FEATURES])):
            if content.get(name) != expected:
                raise ArtifactError(f"{path} has other {name} than this version of neusight: run neusight train")
        try:
            arrays = {key: {name: np.array(v) for name, v in content[key].items()} for key in ("intercepts", "weights")}
            seen = tuple(content["capabilities"])
            return TileChoice(accuracy=content["accuracy"], capabilities=seen, **arrays)
        except (KeyError, AttributeError) as error:
            raise ArtifactError(f"{path}: tile choice is not as expected ({error}): run neusight train") from None


@lru_cache(maxsize=4)
def shipped_choice(directory: Path | None = None) -> TileChoice:
    """The tile choice beside the tile models in ``directory`` (default: those that ship)."""
    return TileChoice.load((directory or tile_models_dir()) / "tile_choice.json")
