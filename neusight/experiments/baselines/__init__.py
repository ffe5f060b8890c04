"""Predictors that others published, trained here on the same rows: what an estimate of this project is held against."""

from neusight.experiments.baselines.lines import roofline_s
from neusight.experiments.baselines.protocol import NAMES, Baseline, new_baseline, rows_of, whole_model_s

__all__ = ["NAMES", "Baseline", "new_baseline", "roofline_s", "rows_of", "whole_model_s"]
