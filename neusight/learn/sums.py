r"""Fits of times that are sums: what runs of a kind takes by itself, times a constant that all measurements share.

.. math:: \log t_i = \log \sum_k T_{ik} \exp\left(\sum_c A_{ikc} x_c\right) + e_{alike(i)} + noise

Serving engines and training steps are fitted so; the logarithms ``x`` have priors, and measurements that are alike
share an effect ``e`` that no constant explains (``learn.physics.solve``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from neusight.laws.doubts import NORMAL_90
from neusight.learn.evidence import group_weights, significant
from neusight.learn.physics.solve import Rows, likeliest, solve

GROUP_WEIGHT = 6.0
"""Rows that measurements which are alike count as: more of them differ in their load or scale alone."""
MOST_STEPS = 40
NORMAL, LEAST = 1e9, 1e-3
"""Degrees of freedom of Student's t distribution that is a normal one, and standard deviation of any error
(numerics)."""


@dataclass(frozen=True, kw_only=True)
class SumObservation:
    """A measured sum (a time [s] or a power [W]) of ``terms``, shape (t,), each times its constants.

    Observations of one name ``alike`` share what no constant explains.
    """

    gpu: str
    alike: str
    measured: float
    terms: np.ndarray
    source: str = ""


@dataclass(frozen=True, kw_only=True)
class SumFit:
    """Constants by name with standard deviations of their logarithms; ``log_error`` of each measurement,
    log(fitted / measured) without its own effect, shape (n,).
    """

    values: dict[str, float]
    deviations: dict[str, float]
    log_error: np.ndarray

    @property
    def error(self) -> float:
        """Mean absolute relative error."""
        return float(np.mean(np.abs(np.expm1(self.log_error))))

    def found(self) -> dict[str, Any]:
        """Constants, how well they are known, and the error, rounded: fields of ``FittedConstants``."""
        known = {"values": significant(self.values, 5), "deviations": significant(self.deviations, 3)}
        return known | {"error": round(self.error, 4)}


def fit_sums(
    observations: Sequence[SumObservation], prior: Mapping[str, tuple[float, float]], places: np.ndarray | None = None
) -> SumFit:
    """Estimate the constants of measured sums.

    Args:
        observations: n of them, whose terms T are what each kind takes by itself or how often it occurs.
        prior: each constant's middle and the standard deviation of its logarithm, by name.
        places: A, which constants multiply each term, shape (t, c); default each term its own, c = t.
    """
    terms = np.stack([o.terms for o in observations])
    centre, spread = np.transpose(list(prior.values()))
    places = np.eye(terms.shape[1]) if places is None else places

    def evaluate(place: np.ndarray) -> np.ndarray:
        return np.log((terms * np.exp(places @ place)).sum(axis=1))

    def jacobian(place: np.ndarray) -> np.ndarray:
        parts = terms * np.exp(places @ place)
        return np.asarray(parts @ places / parts.sum(axis=1, keepdims=True))

    names = sorted({o.alike for o in observations})
    effect = np.array([names.index(o.alike) for o in observations])
    weight = group_weights(effect, GROUP_WEIGHT, most=1.0)
    target = np.log([o.measured for o in observations])
    rows = Rows(target=target, weight=weight, effect=effect[None], kind_of_effect=np.zeros(len(names), dtype=int))
    solution = solve(rows, evaluate, jacobian, {"centre": np.log(centre), "spread": spread}, steps=MOST_STEPS)
    return SumFit(
        values=dict(zip(prior, np.exp(solution.place).tolist(), strict=True)),
        deviations=dict(zip(prior, solution.deviation.tolist(), strict=True)),
        log_error=evaluate(solution.place) - target,
    )


def log_errors(observations: Sequence[SumObservation], logs: np.ndarray, places: np.ndarray) -> np.ndarray:
    """log(predicted / measured) of sums with logarithms of constants, shape (n,); ``places`` see ``fit_sums``."""
    terms, measured = np.stack([o.terms for o in observations]), np.array([o.measured for o in observations])
    return np.asarray(np.log(terms @ np.exp(places @ logs) / measured))


def fit_shares(
    errors: np.ndarray,
    terms: np.ndarray,
    known: np.ndarray,
    start: Sequence[float],
    *,
    weight: np.ndarray | float = 1.0,
    freedom: float = NORMAL,
) -> np.ndarray:
    """Shares of terms that, with what is known, are the standard deviations of errors: their ratios are the likeliest,
    their size has 90 % of the errors in their 90 % intervals.

    Args:
        errors, known: with the standard deviation that others than these terms leave, shape (n,).
        terms: shape (n, shares).
        start: shares from which the likeliest are sought.
        weight: of each error.
        freedom: degrees of freedom of Student's t distribution, of which errors are taken.
    """
    weight = weight * np.ones(len(errors)) / len(errors)

    def surprise(shares: np.ndarray) -> float:
        variance = np.maximum(known**2 + np.square(terms * shares).sum(axis=1), LEAST**2)
        tails = (freedom + 1.0) / 2.0 * np.log1p(errors**2 / variance / freedom)
        return float(weight @ (np.log(variance) / 2.0 + tails))

    shares = likeliest(surprise, start)
    beyond = np.sqrt(np.maximum((errors / NORMAL_90) ** 2 - known**2, 0.0))
    stated = np.sqrt(np.square(terms * shares).sum(axis=1))
    return np.asarray(shares * weighted_quantiles(beyond / stated, weight, 0.9))


def weighted_quantiles(values: np.ndarray, weight: np.ndarray, shares: Any) -> np.ndarray:
    """Quantiles of values that count by their weights, at some shares of the whole weight."""
    order = np.argsort(values)
    cumulated = np.cumsum(weight[order])
    return np.interp(np.asarray(shares) * cumulated[-1], cumulated, values[order])


def students_widening(freedom: float) -> float:
    """How many times as wide the 90 % interval of Student's t distribution is as that of a normal one."""
    from scipy.stats import t

    return float(t.ppf(0.95, freedom)) / NORMAL_90


def robust_spread(log_errors: np.ndarray, stated: np.ndarray | float = 0.0) -> float:
    """Standard deviation that has 90 % of errors in their 90 % intervals, in quadrature with those that are ``stated``
    of each, shape (n,); 0 where these are wide enough.
    """
    beyond = (log_errors / NORMAL_90) ** 2 - np.square(stated)
    return float(np.quantile(np.sqrt(np.maximum(beyond, 0.0)), 0.9))


def share_of(log_errors: np.ndarray, stated: np.ndarray) -> float:
    """Share of ``stated`` standard deviations, at most 1, that has 90 % of errors in their 90 % intervals."""
    return float(min(1.0, np.quantile(np.abs(log_errors) / np.maximum(NORMAL_90 * stated, 1e-9), 0.9)))
