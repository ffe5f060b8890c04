"""Constants of microcontrollers, from measured inferences of whole models: ``neusight fit microcontrollers``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from neusight.devices.spec import MicrocontrollerSpec
from neusight.errors import NeusightError
from neusight.kernels.families import KernelBatch
from neusight.laws.constants import decode, encode, priors, values, with_values
from neusight.laws.fitted import FittedMicrocontrollers
from neusight.laws.integer_kernels import PRIOR, IntegerPhysics, active_power_w, kernel_cycles
from neusight.learn import Report
from neusight.learn.evidence import ConstantsFit, Errors, Evidence, FitOptions, grouped, significant
from neusight.learn.physics.solve import solve_alone
from neusight.measured.folder import step_files
from neusight.measured.table import columns_of, filled, read_table
from neusight.questions import Step
from neusight.steps.answers import StepAnswers

if TYPE_CHECKING:
    import pandas as pd

ALIKE = ["gpu", "model", "libraries", "overrides"]
"""Columns that repetitions of an inference share."""
NOISE, LIBRARY, BOARD, POWER = 0.1, 0.5, 0.1, 0.2
"""Standard deviations of logarithms (assumptions): of an inference; of what a library, and a board, have of their own;
of a board's power."""


@dataclass(frozen=True, kw_only=True)
class Inferences:
    """Repetitions of one model on one board at one clock by one library; ``power_w`` where a meter was read, else 0."""

    device: MicrocontrollerSpec
    model: str
    library: str
    kernels: Sequence[tuple[KernelBatch, np.ndarray]]
    latency_s: float
    power_w: float

    @property
    def gpu(self) -> str:
        """Id of the board at its usual clock."""
        return (self.device.original or self.device).id

    def log_error(self, physics: IntegerPhysics) -> float:
        """Logarithm of the time by the middle of libraries, with calls of layers, over the measured one."""
        cycles = sum(float(counts @ kernel_cycles(batch, self.device, physics)) for batch, counts in self.kernels)
        calls = sum(float(counts.sum()) for _, counts in self.kernels)
        time_s = cycles / self.device.clock_hz + calls * self.device.launch_overhead_s
        return float(np.log(time_s / self.latency_s))


def read_microcontrollers(options: FitOptions, report: Report | None = None) -> Evidence[Inferences]:
    """Inferences in a folder of measured rows, repetitions as their medians."""
    answers, files = StepAnswers({}), step_files(options.data, MicrocontrollerSpec)
    groups = (rows for path in files for _, rows in read_table(path).frame.groupby(ALIKE, dropna=False, sort=False))
    return Evidence(rows=[one for rows in groups if (one := _inferences(rows, answers))], files=files)


def _inferences(rows: pd.DataFrame, answers: StepAnswers) -> Inferences | None:
    """None of a board or model that nothing is known of."""
    first = rows.iloc[0].to_dict()
    try:
        ready = answers.ready(Step.named(filled(first, columns_of("models"))).resolve())
    except NeusightError:
        return None
    if not isinstance(ready.device, MicrocontrollerSpec):
        return None
    powers = (1e3 * rows["energy_j"] / rows["latency_ms"]).dropna()
    return Inferences(
        device=ready.device,
        model=first["model"],
        library=first["libraries"],
        kernels=[(batch, ready.program.counts[at]) for batch, at in ready.program.batches],
        latency_s=1e-3 * float(rows["latency_ms"].median()),
        power_w=float(powers.median()) if len(powers) else 0.0,
    )


