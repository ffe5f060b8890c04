"""The fitted constants of physics on disk: values, how well they are known, and what they were learned from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path

from neusight.errors import ArtifactError
from neusight.laws.constants import with_values
from neusight.laws.physics import PRIOR, Physics
from neusight.paths import read_json, tile_models_dir

PROTOCOL = 1
FILE = "physics.json"


@dataclass(frozen=True, kw_only=True)
class FittedPhysics:
    """What ``neusight fit`` found.

    ``values`` by name (``group.constant``), ``deviations`` their standard deviations on the scale on which each is
    estimated (of the logarithm, but for exponents and centres), ``covariance`` of those on the same scales in the order
    of ``values``. ``spread`` is the standard deviation, in log time, of what a device has of its own in each kind of
    kernel: of one that nobody measured, whose effect is 0, that is how wrong physics alone may be. ``effects`` are
    those of measured devices, by kind. ``data`` are the files by name with their sha256, ``gpus`` the devices in them.
    """

    values: dict[str, float]
    deviations: dict[str, float]
    covariance: list[list[float]]
    spread: dict[str, float]
    effects: dict[str, dict[str, float]]
    gpus: list[str]
    data: dict[str, str]
    rows: int
    error: float
    held_out: list[str] = field(default_factory=list)
    protocol: int = PROTOCOL

    @property
    def physics(self) -> Physics:
        """The constants.

        Raises:
            ArtifactError: a constant that this version does not have.
        """
        try:
            return with_values(PRIOR, self.values)
        except KeyError as error:
            raise ArtifactError(f"{FILE} has a constant {error} that this version lacks: run neusight fit") from None

    def save(self, path: Path) -> None:
        """Write as JSON, one constant a line."""
        path.parent.mkdir(parents=True, exist_ok=True)
        tables = {name: value for name, value in asdict(self).items() if name != "covariance"}
        text = json.dumps(tables, indent=1)
        rows = ",\n  ".join(json.dumps(row) for row in self.covariance)
        path.write_text(f'{text[:-2]},\n "covariance": [\n  {rows}\n ]\n}}\n', encoding="utf-8")

    @staticmethod
    def load(path: Path) -> FittedPhysics:
        """Read what ``save`` wrote.

        Raises:
            ArtifactError: missing, unreadable, or of another protocol.
        """
        try:
            content = read_json(path)
        except (OSError, ValueError) as error:
            raise ArtifactError(f"cannot read the constants of physics {path}: {error}; run neusight fit") from None
        if not isinstance(content, Mapping) or content.get("protocol") != PROTOCOL:
            raise ArtifactError(f"{path} has another protocol than {PROTOCOL}: run neusight fit")
        try:
            return FittedPhysics(**content)
        except TypeError as error:
            raise ArtifactError(f"{path} is not as expected ({error}): run neusight fit") from None


@lru_cache(maxsize=4)
def shipped_physics(directory: Path | None = None) -> FittedPhysics:
    """The constants beside the tile models in ``directory`` (default: those that ship).

    Raises:
        ArtifactError: they do not load.
    """
    return FittedPhysics.load((directory or tile_models_dir()) / FILE)
