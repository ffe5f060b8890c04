"""Kernels of integers on one core with SIMD instructions for multiply-adds, as libraries for microcontrollers write
them, and what the core draws meanwhile.

A layer walks over its operands in runs that lie one after another in memory: a row of a filter over all channels, one
pixel of a 1x1 convolution, a row of a matrix (Lai et al. 2018, CMSIS-NN, arXiv 1801.06601, sections 3.1 to 3.4). A
run costs cycles of its own, each multiply-add in it others, by kind of layer. Constants are those of a Cortex-M4; other
cores take fewer or more cycles as their CoreMark tells, and multiply-adds as they have more lanes for them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from neusight.devices.spec import MicrocontrollerSpec
from neusight.kernels.families import KernelBatch
from neusight.kernels.work import by_distinct, conv_output, work_of
from neusight.laws.bounds import GEMM_FAMILIES
from neusight.laws.constants import constant, group
from neusight.quick_dataclasses import dataclass

REFERENCE_COREMARK, REFERENCE_LANES = 3.41, 2.0
"""Of the core that the constants are of: CoreMark/MHz of a Cortex-M4, and 16-bit multiply-adds of one SMLAD (datasheet:
Arm, Cortex-M4)."""


@dataclass(frozen=True, kw_only=True)
class LayerCycles:
    """Cycles by kind of layer, of the middle of libraries like CMSIS-NN."""

    convolution: float = constant(1.2, 0.3, "Lai et al. 2018, figure 5: two multiply-adds a SMLAD, loads between")
    """Of a multiply-add of a convolution."""
    pointwise: float = constant(1.0, 0.3, "the same without copies of patches")
    """The same of a 1x1 convolution, which is a product of matrices."""
    depthwise: float = constant(3.0, 0.3, "Lai et al. 2018, section 3.2: no reuse between channels, each value loaded")
    """The same of a depthwise convolution."""
    dense: float = constant(2.0, 0.3, "Lai et al. 2018, section 3.4: each weight is loaded for one multiply-add")
    """The same of a product of a matrix and a vector, whose weights come from flash, each once: no better core waits
    less for them."""
    run: float = constant(12.0, 0.5, "guess: pointers, a loop's ends, and of a result's last its scaling")
    """Of a run of operands; see the module."""
    element: float = constant(10.0, 0.3, "guess: two operands scaled, added, scaled back and clamped")
    """Of an operation on an element of pooling, additions, softmax."""


@dataclass(frozen=True, kw_only=True)
class ActivePower:
    """What a core draws."""

    share: float = constant(1.8, 0.3, "guess: datasheets state current at low clocks and voltages of the core")
    """While it multiplies at full clock, over what its datasheet states."""


@dataclass(frozen=True, kw_only=True)
class IntegerPhysics:
    """All constants."""

    layers: LayerCycles = group(LayerCycles, "single layers on a core, by kind")
    power: ActivePower = group(ActivePower, "currents of boards while they multiply")


PRIOR = IntegerPhysics()
"""Centres of the priors."""


def kernel_cycles(batch: KernelBatch, device: MicrocontrollerSpec, physics: IntegerPhysics) -> np.ndarray:
    """Cycles of kernels of one family on a core, shape (n,).

    Args:
        batch: kernels of one family.
        device: its lanes by dtype, and its CoreMark.
        physics: the constants.

    Raises:
        DeviceError: a product in a dtype that the core lacks.
    """
    scalar, layers = REFERENCE_COREMARK / device.coremark_per_mhz, physics.layers
    flops = np.asarray(work_of(batch).flops, dtype=float)
    if batch.family not in GEMM_FAMILIES:
        return scalar * layers.element * np.maximum(flops, _moved(batch))
    each, runs = _by_layer(batch, layers)
    narrower = by_distinct(batch["dtype"], lambda dtype: REFERENCE_LANES / device.lanes(dtype))
    waits = 1.0 if batch.family != "conv2d" else scalar
    return np.asarray(waits * 0.5 * flops * each * narrower + scalar * runs * layers.run)


def _moved(batch: KernelBatch) -> np.ndarray:
    """Elements of kernels without arithmetic, which are moved."""
    return np.asarray(batch["elements"] if "elements" in batch.columns else np.ones(len(batch)), dtype=float)


def _by_layer(batch: KernelBatch, layers: LayerCycles) -> tuple[Any, np.ndarray]:
    """Cycles of a multiply-add and runs of operands, each of shape (n,)."""
    if batch.family != "conv2d":
        length = batch["k"] if "k" in batch.columns else np.ones(len(batch))
        return np.full(len(batch), layers.dense), 0.5 * np.asarray(work_of(batch).flops, dtype=float) / length
    height, width = conv_output(batch)
    results = batch["batch"] * batch["out_channels"] * height * width
    taps = batch["kernel_height"] * batch["kernel_width"]
    grouped = (batch["groups"] > 1) & (batch["groups"] == batch["in_channels"])
    each = np.select([grouped, taps == 1], [layers.depthwise, layers.pointwise], layers.convolution)
    return each, (results * batch["kernel_height"]).astype(float)


def active_power_w(device: MicrocontrollerSpec, physics: IntegerPhysics) -> float:
    """What a core draws while it computes [W], in proportion to the clock where a variant has another."""
    clock = device.clock_hz / (device.original or device).clock_hz
    return physics.power.share * device.tdp_w * clock
