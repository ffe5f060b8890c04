"""``neusight fit``: every constant of physics, from all data sets at once, without the devices that are held out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from neusight.errors import DataError
from neusight.executors.gpu.tiling.library import TileChoice, shipped_choice
from neusight.laws.fitted import FittedPhysics
from neusight.laws.physics import PRIOR, Physics
from neusight.learn import Report
from neusight.learn.physics.observations import ObservationReader, ProblemPart
from neusight.learn.physics.problem import Problem
from neusight.learn.physics.programs import program_parts
from neusight.measured.folder import hashes, kernel_files, program_files


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """What to fit on: all measured rows in ``data`` without the devices ``hold_out``; ``each`` rows, at most, a group.

    ``files`` are the tables that are read where these are not all.
    """

    data: Path
    hold_out: tuple[str, ...] = ()
    each: int = 200
    steps: int = 15
    seed: int = 0
    files: tuple[Path, ...] = ()

    def reading(self, skipped: Counter[str] | None = None) -> ObservationReader:
        """What it reads; ``skipped`` gets what it leaves out."""
        counter = Counter() if skipped is None else skipped
        return ObservationReader(self.data, self.each, self.seed, self.hold_out, counter)


def fit_physics(options: FitOptions, choice: TileChoice | None = None, report: Report | None = None) -> FittedPhysics:
    """Estimate all constants; see ``solve``.

    Raises:
        DataError: no measured rows there, or some that cannot be read.
    """
    skipped: Counter[str] = Counter()
    return fit_parts(all_parts(options, report, skipped), options, choice, report, skipped=skipped)


def all_parts(
    options: FitOptions, report: Report | None = None, skipped: Counter[str] | None = None
) -> list[ProblemPart]:
    """Every observation in a folder of measured rows: kernels with a law of their own, lone launches, rates of
    products, programs with convolutions.

    Args:
        options: what to read.
        report: called with the name of each file.
        skipped: gets the number of rows that tell nothing, by reason.
    """
    if not options.data.is_dir():
        raise DataError(f"{options.data} is no folder: give that of measured rows")
    read = (lambda name: report(f"reading {name}", 0, 1, float("nan"))) if report else None
    reading = options.reading(skipped)
    parts = [*reading.observe(read), *reading.lanes(), *reading.rates()]
    return [*parts, *program_parts(options.data, options.hold_out, reading.skipped)]


def fit_parts(
    parts: Sequence[ProblemPart],
    options: FitOptions,
    choice: TileChoice | None = None,
    report: Report | None = None,
    *,
    skipped: Mapping[str, int] | None = None,
    start: Physics | None = None,
) -> FittedPhysics:
    """Estimate all constants from parts that were read before, those of ``options.hold_out`` left out, setting out from
    ``start``, by default from the centres of the priors.
    """
    kept, chosen = [part for part in parts if part.device.id not in options.hold_out], choice or shipped_choice()
    problem = Problem(kept, PRIOR, lambda part, physics, tiling: part.expected_s(physics, chosen, tiling))

    def step(done: int, error: float) -> None:
        if report:
            report("constants of physics", done, options.steps, error)

    return FittedPhysics(
        **problem.found_beside_effects(problem.fit(options.steps, step, start)),
        data=hashes(options.files or tables_read(options.data)),
        skipped=dict(skipped or {}),
        held_out=sorted(options.hold_out),
    )


def tables_read(data: Path) -> list[Path]:
    """Tables of kernels, rates and programs that a fit reads."""
    return [*kernel_files(data), *sorted(data.glob("rates/*.parquet")), *program_files(data)]


def without(options: FitOptions, gpus: Collection[str]) -> FitOptions:
    """The same with more devices left out."""
    return replace(options, hold_out=tuple(sorted({*options.hold_out, *gpus})))
