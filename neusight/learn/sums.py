r"""Fits of times that are sums: what runs of a kind takes by itself, times a constant that all measurements share.

.. math:: \log t_i = \log \sum_k T_{ik} \exp\left(\sum_c A_{ikc} x_c\right) + e_{alike(i)} + noise

Serving engines and training steps are fitted so; the logarithms ``x`` have priors, and measurements that are alike
share an effect ``e`` that no constant explains (``learn.physics.solve``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from neusight.executors.costs import NORMAL_90
from neusight.learn.physics.solve import Rows, solve

T = TypeVar("T")
GROUP_WEIGHT = 6.0
"""Rows that measurements which are alike count as: more of them differ in their load or scale alone."""
MOST_STEPS = 40


@dataclass(frozen=True, kw_only=True)
class SumFit:
    """Logarithms ``place`` of the constants with their standard ``deviation``, shape (c,); ``log_error`` of each
    measurement, log(fitted / measured) without its own effect, shape (n,).
    """

    place: np.ndarray
    deviation: np.ndarray
    log_error: np.ndarray

    @property
    def error(self) -> float:
        """Mean absolute relative error."""
        return float(np.mean(np.abs(np.expm1(self.log_error))))

    @property
    def spread(self) -> float:
        """Standard deviation of the whole error in log time, robustly."""
        return robust_spread(self.log_error)

    def values(self, names: Sequence[str]) -> dict[str, float]:
        """Constants by name."""
        return dict(zip(names, np.exp(self.place).tolist(), strict=True))

    def deviations(self, names: Sequence[str]) -> dict[str, float]:
        """Standard deviations of the constants' logarithms by name."""
        return dict(zip(names, self.deviation.tolist(), strict=True))


def fit_sums(
    seconds: np.ndarray,
    terms: np.ndarray,
    alike: Sequence[str],
    prior: Mapping[str, np.ndarray],
    places: np.ndarray | None = None,
) -> SumFit:
    """Constants of measured sums.

    Args:
        seconds: measured times [s], shape (n,).
        terms: T, what each kind takes by itself [s] or how often it occurs, shape (n, t).
        alike: names of what measurements share that no constant explains, n of them.
        prior: ``centre`` and ``spread`` of the constants' logarithms, shape (c,).
        places: A, which constants multiply each term, shape (n, t, c); default each term its own, c = t.
    """
    if places is None:
        places = np.broadcast_to(np.eye(terms.shape[1]), (*terms.shape, terms.shape[1]))

    def parts(place: np.ndarray) -> np.ndarray:
        return np.asarray(terms * np.exp(places @ place))

    def evaluate(place: np.ndarray) -> np.ndarray:
        return np.log(parts(place).sum(axis=1))

    def jacobian(place: np.ndarray) -> np.ndarray:
        share = parts(place)
        return np.einsum("nk,nkc->nc", share / share.sum(axis=1, keepdims=True), places)

    names = sorted(set(alike))
    effect = np.array([names.index(name) for name in alike])
    weight = GROUP_WEIGHT / np.maximum(np.bincount(effect)[effect], GROUP_WEIGHT)
    rows = Rows(target=np.log(seconds), weight=weight, effect=effect, kind_of_effect=np.zeros(len(names), dtype=int))
    solution = solve(rows, evaluate, jacobian, prior, steps=MOST_STEPS)
    return SumFit(
        place=solution.place,
        deviation=np.sqrt(np.diag(solution.covariance)),
        log_error=evaluate(solution.place) - rows.target,
    )


def robust_spread(log_errors: np.ndarray) -> float:
    """Standard deviation of errors from their 90 % quantile: of a normal distribution 1.645 of it."""
    return float(np.quantile(np.abs(log_errors), 0.9) / NORMAL_90)


def folds(rows: Sequence[T], key: Callable[[T], str]) -> Iterator[tuple[str, list[T], list[T]]]:
    """Each value of a key, rows of the others, and its own rows, which are left out."""
    for value in sorted({key(row) for row in rows}):
        yield value, [row for row in rows if key(row) != value], [row for row in rows if key(row) == value]


def most_common(left_out: Counter[str], most: int = 3) -> str:
    """Why rows were left out, the commonest reasons first, each with its count."""
    reasons = [f"{reason} ({count:,})" for reason, count in left_out.most_common(most)]
    return "; ".join([*reasons, *(["…"] if len(left_out) > most else [])])
