"""Fitting the constants of physics to measured kernels of many devices at once."""
