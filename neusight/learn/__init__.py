"""Fitting physics, training tile models, folds, calibration. No prediction imports it."""

from collections.abc import Callable

Report = Callable[[str, int, int, float], None]
"""What long work calls with its progress: (task, done, of, error)."""
