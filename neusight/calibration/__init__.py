"""Few-shot calibration: a GPU's own corrections from tens of measured kernels, and which ones to measure.

Plan
    ``calibration_plan(predictor, device, kernels, count) -> positions``: the most informative first.
Fit
    ``fit_calibration(predictor, device, frame) -> Calibration``: ``frame`` as ``neusight.datasets.load_kernels`` reads;
    ``Calibration.apply(situation, estimates)``, ``.save(path)``, ``Calibration.load(path)``;
    ``load_calibrations(paths) -> corrections`` for ``KernelPredictor``.
Judge
    ``few_shot_curve(predictor, device, pool, test, counts, seed) -> rows``: error against the number of kernels;
    ``learned_prior([timings_of(predictor, device, frame), ...]) -> Prior``: what other GPUs say of a new one.
"""

from neusight.calibration.calibration import Calibration
from neusight.calibration.curve import few_shot_curve
from neusight.calibration.design import calibration_plan
from neusight.calibration.fit import fit_calibration, timings_of
from neusight.calibration.learn import learned_prior
from neusight.calibration.prior import Prior

__all__ = [
    "Calibration",
    "Prior",
    "calibration_plan",
    "few_shot_curve",
    "fit_calibration",
    "learned_prior",
    "timings_of",
]
