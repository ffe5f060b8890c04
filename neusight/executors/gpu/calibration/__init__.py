"""What was measured on one GPU itself, as a correction of every estimate for it."""

from neusight.executors.gpu.calibration.calibration import Calibration
from neusight.executors.gpu.calibration.corrections import CorrectionPrior

__all__ = ["Calibration", "CorrectionPrior"]
