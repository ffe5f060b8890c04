"""Constants of microcontrollers, from measured inferences of whole models: ``neusight fit microcontrollers``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from neusight.devices.spec import MicrocontrollerSpec
from neusight.errors import NeusightError
from neusight.kernels.families import KernelBatch
from neusight.laws.fitted import FittedMicrocontrollers
from neusight.laws.integer_kernels import PRIOR, IntegerPhysics, active_power_w, kernel_cycles
from neusight.learn.evidence import ConstantsFit, Errors, Evidence, FitOptions, Report
from neusight.learn.physics.problem import DEVICE, Measurements, Problem
from neusight.learn.physics.solve import CONVERGED, MOST_STEPS
from neusight.measured.folder import step_files
from neusight.measured.table import columns_of, filled, read_table
from neusight.questions import Step
from neusight.steps.answers import StepAnswers

if TYPE_CHECKING:
    import pandas as pd

ALIKE = ["gpu", "model", "libraries", "overrides"]
"""Columns that repetitions of an inference share."""
LATENCY, POWER, LIBRARY = "latency", "power", "library"
"""Kinds of what is measured, and the factor beside boards."""
USUAL = {LIBRARY: 0.5}
"""Spread between libraries before any is seen (assumption: compilers and hand-written kernels lie a factor of e apart;
more libraries on one board would tell)."""


@dataclass(frozen=True, kw_only=True)
class BoardMeasurements(Measurements):
    """The time of an inference of a model on a board at one clock by one ``library``, or the power that was drawn
    meanwhile; ``expected`` is what constants expect.
    """

    device: MicrocontrollerSpec
    model: str
    library: str = ""
    expected: Callable[[IntegerPhysics], float]

    @property
    def gpu(self) -> str:
        """Id of the board at its usual clock."""
        return (self.device.original or self.device).id

    def timed(self, constants: IntegerPhysics, held: None = None) -> tuple[np.ndarray, None]:
        """Time [s] or power [W]."""
        return np.array([self.expected(constants)]), None


def _latency_s(
    device: MicrocontrollerSpec, kernels: Sequence[tuple[KernelBatch, np.ndarray]], constants: IntegerPhysics
) -> float:
    """Time by the middle of libraries, with calls of layers."""
    cycles = sum(float(counts @ kernel_cycles(batch, device, constants)) for batch, counts in kernels)
    return cycles / device.clock_hz + device.launch_overhead_s * sum(float(counts.sum()) for _, counts in kernels)


def read_microcontrollers(options: FitOptions, report: Report | None = None) -> Evidence[BoardMeasurements]:
    """Inferences in a folder of measured rows, repetitions as their medians."""
    answers, files = StepAnswers({}), step_files(options.data, MicrocontrollerSpec)
    groups = (rows for path in files for _, rows in read_table(path).frame.groupby(ALIKE, dropna=False, sort=False))
    return Evidence(rows=[part for rows in groups for part in _measured(rows, answers)], files=files)


def _measured(rows: pd.DataFrame, answers: StepAnswers) -> Iterator[BoardMeasurements]:
    """Nothing of a board or model that nothing is known of."""
    first = rows.iloc[0].to_dict()
    try:
        ready = answers.ready(Step.named(filled(first, columns_of("models"))).resolve())
    except NeusightError:
        return
    if not isinstance(ready.device, MicrocontrollerSpec):
        return
    kernels = [(batch, ready.program.counts[at]) for batch, at in ready.program.batches]
    known = {"device": ready.device, "model": first["model"], "weight": np.ones(1)}
    seconds = 1e-3 * rows["latency_ms"]
    figures = [(LATENCY, seconds, first["libraries"], partial(_latency_s, ready.device, kernels))]
    figures.append((POWER, (rows["energy_j"] / seconds).dropna(), "", partial(active_power_w, ready.device)))
    for kind, measured, library, expected in figures:
        if len(measured):
            median = np.array([measured.median()])
            yield BoardMeasurements(**known, kind=kind, measured=median, library=library, expected=expected)


def solve_microcontrollers(
    evidence: Evidence[BoardMeasurements], options: FitOptions, report: Report | None = None
) -> FittedMicrocontrollers:
    """Cycles of layers beside what libraries and boards have of their own, and what boards draw."""
    times = Problem(_of_kind(evidence, LATENCY), PRIOR, factors=(DEVICE, LIBRARY), usual=USUAL)
    solution = times.fit(MOST_STEPS, tolerance=CONVERGED)
    found = times.found_beside_effects(solution)
    found["effects"] |= {LIBRARY: times.effects_of(LIBRARY, solution, LATENCY)}
    if meters := _of_kind(evidence, POWER):
        power = Problem(meters, PRIOR)
        drawn = power.found_beside_effects(power.fit(MOST_STEPS, tolerance=CONVERGED))
        for name in ("values", "deviations"):
            found[name] |= {constant: value for constant, value in drawn[name].items() if constant.startswith(POWER)}
        for name in ("spread", "effects"):
            found[name] |= drawn[name]
    return FittedMicrocontrollers(**(evidence.about() | found))


def _of_kind(evidence: Evidence[BoardMeasurements], kind: str) -> list[BoardMeasurements]:
    return [part for part in evidence.rows if part.kind == kind]


def errors_of(parts: Sequence[BoardMeasurements], fitted: FittedMicrocontrollers) -> Errors:
    """Errors by kind of core and model, of libraries that others were measured with, and of the boards' power."""
    libraries = fitted.effects[LIBRARY]
    for part in parts:
        if not part.library or part.library in libraries:
            off = part.log_error(fitted.physics) + fitted.devices.of(part.kind, part.device).mean
            model = part.model if part.kind == LATENCY else POWER
            yield {"core": part.device.architecture, "model": model}, off + libraries.get(part.library, 0.0)


MICROCONTROLLERS = ConstantsFit(
    read=read_microcontrollers,
    solve=solve_microcontrollers,
    errors=errors_of,
    traits=("device.architecture",),
    rows="inferences of microcontrollers",
)
