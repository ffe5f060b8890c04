"""What boards draw, from meters: ``neusight fit boards``.

A measured power is a sum: a share of the board's limit, and of what the power law gives for arithmetic and for bytes a
constant each. Meters were read beside kernels that sustain a known rate, and beside language models that are served.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from neusight.devices import load_gpu
from neusight.devices.spec import DeviceSpec, GpuSpec
from neusight.laws.board_power import PRIOR, metered
from neusight.laws.constants import priors
from neusight.laws.fitted import FittedBoards, shipped_boards, shipped_physics
from neusight.laws.physics import Physics
from neusight.laws.power import PowerDemand, budget_w, clock_w, flop_energy_j, traffic_pj_per_byte
from neusight.learn import Report
from neusight.learn.evidence import ConstantsFit, Errors, Evidence, FitOptions, Folds, significant, together
from neusight.learn.served import ServedRow, read_served
from neusight.learn.sums import SumObservation, fit_sums, robust_spread, students_widening
from neusight.measured import read_table
from neusight.serving.serve import sampled

PRIORS = {name: (prior.value, prior.spread) for name, prior in priors(PRIOR).items() if name.startswith("gpu.")}
"""Centre and spread of GPUs' constants, one for each term of an observation: no other boards have meters there."""
AT_LIMIT = 0.97
"""Share of its limit from which a board's power tells of the limiter alone."""
QUANTILES = np.linspace(0.0, 1.0, 101)


def steady_energy(row: Mapping[Any, Any], device: GpuSpec, physics: Physics) -> PowerDemand:
    """What a second of a steady kernel asks of a board, at the rates and the clock that were read."""
    core_pj, memory_pj = traffic_pj_per_byte(device, physics)
    bytes_per_s = 1e9 * row["gb_per_s"]
    one = np.ones(1)
    return PowerDemand(
        clocked_s=one,
        ports_s=0.0 * one,
        dram_s=0.0 * one,
        overlap=one,
        compute_j=flop_energy_j(device, physics) * (1e9 * row["gflop_per_s"]) * one,
        sram_j=1e-12 * core_pj * bytes_per_s * one,
        dram_j=1e-12 * memory_pj * bytes_per_s * one,
        lone=one,
        clock_w=clock_w(device, physics),
        budget_w=budget_w(device, physics),
        speed_exponent=physics.power.speed_exponent,
        clock=1e6 * row["clock_mhz"] / device.boost_clock_hz,
    )


def steady_observations(path: Path) -> Iterator[SumObservation]:
    """Observations of a table of steady kernels."""
    physics = shipped_physics().physics
    for row in read_table(path).frame.to_dict("records"):
        device = load_gpu(row["gpu"])
        drawn = metered(steady_energy(row, device, physics), shipped_boards().physics.gpu)
        yield _observation(row["table"], device, (drawn.compute_j[0], drawn.traffic_j[0]), row["power_w"])


def served_observation(served: ServedRow) -> SumObservation:
    """Of one served model; boards that wait for requests, or have no share of them, ask for nothing.

    Raises:
        LoadError: a load that cannot run.
    """
    deployment, run = served.deployment, served.simulated()
    busy = (1.0 - run.time_shares["idle"]) * served.shares / deployment.groups
    compute_w, traffic_w = (busy * watts for watts in sampled(deployment, run).drawn_w)
    measured_w = served.row["power_w"] / deployment.devices
    return _observation(served.row["source"], deployment.replica.device, (compute_w, traffic_w), measured_w)


def _observation(source: str, device: DeviceSpec, drawn_w: tuple[float, float], watts: float) -> SumObservation:
    """A measured power; its terms are, the board's limit [W] and what arithmetic and traffic take by the
    power law [W]: what was drawn by the constants that ship, without them.
    """
    board = shipped_boards().physics.gpu
    terms = np.array([device.tdp_w, drawn_w[0] / board.switching, drawn_w[1] / board.traffic])
    return SumObservation(source=source, gpu=device.id, alike=f"{source} {device.id}", measured=watts, terms=terms)


def read_boards(options: FitOptions, report: Report | None = None) -> Evidence[SumObservation]:
    """Meters beside steady kernels and served models in a folder of measured rows.

    Raises:
        DataError: no served models with a meter there.
    """
    from neusight.api import Predictor

    served = read_served(options.data, Predictor.load(), "power_w")
    steady, left_out = sorted((options.data / "energy").glob("*.parquet")), Counter(served.left_out)
    seen = [*chain.from_iterable(map(steady_observations, steady)), *served.answers(served_observation, left_out)]
    return Evidence(rows=seen, files=[*steady, *served.files], skipped=left_out)


def solve_boards(evidence: Evidence[SumObservation], options: FitOptions, report: Report | None = None) -> FittedBoards:
    """All constants, by boards below their limits."""
    fit = fit_sums([o for o in evidence.rows if o.measured < AT_LIMIT * o.terms[0]], PRIORS)
    found = {"values": significant(fit.values), "deviations": significant(fit.deviations, 3)}
    return FittedBoards(**(evidence.about() | found), error=round(fit.error, 4), spread=0.0)


def errors_of(observations: Sequence[SumObservation], fitted: FittedBoards) -> Errors:
    """Errors by source and device."""
    place = np.array([fitted.values[name] for name in PRIORS])
    for o in observations:
        yield {"source": o.source, "gpu": o.gpu}, np.log(min(o.terms @ place, o.terms[0]) / o.measured)


def _with_spread(fitted: FittedBoards, folds: Folds) -> FittedBoards:
    """With the spread of boards that nobody measured: each source on each GPU counts alike, however many its readings.
    So few GPUs tell of others as Student's t distribution has it.
    """
    missed = [off for held, other in folds for off in together(errors_of(held, other)).values()]
    if not missed:
        return fitted
    seen = robust_spread(np.concatenate([np.quantile(each, QUANTILES) for each in missed]))
    return replace(fitted, spread=round(seen * students_widening(len(fitted.gpus) - 1), 3))


BOARDS = ConstantsFit(read=read_boards, solve=solve_boards, errors=errors_of, finish=_with_spread)
