"""The contract of a tile model's input, declared in ``features/<family>.toml``: feature names, target, version."""

from __future__ import annotations

import tomllib
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from neusight.errors import ArtifactError, nearest
from neusight.executors.gpu.features.formulas import FORMULAS
from neusight.paths import checkout_dir


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
