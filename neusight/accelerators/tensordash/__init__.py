"""TensorDash, cycle by cycle: skips the zeros of one operand of every product (Mahmoud et al. 2020, arXiv 2009.00748).

``options`` says what a lane may take, ``schedule`` counts cycles (``pe`` is its compiled part).
"""

from neusight.accelerators.tensordash.options import DEPTH, LANES, OPTION_LISTS
from neusight.accelerators.tensordash.schedule import schedule_cycles, schedule_many, schedule_passes

__all__ = ["DEPTH", "LANES", "OPTION_LISTS", "schedule_cycles", "schedule_many", "schedule_passes"]
