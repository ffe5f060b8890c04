"""Fitted constants on disk: values, how well they are known, and what they were learned from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

from neusight.errors import ArtifactError
from neusight.laws import array_constants, board_power, integer_kernels, link_constants, physics
from neusight.laws.array_constants import ArrayPhysics
from neusight.laws.board_power import BoardPhysics
from neusight.laws.constants import declarations, priors, unit_of, with_values
from neusight.laws.doubts import Doubts
from neusight.laws.effects import Effects
from neusight.laws.integer_kernels import IntegerPhysics
from neusight.laws.link_constants import LinkPhysics
from neusight.laws.physics import Physics
from neusight.laws.source_doubts import Components, SourceDoubts
from neusight.paths import chosen_tile_models, read_json, tile_models_dir
from neusight.quick_dataclasses import dataclass

PROTOCOL = 1
"""Version of the files (definition)."""
UNMOVED = 0.6
"""Of the width of its prior, what a constant keeps at least that no data move (definition)."""
_LISTED = ("errors", "covariance", "variances")
"""Tables that are written a row a line."""


P = TypeVar("P")


@dataclass(frozen=True, kw_only=True)
class FittedConstants(Generic[P]):
    """What a fit found.

    ``values`` by name (``group.constant``), ``deviations`` their standard deviations on the scale on which each is
    estimated (of the logarithm, but for exponents and centres). ``gpus`` are the devices that it was fitted to,
    ``data`` the files by name with their sha256, ``rows`` how many of them count, ``error`` their mean error.
    ``skipped`` are rows that were left out, by reason.
    """

    file: ClassVar[str]
    prior: ClassVar[Any]

    values: dict[str, float]
    deviations: dict[str, float]
    gpus: list[str]
    data: dict[str, str]
    rows: int
    error: float
    skipped: dict[str, int] = field(default_factory=dict)
    protocol: int = PROTOCOL

    @classmethod
    def command(cls) -> str:
        """Command that fits these constants."""
        return f"neusight fit {Path(cls.file).stem}"

    @cached_property
    def physics(self) -> P:
        """The prior's constants with the fitted values.

        Raises:
            ArtifactError: a constant that this version does not have.
        """
        if foreign := self.values.keys() - priors(self.prior).keys():
            raise ArtifactError(
                f"{self.file} has a constant {min(foreign)!r} that this version lacks: run {self.command()}"
            )
        constants: P = with_values(self.prior, self.values)
        return constants

    def constants(self) -> list[dict[str, Any]]:
        """A row a constant: ``file``, ``name``, ``value``, ``unit``, ``origin`` (fitted, datasheet, cited, prior),
        ``prior`` (its centre), ``kept`` (the share of the prior's width that the fit left; from ``UNMOVED`` on no data
        move it), ``why`` (where the prior or the number comes from) and ``moved_by`` (rows that would move a prior).
        """
        return [self._described(*declared) for declared in declarations(self.physics)]

    def _described(self, name: str, known: Mapping[str, Any], value: float) -> dict[str, Any]:
        row = {"file": self.file, "name": name, "value": value, "unit": unit_of(name)}
        row |= {"prior": None, "kept": None, "moved_by": ""}
        if (prior := known.get("prior")) is None:
            source = known.get("source", "")
            return row | {"origin": "datasheet" if source.startswith("datasheet") else "cited", "why": source}
        kept = self.deviations.get(name, prior.spread) / prior.spread
        stated = {"prior": prior.value, "kept": kept, "why": prior.why, "moved_by": known.get("moved_by", "")}
        return row | stated | {"origin": "fitted" if kept < UNMOVED else "prior"}

    def save(self, path: Path) -> None:
        """Write as JSON, rows of tables a line each."""
        path.parent.mkdir(parents=True, exist_ok=True)
        content = asdict(self)
        listed = {name: content.pop(name) for name in _LISTED if name in content}
        parts = [json.dumps(content, indent=1)[:-2]]
        for name, table in listed.items():
            rows = ",\n  ".join(json.dumps(row) for row in table)
            parts.append(f' "{name}": [\n  {rows}\n ]')
        path.write_text(",\n".join(parts) + "\n}\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what ``save`` wrote.

        Raises:
            ArtifactError: missing, unreadable, or of another protocol.
        """
        try:
            content = read_json(path)
        except (OSError, ValueError) as error:
            raise ArtifactError(f"cannot read the fitted constants {path}: {error}; run {cls.command()}") from None
        if not isinstance(content, Mapping) or content.get("protocol") != PROTOCOL:
            raise ArtifactError(f"{path} has another protocol than {PROTOCOL}: run {cls.command()}")
        try:
            return cls(**content)
        except TypeError as error:
            raise ArtifactError(f"{path} is not as expected ({error}): run {cls.command()}") from None


