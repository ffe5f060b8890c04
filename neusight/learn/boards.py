"""What boards draw, from meters: ``neusight fit boards``.

A measured power is a sum: a share of the board's limit, and of what the power law gives for arithmetic and for bytes a
constant each. Meters were read beside kernels that sustain a known rate, and beside language models that are served.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from neusight.devices import load_gpu
from neusight.devices.spec import DeviceSpec, GpuSpec
from neusight.executors.costs import NORMAL_90
from neusight.laws.board_power import PRIOR, metered
from neusight.laws.constants import priors
from neusight.laws.fitted import FittedBoards, shipped_boards, shipped_physics
from neusight.laws.physics import Physics
from neusight.laws.power import PowerDemand, budget_w, clock_w, flop_energy_j, traffic_pj_per_byte
from neusight.learn import Report
from neusight.learn.evidence import ConstantsFit, Evidence, FitOptions
from neusight.learn.served import ServedRow, read_served
from neusight.learn.sums import SumFit, SumObservation, fit_sums, robust_spread
from neusight.measured import read_table
from neusight.serving.serve import sampled

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
    """All constants, and errors on the observations that they are fitted to."""
    fit = _solved(evidence.rows)
    seen = _errors("seen", evidence.rows, fit.place)
    found = {
        "values": {name: float(f"{value:.4g}") for name, value in fit.values.items()},
        "deviations": {name: float(f"{d:.3g}") for name, d in fit.deviations.items()},
        "error": round(float(np.mean([row["mean"] for row in seen])) / 100.0, 4),
    }
    return FittedBoards(**(evidence.about() | found), spread=0.0, errors=seen)


def judge_boards(
    evidence: Evidence[SumObservation], fitted: FittedBoards, options: FitOptions, report: Report | None = None
) -> FittedBoards:
    """The same with spread and errors where each GPU is left out."""
    folds = [rest for _, rest in evidence.folds(lambda one: one.gpu) if rest.rows]
    held = [(_solved(rest.rows).place, rest.held) for rest in folds]
    missed = [_log_errors(own, place) for place, rows in held for own in _by_source(rows)]
    left_out = [row for place, rows in held for row in _errors("left out", rows, place)]
    return replace(fitted, spread=_spread(missed, len(fitted.gpus)), errors=fitted.errors + left_out)


def _spread(missed: Sequence[np.ndarray], gpus: int) -> float:
    """Of boards that nobody measured: each source on each GPU counts alike, however many its readings. So few GPUs tell
    of others as Student's t distribution has it.
    """
    from scipy.stats import t

    if not missed:
        return 0.0
    seen = robust_spread(np.concatenate([np.quantile(each, QUANTILES) for each in missed]))
    return round(seen * float(t.ppf(0.95, gpus - 1)) / NORMAL_90, 3)


def _solved(observations: Sequence[SumObservation]) -> SumFit:
    """Constants of boards below their limits."""
    prior = {name: (known.value, known.spread) for name, known in priors(PRIOR).items()}
    return fit_sums([o for o in observations if o.measured < AT_LIMIT * o.terms[0]], prior)


def _log_errors(observations: Sequence[SumObservation], place: np.ndarray) -> np.ndarray:
    """Logarithm of predicted over measured power, shape (n,)."""
    terms, watts = np.array([o.terms for o in observations]), np.array([o.measured for o in observations])
    return np.log(np.minimum(terms @ place, terms[:, 0]) / watts)


def _by_source(observations: Iterable[SumObservation]) -> list[list[SumObservation]]:
    groups: dict[tuple[str, str], list[SumObservation]] = {}
    for each in observations:
        groups.setdefault((each.source, each.gpu), []).append(each)
    return list(groups.values())


def _errors(how: str, observations: Iterable[SumObservation], place: np.ndarray) -> list[dict[str, Any]]:
    """Errors in percent by source and device."""
    rows = []
    for own in _by_source(observations):
        off = 100.0 * np.expm1(_log_errors(own, place))
        figures = {"mean": np.abs(off).mean(), "median": np.median(np.abs(off)), "bias": off.mean()}
        names = {"fit": how, "source": own[0].source, "gpu": own[0].gpu, "rows": len(own)}
        rows.append(names | {name: round(float(value), 1) for name, value in figures.items()})
    return rows


BOARDS = ConstantsFit(read=read_boards, solve=solve_boards, judge=judge_boards)
