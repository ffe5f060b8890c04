"""What kernels ask of arrays, vector units and memory, and how long that takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from neusight.devices.spec import SystolicSpec
from neusight.errors import CoverageError
from neusight.kernels import KernelBatch
from neusight.kernels.conditions import Conditions
from neusight.kernels.moe import products_of
from neusight.kernels.work import (
    attention_pairs,
    by_distinct,
    conv_gemm,
    element_bytes,
    filled_groups,
    value_width,
    work_of,
)
from neusight.laws.array_constants import ArrayPhysics
from neusight.laws.systolic import overlapped_cycles, reread_bytes, tiles_of

LANES = 128
"""Of the vector units for which sums across lanes were fitted (cited: JAX documentation, Pallas on TPU: registers of 8
x 128)."""


@dataclass(frozen=True)
class MatrixProduct:
    """``count`` products of m x n x k each, columns of shape (n,)."""

    count: np.ndarray
    m: np.ndarray
    n: np.ndarray
    k: np.ndarray


@dataclass(frozen=True, kw_only=True)
class ResourceTimes:
    """What resources are busy for [s], columns of shape (n,). ``fill_s`` of ``dram_s`` nothing else can overlap."""

    arrays_s: np.ndarray
    vectors_s: np.ndarray
    dram_s: np.ndarray
    fill_s: np.ndarray
    start_s: np.ndarray

    @property
    def execution_s(self) -> np.ndarray:
        """Vector units convert and reduce what arrays take and give, one after the other; copies run ahead of both."""
        return self.start_s + np.maximum(self.arrays_s + self.vectors_s + self.fill_s, self.dram_s)

    @property
    def limiter(self) -> np.ndarray:
        """What takes longest: ``compute`` or ``dram``."""
        return np.where(self.arrays_s + self.vectors_s >= self.dram_s, "compute", "dram")


def _gemm(batch: KernelBatch) -> Iterator[MatrixProduct]:
    yield MatrixProduct(*(batch[name].astype(float) for name in ("batch", "m", "n", "k")))


def _conv2d(batch: KernelBatch) -> Iterator[MatrixProduct]:
    yield MatrixProduct(*conv_gemm(batch))


def _attention(batch: KernelBatch) -> Iterator[MatrixProduct]:
    """Scores and their product with values forward; five such products backward (Dao 2023). Queries that share keys
    stream past them together; of a causal or windowed matrix the part that counts is computed.
    """
    heads, q = batch["batch"] * batch["kv_heads"].astype(float), batch["q_len"].astype(float)
    rows = q * batch["heads"] / batch["kv_heads"]
    keys = attention_pairs(batch) / q
    d, v, zero = batch["head_dim"].astype(float), value_width(batch), np.zeros(len(batch))
    backward = batch["op"] == "backward"
    yield MatrixProduct(heads * np.where(backward, 3.0, 1.0), rows, keys, d)
    yield MatrixProduct(heads * np.where(backward, 2.0, np.where(v > 0, 1.0, zero)), rows, np.maximum(v, 1.0), keys)


def _grouped_gemm(batch: KernelBatch) -> Iterator[MatrixProduct]:
    groups, _ = filled_groups(batch)
    yield MatrixProduct(groups, batch["tokens"] / groups, batch["n"].astype(float), batch["k"].astype(float))


def _moe(batch: KernelBatch) -> Iterator[MatrixProduct]:
    for products in products_of(batch):
        yield from _grouped_gemm(products)


_PRODUCTS: dict[str, Callable[[KernelBatch], Iterator[MatrixProduct]]] = {
    "gemm": _gemm,
    "conv2d": _conv2d,
    "attention": _attention,
    "grouped_gemm": _grouped_gemm,
    "moe": _moe,
}
POINTWISE = ("elementwise", "row_reduction", "memory", "optimizer")
"""Families of vector units and memory alone."""


def times_of(batch: KernelBatch, device: SystolicSpec, physics: ArrayPhysics) -> ResourceTimes:
    """How long each resource is busy with each kernel of a batch of one family.

    Raises:
        CoverageError: a family without a law. DeviceError: a format that arrays cannot multiply.
    """
    if batch.family in POINTWISE:
        return _pointwise_times(batch, device, physics)
    if batch.family not in _PRODUCTS:
        raise CoverageError(f"no law of kernels of '{batch.family}' on systolic arrays")
    products = list(_PRODUCTS[batch.family](batch))
    again = np.sum([_reread_bytes(each, batch, device, physics) for each in products], axis=0)
    multiplied_s = np.sum([arrays_s(each, batch, device, physics.products.share) for each in products], axis=0)
    return ResourceTimes(
        arrays_s=np.minimum(multiplied_s, _on_vectors_s(batch, device, physics)),
        vectors_s=_around_products_s(batch, products, device, physics),
        dram_s=(work_of(batch).bytes + again) / dram_bytes_per_s(device, physics),
        fill_s=np.zeros(len(batch)),
        start_s=np.full(len(batch), physics.launch.start_s),
    )


def _on_vectors_s(batch: KernelBatch, device: SystolicSpec, physics: ArrayPhysics) -> np.ndarray | float:
    """Products on vector units, which compilers take where most of an array would lie idle: convolutions of groups of
    few channels, attention of few queries [s].
    """
    if batch.family not in ("conv2d", "attention"):
        return np.inf
    alone_s = work_of(batch).flops / physics.vectors.share / vector_ops_per_s(device)
    return np.where(batch["groups"] > 1, alone_s, np.inf) if batch.family == "conv2d" else alone_s


def _pointwise_times(batch: KernelBatch, device: SystolicSpec, physics: ArrayPhysics) -> ResourceTimes:
    """Results of a reduction wait for the statistics of its first rows, half a working set of them, or for all of its
    rows, whatever memory there is beside: more of it makes no kernel slower.
    """
    dram_s = work_of(batch).bytes / dram_bytes_per_s(device, physics)
    waits_s = physics.memory.working_set_bytes / 2.0 / dram_bytes_per_s(device, physics)
    return ResourceTimes(
        arrays_s=np.zeros(len(batch)),
        vectors_s=_pointwise_s(batch, device, physics),
        dram_s=dram_s,
        fill_s=np.minimum(dram_s, waits_s if batch.family == "row_reduction" else 0.0),
        start_s=np.full(len(batch), physics.launch.start_s),
    )


def dram_bytes_per_s(device: SystolicSpec, physics: ArrayPhysics) -> float:
    """What copies between HBM and on-chip memory sustain [B/s]."""
    return physics.memory.share * device.dram_bandwidth_bytes_per_s


def working_set_bytes(device: SystolicSpec, physics: ArrayPhysics) -> float:
    """On-chip memory for what a kernel works on: half of what a small chip has, at most."""
    return min(physics.memory.working_set_bytes, device.on_chip_bytes / 2.0)


def _reread_bytes(
    product: MatrixProduct, batch: KernelBatch, device: SystolicSpec, physics: ArrayPhysics
) -> np.ndarray:
    """Bytes of operands that do not fit beside the tiles of a product."""
    return product.count * reread_bytes(
        product.m,
        product.n,
        product.k,
        width=element_bytes(batch),
        on_chip_bytes=device.on_chip_bytes,
        working_set_bytes=working_set_bytes(device, physics),
    )


def arrays_s(product: MatrixProduct, batch: KernelBatch, device: SystolicSpec, share: float = 1.0) -> np.ndarray:
    """Products on all arrays of a chip at their rate in the kernel's format [s]: stationary tiles are dealt out to the
    arrays, each of which fills and drains once and streams at a ``share`` of its rate. The rate counts, not the clock,
    which formats of fewer bits share.
    """
    alone = overlapped_cycles(
        product.m,
        product.n,
        product.k,
        rows=device.array_rows,
        columns=device.array_columns,
        multiple=device.padded_rows,
    )
    fill = device.array_rows + device.array_columns - 2.0
    cycles = product.count * (alone - fill) / (share * device.array_count) + fill
    lanes = 2.0 * device.array_rows * device.array_columns * device.array_count
    return cycles * lanes / by_distinct(batch["dtype"], device.gemm_flops_per_s)


def _around_products_s(
    batch: KernelBatch, products: Sequence[MatrixProduct], device: SystolicSpec, physics: ArrayPhysics
) -> np.ndarray:
    """Conversions of operands and results, and what becomes of sums that leave the arrays [s]: they are rounded and
    stored, or scores of attention.
    """
    touched = work_of(batch).bytes / element_bytes(batch)
    converted = touched * _foreign(batch, device) * physics.vectors.conversion_ops
    if batch.family == "attention":
        scores = batch["batch"] * batch["heads"].astype(float) * attention_pairs(batch)
        leaving = physics.vectors.softmax_ops * scores / physics.vectors.share
    else:
        leaving = physics.vectors.result_ops * np.sum([each.count * each.m * each.n for each in products], axis=0)
    return (converted + leaving) / vector_ops_per_s(device)


def _pointwise_s(batch: KernelBatch, device: SystolicSpec, physics: ArrayPhysics) -> np.ndarray:
    work = work_of(batch)
    touched = work.bytes / element_bytes(batch)
    converted = touched * _foreign(batch, device) * physics.vectors.conversion_ops
    if batch.family == "row_reduction":
        # Sums across lanes halve what is left of a row step by step; rows shorter than the lanes share the steps.
        lanes = device.row_lanes or LANES
        row_ops = physics.vectors.row_ops * np.log2(lanes) / np.log2(LANES)
        converted = converted + batch["rows"] * np.minimum(batch["cols"] / lanes, 1.0) * row_ops
    operations = np.minimum(work.flops, physics.vectors.most_ops * touched)
    return (converted + operations / physics.vectors.share) / vector_ops_per_s(device)


def vector_ops_per_s(device: SystolicSpec) -> float:
    """Operations of the vector units in the format in which they are fastest [1/s]."""
    return max(device.vector_flops_per_s.values())


def _foreign(batch: KernelBatch, device: SystolicSpec) -> np.ndarray:
    """1 where elements have a floating-point format that the chip does not compute in, else 0."""
    own = {*device.matrix_flops_per_s, *device.vector_flops_per_s, "bfloat16", "tf32"}
    return by_distinct(batch["dtype"], lambda dtype: float(dtype == "float16" and dtype not in own))


def launch_s(device: SystolicSpec, conditions: Conditions, physics: ArrayPhysics) -> np.ndarray:
    """What a program takes beside its kernels [s]: its start on the device, which all of its kernels share, with the
    host's dispatch by its clock.
    """
    dispatch_s = np.where(conditions.timing == "wall", physics.launch.dispatch_s, 0.0)
    return dispatch_s + physics.launch.share * device.launch_overhead_s / conditions.launches


def tile_counts(batch: KernelBatch, device: SystolicSpec) -> np.ndarray:
    """Stationary tiles of a kernel's products; 1 of others."""
    if batch.family not in _PRODUCTS:
        return np.ones(len(batch))
    counts = [
        each.count * tiles_of(each.k, device.array_rows) * tiles_of(each.n, device.array_columns)
        for each in _PRODUCTS[batch.family](batch)
    ]
    return np.asarray(np.sum(counts, axis=0))
