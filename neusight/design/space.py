"""A space of hypothetical devices described by a file: axes, laws of area and power, limits.

Everything of a template is in its file: the axes of its designs (``[axes]``), shared values of formulas (``[names]``,
``[tables]``), the terms of its area and of its power, the figures of the ``base`` device that a design changes, and
limits of the admitted designs. Designs are columns: a law is evaluated once for all of them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from neusight import units
from neusight.design.formulas import Formula
from neusight.design.workloads import DesignTraining
from neusight.devices.load import load_device
from neusight.devices.schema import FIGURES, RATES
from neusight.devices.spec import DeviceSpec
from neusight.errors import DataError, nearest, shown
from neusight.paths import user_path

SPACES = Path(__file__).resolve().parent / "spaces"
MOST_DESIGNS = 4_000_000
"""Largest number of designs of a space before its limits: more are a typing error."""
_UNITS = {"bytes": "B", "bytes_per_s": "B/s", "hz": "Hz", "w": "W", "s": "s", "m": "m", "usd_per_hour": "USD/h"}


class Axis(BaseModel):
    """An axis on which designs vary: listed ``values``, or from ``first`` to ``last`` by ``times`` or ``plus``.

    Of two designs that differ only in an axis that is ``never_slower``, the kernels of the one with the larger value
    take no longer than those of the other, so that its bounds are valid for both.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    values: tuple[float, ...] = ()
    first: float = 0.0
    last: float = 0.0
    times: float = Field(default=0.0, ge=0.0)
    plus: float = Field(default=0.0, ge=0.0)
    never_slower: bool = False

    def column(self, where: str) -> np.ndarray:
        """All values, in their order.

        Raises:
            DataError: neither a list nor a range.
        """
        if self.values:
            return np.array(self.values, float)
        if self.times > 1.0 and 0.0 < self.first <= self.last and not self.plus:
            steps = int(np.floor(np.log(self.last / self.first) / np.log(self.times) + 1e-9))
            return self.first * self.times ** np.arange(steps + 1)
        if self.plus > 0.0 and self.first <= self.last and not self.times:
            return np.arange(self.first, self.last + 1e-9 * self.plus, self.plus)
        raise DataError(f"{where}: give values, or first and last with times or plus")


