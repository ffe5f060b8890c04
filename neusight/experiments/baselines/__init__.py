"""Predictors that others published, trained here on the same rows: what an estimate of this project is held against."""

from neusight.experiments.baselines.protocol import NAMES, Baseline, new_baseline, rows_of
from neusight.experiments.baselines.whole_model import whole_model_s

__all__ = ["NAMES", "Baseline", "new_baseline", "rows_of", "whole_model_s"]
