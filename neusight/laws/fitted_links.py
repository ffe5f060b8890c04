"""The fitted constants of collectives on disk: values, how well they are known, and what they were learned from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from neusight.errors import ArtifactError
from neusight.laws.constants import with_values
from neusight.laws.link_constants import PRIOR, LinkPhysics
from neusight.paths import read_json, tile_models_dir

PROTOCOL = 1
FILE = "links.json"


@dataclass(frozen=True, kw_only=True)
class FittedLinks:
    """What ``neusight fit --links`` found.

    ``values`` by name (``group.constant``), ``deviations`` their standard deviations on the scale on which each is
    estimated, ``covariance`` of those on the same scales in the order of ``values``. ``spread`` is the standard
    deviation, in log time, of what a device has of its own in each kind of collective; ``effects`` are those of
    measured devices, by kind. ``intervals`` enclose 90 % of measured over predicted times of devices that were left
    out, by path (``nccl links``); ``intervals_seen`` those of devices in the fit. ``errors`` are mean errors by
    device, kind and size of message: with the device in the fit (``seen``) and left out.
    """

    values: dict[str, float]
    deviations: dict[str, float]
    covariance: list[list[float]]
    spread: dict[str, float]
    effects: dict[str, dict[str, float]]
    intervals: dict[str, list[float]]
    intervals_seen: dict[str, list[float]]
    errors: list[dict[str, Any]]
    gpus: list[str]
    data: dict[str, str]
    rows: int
    error: float
    protocol: int = PROTOCOL

    @property
    def links(self) -> LinkPhysics:
        """The constants.

        Raises:
            ArtifactError: a constant that this version does not have.
        """
        try:
            return with_values(PRIOR, self.values)
        except KeyError as error:
            raise ArtifactError(
                f"{FILE} has a constant {error} that this version lacks: neusight fit --links"
            ) from None

    def save(self, path: Path) -> None:
        """Write as JSON, rows of tables a line each."""
        path.parent.mkdir(parents=True, exist_ok=True)
        listed = ("errors", "covariance")
        tables = {name: value for name, value in asdict(self).items() if name not in listed}
        parts = [json.dumps(tables, indent=1)[:-2]]
        for name in listed:
            rows = ",\n  ".join(json.dumps(row) for row in getattr(self, name))
            parts.append(f' "{name}": [\n  {rows}\n ]')
        path.write_text(",\n".join(parts) + "\n}\n", encoding="utf-8")

    @staticmethod
    def load(path: Path) -> FittedLinks:
        """Read what ``save`` wrote.

        Raises:
            ArtifactError: missing, unreadable, or of another protocol.
        """
        try:
            content = read_json(path)
        except (OSError, ValueError) as error:
            raise ArtifactError(f"cannot read the constants of links {path}: {error}; neusight fit --links") from None
        if not isinstance(content, Mapping) or content.get("protocol") != PROTOCOL:
            raise ArtifactError(f"{path} has another protocol than {PROTOCOL}: run neusight fit --links")
        try:
            return FittedLinks(**content)
        except TypeError as error:
            raise ArtifactError(f"{path} is not as expected ({error}): run neusight fit --links") from None


@lru_cache(maxsize=4)
def shipped_links(directory: Path | None = None) -> FittedLinks:
    """The constants beside the tile models in ``directory``, or those that ship where it has none.

    Raises:
        ArtifactError: they do not load.
    """
    own = (directory or tile_models_dir()) / FILE
    return FittedLinks.load(own if own.is_file() else tile_models_dir() / FILE)
