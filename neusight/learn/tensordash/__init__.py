"""Cycles of the simulator as a data set, and the tile model that learns from it."""