class DesignSpace(BaseModel):
    """The contents of a space's file; ``baseline`` is the design that limits may compare with."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    name: str
    base: str
    """Device of the catalogue, or a device file, with the figures that a design does not change."""
    notes: str = ""
    axes: dict[str, Axis] = Field(min_length=1)
    names: dict[str, str | float] = Field(default_factory=dict)
    tables: dict[str, dict[float, float]] = Field(default_factory=dict)
    area_mm2: dict[str, str | float] = Field(min_length=1)
    power_w: dict[str, str | float] = Field(min_length=1)
    figures: dict[str, str | float] = Field(min_length=1)
    """Formulas of figures in SI units, by the key of the device file, as in ``--set``."""
    baseline: dict[str, float] = Field(default_factory=dict)
    limits: tuple[str, ...] = ()
    workloads: tuple[DesignTraining, ...] = ()
    sources: dict[str, str] = Field(default_factory=dict)

    def columns(self, axes: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Values that formulas may name, for designs with these values of the axes."""
        values: dict[str, Any] = {**self.tables, **axes}
        for name, text in self.names.items():
            values[name] = _of(text, values, f"{self.id}: {name}")
        for name, terms in (("area_mm2", self.area_mm2), ("power_w", self.power_w)):
            values[name] = sum(_of(text, values, f"{self.id}: {name}.{term}") for term, text in terms.items())
        return values

    @cached_property
    def admitted(self) -> Designs:
        """All designs within the limits, in the order of the axes, the last of which changes fastest.

        Raises:
            DataError: too many, or none.
        """
        listed = {name: axis.column(f"{self.id}: axis {name}") for name, axis in self.axes.items()}
        count = int(np.prod([len(column) for column in listed.values()]))
        if count > MOST_DESIGNS:
            raise DataError(f"{self.id}: {count:,} designs, at most {MOST_DESIGNS:,}: make the steps of an axis wider")
        grid = np.meshgrid(*listed.values(), indexing="ij")
        every = self.designs({name: column.ravel() for name, column in zip(listed, grid, strict=True)})
        is_admitted = np.ones(len(every), bool)
        compared = {f"baseline_{name}": every.space.of_baseline[name] for name in _LAWS} if self.baseline else {}
        for text in self.limits:
            is_admitted &= _of(text, {**every.values, **compared}, f"{self.id}: limit").astype(bool)
        if not is_admitted.any():
            raise DataError(f"{self.id}: no design is within the limits: widen one of {', '.join(self.limits)}")
        return every.take(np.flatnonzero(is_admitted))

    def narrowed(self, values: Mapping[str, Sequence[float]]) -> DesignSpace:
        """The space with only some of the values of some axes.

        Raises:
            DataError: no such axis, or a value that it does not have.
        """
        changed = dict(self.axes)
        for name, chosen in values.items():
            if name not in self.axes:
                near = nearest(name, tuple(self.axes))
                raise DataError(f"{self.id} has no axis '{shown(name)}'{near}: its axes are {', '.join(self.axes)}")
            axis_values = self.axes[name].column(f"{self.id}: axis {name}").tolist()
            if unknown := [value for value in chosen if value not in axis_values]:
                have = ", ".join(f"{value:g}" for value in axis_values)
                raise DataError(f"{self.id}: axis {name} has no value {unknown[0]:g}: it has {have}")
            changed[name] = Axis(values=tuple(chosen), never_slower=self.axes[name].never_slower)
        return DesignSpace(**{**{key: getattr(self, key) for key in DesignSpace.model_fields}, "axes": changed})

    @property
    def of_baseline(self) -> dict[str, Any]:
        """Area and power of the baseline, with all that formulas name."""
        return self.columns({name: np.array([value]) for name, value in self.baseline.items()})

    def designs(self, axes: Mapping[str, np.ndarray]) -> Designs:
        """Designs with these values of the axes, within the limits or not."""
        return Designs(self, dict(axes), self.columns(axes))

    @property
    def baseline_device(self) -> DeviceSpec:
        """The baseline as a device, even if it is not among the designs."""
        return self.designs({name: np.array([value]) for name, value in self.baseline.items()}).device(0)

    @cached_property
    def base_device(self) -> DeviceSpec:
        """The device whose figures a design changes."""
        return load_device(self.base)

    @cached_property
    def formulas(self) -> dict[str, Formula]:
        """Formulas of the figures that a design changes."""
        return {key: Formula.of(text, f"{self.id}: figure {key}") for key, text in self.figures.items()}


_LAWS = ("area_mm2", "power_w")


def _of(text: str | float, values: Mapping[str, Any], where: str) -> np.ndarray:
    return Formula.of(text, where).value(values, where)


