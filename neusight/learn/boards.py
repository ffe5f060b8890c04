"""What boards draw, from meters: ``neusight fit boards``.

A measured power is a sum: a share of the board's limit, and of what the power law gives for arithmetic and for bytes a
constant each. Meters were read beside kernels that sustain a known rate, and beside language models that are served.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.devices import load_gpu
from neusight.devices.spec import DeviceSpec, GpuSpec
from neusight.executors.costs import NORMAL_90
from neusight.laws.board_power import PRIOR, metered
from neusight.laws.constants import priors
from neusight.laws.fitted import FittedBoards, shipped_boards, shipped_physics
from neusight.laws.physics import Physics
from neusight.laws.power import PowerDemand, budget_w, clock_w, flop_energy_j, traffic_pj_per_byte
from neusight.learn.served import ServedRow, read_served
from neusight.learn.sums import fit_sums, folds, robust_spread
from neusight.measured import read_table
from neusight.measured.folder import hashes
from neusight.serving.serve import sampled

if TYPE_CHECKING:
    from neusight.api import Predictor

NAMES = tuple(priors(PRIOR))
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


def steady_observations(path: Path) -> Iterator[BoardObservation]:
    """Observations of a table of steady kernels."""
    physics = shipped_physics().physics
    for row in read_table(path).frame.to_dict("records"):
        device = load_gpu(row["gpu"])
        drawn = metered(steady_energy(row, device, physics), shipped_boards().physics.gpu)
        yield _observation(row["table"], device, (drawn.compute_j[0], drawn.traffic_j[0]), row["power_w"])


def served_observation(served: ServedRow) -> BoardObservation:
    """Of one served model; boards that wait for requests, or have no share of them, ask for nothing.

    Raises:
        LoadError: a load that cannot run.
    """
    deployment, run = served.deployment, served.simulated()
    busy = (1.0 - run.time_shares["idle"]) * served.shares / deployment.groups
    compute_w, traffic_w = (busy * watts for watts in sampled(deployment, run).drawn_w)
    measured_w = served.row["power_w"] / deployment.devices
    return _observation(served.row["source"], deployment.replica.device, (compute_w, traffic_w), measured_w)


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


def fit_boards(data: Path, predictor: Predictor) -> FittedBoards:
    """Constants of GPUs' boards, from meters beside steady kernels and served models in a folder of measured rows.

    Raises:
        DataError: no served models with a meter there.
    """
    seen, files, left_out = read_boards(data, predictor)
    return replace(fitted(seen), data=hashes(files), skipped=dict(left_out))


def read_boards(data: Path, predictor: Predictor) -> tuple[list[BoardObservation], list[Path], Counter[str]]:
    """Observations of a folder of measured rows, the files that they come from, and rows that tell nothing, by reason.

    Raises:
        DataError: no served models with a meter there.
    """
    served = read_served(data, predictor, "power_w")
    steady, left_out = sorted((data / "energy").glob("*.parquet")), Counter(served.left_out)
    seen = [*chain.from_iterable(map(steady_observations, steady)), *served.answers(served_observation, left_out)]
    return seen, [*steady, *served.files], left_out


def fitted(observations: Sequence[BoardObservation]) -> FittedBoards:
    """Constants of all observations, and their errors with every GPU left out in turn."""
    gpus = sorted({o.gpu for o in observations})
    place, deviations = _solved(observations)
    held = [(_solved(kept)[0], own) for _, kept, own in folds(observations, lambda one: one.gpu) if kept]
    seen = _errors("seen", observations, place)
    missed = [_log_errors(own, where) for where, rows in held for own in _by_source(rows)]
    return FittedBoards(
        values={name: float(f"{value:.4g}") for name, value in zip(NAMES, place, strict=True)},
        deviations={name: float(f"{d:.3g}") for name, d in zip(NAMES, deviations, strict=True)},
        gpus=gpus,
        data={},
        rows=len(observations),
        error=round(float(np.mean([row["mean"] for row in seen])) / 100.0, 4),
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