def solve_microcontrollers(
    evidence: Evidence[Inferences], options: FitOptions, report: Report | None = None
) -> FittedMicrocontrollers:
    """Least squares around the priors: cycles of layers, and what libraries and boards have of their own."""
    rows, known = evidence.rows, priors(PRIOR)
    layers = [name for name in known if name.startswith("layers.")]
    libraries, library = np.unique([one.library for one in rows], return_inverse=True)
    boards, board = np.unique([one.gpu for one in rows], return_inverse=True)
    centre = [encode(known[name], known[name].value) for name in layers]
    spread = [known[name].spread for name in layers]
    widths = np.repeat([LIBRARY, BOARD], [len(libraries), len(boards)])
    prior = {"centre": np.append(centre, 0.0 * widths), "spread": np.append(spread, widths)}

    def physics_at(place: np.ndarray) -> IntegerPhysics:
        return with_values(PRIOR, {name: decode(known[name], at) for name, at in zip(layers, place, strict=False)})

    def errors(place: np.ndarray) -> np.ndarray:
        physics, (of_libraries, of_boards) = physics_at(place), np.split(place[len(layers) :], [len(libraries)])
        return of_libraries[library] + of_boards[board] + [one.log_error(physics) for one in rows]

    solved = solve_alone(np.zeros(len(rows)), errors, prior, noise=NOISE, outlier=np.inf)
    physics, own = physics_at(solved.place), solved.place[len(layers) :].tolist()
    share, of_power = _power(rows)
    spreads = {name: each.spread for name, each in known.items()}
    effects = {
        "latency": dict(zip(boards.tolist(), own[len(libraries) :], strict=True)),
        "power": of_power,
        "library": dict(zip(libraries.tolist(), own, strict=False)),
    }
    return FittedMicrocontrollers(
        **evidence.about(),
        values=significant(values(with_values(physics, {"power.share": share})), 5),
        deviations=significant(spreads | dict(zip(layers, solved.deviation.tolist(), strict=False)), 3),
        error=round(float(np.mean(np.abs(np.expm1(errors(solved.place))))), 4),
        spread={"board": BOARD, "library": round(float(np.std(own[: len(libraries)])), 4), "power": POWER},
        effects={kind: {name: round(effect, 4) for name, effect in each.items()} for kind, each in effects.items()},
    )


def errors_of(rows: Sequence[Inferences], fitted: FittedMicrocontrollers) -> Errors:
    """Errors by kind of core and model, of libraries that others were measured with, and of the boards' power."""
    effects = fitted.effects
    for one in (one for one in rows if one.library in effects["library"]):
        own = effects["library"][one.library] + effects["latency"].get(one.gpu, 0.0)
        yield {"core": one.device.architecture, "model": one.model}, own + one.log_error(fitted.physics)
    cores = {one.gpu: one.device.architecture for one in rows}
    for board, off in _metered(rows).items():
        own = np.log(fitted.physics.power.share) + effects["power"].get(board, 0.0)
        yield {"core": cores[board], "model": "power"}, own - off


def _power(rows: Sequence[Inferences]) -> tuple[float, dict[str, float]]:
    """Share of what datasheets state, and what each board has of its own, as a logarithm."""
    prior, metered = priors(PRIOR)["power.share"], _metered(rows)
    if not metered:
        return prior.value, {}
    off, known = np.array(list(metered.values())), {"centre": np.log([prior.value]), "spread": np.array([prior.spread])}
    share = solve_alone(off, lambda at: np.full(len(off), at[0]), known, noise=POWER, outlier=np.inf).place[0]
    return float(np.exp(share)), dict(zip(metered, (off - share).tolist(), strict=True))


def _metered(rows: Sequence[Inferences]) -> dict[str, float]:
    """Logarithm of measured power over what datasheets state, by board: the median of its inferences."""
    stated = with_values(PRIOR, {"power.share": 1.0})
    boards = grouped((one for one in rows if one.power_w), lambda one: one.gpu)
    offs = {board: [one.power_w / active_power_w(one.device, stated) for one in own] for board, own in boards.items()}
    return {board: float(np.median(np.log(each))) for board, each in offs.items()}


MICROCONTROLLERS = ConstantsFit(
    read=read_microcontrollers,
    solve=solve_microcontrollers,
    errors=errors_of,
    fold=lambda one: one.device.architecture,
    rows="inferences of microcontrollers",
)
