"""``neusight fit links``: the constants of collectives, and how wrong they are on architectures left out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from neusight.devices.spec import GpuSpec
from neusight.kernels import KernelBatch
from neusight.kernels.work import by_distinct
from neusight.laws.fitted import FittedLinks
from neusight.laws.link_constants import PRIOR, LinkPhysics
from neusight.laws.link_kinds import kinds_by_size, paths_of
from neusight.laws.links import collective_s
from neusight.laws.routes import ranks_of
from neusight.learn.evidence import (
    ConstantsFit,
    Errors,
    Evidence,
    FitOptions,
    Report,
    SolvedFold,
    group_weights,
    sample_groups,
    source_of,
)
from neusight.learn.physics.problem import GROUP_WEIGHT, KernelMeasurements, Problem
from neusight.learn.sums import weighted_quantiles
from neusight.measured import kernel_part, read_table
from neusight.measured.folder import device_in, kernel_files, sound

STEPS = 25
EACH = 8
"""Rows of a group and octave of sizes, at most."""
SHORT_BYTES = 2**16
"""Messages between nodes of which hops take nearly all of the time, whatever the bandwidth of the network."""
CLASSES = (("< 64 KiB", 2**16), ("64 KiB - 4 MiB", 2**22 + 1), ("> 4 MiB", 2**63))
"""Sizes of messages, by which errors are told."""


@dataclass(frozen=True, kw_only=True)
class LinkRows(KernelMeasurements):
    """Collectives of one device and table; ``kind`` is that of each, see ``kinds_by_size``."""

    device: GpuSpec

    def timed(self, constants: LinkPhysics, held: None = None) -> tuple[np.ndarray, None]:
        """Expected times [s] by the law alone."""
        return collective_s(self.batch, self.device, self.conditions, constants)[1], None


def read_links(options: FitOptions, report: Report | None = None) -> Evidence[LinkRows]:
    """Collectives of GPUs in a folder of measured rows, a table and device each; groups of many rows are sampled."""
    files = kernel_files(options.data, lambda family, gpu: family == "collective", GpuSpec)
    return Evidence(rows=[rows for path in files for rows in _of_file(path, options.seed)], files=files)


def _of_file(path: Path, seed: int) -> Iterator[LinkRows]:
    frame = read_table(path).frame
    names = [name for name in ("table", "gpu") if name in frame]
    for _, rows in frame[frame["family"] == "collective"].groupby(names, observed=True):
        device = device_in(path, str(rows["gpu"].iloc[0]))
        if not device.links:  # As of a processor in place of a GPU, whose cores exchange through memory.
            continue
        part = kernel_part(rows, device, "collective", np.arange(len(rows)))
        groups, octaves = _groups(rows, part.batch)
        told = np.flatnonzero(sound(rows) & _of_known_route(part.batch))
        index = np.intersect1d(told, sample_groups(octaves, EACH, seed))
        if len(index):
            chosen, latency_s = part.take(index), 1e-3 * rows["latency_ms"].to_numpy(dtype=float)[index]
            kind = kinds_by_size(chosen.batch, device, chosen.conditions)
            # Groups count the same, and in a group its octaves.
            weight = group_weights(groups[index], GROUP_WEIGHT, group_weights(octaves[index], 1.0))
            yield LinkRows.of(chosen, latency_s, kind=kind, weight=weight, source=source_of(path))


def _of_known_route(batch: KernelBatch) -> np.ndarray:
    """Rows that say something of other machines: between nodes whose network no table names, short ones alone."""
    ranks, within = ranks_of(batch)
    return np.asarray((within == ranks) | (batch["bytes"] <= SHORT_BYTES))


def _groups(rows: Any, batch: KernelBatch) -> tuple[np.ndarray, np.ndarray]:
    """Number of the group of rows that were measured alike, and of its octave of sizes."""
    names = ("op", "ranks", "per_node", "backend", "timer", "dtype")
    present = [name for name in names if name in rows]
    sizes = rows.assign(octave=np.log2(batch["bytes"]).astype(int))
    numbers = (sizes.groupby(keys, dropna=False, observed=True).ngroup() for keys in (present, [*present, "octave"]))
    groups, octaves = (np.asarray(number.to_numpy()) for number in numbers)
    return groups, octaves


def solve_links(evidence: Evidence[LinkRows], options: FitOptions, report: Report | None = None) -> FittedLinks:
    """All constants, and intervals of rows that they are fitted to."""
    problem = Problem(evidence.rows, PRIOR)
    fitted = FittedLinks(**(evidence.about() | problem.found_beside_effects(problem.fit(STEPS))))
    return replace(fitted, intervals_seen=_intervals([(part, fitted) for part in evidence.rows]))


def _log_error(part: LinkRows, fitted: FittedLinks) -> np.ndarray:
    """Logarithm of predicted over measured times, with the effects of devices that are in the fit."""
    effects = by_distinct(part.kind, lambda kind: fitted.effects.get(kind, {}).get(part.gpu, 0.0))
    return part.log_error(fitted.physics) + effects


def errors_of(parts: Sequence[LinkRows], fitted: FittedLinks) -> Errors:
    """Errors by device, kind and size of message."""
    for part in parts:
        off = _log_error(part, fitted)
        sizes = np.searchsorted([end for _, end in CLASSES], part.batch["bytes"], side="right")
        for kind, size, one in zip(part.kind.tolist(), sizes.tolist(), off.tolist(), strict=True):
            yield {"gpu": part.gpu, "kind": kind, "bytes": CLASSES[size][0]}, one


def _intervals(judged: Iterable[tuple[LinkRows, FittedLinks]]) -> dict[str, list[float]]:
    """Factors between which 90 % of measured over predicted times lie, rows by their weight, by path.

    Launches by themselves tell of a host; what is not known of it counts beside.
    """
    import pandas as pd

    frames = []
    for part, fitted in judged:
        path = paths_of(part.batch, part.device, part.conditions, fitted.physics)
        columns = {"path": path, "error": -_log_error(part, fitted), "weight": part.weight}
        frames.append(pd.DataFrame(columns)[part.conditions.timing != "stream"])
    intervals = {}
    for path, rows in pd.concat(frames).groupby("path") if frames else ():
        ends = weighted_quantiles(rows["error"].to_numpy(), rows["weight"].to_numpy(), [0.05, 0.95])
        intervals[str(path)] = np.exp(ends).round(4).tolist()
    return intervals


def _with_intervals(fitted: FittedLinks, folds: Sequence[SolvedFold]) -> FittedLinks:
    return replace(fitted, intervals=_intervals((part, fold.fitted) for fold in folds for part in fold.held))


LINKS = ConstantsFit(
    read=read_links,
    solve=solve_links,
    errors=errors_of,
    traits=("device.architecture",),
    finish=_with_intervals,
    kept=("intervals", "intervals_seen"),
    rows="collectives of GPUs",
)
