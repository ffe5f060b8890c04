"""Schema of a device file: its keys, the fields of a ``DeviceSpec`` behind them, their units and their limits.

A key is the field's name without the unit, because the unit stands in the value: ``dram_bandwidth = "300 GB/s"``.
"""

from __future__ import annotations

from typing import get_args

from neusight.devices.spec import SPECS, LinkKind, Topology, Vendor
from neusight.quick_dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """One figure of a device file.

    Attributes:
        field: name in the spec of its kind, with its SI unit.
        quantity: unit kind of ``neusight.units``; ``count`` for whole numbers, ``plain`` for dates and words.
        low: smallest value that can be true, SI.
        high: largest value that can be true, SI.
        optional: may be left out.
        kinds: of devices that have it; none named: all.
    """

    field: str
    quantity: str
    low: float = 0.0
    high: float = float("inf")
    optional: bool = False
    kinds: tuple[str, ...] = ()

    def describes(self, kind: str) -> bool:
        """True if devices of a kind have the figure."""
        return not self.kinds or kind in self.kinds


_GPU, _ARRAYS, _BOARD = ("gpu", "tensordash"), ("systolic",), ("microcontroller",)
_OTHERS = (*_GPU, *_ARRAYS)
"""Kinds whose tensors lie in DRAM, and which have a limit of power."""

# Limits refuse slips of unit or prefix (GB for TB), not unusual designs: they lie far outside what is built.
FIGURES: dict[str, Figure] = {
    "compute_capability": Figure("compute_capability", "plain", optional=True, kinds=_GPU),
    "release_date": Figure("release_date", "plain"),
    "process": Figure("process_nm", "m", 0.5e-9, 1e-6),
    "sm_count": Figure("sm_count", "count", 1, 100_000, kinds=_GPU),
    "base_clock": Figure("base_clock_hz", "hz", 50e6, 10e9, kinds=_GPU),
    "boost_clock": Figure("boost_clock_hz", "hz", 50e6, 10e9, kinds=_GPU),
    "matrix_flops": Figure("matrix_flops_per_s", "flops_per_s", 1e6, 1e18, optional=True),
    "vector_flops": Figure("vector_flops_per_s", "flops_per_s", 1e6, 1e18),
    "dram_kind": Figure("dram_kind", "plain", kinds=_OTHERS),
    "dram_bandwidth": Figure("dram_bandwidth_bytes_per_s", "bytes_per_s", 1e9, 100e12, kinds=_OTHERS),
    "dram_capacity": Figure("dram_capacity_bytes", "bytes", 64e6, 100e12, kinds=_OTHERS),
    "dram_usable": Figure("dram_usable_bytes", "bytes", 64e6, 100e12, optional=True, kinds=_OTHERS),
    "l2_capacity": Figure("l2_capacity_bytes", "bytes", 16e3, 10e9, kinds=_GPU),
    "l2_bandwidth": Figure("l2_bandwidth_bytes_per_s", "bytes_per_s", 1e9, 1e15, optional=True, kinds=_GPU),
    "memory_cache_capacity": Figure("memory_cache_capacity_bytes", "bytes", 1e6, 100e9, optional=True, kinds=_GPU),
    "memory_cache_bandwidth": Figure(
        "memory_cache_bandwidth_bytes_per_s", "bytes_per_s", 1e9, 1e15, optional=True, kinds=_GPU
    ),
    "shared_memory_per_sm": Figure("shared_memory_per_sm_bytes", "bytes", 1e3, 100e6, kinds=_GPU),
    "registers_per_sm": Figure("registers_per_sm", "count", 256, 100_000_000, kinds=_GPU),
    "max_threads_per_sm": Figure("max_threads_per_sm", "count", 1, 1_000_000, kinds=_GPU),
    "max_blocks_per_sm": Figure("max_blocks_per_sm", "count", 1, 100_000, kinds=_GPU),
    "warp_size": Figure("warp_size", "count", 1, 1024, kinds=_GPU),
    "cores": Figure("cores", "count", 1, 100_000, optional=True, kinds=_ARRAYS),
    "clock": Figure("clock_hz", "hz", 1e6, 10e9, kinds=(*_ARRAYS, *_BOARD)),
    "array_rows": Figure("array_rows", "count", 1, 65_536, kinds=_ARRAYS),
    "array_columns": Figure("array_columns", "count", 1, 65_536, kinds=_ARRAYS),
    "array_count": Figure("array_count", "count", 1, 100_000, kinds=_ARRAYS),
    "padded_rows": Figure("padded_rows", "count", 1, 65_536, optional=True, kinds=_ARRAYS),
    "row_lanes": Figure("row_lanes", "count", 1, 65_536, optional=True, kinds=_ARRAYS),
    "on_chip_capacity": Figure("on_chip_capacity_bytes", "bytes", 1e3, 100e9, kinds=_ARRAYS),
    "on_chip_bandwidth": Figure(
        "on_chip_bandwidth_bytes_per_s", "bytes_per_s", 1e9, 1e16, optional=True, kinds=_ARRAYS
    ),
    "coremark": Figure("coremark_per_mhz", "coremark", 0.1, 100.0, kinds=_BOARD),
    "sram_capacity": Figure("dram_capacity_bytes", "bytes", 1e3, 1e9, kinds=_BOARD),
    "sram_bandwidth": Figure("dram_bandwidth_bytes_per_s", "bytes_per_s", 1e6, 1e12, kinds=_BOARD),
    "flash_capacity": Figure("flash_capacity_bytes", "bytes", 1e3, 10e9, kinds=_BOARD),
    "active_power": Figure("tdp_w", "w", 1e-5, 10, kinds=_BOARD),
    "tdp": Figure("tdp_w", "w", 1, 50e3, kinds=_OTHERS),
    "launch_overhead": Figure("launch_overhead_s", "s", 1e-9, 0.1, kinds=_OTHERS),
    "links": Figure("links", "plain", optional=True),
    "price": Figure("price_usd_per_hour", "usd_per_hour", 1e-4, 1e5, optional=True),
}

LINK_BANDWIDTH = Figure("bandwidth_bytes_per_s", "bytes_per_s", 1e6, 100e12)
LINK_HOP = Figure("hop_s", "s", 1e-9, 1e-2, optional=True)
LINK_KINDS = get_args(LinkKind)
TOPOLOGIES = tuple(name for name in get_args(Topology) if name)
"""Topologies of links between devices; see ``Link``."""

RATES = ("matrix_flops", "vector_flops")
"""Keys that hold a table of rates by dtype."""

DTYPES = (
    "float64",
    "float32",
    "tf32",
    "float16",
    "bfloat16",
    "float8",
    "float6",
    "float4",
    "int8",
    "int4",
)

WORDS: dict[str, bool] = {
    "id": False,
    "name": False,
    "vendor": False,
    "kind": True,
    "architecture": False,
    "die": True,
    "aliases": True,
    "notes": True,
    "hypothetical": True,
}
"""Keys that say what a device is called; they need no source. The value says whether the key may be left out."""

VENDORS = get_args(Vendor)
KINDS = tuple(SPECS)


def keys_of(kind: str) -> tuple[str, ...]:
    """Keys of a device file of a kind."""
    return (*WORDS, *(key for key, figure in FIGURES.items() if figure.describes(kind)), "sources")


def key_of(field: str, kind: str) -> str:
    """Key of a device file of a kind for a field: ``tdp_w`` gives ``tdp``; a dtype after a dot stays."""
    name, dot, dtype = field.partition(".")
    key = next(key for key, figure in FIGURES.items() if figure.field == name and figure.describes(kind))
    return f"{key}{dot}{dtype}"
