"""What NCCL's cost model, and that of RCCL, say of starts and hops in each protocol, and which algorithms may run."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

import numpy as np

from neusight.errors import CoverageError
from neusight.kernels.families import KernelBatch
from neusight.kernels.work import by_distinct
from neusight.quick_dataclasses import dataclass

_FILE = Path(__file__).resolve().parent / "nccl.toml"
USUAL = "nccl"
ALGORITHMS = ("ring", "tree", "nvls", "nvlstree", "collnet")
"""Rings; chains in nodes under trees of nodes; sums in the switch of a node; the same under trees of nodes; sums in
switches of the network."""


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """Durations of a library in protocols LL, LL128 and Simple.

    ``start`` and ``hop`` are those over NCCL's in the same protocol, ``added_hop_s`` what a hop over a network takes
    longer than NCCL's in LL.
    """

    start: tuple[float, ...]
    hop: tuple[float, ...]
    added_hop_s: tuple[float, ...]


@cache
def tuning_of(vendor: str) -> Tuning:
    """The tuning of the library of a vendor's devices: NCCL's where the table names no other."""
    tables = tomllib.loads(_FILE.read_text(encoding="utf-8"))
    own = next((table for table in tables.values() if vendor in table["vendors"]), tables[USUAL])
    start, hop = (tuple(np.divide(own[name], tables[USUAL][name]).tolist()) for name in ("start", "hop"))
    added_hop_s = tuple(1e-6 * (hop_us - tables[USUAL]["network_hop"][0]) for hop_us in own["network_hop"])
    return Tuning(start=start, hop=hop, added_hop_s=added_hop_s)


def allowed(batch: KernelBatch, algorithm: str) -> np.ndarray:
    """Whether each collective may run an algorithm, shape (n,)."""
    return np.asarray(by_distinct(batch["algorithm"], lambda words: algorithm in algorithms_of(words)) > 0.0)


@cache
def algorithms_of(words: str) -> tuple[str, ...]:
    """Those of ``ALGORITHMS`` that words such as ``ring,tree`` or ``^nvls`` allow, as NCCL_ALGO does.

    Raises:
        CoverageError: another word.
    """
    named = [word.strip().lower() for word in words.removeprefix("^").split(",") if word.strip()]
    if unknown := sorted({*named} - {*ALGORITHMS}):
        known = ", ".join(ALGORITHMS)
        raise CoverageError(f"algorithm={words}: '{unknown[0]}' is none of {known}: write ring,tree or ^nvls")
    if not named:
        return ALGORITHMS
    return tuple(name for name in ALGORITHMS if (name in named) != words.startswith("^"))
