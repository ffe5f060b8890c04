"""Measurements as the fit of constants sees them: devices, kinds, weights, and the time that a law expects."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from neusight.devices.spec import DeviceSpec
from neusight.kernels import KernelBatch
from neusight.kernels.columns import ColumnRecord
from neusight.kernels.conditions import Conditions
from neusight.laws.constants import decode, encode, priors, values, with_values
from neusight.learn.evidence import group_weights, significant
from neusight.learn.physics.solve import MOST_STEPS, NOISE, STEP, USUAL_SPREAD, Rows, Solution, solve

if TYPE_CHECKING:
    from neusight.learn.training_data import DeviceRows
    from neusight.measured import KernelPart

GROUP_WEIGHT = 4.0
"""Rows that a device, kind of kernel and way of measuring counts as against the priors: more of them say little that
the first did not (10 and 50 are worse for kernels with GH100 and GA100 left out)."""
DEVICE = "gpu"
"""Factor whose effects have a spread for each kind."""
COMPONENTS = (DEVICE, "die", "vendor", "source")
"""Factors that what constants leave is told apart by."""


@dataclass(frozen=True, kw_only=True)
class Measurements(ColumnRecord):
    """Measurements of one device that were taken in one way; columns of shape (n,).

    ``kind`` is that of all or of each, ``measured`` a time [s] or a power [W], ``source`` who measured them. ``idle``
    are constants that were found to change none of them: later derivatives leave them out, those of further fits to the
    same part, too. ``foreign`` are those that other rows are to explain, though they change these. ``slopes`` keeps the
    last derivatives with their place, which fits that leave other parts out begin with too.
    """

    device: DeviceSpec
    kind: Any
    measured: np.ndarray
    weight: np.ndarray
    source: str = ""
    idle: set[str] = field(default_factory=set, compare=False)
    foreign: set[str] = field(default_factory=set, compare=False)
    slopes: dict[bytes, np.ndarray] = field(default_factory=dict, compare=False)

    @property
    def gpu(self) -> str:
        """Id of the device."""
        return self.device.id

    @property
    def die(self) -> str:
        """Die of the device, its architecture or itself where none is known."""
        return str(getattr(self.device, "die", "") or getattr(self.device, "architecture", "") or self.gpu)

    @property
    def vendor(self) -> str:
        """Who makes the device."""
        return str(self.device.vendor)

    def timed(self, constants: Any, held: Any = None) -> tuple[np.ndarray, Any]:
        """What constants expect with the choices that are held (None: made anew), and the choices made."""
        raise NotImplementedError

    def log_error(self, constants: Any) -> np.ndarray:
        """Logarithm of expected over measured."""
        return np.log(self.timed(constants)[0] / self.measured)

    def take(self, index: np.ndarray) -> Self:
        """The rows that ``index`` (integers or a mask) selects."""
        return replace(super().take(index), idle=set(self.idle), foreign=set(self.foreign), slopes={})


@dataclass(frozen=True, kw_only=True)
class KernelMeasurements(Measurements):
    """Times of kernels under their conditions."""

    batch: KernelBatch
    conditions: Conditions

    @classmethod
    def of(
        cls, part: KernelPart | DeviceRows, latency_s: np.ndarray, worth: float = GROUP_WEIGHT, most: float = np.inf,
        **columns: Any
    ) -> Self:  # fmt: skip
        """Kernels that were read with their times; where no ``weight`` is given they are a group, see
        ``group_weights``.
        """
        weight = group_weights(np.zeros(len(latency_s), dtype=int), worth, most=most)
        given: dict[str, Any] = {"batch": part.batch, "conditions": part.conditions, "measured": latency_s}
        return cls(**(given | {"device": part.device, "weight": weight} | columns))


class Effect(NamedTuple):
    """What a level of a factor, such as a device, has of its own in a kind of kernel; of other factors in all kinds."""

    factor: str
    level: str
    kind: str

    @property
    def component(self) -> tuple[str, str]:
        """What shares its spread; see ``Problem.components``."""
        return self.factor, self.kind if self.factor == DEVICE else ""


@dataclass
class Problem:
    """All parts, and the constants that are to be found, around ``prior``.

    ``noise`` see ``Rows``. Each of ``factors``, attributes of parts, has effects by kind; without any, too few devices
    tell what each has of its own. Effects of devices have a spread for each kind, those of other factors, which have
    fewer levels, one for all kinds; ``usual`` are spreads by factor before any effect is seen.
    """

    parts: Sequence[Measurements]
    prior: Any
    noise: float = NOISE
    factors: Sequence[str] = (DEVICE,)
    usual: Mapping[str, float] = field(default_factory=dict)
    _held: list[Any] = field(default_factory=list)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Of all constants."""
        return tuple(priors(self.prior))

    @cached_property
    def effects(self) -> list[Effect]:
        """All effects, those of the first factor first."""
        found = {
            Effect(factor, getattr(part, factor), str(kind))
            for factor in self.factors
            for part in self.parts
            for kind in np.unique(part.kind)
        }
        return sorted(found, key=lambda effect: (self.factors.index(effect.factor), effect))

    @cached_property
    def components(self) -> list[tuple[str, str]]:
        """Factor and kind of the effects that share a spread, "" for all kinds."""
        shared = {effect.component for effect in self.effects}
        return sorted(shared, key=lambda one: (self.factors.index(one[0]), one))

    def at(self, place: np.ndarray) -> Any:
        """The constants at a place on their scales."""
        known = priors(self.prior)
        decoded = {name: decode(known[name], float(v)) for name, v in zip(self.names, place, strict=True)}
        return with_values(self.prior, decoded)

    def rows(self) -> Rows:
        """Targets, weights and effects of all parts."""
        kinds = [self.components.index(effect.component) for effect in self.effects]
        usual = np.array([self.usual.get(factor, USUAL_SPREAD) for factor, _ in self.components])
        number = {effect: place for place, effect in enumerate(self.effects)}
        return Rows(
            target=np.log(np.concatenate([part.measured for part in self.parts])),
            weight=np.concatenate([part.weight for part in self.parts]),
            effect=np.concatenate([self._numbers(part, number) for part in self.parts], axis=1),
            kind_of_effect=np.array(kinds, dtype=int),
            noise=self.noise,
            usual=usual,
        )

    def _numbers(self, part: Measurements, number: Mapping[Effect, int]) -> np.ndarray:
        """Numbers of the effects of a part's rows, shape (factors, rows)."""
        levels = [(factor, getattr(part, factor)) for factor in self.factors]
        kinds, codes = np.unique(np.broadcast_to(part.kind, part.measured.shape), return_inverse=True)
        of_kinds = [[number[Effect(*level, str(kind))] for kind in kinds] for level in levels]
        return np.array(of_kinds, dtype=int).reshape(len(levels), len(kinds))[:, codes]

    def evaluate(self, place: np.ndarray) -> np.ndarray:
        """Log times with the choices of least time."""
        constants = self.at(place)
        times_s = [part.timed(constants) for part in self.parts]
        self._held = [choices for _, choices in times_s]
        return np.concatenate([np.log(times) for times, _ in times_s])

    def jacobian(self, place: np.ndarray) -> np.ndarray:
        """Derivatives of the log times, choices held: at a minimum over candidates those are the minimum's."""
        moved = {name: self.at(place + STEP * unit) for name, unit in zip(self.names, np.eye(len(place)), strict=True)}
        for number, part in enumerate(self.parts):
            if place.tobytes() not in part.slopes:
                part.slopes.clear()
                part.slopes[place.tobytes()] = self._slopes(number, self.at(place), moved)
        return np.concatenate([part.slopes[place.tobytes()] for part in self.parts])

    def _slopes(self, number: int, here: Any, moved: Mapping[str, Any]) -> np.ndarray:
        """Derivatives of a part's log times, shape (rows, constants)."""
        part, start = self.parts[number], self._log_times(number, here)
        slopes = np.zeros((len(start), len(moved)), dtype=np.float32)
        for column, (name, constants) in enumerate(moved.items()):
            if name not in part.idle | part.foreign:
                slopes[:, column] = (self._log_times(number, constants) - start) / STEP
        part.idle.update(name for name, slope in zip(moved, slopes.T, strict=True) if not slope.any())
        return slopes

    def _log_times(self, number: int, constants: Any) -> np.ndarray:
        return np.log(self.parts[number].timed(constants, self._held[number])[0])

    def fit(
        self,
        steps: int = 12,
        report: Callable[[int, float], None] | None = None,
        start: Any | None = None,
        tolerance: float = 1e-4,
    ) -> Solution:
        """Solve from the centres of the priors, or from constants that were fitted to much the same measurements, near
        which derivatives hardly change: those of the start serve all steps (chord method).
        """
        spread = np.array([priors(self.prior)[name].spread for name in self.names])
        sought = np.array([any(name not in part.foreign for part in self.parts) for name in self.names])
        prior = {"centre": self.place_of(self.prior), "spread": spread, "sought": sought}
        # The first evaluation makes the choices that the derivatives hold.
        first = None if start is None else self.place_of(start)
        jacobian = self.jacobian if first is None else lambda place: self.jacobian(first)
        found_from = partial(solve, self.rows(), self.evaluate, jacobian, prior, start=first)
        return found_from(steps=steps, report=report, tolerance=tolerance)

    def place_of(self, constants: Any) -> np.ndarray:
        """Constants on the scales on which they are estimated, in the order of ``names``."""
        known, content = priors(self.prior), values(constants)
        return np.array([encode(known[name], content[name]) for name in self.names])

    def variances(self, constants: Any) -> list[dict[str, Any]]:
        """What constants leave unexplained of log times: rows with a ``factor`` of ``COMPONENTS`` or "rest", a ``kind``
        of kernels, "" for all, and the ``spread``, a standard deviation.
        """
        apart = replace(self, factors=tuple(dict.fromkeys((*COMPONENTS, *self.factors))))
        left = -np.concatenate([part.log_error(constants) for part in self.parts])
        none, rows = np.zeros(0), replace(apart.rows(), target=left)
        nothing, flat = np.zeros(len(left)), np.zeros((len(left), 0))
        prior = {"centre": none, "spread": none}
        solution = solve(rows, lambda _: nothing, lambda _: flat, prior, steps=MOST_STEPS)
        rest = (left - rows.of_effects(solution.effects)) ** 2
        kinds = np.concatenate([np.broadcast_to(part.kind, len(part)) for part in self.parts]).astype(str)
        of_rest = [("rest", kind, np.average(rest[kinds == kind], weights=rows.weight[kinds == kind]) ** 0.5)
                   for kind in np.unique(kinds)]  # fmt: skip
        spreads = [(*component, spread) for component, spread in zip(apart.components, solution.spread, strict=True)]
        return [{"factor": f, "kind": str(k), "spread": round(float(s), 4)} for f, k, s in (*spreads, *of_rest)]

    def found(self, solution: Solution) -> dict[str, Any]:
        """Constants and how well they are known, rounded: fields of ``FittedConstants``."""
        constants, deviations = values(self.at(solution.place)), dict(zip(self.names, solution.deviation, strict=True))
        return {
            "values": significant({name: constants[name] for name in self.names}, 5),
            "deviations": significant(deviations, 3),
            "rows": sum(map(len, self.parts)),
            "error": round(solution.error, 4),
        }

    def effects_of(self, factor: str, solution: Solution, kind: str) -> dict[str, float]:
        """Effects of a factor in a kind by level, rounded."""
        known = zip(self.effects, solution.effects.tolist(), strict=True)
        return {each.level: round(value, 4) for each, value in known if (each.factor, each.kind) == (factor, kind)}

    def found_beside_effects(self, solution: Solution) -> dict[str, Any]:
        """The same with covariance and effects: fields of ``FittedToDevices``."""
        spreads = zip(self.components, solution.spread, strict=True)
        spread = {kind or factor: round(float(value), 4) for (factor, kind), value in spreads}
        effects = {
            kind: self.effects_of(DEVICE, solution, kind) for factor, kind in self.components if factor == DEVICE
        }
        covariance = [[float(f"{v:.3g}") for v in row] for row in solution.covariance]
        told = {"covariance": covariance, "spread": spread, "effects": effects}
        return self.found(solution) | told | {"variances": self.variances(self.at(solution.place))}
