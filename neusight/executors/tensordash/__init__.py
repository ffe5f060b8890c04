"""TensorDash, cycle by cycle: skips the zeros of one operand of every product (Mahmoud et al. 2020, arXiv 2009.00748).

``options`` says what a lane may take, ``schedule`` counts cycles (``pe`` is its compiled part), ``masks`` draws zeros,
``tiles`` simulates sampled tiles, ``streams`` lays convolutions and matrix products onto them. ``dataset``,
``features``, ``tile_model`` and ``train`` are the tile model that learns from all this. As a device: ``machine`` says
what the whole is, ``operands`` puts a profile's zeros to kernels, ``cycles`` and ``passes`` count, ``device`` and
``estimate`` answer.
"""

from neusight.executors.tensordash.masks import CLUSTERS, clustering_of, filled_slots, random_mask
from neusight.executors.tensordash.options import DEPTH, LANES, OPTION_LISTS
from neusight.executors.tensordash.schedule import schedule_cycles, schedule_many, schedule_passes
from neusight.executors.tensordash.streams import COLUMNS, ROWS, Sides, Streams, dense_cycles, sides_of, streams_of
from neusight.executors.tensordash.tiles import TileRanges, sample_configs, simulate_tiles

__all__ = [
    "CLUSTERS",
    "COLUMNS",
    "DEPTH",
    "LANES",
    "OPTION_LISTS",
    "ROWS",
    "Sides",
    "Streams",
    "TileRanges",
    "clustering_of",
    "dense_cycles",
    "filled_slots",
    "random_mask",
    "sample_configs",
    "schedule_cycles",
    "schedule_many",
    "schedule_passes",
    "sides_of",
    "simulate_tiles",
    "streams_of",
]
