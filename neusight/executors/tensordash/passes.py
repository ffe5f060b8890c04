"""Cycles of a pass by the tile model that has learned from the simulator.

Streams of a few steps are simulated outright: there every step and lane counts, a lone value in the last step may cost
a whole cycle or none, and a draw costs microseconds.
"""

from __future__ import annotations

import numpy as np

from neusight.executors.tensordash.cycles import Columns, simulated
from neusight.executors.tensordash.machine import Machine
from neusight.executors.tensordash.streams import dense_cycles
from neusight.executors.tensordash.tile_model import TILE, load_tile_model, predict_cycles

SHORT = 8
"""Steps up to which streams are simulated."""


def modelled(columns: Columns, machine: Machine) -> np.ndarray:
    """Mean cycles of a pass of each line, shape (lines,), as ``PassCycles`` asks for.

    Raises:
        DeviceError: a machine of other options, depth or lanes than the tile model has learned.
    """
    short = columns["length"] <= SHORT
    per_pass = np.empty(len(short))
    for rows, pass_cycles in ((short, simulated), (~short, _learned)):
        if rows.any():
            per_pass[rows] = pass_cycles({name: column[rows] for name, column in columns.items()}, machine)
    return per_pass


def _learned(columns: Columns, machine: Machine) -> np.ndarray:
    known = {name: columns[name] for name in TILE}
    cycles = predict_cycles(load_tile_model(), known, machine.options, machine.depth, machine.lanes)
    streams = columns["row_streams"], columns["column_streams"]
    return cycles / dense_cycles(*streams, np.ones(len(cycles)), machine.rows, machine.columns)


def passes_interval() -> tuple[float, float]:
    """Factors on cycles that enclose 90 % of the passes that the tile model has not seen."""
    low, high = load_tile_model().manifest.interval
    return low, high
