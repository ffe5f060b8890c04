"""``neusight fit``: every constant of physics, from all data sets at once, leaving out what is asked to be left out."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from neusight.datasets.load import sets_in
from neusight.errors import DataError
from neusight.executors.gpu.tile_models.artifact import file_sha256
from neusight.executors.gpu.tiling.library import TileChoice, shipped_choice
from neusight.laws.constants import priors, values
from neusight.laws.fitted import FittedPhysics
from neusight.laws.physics import PRIOR
from neusight.learn import Report
from neusight.learn.physics.observations import LONE_LAUNCHES, kernel_files, lane_parts, observe, parts_of, rate_parts
from neusight.learn.physics.problem import Problem, ProblemPart, fit
from neusight.learn.physics.solve import Solution

"""Called with (task, done, of, error)."""


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """What to fit on: all sets in ``data`` without the devices ``hold_out``; ``each`` rows, at most, a group."""

    data: Path
    hold_out: tuple[str, ...] = ()
    each: int = 200
    steps: int = 15
    seed: int = 0


def fit_physics(options: FitOptions, choice: TileChoice | None = None, report: Report | None = None) -> FittedPhysics:
    """Estimate all constants; see ``solve``.

    Raises:
        DataError: no data set there, or a data set that cannot be read.
    """
    return fit_parts(all_parts(options, report), options, choice, report)


def all_parts(options: FitOptions, report: Report | None = None) -> list[ProblemPart]:
    """Every observation in a folder of data sets: kernels with a law of their own, float32 kernels, matmul rates."""
    if not options.data.is_dir():
        raise DataError(f"{options.data} is no folder: give the folder of the data sets")
    read = (lambda name: report(f"reading {name}", 0, 1, float("nan"))) if report else None
    parts = parts_of(observe(options.data, options.each, options.seed, options.hold_out, read))
    for source in (folder for folder in sets_in(options.data) if folder.name in LONE_LAUNCHES):
        parts += lane_parts(source, options.each, options.hold_out, options.seed)
    return parts + rate_parts(options.data, options.hold_out)


def fit_parts(
    parts: Sequence[ProblemPart], options: FitOptions, choice: TileChoice | None = None, report: Report | None = None
) -> FittedPhysics:
    """Estimate all constants from parts that were read before, those of ``options.hold_out`` left out."""
    kept = [part for part in parts if part.device.id not in options.hold_out]
    problem = Problem(kept, choice or shipped_choice(), tuple(priors(PRIOR)))

    def step(done: int, error: float) -> None:
        if report:
            report("constants of physics", done, options.steps, error)

    return _described(problem, fit(problem, options.steps, step), options)


def _described(problem: Problem, solution: Solution, options: FitOptions) -> FittedPhysics:
    constants = values(problem.physics(solution.place))
    kinds = sorted({part.kind for part in problem.parts})
    named = sorted({(part.device.id, part.kind) for part in problem.parts})
    effects: dict[str, dict[str, float]] = {kind: {} for kind in kinds}
    for (gpu, kind), effect in zip(named, solution.effects, strict=True):
        effects[kind][gpu] = round(float(effect), 4)
    deviations = np.sqrt(np.diag(solution.covariance))
    return FittedPhysics(
        values={name: float(f"{constants[name]:.5g}") for name in problem.names},
        deviations={name: float(f"{d:.3g}") for name, d in zip(problem.names, deviations, strict=True)},
        covariance=[[float(f"{v:.3g}") for v in row] for row in solution.covariance],
        spread={kind: round(float(s), 4) for kind, s in zip(kinds, solution.spread, strict=True)},
        effects=effects,
        gpus=sorted({part.device.id for part in problem.parts}),
        data=_hashes(options.data),
        rows=sum(len(part) for part in problem.parts),
        error=round(solution.error, 4),
        held_out=sorted(options.hold_out),
    )


def _hashes(data: Path) -> dict[str, str]:
    files = [*kernel_files(data), *sorted((data / "matmul-rates").glob("*.parquet"))]
    return {f"{file.relative_to(data)}": file_sha256(file) for file in files}


def without(options: FitOptions, gpus: Collection[str]) -> FitOptions:
    """The same with more devices left out."""
    return replace(options, hold_out=tuple(sorted({*options.hold_out, *gpus})))
