"""Fourier transforms as cuFFT runs them: 5 N log2 N operations, and a pass over memory for each dimension at least."""

from __future__ import annotations

from math import ceil, log2, prod

from neusight.kernels import Elementwise, Kernel
from neusight.workloads.rules.registry import rule
from neusight.workloads.tensors import Call, TensorSpec

_IN_SHARED = 4096
"""Complex float32 values of a transform that one kernel keeps in shared memory: 32 KiB of the 48 that every block may
have (CUDA C++ Programming Guide, table of compute capabilities)."""


@rule("_fft_c2c", "_fft_r2c", "_fft_c2r")
def transform(call: Call) -> tuple[Kernel, ...]:
    """5 N log2 N FLOP for N complex values, half of it where one side is real.

    Source: the count of operations by which FFTW and cuFFT state their speed (Frigo and Johnson 2005).
    """
    source, dims = call.args[0], call.args[1]
    real = call.name != "_fft_c2c"
    whole = call.output if call.name == "_fft_c2r" else source
    lengths = [whole.shape[dim] for dim in dims]
    if not whole.elements:
        return ()
    flops = 5 * whole.elements * log2(prod(lengths)) / (2 if real else 1)
    passes = sum(_passes(length) for length in lengths)
    return (_in_passes(call, source, round(flops), passes),)


def _passes(length: int) -> int:
    """Kernels of a transform along one dimension."""
    return max(1, ceil(log2(max(2, length)) / log2(_IN_SHARED)))


def _in_passes(call: Call, source: TensorSpec, flops: int, passes: int) -> Elementwise:
    """The first pass reads the source, the last writes the result; between them the result's size comes and goes."""
    between = (passes - 1) * max(source.nbytes, call.output.nbytes)
    return Elementwise(
        op="fft", elements=max(source.elements, call.output.elements), passes=passes,
        read_bytes=source.nbytes + between, write_bytes=call.output.nbytes + between, flops=flops, dtype=call.dtype,
    )  # fmt: skip
