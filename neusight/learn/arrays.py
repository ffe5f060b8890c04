"""Constants of systolic accelerators, from measured programs: ``neusight fit arrays``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from neusight.devices import load_device
from neusight.devices.spec import SystolicSpec
from neusight.executors.systolic.times import launch_s, times_of
from neusight.laws.array_constants import PRIOR, ArrayPhysics
from neusight.laws.fitted import FittedArrays
from neusight.learn.evidence import ConstantsFit, Errors, Evidence, FitOptions, Report, grouped, sample_groups
from neusight.learn.physics.problem import KernelMeasurements, Problem
from neusight.learn.physics.solve import CONVERGED, MOST_STEPS
from neusight.learn.sums import robust_spread
from neusight.measured import kernel_part, read_table
from neusight.measured.folder import kernel_files

if TYPE_CHECKING:
    import pandas as pd

EACH = 400
"""Rows of a device, table and family, at most."""
WEIGHT = 60.0
"""Rows that a device's family counts as against the priors: shapes of one grid tell of few constants."""
NOISE = 0.15
"""Log error from which on rows count less (assumption: what compilers choose moves times as much)."""


@dataclass(frozen=True, kw_only=True)
class ArrayRows(KernelMeasurements):
    """Programs of one family on one device."""

    device: SystolicSpec

    def timed(self, constants: ArrayPhysics, held: None = None) -> tuple[np.ndarray, None]:
        """Expected times [s] by the law."""
        executed = times_of(self.batch, self.device, constants).execution_s
        return launch_s(self.device, self.conditions, constants) + executed, None


def read_arrays(options: FitOptions, report: Report | None = None) -> Evidence[ArrayRows]:
    """Programs in a folder of measured rows, a table, device and family each; long tables are sampled."""
    import pandas as pd

    files = kernel_files(options.data, lambda family, gpu: family != "collective", SystolicSpec)
    if not files:
        return Evidence(rows=[], files=[])
    frame = pd.concat([read_table(path).frame for path in files], ignore_index=True)
    names = [name for name in ("source", "table", "gpu") if name in frame]
    tables = frame[frame["family"] != "collective"].groupby(names, observed=True)
    return Evidence(rows=[part for _, rows in tables for part in _sampled(rows, options.seed)], files=files)


def _sampled(rows: pd.DataFrame, seed: int) -> Iterator[ArrayRows]:
    device = load_device(str(rows["gpu"].iloc[0]))
    if isinstance(device, SystolicSpec):
        chosen = rows.iloc[sample_groups(rows["family"].factorize()[0], EACH, seed)]
        for family, some in chosen.groupby("family", sort=False, observed=True):
            part, latency_s = kernel_part(some, device, str(family), np.arange(len(some))), 1e-3 * some["latency_ms"]
            yield ArrayRows.of(part, latency_s.to_numpy(float), kind=family, worth=WEIGHT, most=1.0)


def solve_arrays(evidence: Evidence[ArrayRows], options: FitOptions, report: Report | None = None) -> FittedArrays:
    """All constants, and how single kernels scatter by family. Families of many rows count the same."""
    parts = [replace(part, idle=set()) for part in evidence.rows]
    problem = Problem(parts, PRIOR, noise=NOISE, factors=())
    solution = problem.fit(MOST_STEPS, tolerance=CONVERGED)
    scatter = _scatter(evidence.rows, problem.at(solution.place))
    return FittedArrays(**(evidence.about() | problem.found(solution)), scatter=scatter)


def _scatter(parts: Sequence[ArrayRows], physics: ArrayPhysics) -> dict[str, float]:
    """Robust standard deviation of the log error of single kernels, by family, without what a table's share."""
    scatter = {}
    for family, several in grouped(parts, lambda part: part.batch.family).items():
        offs = [part.log_error(physics) for part in several]
        scatter[family] = round(robust_spread(np.concatenate([off - np.median(off) for off in offs])), 4)
    return scatter


def errors_of(parts: Sequence[ArrayRows], fitted: FittedArrays) -> Errors:
    """Errors by device and family."""
    for part in parts:
        yield {"gpu": part.device.id, "family": part.batch.family}, part.log_error(fitted.physics)


ARRAYS = ConstantsFit(
    read=read_arrays,
    solve=solve_arrays,
    errors=errors_of,
    traits=("gpu",),
    rows="kernels of systolic accelerators",
)
