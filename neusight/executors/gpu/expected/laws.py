"""Which kernels have a law of their own, and what it says of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from neusight.devices.spec import GpuSpec
from neusight.executors.gpu.expected.attention import attention_shape, attention_times
from neusight.executors.gpu.expected.convolutions import as_streams, is_depthwise, is_direct
from neusight.executors.gpu.expected.matrix import matrix_times, product_tiling
from neusight.executors.gpu.expected.moe import grouped_times, moe_shape, moe_times
from neusight.executors.gpu.expected.streams import stream_shape, stream_times
from neusight.executors.gpu.expected.times import Times
from neusight.executors.gpu.tiling.decompose import Tiling, tile
from neusight.executors.gpu.tiling.library import TileChoice
from neusight.kernels import KernelBatch
from neusight.kernels.conditions import Conditions
from neusight.kernels.moe import products_of
from neusight.kernels.work import winograd_gain
from neusight.laws.physics import Physics
from neusight.quick_dataclasses import dataclass

Shape = Mapping[str, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Law:
    """``tile`` cuts kernels into blocks, ``times`` says how long they keep the resources of a device busy, ``shape``
    how they lie on it, for what is learned beside the law.
    """

    tile: Callable[[KernelBatch, GpuSpec, Conditions, TileChoice, Physics], Tiling]
    times: Callable[[KernelBatch, GpuSpec, Conditions, Physics, Tiling], Times]
    shape: Callable[[KernelBatch, GpuSpec, Conditions, Physics], Shape]


def _usual_tiles(batch: KernelBatch, device: GpuSpec, _: Conditions, choice: TileChoice, physics: Physics) -> Tiling:
    """Blocks of its family, of a layer of experts those of its first product."""
    return tile(products_of(batch)[0] if batch.family == "moe" else batch, device, choice, physics)


# Laws but that of products choose their blocks by themselves, so that they take no tiling.
LAWS: dict[str, Law] = {
    "matrix": Law(
        tile=lambda batch, device, conditions, _, physics: product_tiling(batch, device, conditions, physics),
        times=matrix_times,
        shape=lambda *_: {},
    ),
    "attention": Law(tile=_usual_tiles, times=lambda *given: attention_times(*given[:-1]), shape=attention_shape),
    "moe": Law(
        tile=_usual_tiles,
        times=lambda batch, *more: (moe_times if batch.family == "moe" else grouped_times)(batch, *more[:-1]),
        shape=moe_shape,
    ),
    "stream": Law(
        tile=_usual_tiles,
        times=lambda batch, *more: stream_times(as_streams(batch), *more[:-1]),
        shape=lambda batch, *more: stream_shape(as_streams(batch), *more),
    ),
}
"""Laws by name, which is also the name of the tile model that corrects them."""
BY_FAMILY = {
    **dict.fromkeys(("moe", "grouped_gemm"), "moe"),
    **dict.fromkeys(("elementwise", "row_reduction", "memory", "optimizer"), "stream"),
    "attention": "attention",
}
"""Laws that hold for a family in every dtype."""


def law_names(batch: KernelBatch, device: GpuSpec) -> np.ndarray:
    """Name of the law of each kernel, shape (n,); "" for products and convolutions on the ordinary pipelines.

    Depthwise convolutions are streams in any dtype: they have no inner extent for a product; see ``is_direct``.
    """
    if batch.family in BY_FAMILY:
        return np.full(len(batch), BY_FAMILY[batch.family])
    units = set(device.matrix_flops_per_s) - {"float64", "float32"}
    law = np.where(np.isin(batch["dtype"], list(units)), "matrix", "")
    if batch.family != "conv2d":
        return law
    return np.where(np.where(law == "matrix", is_direct(batch), is_depthwise(batch)), "stream", law)


def answering_model(batch: KernelBatch, device: GpuSpec) -> np.ndarray:
    """Name of the tile model that answers each kernel, shape (n,): that of its law, see ``law_names``; on the ordinary
    pipelines ``conv2d`` for convolutions that have a fast algorithm, and ``gemm`` for all other products.
    """
    laws = law_names(batch, device)
    if (laws != "").all():
        return laws
    fast = winograd_gain(batch) > 1 if batch.family == "conv2d" else np.zeros(len(batch), dtype=bool)
    return np.where(laws != "", laws, np.where(fast, "conv2d", "gemm"))
