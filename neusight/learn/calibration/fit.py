"""Fit a calibration: measured rows of one GPU beside their predictions, and what remains as a correction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import neusight
from neusight.devices.spec import GpuSpec
from neusight.errors import DataError
from neusight.executors.gpu.calibration.calibration import Calibration, figures, fingerprint, rounded, with_scales
from neusight.executors.gpu.calibration.corrections import WIDTH, Observations, Points, Posterior, points_of
from neusight.executors.gpu.expected.laws import answering_model
from neusight.executors.gpu.predictor import KernelPredictor
from neusight.executors.gpu.tile_models.artifact import HALF
from neusight.kernels import KernelBatch
from neusight.kernels.columns import ColumnRecord
from neusight.kernels.conditions import Conditions
from neusight.measured.folder import hashes, kernel_files, sound
from neusight.measured.kernels import KernelPart, Skip, computed_rows, kernel_parts, skipped_counts
from neusight.measured.suspects import find_suspects
from neusight.measured.table import MeasuredTable, read_table

if TYPE_CHECKING:
    import pandas as pd

MOST_ROWS = 500
"""Of a calibration, which is solved exactly: more rows are enough to train on."""
FREEDOM = 4.0
"""Degrees of freedom of Student's t, the distribution of single errors: a row far off pulls little (assumption)."""
BELIEF = 10.0
"""Rows that stated doubts count as against measured ones in how much kernels of a kind differ (assumption)."""
GROSS = 4.0
"""Standard deviations from which on an error tells no more of the others' (assumption)."""
JITTER = 0.02
"""Spread of repeated executions (assumption: of kernels without a doubt of their own)."""
LAUNCH_JITTER = 0.1
"""Spread of single launches (assumption)."""
START_S = 2e-6
"""What blocks may take to start (assumption): of an execution that is timed as this short, little is known."""
REWEIGHTINGS = 6


def fit_calibration(
    predictor: KernelPredictor,
    device: GpuSpec,
    frame: pd.DataFrame,
    sha256: Mapping[str, str] | None = None,
) -> Calibration:
    """What measured kernels of a GPU say of the predictor's error there.

    Args:
        predictor: with the tile models that are to be corrected; corrections that it has already do not count.
        device: the GPU, with the figures that later predictions have.
        frame: rows of a table of kernels; those of other GPUs are left out, and those that are doubted.
        sha256: of the files that the rows come from, for the record.

    Raises:
        DataError: more than ``MOST_ROWS`` usable rows.
    """
    rows, reasons = usable(frame, device)
    if len(rows) > MOST_ROWS:
        raise DataError(f"{len(rows):,} rows are too many to calibrate with, at most {MOST_ROWS}: use neusight train")
    data = {"rows": len(rows), "left_out": len(frame) - len(rows), "reasons": reasons, "sha256": dict(sha256 or {})}
    nothing = unmeasured(predictor, device)
    if rows.empty:
        return replace(nothing, data={**data, "kinds": {}})
    timings = timings_of(predictor, device, rows)
    observations, scale = observe(_apart(timings, rows))
    data["kinds"] = _words_of_kinds(timings, rows, device)
    return replace(nothing, data=data, scale=scale, observations=rounded(observations))


def unmeasured(predictor: KernelPredictor, device: GpuSpec) -> Calibration:
    """The calibration of a GPU none of whose kernels were measured, which corrects none."""
    return Calibration(
        gpu=device.id,
        neusight=neusight.__version__,
        device=figures(device),
        tile_models=fingerprint(predictor),
        data={"rows": 0, "left_out": 0, "sha256": {}},
        scale={},
        observations=_NOTHING,
    )


def read_rows(data: Path, gpu: str) -> tuple[pd.DataFrame, dict[str, str]]:
    """Kernels of a GPU in a table of measured rows or a folder of them, and hashes of its files.

    Raises:
        DataError: none of this GPU there.
    """
    import pandas as pd

    files = kernel_files(data)
    frames = [read_table(file).frame for file in files]
    frame = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame({"gpu": []})
    if not (frame["gpu"] == gpu).any():
        known = ", ".join(sorted(frame["gpu"].unique())) or "no kernels"
        raise DataError(f"{data} has no rows of {gpu}: it has {known}")
    return frame[frame["gpu"] == gpu].reset_index(drop=True), hashes(files)


