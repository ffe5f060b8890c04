"""Constants of systolic accelerators, from measured programs: ``neusight fit arrays``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.devices import load_device
from neusight.devices.spec import SystolicSpec
from neusight.errors import DataError
from neusight.executors.costs import NORMAL_90
from neusight.executors.systolic.predictor import UNKNOWN_SCATTER, UNKNOWN_SPREAD
from neusight.executors.systolic.times import launch_s, times_of
from neusight.kernels.work import work_of
from neusight.laws.array_constants import PRIOR, ArrayPhysics
from neusight.laws.fitted import FittedArrays
from neusight.learn import Report
from neusight.learn.evidence import ConstantsFit, Evidence, FitOptions
from neusight.learn.physics.problem import Measurements, Problem
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
class ArrayRows(Measurements):
    """Programs of one family on one device."""

    device: SystolicSpec

    def times_s(self, physics: ArrayPhysics) -> np.ndarray:
        """Expected times [s] by the law."""
        executed = times_of(self.batch, self.device, physics).execution_s
        return launch_s(self.device, self.conditions, physics) + executed

    def log_error(self, physics: ArrayPhysics) -> np.ndarray:
        """Logarithm of expected over measured times."""
        return np.log(self.times_s(physics) / self.latency_s)


def read_arrays(options: FitOptions, report: Report | None = None) -> Evidence[ArrayRows]:
    """Programs in a folder of measured rows, a table, device and family each; long tables are sampled.

    Raises:
        DataError: none there.
    """
    import pandas as pd

    files = kernel_files(options.data, lambda family, gpu: family != "collective", SystolicSpec)
    if not files:
        raise DataError(f"{options.data} has no kernels of systolic accelerators: give the folder of measured rows")
    frame = pd.concat([read_table(path).frame for path in files], ignore_index=True)
    names = [name for name in ("source", "table", "row") if name in frame]
    of_tables = frame.sort_values(names).groupby(names[:-1]) if names else [("", frame)]
    parts = [part for _, rows in of_tables for part in _sampled(rows, np.random.default_rng(options.seed))]
    return Evidence(rows=parts, files=files)


def _sampled(rows: pd.DataFrame, generator: np.random.Generator) -> Iterator[ArrayRows]:
    for gpu, own in rows[rows["family"] != "collective"].groupby("gpu", sort=True):
        device = load_device(str(gpu))
        if not isinstance(device, SystolicSpec):
            continue
        for family in own["family"].unique():
            mine = own[own["family"] == family]
            mine = mine.iloc[np.sort(generator.permutation(len(mine))[:EACH])]
            part = kernel_part(mine, device, str(family), np.arange(len(mine)))
            yield ArrayRows(
                device=device,
                kind=str(family),
                batch=part.batch,
                conditions=part.conditions,
                latency_s=1e-3 * mine["latency_ms"].to_numpy(float),
                weight=np.ones(len(mine)),
            )


def solve_arrays(evidence: Evidence[ArrayRows], options: FitOptions, report: Report | None = None) -> FittedArrays:
    """All constants, and errors on the rows that they are fitted to."""
    found, physics = _fitted(evidence.rows)
    seen = _errors("seen", evidence.rows, physics)
    error = round(float(np.mean([row["mean"] for row in seen])) / 100.0, 4)
    content = evidence.about() | found | {"error": error, "scatter": _scatter(evidence.rows, physics)}
    return FittedArrays(**content, errors=seen)


def judge_arrays(
    evidence: Evidence[ArrayRows], fitted: FittedArrays, options: FitOptions, report: Report | None = None
) -> FittedArrays:
    """The same with errors where each device is left out, and by the smaller half of each family's kernels alone."""
    folds = evidence.folds(lambda part: part.gpu, report, "arrays")
    left_out = [row for _, rest in folds if rest.rows for row in _left_out(rest.rows, rest.held)]
    halves = [_halves(part) for part in evidence.rows if len(part) > 1]
    larger = _errors("larger half", [large for _, large in halves], _fitted([small for small, _ in halves])[1])
    return replace(fitted, errors=fitted.errors + left_out + larger)


def _fitted(parts: Sequence[ArrayRows]) -> tuple[dict[str, Any], ArrayPhysics]:
    """What is found of the constants, and those. Families of many rows count the same."""
    weighted = [replace(part, weight=np.full(len(part), min(WEIGHT / len(part), 1.0)), idle=set()) for part in parts]
    problem = Problem(weighted, PRIOR, lambda part, at, _: (part.times_s(at), None), noise=NOISE, unseen=True)
    solution = problem.fit(MOST_STEPS, tolerance=CONVERGED)
    return problem.found(solution), problem.at(solution.place)


def _halves(part: ArrayRows) -> tuple[ArrayRows, ArrayRows]:
    """The smaller half of the kernels by their largest extent or their work, and the larger one."""
    work = work_of(part.batch).flops
    extent = np.max([part.batch[name] for name in "mnk"], axis=0) if part.batch.family == "gemm" else work
    order = np.lexsort((work, extent))
    middle = len(order) // 2
    return part.take(order[:middle]), part.take(order[middle:])


def _scatter(parts: Sequence[ArrayRows], physics: ArrayPhysics) -> dict[str, float]:
    """Robust standard deviation of the log error of single kernels, by family, without what a table's share."""
    offs: dict[str, list[np.ndarray]] = {}
    for part in parts:
        off = part.log_error(physics)
        offs.setdefault(part.batch.family, []).append(off - np.median(off))
    return {family: round(float(robust_spread(np.concatenate(each))), 4) for family, each in offs.items()}


def _left_out(kept: Sequence[ArrayRows], held: Sequence[ArrayRows]) -> list[dict[str, Any]]:
    """Errors on devices that are not fitted to, and how many percent of rows lie within the interval of a stranger."""
    physics = _fitted(kept)[1]
    scatter, errors = _scatter(kept, physics), _errors("left out", held, physics)
    for row, part in zip(errors, held, strict=True):
        width = np.hypot(UNKNOWN_SPREAD, scatter.get(part.batch.family, UNKNOWN_SCATTER))
        row["inside"] = round(100.0 * float(np.mean(np.abs(part.log_error(physics)) <= NORMAL_90 * width)), 1)
    return errors


def _errors(how: str, parts: Sequence[ArrayRows], physics: ArrayPhysics) -> list[dict[str, Any]]:
    """Errors in percent by device and family."""
    rows = []
    for part in parts:
        off = 100.0 * np.abs(part.times_s(physics) / part.latency_s - 1.0)
        names = {"fit": how, "gpu": part.device.id, "family": part.batch.family, "rows": len(part)}
        rows.append(names | {"mean": round(float(off.mean()), 2), "median": round(float(np.median(off)), 2)})
    return rows


ARRAYS = ConstantsFit(read=read_arrays, solve=solve_arrays, judge=judge_arrays)
