"""``OpenVersion``: what passes take where the version of the engine is open, over the versions that people run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from neusight.laws.doubts import NORMAL_90
from neusight.serving.deployment import Deployment
from neusight.workloads.decoders.shares import Steps

UNSET = "unset:engine_version"
"""Key of the doubt."""


@dataclass(frozen=True, kw_only=True)
class OpenVersion:
    """``logs`` of times of n passes by each of k versions over those of the deployment's own, shape (k, n), by how much
    the variance of each version's log error exceeds that of the own, ``apart``, and the share of all runs that each
    version has, ``shares``, shape (k,).

    An answer is at the mean over versions, not at the newest, and the spread between versions is a doubt of it: whoever
    leaves the version open may run any. An era whose constants are less certain than those of most makes an answer
    wider where it is given.

    Versions run the same kernels here and differ by constants of their eras: no kernel is priced again. Limits that
    differ between versions are those of the deployment.
    """

    logs: np.ndarray
    apart: np.ndarray
    shares: np.ndarray

    @property
    def mean(self) -> np.ndarray:
        """Mean log time of each pass over the deployment's own, shape (n,)."""
        return np.asarray(self.shares @ self.logs)

    @property
    def spread(self) -> np.ndarray:
        """Standard deviation of the log time of each pass since the version is open: between versions, and what the
        errors of some exceed those of the deployment's by on average; shape (n,).
        """
        return np.asarray(np.sqrt(self.shares @ np.square(self.logs - self.mean) + max(self.shares @ self.apart, 0.0)))


def open_version(deployment: Deployment, steps: Steps, groups_s: Mapping[str, np.ndarray]) -> OpenVersion | None:
    """Times of passes by the versions that people run; None where the version is given.

    Args:
        deployment: that runs the passes.
        steps: the passes, shape (n,).
        groups_s: times of their kernels by themselves, see ``PassCosts``.
    """
    setup, replica = deployment.setup, deployment.replica
    if not setup.versions:
        return None
    steps = deployment.in_flight(steps)
    versions, shares = zip(*setup.versions, strict=True)
    engines = [replace(setup, engine_version=version).engine_on(replica.device) for version in versions]
    own_s, *each_s = replica.lasts_s(steps, groups_s, [replica.engine, *engines])
    apart = np.array([engine.serving.spread**2 - replica.engine.serving.spread**2 for engine in engines])
    return OpenVersion(logs=np.log(each_s / own_s), apart=apart, shares=np.array(shares))


def in_words(deployment: Deployment, spread: float) -> dict[str, str]:
    """The versions over which an answer is the mean, with the 90 % interval of their doubt; {} of a given version."""
    versions = [version for version, _ in deployment.setup.versions]
    ends = 100.0 * np.expm1(NORMAL_90 * spread)
    many = f"mean of {' and '.join(versions)} ± {ends:.0f} % (give --engine-version)"
    return {"engine_version": many} if versions else {}
