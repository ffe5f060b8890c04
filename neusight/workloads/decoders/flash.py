"""Attention of a training step in one kernel, forward and backward."""

from __future__ import annotations

from dataclasses import dataclass, replace

from neusight.kernels.families import KernelBatch
from neusight.kernels.operators import ELEMENTWISE, ROW_REDUCTION
from neusight.workloads.decoders.operations import Operation
from neusight.workloads.decoders.rank import FLOAT_BYTES, Rank


@dataclass(frozen=True, kw_only=True)
class Heads:
    """A rank's heads: ``head_dim`` of queries and keys, ``value_dim`` of values; ``window`` 0 sees all before.

    ``keys`` of each sequence are another's, 0 for those of its own tokens; not ``causal``: all are seen.
    """

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    window: int = 0
    causal: bool = True
    keys: int = 0

    @property
    def kv_width(self) -> int:
        """Keys and values of a token."""
        return self.kv_heads * (self.head_dim + self.value_dim)


def flash(rank: Rank, heads: Heads, lengths: tuple[int, int], *, causal: bool = True, runs: int = 1) -> Operation:
    """One kernel over (queries, keys) of each sequence; back, row sums of gradient times output come first (Dao 2023,
    algorithm 2).
    """
    shape = {
        "batch": rank.share.batch, "heads": heads.heads, "kv_heads": heads.kv_heads, "q_len": lengths[0],
        "kv_len": lengths[1], "head_dim": heads.head_dim, "causal": causal, "window": heads.window,
        "value_dim": heads.value_dim if heads.value_dim != heads.head_dim else 0, "dtype": rank.dtype,
    }  # fmt: skip
    rows = rank.share.batch * heads.heads * lengths[0]
    elements = rows * heads.value_dim
    delta = KernelBatch.from_columns(
        "row_reduction", op="sum", rows=rows, cols=heads.value_dim, read_bytes=2 * rank.size * elements,
        write_bytes=FLOAT_BYTES * rows, flops=(ELEMENTWISE["mul"].flops + ROW_REDUCTION["sum"].flops) * elements,
        dtype=rank.dtype,
    )  # fmt: skip
    forward, backward = (
        rank.part("attention", KernelBatch.from_columns("attention", op=op, **shape), runs)
        for op in ("forward", "backward")
    )
    sums = replace(rank.part("delta", delta, runs), further=True)
    return Operation(forward=(forward,), backward=(sums, backward))
