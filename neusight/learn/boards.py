"""What boards draw, from meters: ``neusight fit boards``.

A measured power is a sum: a share of the board's limit, and of what the power law gives for arithmetic and for bytes a
constant each. Meters were read beside kernels that sustain a known rate, and beside language models that are served.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from neusight.datasets.power import SteadyPower
from neusight.devices import load_gpu
from neusight.devices.spec import DeviceSpec, GpuSpec
from neusight.errors import NeusightError
from neusight.executors.costs import NORMAL_90
from neusight.laws.board_power import PRIOR, metered
from neusight.laws.constants import priors
from neusight.laws.fitted import FittedBoards, shipped_boards, shipped_physics
from neusight.laws.physics import Physics
from neusight.laws.power import PowerDemand, budget_w, clock_w, flop_energy_j, traffic_pj_per_byte
from neusight.learn.engines import USABLE, Cells
from neusight.learn.sums import fit_sums, robust_spread
from neusight.measured import read_table
from neusight.measured.folder import measured_in
from neusight.serving.cells import ServingCase
from neusight.serving.deployment import Deployment, share_prices
from neusight.serving.serve import sampled
from neusight.serving.simulate import simulate

NAMES = tuple(priors(PRIOR))
STEADY = Path("energy") / "microbenchmarks-elementwise.parquet"
"""In the folder of measured rows: loops of multiply-adds over loads, at rising arithmetic intensity."""
AT_LIMIT = 0.97
"""Share of its limit from which a board's power tells of the limiter alone."""
QUANTILES = np.linspace(0.0, 1.0, 101)
Terms = tuple[float, float, float]


@dataclass(frozen=True, kw_only=True)
class BoardObservation:
    """What a board drew [W] beside its ``limit_w``, and what arithmetic and traffic take by the power law [W].

    Observations of a source on one kind of board share what no constant explains.
    """

    source: str
    gpu: str
    limit_w: float
    arithmetic_w: float
    traffic_w: float
    watts: float

    @property
    def terms(self) -> Terms:
        """What each of ``NAMES`` is multiplied with."""
        return self.limit_w, self.arithmetic_w, self.traffic_w


def steady_energy(row: SteadyPower, device: GpuSpec, physics: Physics) -> PowerDemand:
    """What a second of a steady kernel asks of a board, at the clock that was read."""
    core_pj, memory_pj = traffic_pj_per_byte(device, physics)
    one = np.ones(1)
    return PowerDemand(
        clocked_s=one,
        ports_s=0.0 * one,
        dram_s=0.0 * one,
        overlap=one,
        compute_j=flop_energy_j(device, physics) * row.flops_per_s * one,
        sram_j=1e-12 * core_pj * row.bytes_per_s * one,
        dram_j=1e-12 * memory_pj * row.bytes_per_s * one,
        lone=one,
        clock_w=clock_w(device, physics),
        budget_w=budget_w(device, physics),
        speed_exponent=physics.power.speed_exponent,
        clock=row.clock_hz / device.boost_clock_hz,
    )


def steady_observations(data: Path) -> list[BoardObservation]:
    """Of the table of steady kernels in a folder of measured rows."""
    physics, seen = shipped_physics().physics, []
    for row in read_table(measured_in(data) / STEADY).frame.to_dict("records"):
        device = load_gpu(row["gpu"])
        steady = SteadyPower(
            gpu=row["gpu"],
            flops_per_byte=row["gflop_per_s"] / row["gb_per_s"],
            flops_per_s=1e9 * row["gflop_per_s"],
            bytes_per_s=1e9 * row["gb_per_s"],
            clock_hz=1e6 * row["clock_mhz"],
            power_w=row["power_w"],
        )
        drawn = metered(steady_energy(steady, device, physics), shipped_boards().physics.gpu)
        seen.append(_observation(row["table"], device, (drawn.compute_j[0], drawn.traffic_j[0]), row["power_w"]))
    return seen


def served_observations(cells: Cells, left_out: Counter[str]) -> Iterator[BoardObservation]:
    """Of cells whose meter was read; those that are not used are counted in ``left_out``, by reason."""
    for group in cells:
        usable = []
        for case, deployment in group:
            if case is None or case.cell.power_w is None:
                continue
            if isinstance(deployment, NeusightError):
                left_out[str(deployment)] += 1
            elif case.cell.fault and not case.cell.fault.startswith(USABLE):
                left_out[case.cell.fault] += 1
            else:
                usable.append((case, deployment))
        shared = share_prices([deployment for _, deployment in usable]) if usable else []
        for (case, _), deployment in zip(usable, shared, strict=True):
            try:
                yield served_observation(case, deployment)
            except NeusightError as error:
                left_out[str(error)] += 1


