"""Kernels of one rank in training: what a pass over activations, a norm, a copy or a collective is as a ``Part``."""

from __future__ import annotations

from dataclasses import dataclass, replace

from neusight.engines import Engine
from neusight.kernels.families import KernelBatch
from neusight.kernels.operators import operator, operator_bytes
from neusight.kernels.precision import DTYPE_BYTES
from neusight.workloads.decoders.decoder import Decoder
from neusight.workloads.program import Part
from neusight.workloads.training.local import Local

GENERATED = {"rms_norm": "mean", "rms_norm_backward": "sum", "rms_norm_weight_backward": "sum"}
"""Reductions of which kernels are generated for norms that a module of transformers writes out."""
FLOAT_BYTES = DTYPE_BYTES["float32"]


def configured(engine: Engine, decoder: Decoder) -> Engine:
    """The engine with what the model's own configuration decides."""
    return replace(engine, hidden_dropout=decoder.dropout) if engine.module_dropout else engine


@dataclass(frozen=True, kw_only=True)
class Rank:
    """A rank's share of a micro-batch of a model that is ``hidden`` wide, under an engine.

    Parts are made as of the forward pass; operations tell which pass runs them.
    """

    hidden: int
    local: Local
    engine: Engine

    @property
    def dtype(self) -> str:
        """Of activations."""
        return self.local.dtype

    @property
    def size(self) -> int:
        """Bytes of a value of activations."""
        return DTYPE_BYTES[self.dtype]

    @property
    def ranks(self) -> dict[str, int]:
        """Members of each group."""
        return {"tp": self.local.tp, "cp": self.local.cp, "ep": self.local.ep, "etp": self.local.etp}

    def narrow(self, kind: str) -> bool:
        """Whether products of a kind of projection run in 8 bits: large ones inside layers do (Transformer Engine)."""
        return bool(self.local.products) and kind in ("attention", "feed_forward", "experts")

    def pointwise(self, what: str, op: str, rows: int, cols: int, runs: int = 1) -> Part:
        """A pass with ``rows`` x ``cols`` results, of an operator whose operands the table has."""
        found = operator("elementwise", op)
        read, written = operator_bytes(found, (rows * cols, rows, cols), self.size)
        batch = KernelBatch.from_columns(
            "elementwise", op=op, elements=rows * cols, read_bytes=read, write_bytes=written,
            flops=found.flops * rows * cols, dtype=self.dtype, passes=found.passes,
        )  # fmt: skip
        return Part(what=what, phase="forward", batch=batch, runs=runs)

    def rows(self, what: str, op: str, rows: int, cols: int, *, more_read: int = 0, more_written: int = 0) -> Part:
        """A reduction over rows of activations; ``more_read`` and ``more_written`` [B] beside what the table has."""
        read, written = operator_bytes(operator("row_reduction", op), (rows * cols, rows, cols), self.size)
        name = GENERATED.get(op, op) if self.engine.generated else op
        return self.reduced(what, name, (rows, cols), read + more_read, written + more_written)

    def reduced(self, what: str, op: str, shape: tuple[int, int], read: int, written: int) -> Part:
        """A reduction of ``shape`` (rows, columns) with these bytes."""
        rows, cols = shape
        batch = KernelBatch.from_columns(
            "row_reduction", op=op, rows=rows, cols=cols, read_bytes=read, write_bytes=written,
            flops=operator("row_reduction", op).flops * rows * cols, dtype=self.dtype,
        )  # fmt: skip
        return Part(what=what, phase="forward", batch=batch)

    def passed(self, what: str, op: str, elements: int, read: int, written: int) -> Part:
        """A pointwise pass whose operands differ in width, with these bytes."""
        batch = KernelBatch.from_columns(
            "elementwise", op=op, elements=elements, read_bytes=read, write_bytes=written,
            flops=operator("elementwise", op).flops * elements, dtype=self.dtype,
        )  # fmt: skip
        return Part(what=what, phase="forward", batch=batch)

    def moved(self, what: str, op: str, elements: int, read: int, written: int) -> Part:
        """Data movement with these bytes."""
        batch = KernelBatch.from_columns(
            "memory", op=op, elements=elements, read_bytes=read, write_bytes=written, dtype=self.dtype
        )
        return Part(what=what, phase="forward", batch=batch)

    def copied(self, what: str, rows: int, cols: int, op: str = "copy") -> Part:
        """Values of activations read and written once."""
        size = rows * cols * self.size
        return self.moved(what, op, rows * cols, size, size)

    def exchanged(
        self, what: str, op: str, group: str, size: int, *, overlapped: bool = False, runs: int = 1
    ) -> tuple[Part, ...]:
        """A collective of ``size`` [B], as ``Collective`` counts them, among a group; none of a single rank.

        Ranks that share an expert are neighbours, as those of ``tp`` are: their group counts as ``tp``.
        """
        ranks = self.ranks[group]
        if ranks == 1 or not runs:
            return ()
        batch = KernelBatch.from_columns("collective", op=op, ranks=ranks, bytes=size, dtype=self.dtype)
        members = "tp" if group == "etp" else group
        return (Part(what=what, phase="forward", batch=batch, runs=runs, group=members, overlapped=overlapped),)

    def accumulated(self, what: str, elements: int) -> tuple[Part, ...]:
        """Gradients that no product made, added to their float32 sums where the engine keeps such."""
        if self.engine.accumulation == "none" or not elements:
            return ()
        return (self.pointwise(f"{what} accumulate", "accumulate", 1, elements),)
