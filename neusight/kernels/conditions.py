"""Conditions under which kernels are timed: what a figure includes in addition to the kernel, and what caches contain
before it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from neusight.errors import CoverageError
from neusight.kernels.columns import ColumnRecord
from neusight.quick_dataclasses import dataclass

TIMINGS = ("stream", "graph", "profiler", "wall")
"""``stream``: a launch by itself in a stream, which the figure holds; ``graph``: replays of a CUDA graph, whose launch
is shared by the operators in it; ``profiler``: the kernel's own time; ``wall``: mean of calls in a loop, never below
what the host needs for one."""
VARIANTS = (
    *("asm", "ck", "contiguous", "cutlass", "deepgemm", "exllama", "fa2", "fa3", "fa4", "flashinfer", "inductor"),
    *("marlin", "masked", "mmq", "rocblas", "sarathi", "smooth_quant", "torch", "triton", "trtllm", "trtllm_gen"),
    *("vllm", "weight_only"),
)
"""What backends run kernels with; those without a rule of ``implementations.toml`` are as kernels that nobody names."""
TIMERS = {"events": "stream", "cuda_graph": "graph", "profiler": "profiler", "wall": "wall"}
"""Common names of timings: CUDA events around a launch, replays of a graph, a profiler, a clock on the wall."""
OPERANDS = ("cold", "resident")
"""Places of operands before a launch: device memory, or L2 as far as they fit."""
COLD = np.inf
"""Bytes touched between two uses of an operand that no cache still holds."""
USUAL_ENGINE = "torch"
"""Engine that runs kernels for which no other is specified."""
MANY_LAUNCHES = 1e3
"""Kernels in the graph of a model's step, of the magnitude: each has next to nothing of the graph's launch
(numerics)."""


@dataclass(frozen=True, kw_only=True)
class Conditions(ColumnRecord):
    """Columns of shape (n,), beside those of a ``KernelBatch`` of n kernels.

    ``timing`` is one of ``TIMINGS``. ``launches`` are the operators that share the launch of one graph replay, 1 for
    other timings. ``cycled_bytes`` [B] are touched between two uses of the same operand: the kernel's own compulsory
    bytes where one set of operands is used again and again, k times that where k sets take turns, ``COLD`` where
    caches hold none of it. ``one_input`` is true where weights alone take turns and the input is the same each time.
    ``engine`` is the library or serving engine that ran the kernel (torch, vllm, sglang,
    trtllm, flashinfer, deepgemm, …), ``variant`` what it ran it with (fa2, fa3, triton, cutlass, …), "" where unknown.
    ``recorded`` is true where the launch was that of the host that recorded a data set, whose lone launches took what
    they took there; others are of a host as the device's file describes it, and cost the same for every kernel.
    ``random`` is false where operands hold equal or few values, which draws less power. ``burst`` kernels run back to
    back before the device rests, infinitely many in the middle of work: power limits act on averages.
    """

    timing: np.ndarray
    launches: np.ndarray
    cycled_bytes: np.ndarray
    one_input: np.ndarray
    engine: np.ndarray
    variant: np.ndarray
    recorded: np.ndarray
    random: np.ndarray
    burst: np.ndarray

    @classmethod
    def of(cls, n: int, **columns: Any) -> Conditions:
        """Conditions of n kernels from arrays or scalars; missing columns are those of kernels requested by name or
        as parts of a model: launched one by one, operands cold and random.

        Raises:
            CoverageError: a timing that is none of ``TIMINGS``.
        """
        usual = {"timing": "stream", "launches": 1.0, "cycled_bytes": COLD, "engine": USUAL_ENGINE, "variant": ""}
        values = {**usual, "recorded": False, "random": True, "one_input": False, "burst": np.inf, **columns}
        made = cls(**{name: np.broadcast_to(np.asarray(value), (n,)) for name, value in values.items()})
        if unknown := sorted({*np.ravel(np.asarray(values["timing"])).tolist()} - {*TIMINGS}):
            raise CoverageError(f"unknown timing '{unknown[0]}': one of {', '.join(TIMINGS)}")
        return made