@dataclass(frozen=True, kw_only=True)
class FittedToDevices(FittedConstants[P]):
    """Constants of all devices, fitted beside what each has of its own.

    ``covariance`` is that of the constants on their scales in the order of ``values``. ``spread`` is the standard
    deviation, in log time, of what a device has of its own in each kind of kernel or collective: of one that nobody
    measured, whose effect is 0, that is how wrong physics alone may be. ``effects`` are those of measured devices, by
    kind. ``variances`` tell apart what constants leave unexplained: ``spread`` of each ``factor`` (gpu, die, vendor,
    source, rest) by ``kind``, "" of all kinds.
    """

    covariance: list[list[float]]
    spread: dict[str, float]
    effects: dict[str, dict[str, float]]
    variances: list[dict[str, Any]] = field(default_factory=list)

    @cached_property
    def devices(self) -> Effects:
        """What devices have of their own."""
        return Effects(level=self.effects, between=self.spread)


@dataclass(frozen=True, kw_only=True)
class FittedPhysics(FittedToDevices[Physics]):
    """What ``neusight fit`` found, without the devices ``held_out``."""

    file: ClassVar[str] = "physics.json"
    prior: ClassVar[Physics] = physics.PRIOR

    held_out: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class FittedLinks(FittedToDevices[LinkPhysics]):
    """What ``neusight fit links`` found.

    ``intervals`` enclose 90 % of measured over predicted times of devices that were left out, by path (``nccl links``);
    ``intervals_seen`` those of devices in the fit. ``errors`` are errors in percent by device, kind and size of
    message: seen, left out.
    """

    file: ClassVar[str] = "links.json"
    prior: ClassVar[LinkPhysics] = link_constants.PRIOR

    intervals: dict[str, list[float]] = field(default_factory=dict)
    intervals_seen: dict[str, list[float]] = field(default_factory=dict)
    errors: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class FittedArrays(FittedConstants[ArrayPhysics]):
    """What ``neusight fit arrays`` found. ``scatter`` is the standard deviation of the log error of single kernels
    by family; ``errors`` are errors in percent by device and family: seen, left out.
    """

    file: ClassVar[str] = "arrays.json"
    prior: ClassVar[ArrayPhysics] = array_constants.PRIOR

    scatter: dict[str, float]
    errors: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class FittedBoards(FittedConstants[BoardPhysics]):
    """What ``neusight fit boards`` found. ``spread`` is the standard deviation of the log power of GPUs that were
    left out; ``errors`` are errors in percent by device and source: seen, left out.
    """

    file: ClassVar[str] = "boards.json"
    prior: ClassVar[BoardPhysics] = board_power.PRIOR

    spread: float
    errors: list[dict[str, Any]] = field(default_factory=list)

    def spread_of(self, kind: str) -> float:
        """Standard deviation of the log energy of a kind's boards."""
        return self.spread if kind == "gpu" else board_power.UNKNOWN_SPREAD


@dataclass(frozen=True, kw_only=True)
class FittedMicrocontrollers(FittedToDevices[IntegerPhysics]):
    """What ``neusight fit microcontrollers`` found: effects of boards by ``latency`` and ``power``, and of each
    ``library``. ``errors`` are errors in percent by kind of core and model: seen, left out.
    """

    file: ClassVar[str] = "microcontrollers.json"
    prior: ClassVar[IntegerPhysics] = integer_kernels.PRIOR

    errors: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class FittedSources(FittedConstants[SourceDoubts]):
    """What ``neusight fit sources`` found. ``errors`` are figures of intervals by kind, of ``sources`` left out."""

    file: ClassVar[str] = "sources.json"
    prior: ClassVar[SourceDoubts] = SourceDoubts()

    sources: int
    errors: list[dict[str, Any]] = field(default_factory=list)


_Constants = TypeVar("_Constants", bound=FittedConstants[Any])


STORES = (FittedPhysics, FittedLinks, FittedArrays, FittedBoards, FittedMicrocontrollers, FittedSources)
"""Files of constants that ship beside the tile models."""


def shipped(kind: type[_Constants], directory: Path | None = None) -> _Constants:
    """The constants beside the tile models in ``directory``, or those that ship where it has none.

    Raises:
        ArtifactError: they do not load.
    """
    return _shipped(kind, directory, chosen_tile_models())  # type: ignore[arg-type]


@lru_cache(maxsize=32)
def _shipped(kind: type[_Constants], directory: Path | None, chosen: Path | None) -> _Constants:
    """The constants in ``directory``, or where it has none those in ``chosen``, by default those that ship."""
    own = (directory or chosen or tile_models_dir()) / kind.file
    return kind.load(own if own.is_file() else (chosen or tile_models_dir()) / kind.file)


def with_sources(doubts: Doubts, kind: str, what: str) -> dict[str, float]:
    """Doubts of a figure of a kind with those between sources that ship, see ``Components.beside``."""
    known: Components = getattr(shipped(FittedSources).physics, kind)
    return known.beside(doubts, kind, what)


def shipped_boards(directory: Path | None = None) -> FittedBoards:
    """See ``shipped``."""
    return shipped(FittedBoards, directory)


def shipped_links(directory: Path | None = None) -> FittedLinks:
    """See ``shipped``."""
    return shipped(FittedLinks, directory)


def shipped_physics(directory: Path | None = None) -> FittedPhysics:
    """The constants beside the tile models in ``directory`` (default: those that ship).

    Raises:
        ArtifactError: they do not load.
    """
    return _shipped(FittedPhysics, directory, directory or chosen_tile_models())
