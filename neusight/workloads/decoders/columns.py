"""Kernels of many steps as columns: what a product, a norm, a copy or a collective of so many rows is.

Rows are arrays of shape (n,), one entry a step; 0 stands for a kernel that does not run and becomes 1, so that every
column holds a kernel that can be priced. How often it runs is told elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from neusight.kernels.families import KernelBatch
from neusight.kernels.operators import operator, operator_bytes
from neusight.kernels.precision import DTYPE_BYTES, stored_bytes
from neusight.workloads.decoders.layers import Projection
from neusight.workloads.decoders.quantisation import Quantisation, ServingPrecision
from neusight.workloads.decoders.sharding import Sharding
from neusight.workloads.decoders.steps import Steps

Made = tuple[str, KernelBatch, np.ndarray]
"""What it is, the kernels, and how often each runs in one layer."""


def whole(values: np.ndarray) -> np.ndarray:
    """Counts, rounded; shape (n,), int64."""
    return np.rint(values).astype(np.int64)


@dataclass(frozen=True, kw_only=True)
class Rank:
    """What one rank works on in each step, columns of shape (n,), and how."""

    hidden: int
    tokens: np.ndarray
    prompts: np.ndarray
    prompt_tokens: np.ndarray
    prompt_context: np.ndarray
    decodes: np.ndarray
    decode_context: np.ndarray
    precision: ServingPrecision
    sharding: Sharding
    engine: str

    @classmethod
    def of(cls, hidden: int, steps: Steps, precision: ServingPrecision, sharding: Sharding, engine: str) -> Rank:
        """Contexts are keys that the last query sees: what is cached and what is new."""
        prompts, decodes = whole(steps.prompts), whole(steps.decodes)
        new = whole(steps.prompt_tokens)
        return cls(
            hidden=hidden,
            tokens=prompts * new + decodes,
            prompts=prompts,
            prompt_tokens=new,
            prompt_context=new + whole(steps.prompt_cached),
            decodes=decodes,
            decode_context=whole(steps.decode_cached) + 1,
            precision=precision,
            sharding=sharding,
            engine=engine,
        )

    @property
    def dtype(self) -> str:
        """Of activations."""
        return self.precision.dtype

    @property
    def runs(self) -> np.ndarray:
        """1 for steps with any token."""
        return (self.tokens > 0).astype(np.int64)

    @property
    def prompt_runs(self) -> np.ndarray:
        """1 for steps with new prompt tokens."""
        return (self.prompts * self.prompt_tokens > 0).astype(np.int64)

    @property
    def decode_runs(self) -> np.ndarray:
        """1 for steps with sequences that generate."""
        return (self.decodes > 0).astype(np.int64)

    def product(self, projection: Projection, rows: np.ndarray) -> KernelBatch:
        """Rows times a projection, in the scheme of its kind."""
        scheme = self.precision.quantisation.of(projection.kind)
        return KernelBatch.from_columns(
            "gemm",
            m=np.maximum(rows, 1),
            n=projection.n,
            k=projection.k,
            bias=projection.bias,
            **arithmetic(scheme, self.dtype),
            quantised=bool(scheme.activations) and scheme.dynamic,
        )

    def projected(self, projection: Projection) -> Made:
        """The product of all tokens."""
        return projection.what, self.product(projection, self.tokens), self.runs

    def rows(self, op: str, rows: np.ndarray, cols: int, more_read: int = 0) -> KernelBatch:
        """A reduction over rows of activations; ``more_read`` values an element beside what the operator reads."""
        rows, found, size = np.maximum(rows, 1), operator("row_reduction", op), DTYPE_BYTES[self.dtype]
        read, written = operator_bytes(found, (rows * cols, rows, cols), size)
        return KernelBatch.from_columns(
            "row_reduction",
            op=op,
            rows=rows,
            cols=cols,
            read_bytes=read + more_read * size * rows * cols,
            write_bytes=written,
            flops=found.flops * rows * cols,
            dtype=self.dtype,
        )

    def pointwise(self, op: str, rows: np.ndarray, cols: int) -> KernelBatch:
        """A pointwise kernel with ``cols`` results a row."""
        rows, found = np.maximum(rows, 1), operator("elementwise", op)
        read, written = operator_bytes(found, (rows * cols, rows, cols), DTYPE_BYTES[self.dtype])
        return KernelBatch.from_columns(
            "elementwise",
            op=op,
            elements=rows * cols,
            read_bytes=read,
            write_bytes=written,
            flops=found.flops * rows * cols,
            dtype=self.dtype,
        )

    def stored(self, width: int) -> KernelBatch:
        """The write of ``width`` values a token into the paged cache, each row to a place of its own."""
        rows = np.maximum(self.tokens, 1)
        return KernelBatch.from_columns(
            "memory",
            op="scatter",
            elements=rows * width,
            read_bytes=rows * (width * DTYPE_BYTES[self.dtype] + 8),
            write_bytes=whole(rows * width * stored_bytes(self.precision.kv_cache)),
            dtype=self.dtype,
        )

    def exchanged(self, op: str, ranks: int, size: np.ndarray, what: str) -> list[Made]:
        """A collective of ``size`` [B], as ``Collective`` counts them; none of a single rank."""
        if ranks == 1:
            return []
        batch = KernelBatch.from_columns(
            "collective", op=op, ranks=ranks, bytes=np.maximum(whole(size), 1), dtype=self.dtype
        )
        return [(what, batch, self.runs)]

    def reduced(self, what: str) -> list[Made]:
        """The all-reduce of every token's row over tensor-parallel ranks."""
        return self.exchanged("all_reduce", self.sharding.tp, self.row_bytes(self.tokens), what)

    def row_bytes(self, rows: np.ndarray) -> np.ndarray:
        """Of rows of the residual stream."""
        return rows * self.hidden * DTYPE_BYTES[self.dtype]

    @property
    def kv_dtype(self) -> str:
        """Of the cache, "" where it is that of activations: see ``Attention``."""
        kept = self.precision.kv_cache
        return "" if kept == self.dtype else kept


def arithmetic(scheme: Quantisation, dtype: str) -> dict[str, str]:
    """Fields of products in a scheme: 8-bit ones carry scales, weight-only ones keep 16-bit arithmetic."""
    if scheme.activations:
        narrower = scheme.weights if scheme.weights != scheme.activations else ""
        return {"dtype": scheme.activations, "weight_dtype": narrower, "scaling": scheme.scaling}
    return {"dtype": dtype, "weight_dtype": scheme.weights, "scaling": ""}
