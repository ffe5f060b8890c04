"""Tables of what boards draw while kernels run again and again at a known rate."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from neusight.datasets.rows import positive, read_rows

ROOFLINES = Path("microbenchmarks") / "roofline_power.csv"
"""Loops of multiply-adds over loads, at rising arithmetic intensity (te42kyfo/gpu-benches)."""
_NEEDED = ("gpu", "flops_per_byte", "gb_per_s", "gflop_per_s", "clock_mhz", "power_w")


@dataclass(frozen=True, kw_only=True)
class SteadyPower:
    """A float32 kernel in its steady state: what it sustains [FLOP/s, B/s] at a core clock [Hz], and power [W]."""

    gpu: str
    flops_per_byte: float
    flops_per_s: float
    bytes_per_s: float
    clock_hz: float
    power_w: float


def steady_powers(path: Path) -> list[SteadyPower]:
    """Rows of such a table.

    Raises:
        DataError: no such file, a foreign file, or a cell that is no number.
    """
    return [
        SteadyPower(
            gpu=str(row["gpu"]),
            flops_per_byte=positive(row, "flops_per_byte"),
            flops_per_s=1e9 * positive(row, "gflop_per_s"),
            bytes_per_s=1e9 * positive(row, "gb_per_s"),
            clock_hz=1e6 * positive(row, "clock_mhz"),
            power_w=positive(row, "power_w"),
        )
        for row in read_rows(path, _NEEDED, "power of steady kernels")
    ]
