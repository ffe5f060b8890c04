"""Few-shot calibration: which kernels to measure on a GPU, and the correction that follows from them."""

from neusight.learn.calibration.curve import few_shot_curve
from neusight.learn.calibration.design import calibration_plan
from neusight.learn.calibration.fit import fit_calibration, timings_of
from neusight.learn.calibration.learn import learned_prior

__all__ = ["calibration_plan", "few_shot_curve", "fit_calibration", "learned_prior", "timings_of"]