@dataclass(frozen=True, eq=False)
class Designs:
    """Designs in columns: the values of their axes, and of everything that formulas name."""

    space: DesignSpace
    axes: dict[str, np.ndarray]
    values: dict[str, Any]

    def __len__(self) -> int:
        return len(next(iter(self.axes.values())))

    @property
    def area_mm2(self) -> np.ndarray:
        """Area of each design [mm2], shape (n,)."""
        return np.broadcast_to(self.values["area_mm2"], len(self))

    @property
    def power_w(self) -> np.ndarray:
        """Power of each design at full rate of all its units [W], shape (n,)."""
        return np.broadcast_to(self.values["power_w"], len(self))

    def take(self, rows: np.ndarray | Sequence[int]) -> Designs:
        """The designs of some rows."""
        return self.space.designs({name: column[np.asarray(rows)] for name, column in self.axes.items()})

    def row(self, **axes: float) -> int:
        """The number of the design with these values of the axes.

        Raises:
            DataError: there is none.
        """
        same = np.logical_and.reduce([self.axes[name] == value for name, value in axes.items()])
        if not same.any():
            raise DataError(f"{self.space.id} has no design {_words(axes)} within its limits")
        return int(np.flatnonzero(same)[0])

    def nearest(self, **axes: float) -> int:
        """The number of the first design that has most of these values of the axes."""
        return int(np.sum([self.axes[name] == value for name, value in axes.items()], axis=0).argmax())

    def described(self, row: int) -> dict[str, float]:
        """Values of the axes of one design, whole numbers as such."""
        return {name: _plain(column[row]) for name, column in self.axes.items()}

    def alike(self) -> tuple[np.ndarray, np.ndarray]:
        """Groups of designs of the same peak rates, bandwidths and capacities, which have the same roofline: one row of
        each group, and the group of every design, shape (n,).
        """
        base, columns, product = self.space.base_device, [], np.ones(len(self))
        for key, formula in self.space.formulas.items():
            if key == "tdp":
                continue
            column = np.broadcast_to(formula.value(self.values, f"{self.space.id}: figure {key}"), len(self))
            if key in FIGURES and FIGURES[key].field in base.sets_rates:
                product = product * column
            else:
                columns.append(column)
        _, rows, groups = np.unique(np.stack([product, *columns]), axis=1, return_index=True, return_inverse=True)
        return rows, groups.ravel()

    def loosened(self) -> list[tuple[Designs, np.ndarray]]:
        """Ever smaller groups of designs, each with one that is no slower than any of its group, admitted or not: first
        those that differ in axes that are ``never_slower`` alone, then in all of these but the first, and so on; at
        last the designs themselves. With the group of every design, shape (n,).
        """
        loose = [name for name, axis in self.space.axes.items() if axis.never_slower]
        levels = []
        for first in range(len(loose) + 1):
            free = set(loose[first:])
            columns = np.stack([column for name, column in self.axes.items() if name not in free])
            _, rows, groups = np.unique(columns, axis=1, return_index=True, return_inverse=True)
            groups = groups.ravel()
            axes = {name: column[rows] for name, column in self.axes.items()}
            for name in free:
                most = np.full(len(rows), -np.inf)
                np.maximum.at(most, groups, self.axes[name])
                axes[name] = most
            levels.append((self.space.designs(axes), groups))
        return levels

    def device(self, row: int) -> DeviceSpec:
        """The base device with the figures of one design.

        Raises:
            DeviceError: figures that cannot be.
        """
        return load_device(self.space.base, list(self._changes(row)))

    def _changes(self, row: int) -> Iterator[str]:
        values = {name: _at(value, row) for name, value in self.values.items()}
        for key, formula in self.space.formulas.items():
            number = float(formula.value(values, f"{self.space.id}: figure {key}"))
            yield f"{key}={_write(key, number)}"


def _at(value: Any, row: int) -> Any:
    if isinstance(value, Mapping):
        return value
    column = np.asarray(value)
    return column if column.ndim == 0 else column[row] if len(column) > 1 else column[0]


def _plain(value: float) -> float:
    return int(value) if float(value).is_integer() else float(value)


def _words(axes: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in axes.items())


def _write(key: str, number: float) -> str:
    """A figure in the form of ``--set``."""
    name, _, part = key.partition(".")
    if name in RATES:
        return f"{number:.17g}FLOP/s"
    if name == "links":
        return f"{number:.17g}B/s"
    quantity = FIGURES[name].quantity if name in FIGURES and not part else ""
    if quantity == "count":
        return str(round(number))
    return units.exact(number, quantity) if quantity in _UNITS else f"{number:.17g}"


def list_spaces() -> tuple[str, ...]:
    """Ids of the spaces that ship."""
    return tuple(sorted(path.stem for path in SPACES.glob("*.toml")))


def load_space(name_or_path: str) -> DesignSpace:
    """A space by its id, or from a TOML file.

    Raises:
        DataError: no such space, or a file that describes none.
    """
    ids = list_spaces()
    path = SPACES / f"{name_or_path}.toml" if name_or_path in ids else user_path(name_or_path)
    if not path.is_file():
        raise DataError(
            f"unknown space '{shown(name_or_path)}'{nearest(name_or_path, ids)}: one of {', '.join(ids)}, or a file"
        )
    try:
        return DesignSpace(**tomllib.loads(path.read_text(encoding="utf-8")))
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"{path.name}: no TOML ({error}): see `neusight design --help`") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise DataError(
            f"{path.name}: {place}: {first['msg'].lower()}: keys are {', '.join(DesignSpace.model_fields)}"
        ) from error
