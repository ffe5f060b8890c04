"""Buffers of libraries that lie in PyTorch's allocator from the first step on."""

from __future__ import annotations

from neusight.devices.spec import DeviceSpec
from neusight.engines import Engine

MIB = 2**20
CUBLAS_BYTES = 4096 * 2 * 2**10 + 16 * 8 * 2**10
"""Of a cuBLAS handle: 2 x 4 MiB and 16 x 8 KiB (PyTorch, aten/src/ATen/cuda/CublasHandlePool.cpp)."""
LARGE_CUBLAS_BYTES = 32 * MIB
"""Of a handle from compute capability 9 on (ibid.), and with ``CUBLAS_WORKSPACE_CONFIG=:4096:8``, one of the two
settings with which results repeat (cuBLAS documentation, 2.1.4)."""
ENGINE_BYTES = 4 * MIB
LARGE_ENGINE_BYTES = 32 * MIB
"""Of Transformer Engine's products, before and from compute capability 9 on (transformer_engine/pytorch/module/base.py,
``get_cublas_workspace_size_bytes``)."""
EXPERT_STREAMS = 4
"""On which it runs experts side by side, each with a workspace of its own (ibid.,
``get_multi_stream_cublas_workspace``)."""


def workspace_bytes(device: DeviceSpec, engine: Engine, *, experts: bool = False) -> float:
    """Bytes of a rank: a cuBLAS handle for each thread (the forward pass's and autograd's), Transformer Engine's."""
    large = device.facts.large_blas_workspace
    handle = LARGE_CUBLAS_BYTES if large or engine.deterministic else CUBLAS_BYTES
    own = LARGE_ENGINE_BYTES if large else ENGINE_BYTES
    streams = 1 + EXPERT_STREAMS * (experts and engine.grouped_experts)
    return float(engine.handles * handle + (streams * own if engine.transformer_engine else 0))
