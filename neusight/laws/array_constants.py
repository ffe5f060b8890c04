"""Constants of systolic accelerators that no datasheet states, the same for all of them; ``neusight fit arrays``."""

from __future__ import annotations

from neusight.laws.constants import cited, constant, group
from neusight.quick_dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ArrayProducts:
    """Products in arrays."""

    share: float = constant(0.85, 0.7, "MaxText, TPU v4 and v5p: large products at 80 to 90 % of the peak", "share")
    """Of the arrays' rate that they sustain between stalls."""


@dataclass(frozen=True, kw_only=True)
class VectorRates:
    """Vector units."""

    conversion_ops: float = constant(
        15.0, 0.7, "guess: sign, exponent and mantissa moved apart and subnormals treated, a few operations each"
    )
    """Operations for an element of a format that the chip does not compute in, each way."""
    row_ops: float = constant(1800.0, 1.0, "two sums over 128 lanes, halved seven times by steps of all lanes")
    """Operations for a row whose elements are reduced across lanes."""
    softmax_ops: float = cited(
        7.0,
        "Dao 2023, algorithm 1: scale, maximum, difference, exponential, sum, rescaling of what came before",
    )
    """For a score. Units of their own evaluate functions, an element as fast as a sum (AWS Neuron documentation, NKI:
    scalar engine)."""
    result_ops: float = constant(
        3.0,
        0.3,
        "AWS Neuron documentation, NKI, engines copy from PSUM to SBUF: a float32 sum is read, rounded, stored",
    )
    """For an element of a product."""
    most_ops: float = constant(4.0, 0.5, "guess: what counts more are functions, which units of their own evaluate")
    """For an element that a pointwise kernel reads or writes, at most."""
    share: float = constant(0.6, 0.7, "guess: loads and stores share their slots", "share")
    """Of the rate of the vector units that arithmetic sustains."""


@dataclass(frozen=True, kw_only=True)
class DeviceMemory:
    """HBM."""

    share: float = constant(0.85, 0.5, "STREAM-like copies of accelerators with HBM: 80 to 93 %", "share")
    """Of its bandwidth that copies to on-chip memory sustain."""
    working_set_bytes: float = constant(
        22 * 2.0**20, 0.3, "XLA's limit of scoped VMEM: 16 MiB (v5e) and 32 MiB (v6e; tpu-inference, pull request 3407)"
    )
    """On-chip memory for the tiles that a product works on; the rest holds operands that stay."""


@dataclass(frozen=True, kw_only=True)
class ProgramLaunch:
    """Programs and their start."""

    dispatch_s: float = constant(100e-6, 0.4, "guess: a host enqueues an executable and waits for its result")
    """Of a program by a host that waits for its end, as its clock has it."""
    share: float = constant(1.0, 0.1, "TPU v4: device events of the smallest programs, 1.0 to 1.2 us")
    """Of the device's figure for the start of a program."""
    start_s: float = constant(0.2e-6, 1.0, "guess: a copy of some kilobytes from HBM, at its latency")
    """Of a kernel in a program, for its first operands to arrive."""


@dataclass(frozen=True, kw_only=True)
class ArrayPhysics:
    """All of them."""

    launch: ProgramLaunch = group(ProgramLaunch, "programs of one small kernel, by clock of the host and of the device")
    products: ArrayProducts = group(ArrayProducts, "products by shape, on each kind of array")
    vectors: VectorRates = group(VectorRates, "pointwise kernels with many operations a byte, and reductions over rows")
    memory: DeviceMemory = group(DeviceMemory, "copies, and products larger than on-chip memory")


PRIOR = ArrayPhysics()
