"""``neusight fit --engines``: what serving engines add to their kernels, from measured runs.

A measured time is a sum over the passes of a run: kernels by group, each with the engine's factor, and host time by the
pass, the sequence and the layer of experts. What a run is made of comes from a simulation with the constants so far
(``engine_runs``); simulation and fit are repeated, since faster passes run with fewer sequences.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from neusight.engines.server import HOST, BoardPower
from neusight.errors import NeusightError
from neusight.learn import Report
from neusight.learn.engine_runs import NAMES, EngineObservation, observed
from neusight.learn.sums import fit_sums, robust_spread
from neusight.serving.cells import ServingCase
from neusight.serving.deployment import Deployment, share_prices

PRIORS: dict[str, tuple[float, float]] = {
    "pass_s": (1e-3, 1.5),
    "rank_s": (5e-4, 1.5),
    "sequence_s": (2e-5, 1.5),
    "mixture_s": (5e-5, 1.5),
    "products": (1.0, 0.1),
    "experts": (1.0, 0.2),
    "context": (1.0, 0.1),
    "decode": (1.0, 0.3),
    "collectives": (1.0, 0.3),
    "rest": (1.0, 0.1),
}
"""Centre and spread of the logarithm. Host times: orders of magnitude of a Python loop, of a process that waits for
others, of the bookkeeping of a request, of a few launches. Factors: kernels were timed by themselves in graphs of the
same engines. Versions differ most in decode attention and in ranks that wait for each other; of prompts' attention and
of small kernels runs tell little, so that those stay near what was measured."""
OWN_HOST, OWN_FACTORS = 0.5, 1 / 3
"""Share of the spreads of priors that eras keep about what all have in common: hosts differ more than kernels do."""
LEAST_POWER = 20
"""Cells whose power was measured, without which nothing is said of it."""

Cells = Iterable[Sequence[tuple[ServingCase | None, Deployment | NeusightError]]]
"""Cells with what they deploy or why they cannot, those of the same kernels together; None of what is no cell."""
USABLE = ("isl not told", "isl and rate are documented means")
"""Beginnings of faults that leave a time by the token usable: it depends little on what they are about."""


def fit_engines(cells: Callable[[], Cells], rounds: int = 2, report: Report | None = None) -> EngineFit:
    """Constants of all engines.

    Args:
        cells: called once a round for measured cells with what they deployed.
        rounds: of simulation and fit; the first runs with the constants that ship.
        report: called with progress.
    """
    fitted: dict[str, FittedEngine] = {}
    observations: list[EngineObservation] = []
    left_out: Counter[str] = Counter()
    for number in range(rounds):
        observations, left_out = observe(cells(), fitted, report, number + 1)
        fitted = fit_eras(observations)
    power = fit_power(observations)
    return EngineFit(engines=fitted, observations=observations, power=power, left_out=left_out)


def observe(
    cells: Cells, fitted: Mapping[str, FittedEngine], report: Report | None, number: int
) -> tuple[list[EngineObservation], Counter[str]]:
    """What cells tell, simulated with constants that were fitted before, and why others tell nothing, each reason with
    the number of cells.
    """
    observations: list[EngineObservation] = []
    left_out: Counter[str] = Counter()
    for group in cells:
        usable = []
        for case, deployment in group:
            if case is None or isinstance(deployment, NeusightError):
                left_out[str(deployment)] += 1
            elif case.cell.fault and not case.cell.fault.startswith(USABLE):
                left_out[case.cell.fault] += 1
            else:
                usable.append((case, with_fitted(deployment, fitted)))
        deployments = share_prices([deployment for _, deployment in usable]) if usable else []
        for (case, _), deployment in zip(usable, deployments, strict=True):
            try:
                observation = observed(case, deployment)
            except NeusightError as error:
                left_out[str(error)] += 1
                continue
            if observation is None:
                left_out["neither a time of all requests nor one of a token was measured"] += 1
            else:
                observations.append(observation)
        if report:
            report(f"round {number}: cells", len(observations), 0, float("nan"))
    return observations, left_out


def with_fitted(deployment: Deployment, fitted: Mapping[str, FittedEngine]) -> Deployment:
    """The same with constants of its engine's era, where they were fitted."""
    constants = fitted.get(deployment.server.era)
    if constants is None:
        return deployment
    return deployment.with_constants(constants.values)


