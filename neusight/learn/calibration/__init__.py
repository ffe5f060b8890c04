"""Few-shot calibration: which kernels to measure on a GPU, and the correction that follows from them."""

from neusight.learn.calibration.design import calibration_plan
from neusight.learn.calibration.fit import fit_calibration, read_rows, timings_of

__all__ = ["calibration_plan", "fit_calibration", "read_rows", "timings_of"]
