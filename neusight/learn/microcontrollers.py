"""Constants of microcontrollers, from measured inferences of whole models: ``neusight fit microcontrollers``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.devices.spec import MicrocontrollerSpec
from neusight.errors import DataError, NeusightError
from neusight.kernels.families import KernelBatch
from neusight.laws.constants import decode, encode, priors, values, with_values
from neusight.laws.fitted import FittedMicrocontrollers
from neusight.laws.integer_kernels import PRIOR, IntegerPhysics, LayerCycles, active_power_w, kernel_cycles
from neusight.learn import Report
from neusight.learn.evidence import ConstantsFit, Evidence, FitOptions
from neusight.learn.physics.solve import solve_alone
from neusight.measured.folder import step_files
from neusight.measured.table import columns_of, filled, read_table
from neusight.questions import Step
from neusight.steps.answers import StepAnswers

if TYPE_CHECKING:
    import pandas as pd

NOISE, LIBRARY, BOARD, POWER = 0.1, 0.5, 0.1, 0.2
"""Standard deviations of logarithms (assumptions): of an inference; of what a library, and a board, have of their own;
of a board's power."""
LINE = replace(PRIOR, layers=LayerCycles(**dict.fromkeys(vars(PRIOR.layers), 1.0) | {"run": 0.0, "element": 0.0}))
"""Time in proportion to multiply-adds whatever the layer (Banbury et al. 2021, MicroNets, arXiv 2010.11267, figure 3).
"""


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

    def cycles(self, physics: IntegerPhysics) -> float:
        """By the middle of libraries."""
        return sum(float(counts @ kernel_cycles(batch, self.device, physics)) for batch, counts in self.kernels)

    def time_s(self, physics: IntegerPhysics) -> float:
        """The same [s], with calls of layers."""
        calls = sum(float(counts.sum()) for _, counts in self.kernels)
        return self.cycles(physics) / self.device.clock_hz + calls * self.device.launch_overhead_s


@dataclass(frozen=True)
class _Fit:
    """Constants, and what libraries and boards have of their own, as logarithms."""

    physics: IntegerPhysics
    libraries: Mapping[str, float]
    boards: Mapping[str, float]
    deviations: Mapping[str, float]

    def off(self, rows: Sequence[Inferences]) -> np.ndarray:
        """Logarithms of expected over measured times; a board that is not in the fit has nothing of its own."""
        own = np.array([self.libraries[one.library] + self.boards.get(one.gpu, 0.0) for one in rows])
        return own + np.log([one.time_s(self.physics) / one.latency_s for one in rows])


def read_inferences(path: Path) -> list[Inferences]:
    """All inferences of a table, repetitions as their medians.

    Raises:
        DataError: none of a board that is known.
    """
    answers = StepAnswers({})
    groups = read_table(path).frame.groupby(["gpu", "model", "libraries", "overrides"], dropna=False, sort=False)
    found = [one for _, rows in groups if (one := _inferences(rows, answers)) is not None]
    if not found:
        raise DataError(f"{path}: no inferences of microcontrollers")
    return found


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


def read_microcontrollers(options: FitOptions, report: Report | None = None) -> Evidence[Inferences]:
    """Inferences in a folder of measured rows.

    Raises:
        DataError: none there.
    """
    if not (files := step_files(options.data, MicrocontrollerSpec)):
        raise DataError(f"{options.data} has no inferences of microcontrollers: give the folder of measured rows")
    return Evidence(rows=[one for path in files for one in read_inferences(path)], files=files)


def solve_microcontrollers(
    evidence: Evidence[Inferences], options: FitOptions, report: Report | None = None
) -> FittedMicrocontrollers:
    """All constants, and what libraries and boards have of their own."""
    fit, (share, own_power) = _solved(evidence.rows), _power(evidence.rows)
    found = values(with_values(fit.physics, {"power.share": share}))
    content = evidence.about() | {
        "values": {name: float(f"{found[name]:.5g}") for name in priors(PRIOR)},
        "deviations": {name: float(f"{fit.deviations[name]:.3g}") for name in priors(PRIOR)},
        "error": round(float(np.mean(np.abs(np.expm1(fit.off(evidence.rows))))), 4),
        "spread": {"board": BOARD, "library": round(float(np.std(list(fit.libraries.values()))), 4), "power": POWER},
    }
    effects = {"latency": fit.boards, "power": own_power}
    rounded = {name: {board: round(own, 4) for board, own in boards.items()} for name, boards in effects.items()}
    return FittedMicrocontrollers(**content, effects=rounded)


