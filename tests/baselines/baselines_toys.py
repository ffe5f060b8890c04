"""Measured rows whose law is known, on two or three GPUs, and networks that give what they are told."""

from __future__ import annotations

from typing import Any

import numpy as np

from neusight.devices import DeviceSpec, gpu_of, load_device
from neusight.kernels import KernelBatch
from neusight.kernels.conditions import Conditions
from neusight.lab.baselines import BASELINES, Baseline
from neusight.lab.baselines.networks import Recipe, TrainedNetwork
from neusight.lab.baselines.published import RECIPES, NeusightPaper
from neusight.lab.baselines.roofline import roofline_s
from neusight.learn.training_data import DeviceRows

SHORT = Recipe(learning_rate=1e-2, steps=30, batch_rows=32, width=16, layers=3)
GPUS = ("p100-pcie-16gb", "t4", "v100-pcie-32gb")


NAMES = ("roofline", "neusight-paper")
"""Those that others published."""


def quick(name: str, seed: int = 0) -> Baseline:
    """A baseline that trains at once."""
    return NeusightPaper(seed, dict.fromkeys(RECIPES, SHORT)) if name == "neusight-paper" else BASELINES[name](seed)


def seconds(baseline: Baseline, batch: KernelBatch, device: DeviceSpec) -> np.ndarray:
    """What a baseline says of kernels that are launched alone."""
    return baseline.latency_s(batch, gpu_of(device), Conditions.of(len(batch)))


def measured(batch: KernelBatch, gpu: str | DeviceSpec, latency_s: Any = None, split: str = "train") -> DeviceRows:
    """Rows with a tile of 128x64, or 1x512; as slow as twice the roofline and a launch, unless told."""
    device, n = gpu if isinstance(gpu, DeviceSpec) else load_device(gpu), len(batch)
    tile = (128.0, 64.0) if batch.family == "gemm" else (1.0, 512.0)
    return DeviceRows(
        device=device,
        batch=batch,
        latency_s=5e-6 + 2 * roofline_s(batch, device) if latency_s is None else np.broadcast_to(latency_s, n),
        execution_s=np.full(n, np.nan),
        split=np.full(n, split),
        observed_m=np.full(n, tile[0]),
        observed_n=np.full(n, tile[1]),
        place=np.arange(n),
        conditions=Conditions.of(n),
    )


def pointwise(elements: Any, op: str = "add") -> KernelBatch:
    """Elementwise kernels of two operands and one result in float32."""
    count = np.asarray(elements, dtype=np.int64)
    sizes = {"read_bytes": 8 * count, "write_bytes": 4 * count}
    return KernelBatch.from_columns("elementwise", op=op, elements=count, flops=count, **sizes)


def row_wise(rows: Any, cols: int = 1024, op: str = "softmax") -> KernelBatch:
    """Row reductions that read and write their tensor once, in float32."""
    count = np.asarray(rows, dtype=np.int64)
    size = 4 * count * cols
    kernel = {"rows": count, "cols": cols, "flops": 5 * count * cols, "read_bytes": size, "write_bytes": size}
    return KernelBatch.from_columns("row_reduction", op=op, **kernel)


def corpus(seed: int = 0, gpus: tuple[str, ...] = GPUS) -> list[DeviceRows]:
    """Products, convolutions, elementwise kernels and row reductions on every GPU."""
    rng = np.random.default_rng(seed)
    b, m, n, k = rng.integers(16, 2048, (4, 60))
    linear = KernelBatch.from_columns("gemm", op="linear", m=m, n=n, k=k, bias=True)
    bmm = KernelBatch.from_columns("gemm", op="bmm", batch=b % 16 + 1, m=m, n=n, k=k, layout="nn")
    square = {"height": m % 64 + 8, "width": m % 64 + 8, "kernel_height": 3, "kernel_width": 3, "padding": 1}
    conv = KernelBatch.from_columns("conv2d", batch=b % 32 + 1, in_channels=n % 256 + 1, out_channels=k, **square)
    large = [pointwise(4_300_000 + 9_000 * m, op) for op in ("add", "gelu")]
    rows = [row_wise(4_100 + 8 * m, op=op) for op in ("softmax", "layer_norm")]
    return [measured(batch, gpu) for gpu in gpus for batch in (linear, bmm, conv, *large, *rows)]


def planted(*biases: float, inputs: int = 4) -> TrainedNetwork:
    """A network of one layer that always gives the same outputs."""
    return TrainedNetwork(((np.zeros((inputs, len(biases)), np.float32), np.array(biases, np.float32)),), 0.0)


def spec(base: str = "v100-pcie-32gb", **changes: Any) -> DeviceSpec:
    """A device of the catalogue with other figures."""
    return load_device(base).model_copy(update=changes)