def usable(frame: pd.DataFrame, device: GpuSpec) -> tuple[pd.DataFrame, dict[str, int]]:
    """The rows of a frame that can calibrate the device, on their old index: its own, of single kernels in dtypes that
    it has, without doubts; and how many others were left out by reason.
    """
    latency_s = 1e-3 * frame["latency_ms"].to_numpy(dtype=float)
    others = (frame["gpu"] != device.id).to_numpy(bool)
    wrong = ~others & ~(np.isfinite(latency_s) & (latency_s > 0))
    doubted = ~others & ~wrong & ~sound(frame)
    reasons = Counter({f"of other GPUs than {device.id}": int(others.sum())})
    reasons["no positive finite latency"] = int(wrong.sum())
    reasons.update(f"doubted: {doubt.partition(':')[0]}" for doubt in frame[doubted].get("suspect", ()))
    rows = np.flatnonzero(~(others | wrong | doubted))
    skipped: list[Skip] = []
    kept = np.zeros(len(frame), dtype=bool)
    for part in parts_of(frame.iloc[rows], device, skipped):
        kept[rows[part.rows]] = computed_rows(part, skipped) & (part.batch.family != "collective")
    doubts = find_suspects(MeasuredTable(Path(), "kernels", frame[kept]))
    sure = np.array([doubt is None for doubt in doubts], dtype=bool)
    reasons.update(doubt.partition(": ")[2] for doubt in doubts[~sure])
    reasons.update({one["reason"]: one["rows"] for one in skipped_counts(skipped)})
    return frame[kept][sure], dict(+reasons)


def parts_of(frame: pd.DataFrame, device: GpuSpec, skipped: list[Skip] | None = None) -> Iterator[KernelPart]:
    """Rows of a device by family; their launches are of the host that measured them, not of a usual one."""
    return kernel_parts(frame.assign(recorded=True), [] if skipped is None else skipped, {device.id: device})


def _words_of_kinds(timings: Timings, frame: pd.DataFrame, device: GpuSpec) -> dict[str, str]:
    """Each kind of kernel in the dtypes of its rows: ``linear bfloat16`` where both 16-bit dtypes are one kind."""
    dtypes = np.empty(len(frame), dtype=object)
    for part in parts_of(frame, device):
        dtypes[part.rows] = part.batch["dtype"]
    rows, kinds = dtypes[timings.kernel].astype(str), timings.points.kind
    measured = {str(kind): sorted(set(rows[kinds == kind].tolist())) for kind in np.unique(kinds)}
    plain = {kind: kind.partition("/")[2] for kind in measured}
    return {kind: plain[kind].replace(HALF, ", ".join(words)) for kind, words in measured.items()}


def timings_of(predictor: KernelPredictor, device: GpuSpec, frame: pd.DataFrame) -> Timings:
    """Rows of a frame beside what the tile models alone say of them, under the conditions in which they were timed;
    ``kernel`` is a row's position in the frame.
    """
    latency_s = frame["latency_ms"].to_numpy(dtype=float) * 1e-3
    parts = (
        predicted(predictor, device, part.batch, latency_s[part.rows], part.rows, conditions=part.conditions)
        for part in parts_of(frame, device)
    )
    return Timings.joined(list(parts))


def predicted(
    predictor: KernelPredictor,
    device: GpuSpec,
    batch: KernelBatch,
    measured_s: np.ndarray,
    kernel: np.ndarray,
    *,
    conditions: Conditions,
) -> Timings:
    """Kernels of one family with the launch and the execution that the tile models alone predict."""
    uncorrected, names, parts = replace(predictor, corrections={}), answering_model(batch, device), []
    for name in np.unique(names):
        rows = np.flatnonzero(names == name)
        own, known = batch.take(rows), conditions.take(rows)
        prediction, situation = uncorrected.predict(own, device, known), uncorrected.situate(own, device, known)
        points = points_of(predictor.artifacts[str(name)], situation, prediction)
        execution_s = prediction.latency_s - prediction.overhead_s
        parts.append(Timings(points, kernel[rows], execution_s, prediction.overhead_s, measured_s[rows]))
    return Timings.joined(parts)


