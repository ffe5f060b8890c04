"""Measured kernels as the fit of physics sees them: devices, kernels, conditions, weights, and the time expected."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from neusight.devices.spec import DeviceSpec
from neusight.executors.gpu.expected.laws import answering_model
from neusight.executors.gpu.expected.times import launch_s, lone_s
from neusight.executors.gpu.features.situation import situate
from neusight.executors.gpu.tiling import TileChoice, Tiling
from neusight.kernels import KernelBatch
from neusight.kernels.conditions import Conditions
from neusight.laws.constants import decode, encode, priors, with_values
from neusight.laws.physics import PRIOR, Physics
from neusight.learn.physics.solve import STEP, Rows, Solution, solve

OWN = {"attention": "attention", "moe": "moe", "stream": "stream", "convolution": "conv2d"}
"""Groups of constants that only the kernels of one tile model know: the others' derivatives are zero."""


@dataclass(frozen=True)
class ProblemPart:
    """Kernels of one device and kind that were taken in one way; columns of shape (n,).

    ``floor_s`` is what the launch of each took, where it is known from the data [s]; NaN where the conditions tell it.
    ``idle`` are constants that were found to change none of these times: later derivatives leave them out, those of
    further fits to the same part, too.
    """

    device: DeviceSpec
    kind: str
    batch: KernelBatch
    conditions: Conditions
    latency_s: np.ndarray
    floor_s: np.ndarray
    weight: np.ndarray
    idle: set[str] = field(default_factory=set, compare=False)

    def __len__(self) -> int:
        return len(self.batch)

    def expected_s(self, physics: Physics, choice: TileChoice, tiling: Tiling | None) -> tuple[np.ndarray, Tiling]:
        """Time with launch [s], and the tiles it was computed with."""
        s = situate(self.batch, self.device, choice, tiling, physics=physics, conditions=self.conditions)
        if np.isnan(self.floor_s[0]):
            return s.expected_s + launch_s(self.conditions, physics), s.tiling
        return lone_s(self.floor_s, s.expected_s, s.fixed_overhead_s, physics), s.tiling


@dataclass
class Problem:
    """All parts, the tile choice of float32 libraries, and the constants that are to be found."""

    parts: Sequence[ProblemPart]
    choice: TileChoice
    names: tuple[str, ...]
    _tilings: list[Tiling] = field(default_factory=list)

    def __post_init__(self) -> None:
        for part in self.parts:
            model = str(answering_model(part.batch, part.device)[0])
            part.idle.update(name for name in self.names if OWN.get(name.partition(".")[0], model) != model)

    def physics(self, place: np.ndarray) -> Physics:
        """The constants at a place."""
        known = priors(PRIOR)
        return with_values(PRIOR, {n: decode(known[n], float(v)) for n, v in zip(self.names, place, strict=True)})

    def rows(self) -> Rows:
        """Targets, weights and effects of all parts."""
        kinds = sorted({part.kind for part in self.parts})
        named = sorted({(part.device.id, part.kind) for part in self.parts})
        effect = [np.full(len(part), named.index((part.device.id, part.kind))) for part in self.parts]
        return Rows(
            target=np.log(np.concatenate([part.latency_s for part in self.parts])),
            weight=np.concatenate([part.weight for part in self.parts]),
            effect=np.concatenate(effect),
            kind_of_effect=np.array([kinds.index(kind) for _, kind in named]),
        )

    def evaluate(self, place: np.ndarray) -> np.ndarray:
        """Log times with the tiles of least time."""
        physics = self.physics(place)
        times_s = [part.expected_s(physics, self.choice, None) for part in self.parts]
        self._tilings = [tiling for _, tiling in times_s]
        return np.concatenate([np.log(times) for times, _ in times_s])

    def jacobian(self, place: np.ndarray) -> np.ndarray:
        """Derivatives of the log times, tiles held: at a minimum over candidates those are the minimum's."""
        at = [self._log_times(number, self.physics(place)) for number in range(len(self.parts))]
        slopes = np.zeros((sum(len(p) for p in self.parts), len(place)), dtype=np.float32)
        for column, name in enumerate(self.names):
            moved = place.copy()
            moved[column] += STEP
            physics, start = self.physics(moved), 0
            for number, part in enumerate(self.parts):
                if name not in part.idle:
                    slope = (self._log_times(number, physics) - at[number]) / STEP
                    slopes[start : start + len(part), column] = slope
                    if not slope.any():
                        part.idle.add(name)
                start += len(part)
        return slopes

    def _log_times(self, number: int, physics: Physics) -> np.ndarray:
        return np.log(self.parts[number].expected_s(physics, self.choice, self._tilings[number])[0])


def fit(problem: Problem, steps: int = 12, report: Callable[[int, float], None] | None = None) -> Solution:
    """Solve a problem from the centres of the priors."""
    known = priors(PRIOR)
    centre = np.array([encode(known[name], known[name].value) for name in problem.names])
    spread = np.array([known[name].spread for name in problem.names])
    # The first evaluation sets the tiles that the derivatives hold.
    return solve(
        problem.rows(),
        problem.evaluate,
        problem.jacobian,
        {"centre": centre, "spread": spread},
        steps=steps,
        report=report,
    )
