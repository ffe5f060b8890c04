"""The same load drawn anew: how much of a figure is chance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from neusight.errors import LoadError
from neusight.serving.limits import Limits
from neusight.serving.load import Closed, Load, Offline, Open
from neusight.serving.run import Run
from neusight.serving.simulate import StepTimes, simulate


@dataclass(frozen=True, kw_only=True)
class Replicas:
    """Runs of one load, each drawn from a seed of its own."""

    runs: tuple[Run, ...]

    def of(self, figure: str) -> tuple[float, float]:
        """Mean over the runs and standard deviation between them, of a figure of ``Run`` by its name: that of a spread
        is its mean.
        """
        values = [getattr(run, figure) for run in self.runs]
        means = np.array([v if isinstance(v, float) else v.mean for v in values])
        return float(means.mean()), float(means.std(ddof=1))


def replicate(load: Load, limits: Limits, times: StepTimes, seeds: Sequence[int]) -> Replicas:
    """Serve a load once for each seed.

    Raises:
        LoadError: fewer than two seeds, or a load without chance.
    """
    if not isinstance(load, Closed | Open | Offline):
        raise LoadError(f"a {type(load).__name__.lower()} load is the same for every seed: simulate it once")
    if len(seeds) < 2:
        raise LoadError("a spread takes at least two seeds")
    return Replicas(runs=tuple(simulate(replace(load, seed=seed), limits, times) for seed in seeds))
