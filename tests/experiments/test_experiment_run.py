"""Whole runs on small data sets made here: measured ones against formulas, simulated ones against the scheduler."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from neusight.experiments import Experiment


def changed(experiment: Experiment, **changes: Any) -> Experiment:
    return replace(experiment, declared=experiment.declared.model_copy(update=changes))
