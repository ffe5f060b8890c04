"""Constants of kernels that stream through memory: pointwise ones, reductions over rows, copies."""

from __future__ import annotations

from dataclasses import dataclass

from neusight.laws.constants import constant


@dataclass(frozen=True, kw_only=True)
class StreamConstants:
    """What limits a stream beside the bandwidth of its memory."""

    start_cycles: float = constant(
        2100.0, 0.2, "gpu-benches, small kernels in a graph: 1,900 to 2,550 cycles of 4 GPUs"
    )
    """Core cycles of a kernel that does next to nothing; it has no prologue to fill as products have."""
    overlap: float = constant(3.0, 0.3, "guess: resources overlap well, not perfectly")
    """Exponent of the norm that joins the times of resources."""
    hot_centre: float = constant(
        0.3, 0.3, "gpu-benches, small kernels: half are lost at 1 to 1.3 times L2", scale="linear"
    )
    """log2 of (bytes touched between two uses / L2) at which half of a stream is lost: no byte of it is shared, so that
    partitions of L2 keep no copies."""
    follow: float = constant(1.5, 0.3, "guess: between writing and reading a tensor its kernels touch little else")
    """Bytes touched between a kernel's operands being written and read, over those that the kernel itself touches."""
    plain_instructions: float = constant(12.0, 0.7, "guess: load, convert, store and a share of the addresses")
    """Instructions an element of vectorised kernels, beside the arithmetic."""
    flop_instructions: float = constant(1.0, 0.5, "counts of the table of operators")
    """Instructions an operation of the arithmetic."""
    tap_instructions: float = constant(
        8.0, 0.3, "PyTorch, DepthwiseConv2d.cu: two comparisons, two sums, two loads, two conversions"
    )
    """Instructions for each value of a window that a depthwise convolution reads, beside the arithmetic."""
    input_tap_instructions: float = constant(
        16.0, 0.3, "ibid.: four comparisons, and what the stride leaves over, in each direction"
    )
    """The same of its gradient of the input."""
    weight_tap_instructions: float = constant(
        40.0, 0.3, "ibid.: the place of each value follows from a division by the width, 20 instructions"
    )
    """The same of its gradient of the filters."""
    norm_instructions: float = constant(40.0, 0.7, "guess: Welford's update has a division an element")
    """Instructions an element of PyTorch's layer_norm beside the arithmetic."""
    step_cycles: float = constant(1000.0, 0.5, "a trip to memory of some 600 cycles, and as much in the pipelines")
    """Core cycles of a thread's step along its row, or of one element where a thread has one at a time."""
    crowding: float = constant(
        0.3, 0.3, "guess: a queue grows with those in it, less than in proportion", scale="linear"
    )
    """Exponent by which a step lengthens with the threads of the SM, over 2,048."""
    gather_steps: float = constant(2.0, 0.5, "guess: an index, then what it points to")
    """Steps an element of PyTorch's gathers by an index."""
    gate_steps: float = constant(1.5, 0.5, "guess: two operands and an exponential")
    """Steps an element of activations with a gate as engines wrote them, one element a thread at a time."""
    rope_steps: float = constant(1.5, 0.5, "guess: two operands, their sines and cosines")
    """The same of rotary embeddings."""
    row_cycles: float = constant(3000.0, 0.5, "guess: two reductions over a block, and a second trip to memory")
    """Core cycles that a block takes for a row beside its steps along it."""
    flight_bytes: float = constant(24576.0, 0.5, "2,048 threads with 8 to 16 bytes each under way")
    """Bytes that an SM has under way."""
    latency_s: float = constant(6e-7, 0.2, "gpu-benches, latency: 440 to 660 cycles, and a queue")
    """Latency of DRAM [s] while others use it."""
