"""``neusight fit``: every constant of physics, from all data sets at once, without the devices that are held out."""

from __future__ import annotations

from collections import Counter

from neusight.errors import DataError
from neusight.laws.fitted import FittedPhysics, shipped_physics
from neusight.laws.physics import PRIOR, Physics
from neusight.learn import Report
from neusight.learn.evidence import ConstantsFit, Evidence, FitOptions
from neusight.learn.physics.observations import ObservationReader, ProblemPart
from neusight.learn.physics.problem import Problem
from neusight.learn.physics.programs import program_parts
from neusight.measured.folder import kernel_files, program_files


def read_physics(options: FitOptions, report: Report | None = None) -> Evidence[ProblemPart]:
    """Every observation in a folder of measured rows: kernels with a law of their own, lone launches, rates of
    products, programs with convolutions.

    Raises:
        DataError: no measured rows there, or some that cannot be read.
    """
    data = options.data
    if not data.is_dir():
        raise DataError(f"{data} is no folder: give that of measured rows")
    skipped: Counter[str] = Counter()
    reading = ObservationReader(options, skipped)
    parts = [*reading.observe(report), *reading.lanes(), *reading.rates()]
    parts += program_parts(data, options.hold_out, skipped)
    files = [*kernel_files(data), *sorted(data.glob("rates/*.parquet")), *program_files(data)]
    return Evidence(rows=parts, files=files, skipped=skipped)


def solve_physics(
    evidence: Evidence[ProblemPart], options: FitOptions, report: Report | None = None, start: Physics | None = None
) -> FittedPhysics:
    """Estimate all constants, setting out from ``start``: by default constants that ship where they are fitted
    ``again``, else the centres of the priors.
    """
    problem = Problem(evidence.rows, PRIOR)
    start = shipped_physics().physics if start is None and options.again else start

    def step(done: int, error: float) -> None:
        if report:
            report("constants of physics", done, options.steps, error)

    found = problem.found_beside_effects(problem.fit(options.steps, step, start))
    held_out = {*options.hold_out, *(part.gpu for part in evidence.held)}
    return FittedPhysics(**(evidence.about() | found), held_out=sorted(held_out))


PHYSICS = ConstantsFit(read=read_physics, solve=solve_physics)