def _solved(rows: Sequence[Inferences], prior: IntegerPhysics | None = None) -> _Fit:
    """Least squares around the priors; with constants that are given only libraries and boards have something of their
    own.
    """
    known = priors(PRIOR)
    free = [name for name in known if name.startswith("layers.")] if prior is None else []
    libraries, boards = (sorted({getattr(one, name) for one in rows}) for name in ("library", "gpu"))
    centre = [*(encode(known[name], known[name].value) for name in free), *[0.0] * len(libraries + boards)]
    spread = [*(known[name].spread for name in free), *[LIBRARY] * len(libraries), *[BOARD] * len(boards)]
    prior_of_all = {"centre": np.array(centre), "spread": np.array(spread)}

    def at(place: np.ndarray) -> _Fit:
        constants = {name: decode(known[name], value) for name, value in zip(free, place, strict=False)}
        own = place[len(free) :].tolist()
        return _Fit(
            with_values(prior or PRIOR, constants),
            dict(zip(libraries, own[: len(libraries)], strict=True)),
            dict(zip(boards, own[len(libraries) :], strict=True)),
            {},
        )

    none = np.zeros(len(rows))
    solved = solve_alone(none, lambda place: at(place).off(rows), prior_of_all, noise=NOISE, outlier=np.inf)
    return replace(at(solved.place), deviations=_deviations(free, solved.deviation))


def _deviations(free: Sequence[str], found: np.ndarray) -> dict[str, float]:
    return {name: prior.spread for name, prior in priors(PRIOR).items()} | dict(zip(free, found.tolist(), strict=False))


def judge_microcontrollers(
    evidence: Evidence[Inferences], fitted: FittedMicrocontrollers, options: FitOptions, report: Report | None = None
) -> FittedMicrocontrollers:
    """The same with mean errors in percent on each kind of core that nothing was fitted to, of libraries that others
    were measured with, by model and of all; and those of a line through the multiply-adds.
    """
    errors: list[dict[str, Any]] = []
    for core, rest in evidence.folds(lambda one: one.device.architecture):
        kept, shared = rest.rows, {one.library for one in rest.rows}
        held = [one for one in rest.held if one.library in shared]
        if not held:
            continue
        law, line = (np.abs(np.expm1(_solved(kept, prior).off(held))) for prior in (None, _line(kept)))
        for model in ("all", *sorted({one.model for one in held})):
            mine = [model in ("all", one.model) for one in held]
            means = {"law": law[mine].mean(), "line": line[mine].mean()}
            percent = {name: round(100.0 * float(mean), 1) for name, mean in means.items()}
            errors.append({"core": core, "model": model, "rows": sum(mine)} | percent)
        share, _ = _power(kept)
        errors += _power_errors(core, held, share)
    return replace(fitted, errors=errors)


def _line(rows: Sequence[Inferences]) -> IntegerPhysics:
    """Cycles of a multiply-add of the middle of all rows."""
    each = float(np.exp(np.mean([np.log(one.latency_s * one.device.clock_hz / one.cycles(LINE)) for one in rows])))
    names = {f"layers.{name}": each for name in vars(LINE.layers) if name not in ("run", "element")}
    return with_values(LINE, names)


def _power(rows: Sequence[Inferences]) -> tuple[float, dict[str, float]]:
    """Share of what datasheets state, and what each board has of its own, as a logarithm."""
    prior, metered = priors(PRIOR)["power.share"], _metered(rows)
    if not metered:
        return prior.value, {}
    off = np.array(list(metered.values())) - np.log(prior.value)
    weight = prior.spread**2 / (prior.spread**2 + POWER**2 / len(off))
    shared = weight * float(off.mean())
    return float(np.exp(shared + np.log(prior.value))), dict(zip(metered, (off - shared).tolist(), strict=True))


def _metered(rows: Sequence[Inferences]) -> dict[str, float]:
    """Logarithm of measured power over what datasheets state, by board: the median of its inferences."""
    stated = with_values(PRIOR, {"power.share": 1.0})
    offs: dict[str, list[float]] = {}
    for one in rows:
        if one.power_w:
            offs.setdefault(one.gpu, []).append(float(np.log(one.power_w / active_power_w(one.device, stated))))
    return {board: float(np.median(each)) for board, each in offs.items()}


def _power_errors(core: str, held: Sequence[Inferences], share: float) -> list[dict[str, Any]]:
    off = [abs(np.expm1(np.log(share) - each)) for each in _metered(held).values()]
    return (
        [{"core": core, "model": "power", "rows": len(off), "law": round(100.0 * float(np.mean(off)), 1)}]
        if off
        else []
    )


MICROCONTROLLERS = ConstantsFit(read=read_microcontrollers, solve=solve_microcontrollers, judge=judge_microcontrollers)