@dataclass(frozen=True, kw_only=True)
class EngineFit:
    """Constants by era, what they were fitted to, and why cells were left out, each reason with their number."""

    engines: dict[str, FittedEngine]
    observations: list[EngineObservation]
    power: BoardPower | None = None
    left_out: Counter[str] = field(default_factory=Counter)

    def without(self, gpus: Collection[str]) -> dict[str, FittedEngine]:
        """Constants of every era that was observed, fitted without some GPUs."""
        kept = [o for o in self.observations if o.gpu not in gpus]
        fitted, common = fit_eras(kept), fit_era(kept)
        eras = {o.era for o in self.observations}
        return {era: constants_for(era, fitted, common) for era in sorted(eras)}

    def save(self, file: Path, data: Mapping[str, str]) -> None:
        """Write constants by era, with the hashes of the files that they come from, and what of them was left out."""
        engines = {era: fitted.to_dict() for era, fitted in self.engines.items()}
        power = None if self.power is None else asdict(self.power)
        content = {"engines": engines, "power": power, "data": dict(data), "skipped": dict(self.left_out)}
        file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def fit_power(observations: Sequence[EngineObservation]) -> BoardPower | None:
    """Shares of ``BoardPower``, none below 0, by least squares of relative errors; None without measured power."""
    from scipy.optimize import nnls

    watts = np.array([o.watts for o in observations if o.watts])
    if len(watts) < LEAST_POWER:
        return None
    shares = watts[:, :2] / watts[:, 2:]
    fitted, _ = nnls(shares, np.ones(len(watts)))
    spread = robust_spread(np.log(shares @ fitted))
    static, dynamic = (float(f"{share:.4g}") for share in fitted)
    return BoardPower(static_share=static, dynamic_share=dynamic, spread=float(f"{spread:.3g}"))


@dataclass(frozen=True, kw_only=True)
class FittedEngine:
    """Constants of an era with deviations of their logarithms; ``spread`` of what they leave unexplained: the mean of a
    model on a GPU and a cell beside it, in one.
    """

    values: dict[str, float]
    deviations: dict[str, float]
    spread: float
    cells: int
    gpus: list[str]
    error: float

    def to_dict(self) -> dict[str, Any]:
        """Plain data, rounded."""
        return {
            "values": {name: float(f"{value:.4g}") for name, value in self.values.items()}
            | {"spread": float(f"{self.spread:.3g}")},
            "deviations": {name: float(f"{d:.3g}") for name, d in self.deviations.items()},
            "cells": self.cells,
            "gpus": self.gpus,
            "error": round(self.error, 4),
        }


def fit_era(observations: Sequence[EngineObservation], centre: Mapping[str, float] | None = None) -> FittedEngine:
    """Constants of one era.

    Args:
        observations: of it.
        centre: where priors are centred, as what all eras have in common; their spreads are then smaller.
    """
    middle = np.log([(centre or {}).get(name, PRIORS[name][0]) for name in NAMES])
    own = np.array([OWN_HOST if name in HOST else OWN_FACTORS for name in NAMES])
    width = np.array([PRIORS[name][1] for name in NAMES]) * (own if centre else 1.0)

    fit = fit_sums(
        np.array([o.seconds for o in observations]),
        np.stack([o.terms for o in observations]),
        [o.alike for o in observations],
        {"centre": middle, "spread": width},
    )
    return FittedEngine(
        values=fit.values(NAMES) | {"request_s": _request_s(observations)},
        deviations=fit.deviations(NAMES),
        spread=fit.spread,
        cells=len(observations),
        gpus=sorted({o.gpu for o in observations}),
        error=fit.error,
    )


def _request_s(observations: Sequence[EngineObservation]) -> float:
    """The middle of what first tokens came late; 0 where none tells."""
    late = [o.late_s for o in observations if not np.isnan(o.late_s)]
    return max(0.0, float(np.median(late))) if late else 0.0


def fit_eras(observations: Sequence[EngineObservation]) -> dict[str, FittedEngine]:
    """Every era by itself, drawn towards what all have in common."""
    common = fit_era(observations).values
    eras = sorted({o.era for o in observations})
    return {era: fit_era([o for o in observations if o.era == era], common) for era in eras}


def constants_for(era: str, fitted: Mapping[str, FittedEngine], common: FittedEngine) -> FittedEngine:
    """Constants of an era, of another of the same engine where it was not met, else of all."""
    kin = [each for name, each in fitted.items() if name.split(" before")[0] == era.split(" before")[0]]
    return fitted[era] if era in fitted else kin[0] if kin else common
