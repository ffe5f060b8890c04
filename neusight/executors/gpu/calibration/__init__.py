"""What was measured on one GPU itself, as a correction of every estimate for it."""

from neusight.executors.gpu.calibration.calibration import Calibration

__all__ = ["Calibration"]
