"""The few numbers of physics that no datasheet states: how sustained rates relate to peaks, the same for all devices.

They are global: a device enters the laws through its datasheet alone, so that one that nobody measured is treated like
those that taught the numbers. They come from the literature where it has them, else from looking at measured float32
kernels of p4, p100, v100, t4, a100 and l4 (*fitted by eye* below), and are round. Refitting them by regression to all
GPUs but one, held close to these by priors, made the one left out worse (by 0.5 to 2 points of mean error), so that
nothing refits them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Physics:
    """Global constants of the expected execution time, dimensionless where no unit is named."""

    peak_share: float = 0.97
    """Share of peak FLOP/s that an SM sustains when nothing else limits it; fitted by eye."""
    shared_memory_half: float = 14.0
    """Tile intensity below which operands from shared memory take as long as the arithmetic; fitted by eye."""
    shared_memory_sharpness: float = 2.0
    """Exponent of the norm that joins the two; fitted by eye."""
    prologue_depth: float = 8.3
    """Inner extent whose time a tile spends filling its pipeline and writing its result; fitted by eye."""
    misaligned_cost: float = 0.034
    """Share that products of extents that are no multiples of four take longer; fitted by eye."""
    tail_share: float = 0.43
    """Share of the quantisation to whole rounds of blocks that remains when several share an SM out of step; fitted by
    eye."""
    idle_cost: float = 0.15
    """Slow-down of an SM whose resident blocks hold next to no accumulators; fitted by eye."""
    hbm_share: float = 0.9
    """Sustained share of DRAM bandwidth of HBM; fitted by eye."""
    gddr_share: float = 0.76
    """That of GDDR, whose boards with ECC keep their check bits in the same memory; fitted by eye."""
    controller_gain: float = 1.2
    """By which Volta's HBM controller sustains more of the peak than Pascal's: NVIDIA's V100 whitepaper states 1.5
    times the delivered bandwidth, of which the peak is 1.25."""
    l2_share: float = 0.35
    """Sustained share of the ports between SMs and L2 (Jia et al. 2019 measure about a third on P100, V100 and T4)."""
    overlap: float = 4.0
    """Exponent of the norm that joins resource times of products: infinity would be perfect overlap, 1 none; fitted by
    eye."""
    stream_overlap: float = 6.0
    """The same for kernels that stream through memory, whose many small blocks overlap better; fitted by eye."""
    miss_slope: float = 0.64
    """Steepness with which re-reads between waves miss L2, an octave of panel bytes; fitted by eye."""
    miss_centre: float = 1.0
    """log2 of (panel bytes / L2) at which half of the re-reads between waves miss; fitted by eye."""
    always_missed: float = 0.05
    """Share of them that misses however small the panels are; fitted by eye."""
    drift_slope: float = 1.2
    """Steepness with which blocks lose step, an octave of panel bytes; fitted by eye."""
    drift_centre: float = 7.0
    """log2 of (panel bytes / L2) at which half of the blocks no longer run in step, in the first round; fitted by eye.
    """
    drift_rounds: float = 0.25
    """By how much of that each doubling of the rounds brings the point nearer: lost step is not made good; fitted by
    eye."""
    drift_hbm: float = 3.5
    """Bytes fetched from HBM for a byte used by a block that has lost step: its slice of a row is less than a DRAM
    access; fitted by eye."""
    drift_gddr: float = 2.5
    """The same from GDDR; fitted by eye."""
    drift_unified: float = 0.5
    """The same on NVIDIA GPUs from Volta on, whose kernels lose hardly any: the unified L1 holds what a slice leaves
    (fitted by eye: a depth of 65536 halves the speed of P4 and thirds that of P100, and costs others 15 %).
    """
    row_miss_slope: float = 2.5
    """Steepness with which second passes over rows miss L2, an octave of bytes in flight; fitted by eye."""
    row_miss_centre: float = -0.8
    """log2 of (bytes of rows in flight / L2) at which half of the second passes over a row miss; fitted by eye."""
    thread_waste: float = 0.15
    """Exponent of the share of idle lanes in the last step of a block over its row; fitted by eye."""
    flop_energy_scale: float = 0.92
    """Against the table of energies by process node; fitted by eye."""
    voltage_exponent: float = 1.0
    """Of the boost clock over the node's usual one: boards that run below it need less voltage; fitted by eye."""
    speed_exponent: float = 0.6
    """By which the clock falls with excess power: power goes with clock times voltage squared; fitted by eye."""
    static_share: float = 0.03
    """Power that neither arithmetic nor traffic explains, as a share of the limit; fitted by eye."""
    static_w: float = 20.0
    """The same of any board [W]; fitted by eye."""
    l2_pj_per_byte: float = 3.0
    """Energy of a byte between L2 and an SM [pJ/B]; assumption."""
    hbm_pj_per_byte: float = 45.0
    """Energy of a byte from HBM [pJ/B], memory, interface and controller; O'Connor et al. 2017 give 4 pJ/bit for HBM2's
    memory alone."""
    gddr_pj_per_byte: float = 150.0
    """The same from GDDR [pJ/B]; fitted by eye."""
    rest_s: float = 0.003
    """How long a rested board may draw twice its limit before the limiter acts [s]; fitted by eye."""


DEFAULT = Physics()
"""The constants that all predictions use unless others are given."""
