"""What boards draw, from meters: ``neusight fit boards``.

A measured power is a sum: a share of the board's limit, and of what the power law gives for arithmetic and for bytes a
constant each. Meters were read beside kernels that sustain a known rate, and beside language models that are served.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from neusight.api import Predictor
from neusight.devices import load_gpu
from neusight.devices.spec import DeviceSpec
from neusight.laws.board_power import PRIOR
from neusight.laws.constants import priors
from neusight.laws.fitted import FittedBoards, shipped_boards, shipped_physics
from neusight.laws.power import flop_energy_j, traffic_pj_per_byte
from neusight.learn.evidence import ConstantsFit, Errors, Evidence, FitOptions, Report, SolvedFold, together
from neusight.learn.served import ServedRow, answers, read_served
from neusight.learn.sums import SumObservation, fit_sums, robust_spread, students_widening
from neusight.measured import read_table
from neusight.serving.serve import sampled

PRIORS = {name: (prior.value, prior.spread) for name, prior in priors(PRIOR).items() if name.startswith("gpu.")}
"""Centre and spread of GPUs' constants, one for each term of an observation: no other boards have meters there."""
AT_LIMIT = 0.97
"""Share of its limit from which a board's power tells of the limiter alone."""
QUANTILES = np.linspace(0.0, 1.0, 101)


def steady_observation(row: Mapping[Any, Any]) -> SumObservation:
    """Of a steady kernel at the rates and the clock that were read."""
    device, physics = load_gpu(row["gpu"]), shipped_physics().physics
    slower = device.boost_clock_hz / (1e6 * row["clock_mhz"])
    compute_w = slower * flop_energy_j(device, physics) * 1e9 * row["gflop_per_s"]
    traffic_w = slower * 1e-12 * sum(traffic_pj_per_byte(device, physics)) * 1e9 * row["gb_per_s"]
    return _observation(row["table"], device, (compute_w, traffic_w), row["power_w"])


def served_observation(served: ServedRow) -> SumObservation:
    """Of one served model; boards that wait for requests, or have no share of them, ask for nothing.

    Raises:
        LoadError: a load that cannot run.
    """
    deployment, run = served.deployment, served.simulated()
    busy = (1.0 - run.time_shares["idle"]) * served.shares / deployment.groups
    # Without the constants that ship.
    compute_w, traffic_w = sampled(deployment, run).drawn_w
    board = shipped_boards().physics.gpu
    demand_w = busy * compute_w / board.switching, busy * traffic_w / board.traffic
    device, measured_w = deployment.replica.device, served.row["power_w"] / deployment.devices
    return _observation(served.row["source"], device, demand_w, measured_w)


def _observation(source: str, device: DeviceSpec, demand_w: tuple[float, float], watts: float) -> SumObservation:
    """A measured power; its terms are the board's limit [W] and what arithmetic and traffic take by the power law
    [W].
    """
    terms = np.array([device.tdp_w, *demand_w])
    return SumObservation(source=source, gpu=device.id, alike=f"{source} {device.id}", measured=watts, terms=terms)


def read_boards(options: FitOptions, report: Report | None = None) -> Evidence[SumObservation]:
    """Meters beside steady kernels and served models in a folder of measured rows.

    Raises:
        DataError: no served models with a meter there.
    """
    served = answers(read_served(options.data, Predictor.load(), "power_w"), served_observation)
    steady = sorted((options.data / "energy").glob("*.parquet"))
    rows = [steady_observation(row) for file in steady for row in read_table(file).frame.to_dict("records")]
    return replace(served, rows=[*rows, *served.rows], files=[*steady, *served.files])


def solve_boards(evidence: Evidence[SumObservation], options: FitOptions, report: Report | None = None) -> FittedBoards:
    """All constants, by boards below their limits."""
    fit = fit_sums([o for o in evidence.rows if o.measured < AT_LIMIT * o.terms[0]], PRIORS)
    return FittedBoards(**(evidence.about() | fit.found()), spread=0.0)


def errors_of(observations: Sequence[SumObservation], fitted: FittedBoards) -> Errors:
    """Errors by source and device."""
    place = np.array([fitted.values[name] for name in PRIORS])
    for o in observations:
        yield {"source": o.source, "gpu": o.gpu}, np.log(min(o.terms @ place, o.terms[0]) / o.measured)


def _with_spread(fitted: FittedBoards, folds: Sequence[SolvedFold]) -> FittedBoards:
    """With the spread of boards that nobody measured: each source on each GPU counts alike, however many its readings.
    So few GPUs tell of others as Student's t distribution has it.
    """
    missed = [off for fold in folds for off in together(errors_of(fold.held, fold.fitted)).values()]
    if not missed:
        return fitted
    seen = robust_spread(np.concatenate([np.quantile(each, QUANTILES) for each in missed]))
    return replace(fitted, spread=round(seen * students_widening(len(fitted.gpus) - 1), 3))


BOARDS = ConstantsFit(read=read_boards, solve=solve_boards, errors=errors_of, traits=("gpu",), finish=_with_spread)
