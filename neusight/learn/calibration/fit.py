"""Fit a calibration: measured rows of one GPU beside their predictions, and what remains as a correction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING

import numpy as np

import neusight
from neusight.datasets import clean, to_batches
from neusight.datasets.batches import single_kernels
from neusight.datasets.measured import unable
from neusight.devices.spec import DeviceSpec
from neusight.errors import DataError
from neusight.executors.gpu.calibration.calibration import Calibration, figures, fingerprint, rounded
from neusight.executors.gpu.calibration.inputs import WIDTH, Points, joined, points_of
from neusight.executors.gpu.calibration.posterior import Observations
from neusight.executors.gpu.calibration.prior import Prior
from neusight.executors.gpu.predictor import KernelPredictor
from neusight.kernels import KernelBatch
from neusight.learn.calibration.observe import Timings, observe

if TYPE_CHECKING:
    import pandas as pd

MOST_ROWS = 500
"""Of a calibration, which is solved exactly: more rows are enough to train on."""


def fit_calibration(
    predictor: KernelPredictor,
    device: DeviceSpec,
    frame: pd.DataFrame,
    prior: Prior | None = None,
    sha256: Mapping[str, str] | None = None,
) -> Calibration:
    """What measured kernels of a GPU say of the predictor's error there.

    Args:
        predictor: with the tile models that are to be corrected; corrections that it has already do not count.
        device: the GPU, with the figures that later predictions have.
        frame: rows as ``load_kernels`` gives them; those of other GPUs are left out, and those that cleaning refuses.
        prior: of the corrections; default the one that ships.
        sha256: of the files that the rows come from, for the record.

    Raises:
        DataError: more than ``MOST_ROWS`` usable rows.
    """
    prior = prior or Prior()
    rows = usable(frame, device)
    if len(rows) > MOST_ROWS:
        raise DataError(f"{len(rows):,} rows are too many to calibrate with, at most {MOST_ROWS}: use neusight train")
    observations, noise = observe(_apart(timings_of(predictor, device, rows), rows), prior) if len(rows) else _NOTHING
    return Calibration(
        gpu=device.id,
        neusight=neusight.__version__,
        device=figures(device),
        tile_models=fingerprint(predictor),
        data={"rows": len(rows), "left_out": len(frame) - len(rows), "sha256": dict(sha256 or {})},
        prior=prior,
        noise=noise,
        observations=rounded(observations),
    )


def usable(frame: pd.DataFrame, device: DeviceSpec) -> pd.DataFrame:
    """The rows of a frame that can calibrate the device, on their old index: its own, of single kernels in dtypes that
    it has, without the faults that cleaning knows.
    """
    own = frame[(frame["gpu"] == device.id).to_numpy() & single_kernels(frame)]
    for family, dtype in own[["family", "dtype"]].drop_duplicates().itertuples(index=False):
        if unable(device, family, dtype):
            own = own[(own["family"] != family) | (own["dtype"] != dtype)]
    return clean(own, {device.id: device}).frame if len(own) else own


def timings_of(predictor: KernelPredictor, device: DeviceSpec, frame: pd.DataFrame) -> Timings:
    """Single launches of a frame beside what the tile models alone say; ``kernel`` is a row's position in the frame."""
    latency_s = frame["latency_ms"].to_numpy(dtype=float) * 1e-3
    batches = to_batches(frame)
    return joined_timings([predicted(predictor, device, batch, latency_s[rows], rows) for batch, rows in batches])


def predicted(
    predictor: KernelPredictor, device: DeviceSpec, batch: KernelBatch, measured_s: np.ndarray, kernel: np.ndarray
) -> Timings:
    """Kernels of one family with the launch and the execution that the tile models alone predict."""
    found = replace(predictor, corrections={}).predict(batch, device)
    points = points_of(predictor.situate(batch, device))
    return Timings(points, kernel, found.latency_s - found.overhead_s, found.overhead_s, measured_s)


def _apart(whole: Timings, frame: pd.DataFrame) -> Timings:
    """Rows whose execution was timed on its own as two: their execution, and what their launch adds to it."""
    if "execution_ms" not in frame:
        return whole
    execution_s = frame["execution_ms"].to_numpy(dtype=float)[whole.kernel] * 1e-3
    timed = (execution_s > 0) & (execution_s < whole.measured_s)
    own, nothing = whole.take(timed), np.zeros(int(timed.sum()))
    execution = replace(own, overhead_s=nothing, measured_s=execution_s[timed])
    launch = replace(own, execution_s=nothing, measured_s=own.measured_s - execution_s[timed])
    return joined_timings([whole.take(~timed), execution, launch])


def joined_timings(parts: Sequence[Timings]) -> Timings:
    """Several sets of rows as one."""
    names = [f.name for f in fields(Timings) if f.name != "points"]
    columns = {name: np.concatenate([getattr(p, name) for p in parts]) for name in names}
    return Timings(joined([p.points for p in parts]), **columns)


_NONE, _NAMELESS = np.zeros(0), np.zeros(0, dtype=str)
_NOTHING: tuple[Observations, dict[str, float]] = (
    Observations(Points(_NAMELESS, _NAMELESS, _NAMELESS, np.zeros((0, WIDTH))), _NONE, _NONE, _NONE, _NONE),
    {},
)
