"""Fit a calibration: measured rows of one GPU beside their predictions, and what remains as a correction.

The prior of corrections is learned from other GPUs: each one's errors under tile models that had not seen it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING

import numpy as np

import neusight
from neusight.datasets import clean, to_batches
from neusight.datasets.batches import single_kernels
from neusight.datasets.conditions import conditions_of
from neusight.datasets.measured import unable
from neusight.devices.spec import DeviceSpec
from neusight.errors import DataError
from neusight.executors.gpu.calibration.calibration import Calibration, figures, fingerprint, rounded
from neusight.executors.gpu.calibration.corrections import ModelPrior, Observations, Prior
from neusight.executors.gpu.calibration.inputs import WIDTH, Points, joined, points_of
from neusight.executors.gpu.expected.laws import answering_model
from neusight.executors.gpu.predictor import KernelPredictor
from neusight.kernels import KernelBatch
from neusight.kernels.conditions import Conditions
from neusight.learn.calibration.observe import Timings, linearised, noise_scales, observe

if TYPE_CHECKING:
    import pandas as pd

MOST_ROWS = 500
"""Of a calibration, which is solved exactly: more rows are enough to train on."""
STEPS = (0.5, 0.7, 1.4, 2.0)
"""Factors by which each figure of a prior is changed in search of a better one."""
ROUNDS = 4
ROWS = 50
"""Of each kind on each GPU."""
LEARNED = ("model", "op", "kind", "run", "alone", "joint", "reach", "alike", "noise")
"""Figures that errors on other GPUs can tell."""
LIMITS = dict.fromkeys(LEARNED, (1e-3, 10.0)) | {"alike": (0.05, 1.0), "noise": (0.01, 1.0)}
"""No measurement is believed to better than one percent."""
DIGITS = 4


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
    """Rows of a frame beside what the tile models alone say of them, under the conditions in which they were timed;
    ``kernel`` is a row's position in the frame.
    """
    latency_s, parts = frame["latency_ms"].to_numpy(dtype=float) * 1e-3, []
    for batch, rows in to_batches(frame):
        conditions = conditions_of(frame.iloc[rows], batch, device)
        parts.append(predicted(predictor, device, batch, latency_s[rows], rows, conditions=conditions))
    return joined_timings(parts)


def predicted(
    predictor: KernelPredictor,
    device: DeviceSpec,
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
        prediction, points = uncorrected.predict(own, device, known), points_of(uncorrected.situate(own, device, known))
        execution_s = prediction.latency_s - prediction.overhead_s
        parts.append(Timings(points, kernel[rows], execution_s, prediction.overhead_s, measured_s[rows]))
    return joined_timings(parts)


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
    Observations(Points(_NAMELESS, _NAMELESS, _NAMELESS, _NAMELESS, np.zeros((0, WIDTH))), _NONE, _NONE, _NONE, _NONE),
    {},
)


def learned_prior(gpus: Sequence[Timings], start: Prior | None = None, seed: int = 0) -> Prior:
    """The prior under which the errors on several GPUs are most probable, figure by figure.

    Args:
        gpus: rows of one GPU each (``timings_of``), predicted by tile models that were trained without it; for a test
            on a GPU, those of others.
        start: where the search begins, and what tile models without rows keep.
        seed: of the sample of the rows.
    """
    start = start or Prior()
    samples = [_sample(timings, seed) for timings in gpus]
    measured = {name for timings in samples for name in timings.points.model.tolist()}
    models = {name: _learned(name, samples, start) if name in measured else p for name, p in start.models.items()}
    return replace(start, models=models)


def _sample(timings: Timings, seed: int) -> Timings:
    shuffled = np.random.default_rng(seed).permutation(len(timings))
    kind = timings.points.kind[shuffled]
    return timings.take(np.sort(np.concatenate([shuffled[kind == name][:ROWS] for name in np.unique(kind)])))


def _learned(model: str, samples: Sequence[Timings], start: Prior) -> ModelPrior:
    own = [sample.take(sample.points.model == model) for sample in samples]
    own = [sample for sample in own if len(sample)]
    best, evidence = start.models[model], _evidence(own, start, model, start.models[model])
    for _ in range(ROUNDS):
        before = best
        for figure in LEARNED:
            for step in STEPS:
                value = float(np.clip(getattr(best, figure) * step, *LIMITS[figure]))
                tried = replace(best, **{figure: round(value, DIGITS)})
                reached = _evidence(own, start, model, tried)
                if reached > evidence:
                    best, evidence = tried, reached
        if best == before:
            break
    return best


def _evidence(samples: Sequence[Timings], start: Prior, model: str, p: ModelPrior) -> float:
    """Log probability of the errors of all GPUs; a figure four times off the start counts as a standard deviation."""
    prior = replace(start, models={**start.models, model: p})
    known = sum(noise_scales(linearised(sample, prior), prior)[1] for sample in samples)
    off = [np.log2(getattr(p, figure) / getattr(start.models[model], figure)) / 2.0 for figure in LEARNED]
    return known - 0.5 * float(np.square(off).sum())