def served_observation(case: ServingCase, deployment: Deployment) -> BoardObservation:
    """Of one cell; boards that wait for requests, or have no share of them, ask for nothing.

    Raises:
        LoadError: a load that cannot run.
    """
    cell, device = case.cell, deployment.replica.device
    share = deployment.share_of(case.load)
    run = simulate(share, deployment.limits, deployment.tables, deployment.server.request_s)
    busy = (1.0 - run.time_shares["idle"]) * deployment.shares(case.load) / deployment.groups
    compute_w, traffic_w = (busy * watts for watts in sampled(deployment, run).drawn_w)
    measured_w = (cell.power_w or 0.0) / cell.n_gpus
    return _observation(cell.source, device, (compute_w, traffic_w), measured_w)


def _observation(source: str, device: DeviceSpec, drawn_w: tuple[float, float], watts: float) -> BoardObservation:
    """In terms of the power law: what was drawn by the constants that ship, without them."""
    board = shipped_boards().physics.gpu
    return BoardObservation(
        source=source,
        gpu=device.id,
        limit_w=device.tdp_w,
        arithmetic_w=float(drawn_w[0] / board.switching),
        traffic_w=float(drawn_w[1] / board.traffic),
        watts=watts,
    )


def fit_boards(
    observations: Sequence[BoardObservation], data: Mapping[str, str], left_out: Mapping[str, int]
) -> FittedBoards:
    """Constants of GPUs' boards, and their errors with every GPU left out in turn.

    Args:
        observations: of all sources.
        data: hashes of the files that they come from.
        left_out: rows that are no observations, by reason.
    """
    gpus = sorted({o.gpu for o in observations})
    place, deviations = _solved(observations)
    folds = [(gpu, _solved([o for o in observations if o.gpu != gpu])[0]) for gpu in gpus if len(gpus) > 1]
    held = [(where, [o for o in observations if o.gpu == gpu]) for gpu, where in folds]
    seen = _errors("seen", observations, place)
    missed = [_log_errors(own, where) for where, rows in held for own in _by_source(rows)]
    return FittedBoards(
        values={name: float(f"{value:.4g}") for name, value in zip(NAMES, place, strict=True)},
        deviations={name: float(f"{d:.3g}") for name, d in zip(NAMES, deviations, strict=True)},
        gpus=gpus,
        data=dict(data),
        rows=len(observations),
        error=round(float(np.mean([row["mean"] for row in seen])) / 100.0, 4),
        skipped=dict(left_out),
        spread=_spread(missed, len(gpus)),
        errors=seen + [row for where, rows in held for row in _errors("left out", rows, where)],
    )


def _spread(missed: Sequence[np.ndarray], gpus: int) -> float:
    """Of boards that nobody measured: each source on each GPU counts alike, however many its readings. So few GPUs tell
    of others as Student's t distribution has it.
    """
    from scipy.stats import t

    if not missed:
        return 0.0
    seen = robust_spread(np.concatenate([np.quantile(each, QUANTILES) for each in missed]))
    return round(seen * float(t.ppf(0.95, gpus - 1)) / NORMAL_90, 3)


def _solved(observations: Sequence[BoardObservation]) -> tuple[np.ndarray, np.ndarray]:
    """Constants, and the deviations of their logarithms."""
    free = [o for o in observations if o.watts < AT_LIMIT * o.limit_w]
    known = list(priors(PRIOR).values())
    prior = {"centre": np.log([p.value for p in known]), "spread": np.array([p.spread for p in known])}
    watts, terms = np.array([o.watts for o in free]), np.array([o.terms for o in free])
    fit = fit_sums(watts, terms, [f"{o.source} {o.gpu}" for o in free], prior)
    return np.exp(fit.place), fit.deviation


def _log_errors(observations: Sequence[BoardObservation], place: np.ndarray) -> np.ndarray:
    """Logarithm of predicted over measured power, shape (n,)."""
    terms, watts = np.array([o.terms for o in observations]), np.array([o.watts for o in observations])
    return np.log(np.minimum(terms @ place, terms[:, 0]) / watts)


def _by_source(observations: Iterable[BoardObservation]) -> list[list[BoardObservation]]:
    groups: dict[tuple[str, str], list[BoardObservation]] = {}
    for each in observations:
        groups.setdefault((each.source, each.gpu), []).append(each)
    return list(groups.values())


def _errors(how: str, observations: Iterable[BoardObservation], place: np.ndarray) -> list[dict[str, Any]]:
    """Errors in percent by source and device."""
    rows = []
    for own in _by_source(observations):
        off = 100.0 * np.expm1(_log_errors(own, place))
        figures = {"mean": np.abs(off).mean(), "median": np.median(np.abs(off)), "bias": off.mean()}
        names = {"fit": how, "source": own[0].source, "gpu": own[0].gpu, "rows": len(own)}
        rows.append(names | {name: round(float(value), 1) for name, value in figures.items()})
    return rows
