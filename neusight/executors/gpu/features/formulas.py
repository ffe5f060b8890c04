"""Every feature once: a named, dimensionless formula over a situation; contracts, which are declared in
``features/<family>.toml``, choose and order them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from neusight.errors import ArtifactError, CoverageError, nearest
from neusight.executors.gpu.features.convolution import FUSED, IMPLICIT, STEPS, ConvPlan
from neusight.executors.gpu.features.lawful import LAWFUL_FORMULAS
from neusight.executors.gpu.features.situation import Situation
from neusight.kernels import KernelBatch
from neusight.paths import checkout_dir
from neusight.quick_dataclasses import dataclass

Formula = Callable[[Any], np.ndarray]


def _log2(values: np.ndarray, low: float, high: float) -> np.ndarray:
    """log2, clipped: beyond the ends more of the same changes nothing."""
    return np.clip(np.log2(np.maximum(values, 1e-30)), low, high)


def _multiple(batch: KernelBatch, name: str, of: int) -> np.ndarray:
    """Whether an extent is a multiple of ``of``; families without the extent count as aligned."""
    return batch[name] % of == 0 if name in batch.columns else np.ones(len(batch), dtype=bool)


def _last_round(waves: np.ndarray) -> np.ndarray:
    """Share of the last round of blocks that is filled, over all rounds: waves / ceil(waves)."""
    return waves / np.ceil(waves)


def _padding_efficiency(s: Situation) -> np.ndarray:
    """Useful share of the tiles' multiplications."""
    t = s.tiling
    return np.minimum(1.0, s.work.flops / (2.0 * t.tile_count * t.tile_m * t.tile_n * t.depth))


def _winograd_fill(s: Situation) -> np.ndarray:
    """Useful share of 4x4 Winograd output tiles."""
    h, w = s.batch["height"], s.batch["width"]
    return h * w / (16.0 * np.ceil(h / 4) * np.ceil(w / 4))


def _behind(s: Situation, algorithm: int) -> np.ndarray:
    """Beyond a factor of about five an algorithm is out of the question."""
    each_s = _plan(s).each_s
    return np.minimum(np.log(each_s[algorithm] / each_s.min(axis=0)), 1.5)


def _plan(s: Situation) -> ConvPlan:
    """Of convolutions.

    Raises:
        CoverageError: kernels of another family.
    """
    if s.conv_plan is None:
        raise CoverageError(f"{s.batch.family} kernels have no plan of a convolution: leave out its features")
    return s.conv_plan


FORMULAS: dict[str, Formula] = {
    **LAWFUL_FORMULAS,
    # Blocks an SM.
    "log2_waves": lambda s: _log2(s.tiling.waves, -4, 6),
    "wave_efficiency": lambda s: _last_round(s.tiling.waves),
    "padding_efficiency": _padding_efficiency,
    # Inner extent of a product, rows and columns of a tile.
    "log2_depth": lambda s: _log2(s.tiling.depth * s.tiling.parts, 0, 16),
    "log2_tile_m": lambda s: np.log2(s.tiling.tile_m),
    "log2_tile_n": lambda s: np.log2(s.tiling.tile_n),
    # Extents are multiples of four; of 32, so that there is no remainder loop.
    "aligned_m": lambda s: _multiple(s.batch, "m", 4),
    "aligned_n": lambda s: _multiple(s.batch, "n", 4),
    "aligned_k": lambda s: _multiple(s.batch, "k", 4),
    "aligned_k_32": lambda s: _multiple(s.batch, "k", 32),
    # Channels a convolution reduces over and filters, a group; edge of its input; images of its batch.
    "log2_in_channels": lambda s: _log2(s.batch["in_channels"] / s.batch["groups"], 0, 12),
    "log2_out_channels": lambda s: _log2(s.batch["out_channels"] / s.batch["groups"], 0, 12),
    "log2_image": lambda s: _log2(np.sqrt(s.batch["height"] * s.batch["width"].astype(float)), 0, 9),
    "log2_images": lambda s: _log2(s.batch["batch"].astype(float), 0, 10),
    "winograd_fill": _winograd_fill,
    # Blocks an SM of a convolution's products, by the algorithm that is expected.
    "plan_log2_waves": lambda s: _log2(_plan(s).blocks / s.device.sm_count, -3, 6),
    "plan_wave_efficiency": lambda s: _last_round(_plan(s).blocks / s.device.sm_count),
    # log of the time of an algorithm over that of the fastest.
    "plan_behind_implicit": lambda s: _behind(s, IMPLICIT),
    "plan_behind_fused": lambda s: _behind(s, FUSED),
    "plan_behind_steps": lambda s: _behind(s, STEPS),
}
"""Every feature by its name."""


def feature_matrix(situation: Any, names: Sequence[str], formulas: Mapping[str, Formula] = FORMULAS) -> np.ndarray:
    """Features in the order of ``names``, shape (n, len(names)).

    Args:
        situation: kernels as the formulas take them.
        names: of features.
        formulas: by name; those of GPU kernels where nothing else is said.

    Raises:
        CoverageError: a name without a formula.
    """
    for name in names:
        if name not in formulas:
            raise CoverageError(f"unknown feature '{name}'{nearest(name, formulas)}")
    return np.stack([formulas[name](situation).astype(float) for name in names], axis=1)


@dataclass(frozen=True, kw_only=True)
class FeatureContract:
    """What a tile model of ``family`` sees, in order, and what it predicts."""

    family: str
    version: int
    target: str
    features: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """As stored in a manifest."""
        return asdict(self) | {"features": list(self.features)}

    @staticmethod
    def from_dict(
        content: dict[str, Any], where: str, known: Collection[str] | None = FORMULAS.keys()
    ) -> FeatureContract:
        """Read a contract and check it against the formulas that this version has.

        ``known``: names that have a formula, of GPU kernels where nothing else is said; a simulated device has its
        own. None leaves that check to whoever has them.

        Raises:
            ArtifactError: missing or unknown keys, a target other than logit_utilisation, an unknown feature.
        """
        expected = {"family", "version", "target", "features"}
        if not isinstance(content, dict) or content.keys() != expected:
            raise ArtifactError(f"{where}: a feature contract has the keys {', '.join(sorted(expected))}")
        if content["target"] != "logit_utilisation":
            raise ArtifactError(f"{where}: target '{content['target']}' is not logit_utilisation")
        unknown = [] if known is None else [name for name in content["features"] if name not in known]
        if unknown:
            raise ArtifactError(
                f"{where}: feature '{unknown[0]}' is unknown to this version of neusight: retrain with neusight train"
            )
        return FeatureContract(**content | {"features": tuple(content["features"])})


def load_contract(family: str, folder: Path | None = None, known: Collection[str] = FORMULAS.keys()) -> FeatureContract:
    """The declared contract of a family, whose features have a formula among the ``known``.

    Raises:
        ArtifactError: no such file, or it is malformed.
    """
    folder = folder or checkout_dir("features")
    path = folder / f"{family}.toml"
    if not path.is_file():
        known = sorted(p.stem for p in folder.glob("*.toml"))
        raise ArtifactError(
            f"no feature contract '{family}' in {folder}: one of {', '.join(known)}{nearest(family, known)}"
        )
    try:
        content = tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ArtifactError(f"cannot read the feature contract {path}: {error}") from None
    return FeatureContract.from_dict(content, str(path), known)