def _apart(whole: Timings, frame: pd.DataFrame) -> Timings:
    """Rows whose execution was timed on its own as two: their execution, and what their launch adds to it."""
    if "execution_ms" not in frame:
        return whole
    execution_s = frame["execution_ms"].to_numpy(dtype=float)[whole.kernel] * 1e-3
    timed = (execution_s > 0) & (execution_s < whole.measured_s)
    own, nothing = whole.take(timed), np.zeros(int(timed.sum()))
    execution = replace(own, overhead_s=nothing, measured_s=execution_s[timed])
    launch = replace(own, execution_s=nothing, measured_s=own.measured_s - execution_s[timed])
    return Timings.joined([whole.take(~timed), execution, launch])


_NONE, _NAMELESS = np.zeros(0), np.zeros(0, dtype=str)
_NOTHING = Observations(Points(_NAMELESS, _NAMELESS, np.zeros((0, WIDTH)), _NONE, _NONE), _NONE, _NONE, _NONE)


@dataclass(frozen=True)
class Timings(ColumnRecord):
    """Measured kernels beside what was predicted of them; every column has n rows.

    ``measured_s`` is about ``overhead_s + execution_s``. Where a launch was measured apart from its execution, both are
    rows, one without overhead and one without execution. ``kernel`` numbers what was measured.
    """

    points: Points
    kernel: np.ndarray
    execution_s: np.ndarray
    overhead_s: np.ndarray
    measured_s: np.ndarray


def observe(timings: Timings) -> tuple[Observations, dict[str, float]]:
    """Observations of the corrections with the noise that each row turns out to have, and by how much kernels of each
    kind differ more from each other than their estimates state.

    Gauss-Newton steps linearise the logarithm of the sum of launch and execution; at the same time rows are reweighted
    as errors with Student's t distribution ask for (Lange et al. 1989), and kinds scaled, by what all others say of
    them: among few a row is met by the process whether it is an outlier or not.
    """
    kinds, number = np.unique(timings.points.kind, return_inverse=True)
    weight, variance = np.ones(len(timings)), np.ones(len(kinds))
    observations = linearised(timings)
    for _ in range(REWEIGHTINGS):
        scale = dict(zip(kinds.tolist(), np.sqrt(variance).tolist(), strict=True))
        scaled = replace(timings, points=with_scales(timings.points, scale))
        noise = linearised(scaled).noise
        posterior = Posterior(replace(observations, points=scaled.points, noise=noise / np.sqrt(weight)))
        observations = linearised(scaled, posterior.execution(scaled.points)[0], posterior.launch)
        expected, left = posterior.left_out()
        square = np.square(posterior.observations.log_ratio - expected) / (left - noise**2 / weight + noise**2)
        weight = (FREEDOM + 1.0) / (FREEDOM + square)
        squares = np.bincount(number, np.minimum(square, GROSS**2) * variance[number])
        variance = (BELIEF + squares) / (BELIEF + np.bincount(number))
    return replace(observations, noise=observations.noise / np.sqrt(weight)), scale


def linearised(t: Timings, execution: np.ndarray | float = 0.0, launch: float = 0.0) -> Observations:
    """The logarithm of a sum of two times around corrections of both, with the noise that their doubts state."""
    execution_s, launch_s = t.execution_s * np.exp(execution), t.overhead_s * np.exp(launch)
    share = execution_s / (execution_s + launch_s)
    log_ratio = np.log(t.measured_s / (execution_s + launch_s)) + share * execution + (1.0 - share) * launch
    start = np.where(t.overhead_s == 0, START_S / t.measured_s, 0.0)
    own = share * np.sqrt(t.points.noise**2 + JITTER**2 + start**2)
    return Observations(t.points, share, log_ratio, np.hypot(own, LAUNCH_JITTER * (1.0 - share)))
