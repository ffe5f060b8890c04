"""Kernels by family: one frozen dataclass for each, and the columns that everything else computes on.

A kernel says *what* is computed (shape, dtype, bytes), never how fast. GEMM names follow BLAS: C[m,n] = A[m,k] B[k,n].
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, ClassVar

import numpy as np

from neusight.errors import CoverageError
from neusight.kernels.columns import ColumnRecord
from neusight.quick_dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Gemm:
    """C[b,m,n] = A[b,m,k] B[b,k,n] (+ bias[n]). ``linear`` has batch 1; ``bmm`` has one product a batch entry.

    ``layout`` is cuBLAS's for row-major tensors: ``tn`` x Wᵀ (linear forward), ``nn`` g W (input gradient),
    ``nt`` gᵀ x (weight gradient).

    ``dtype`` is that of the arithmetic and of A; C has 16 bits where that has 8. ``weight_dtype`` is the dtype in which
    B lies in memory, "" where it is ``dtype``: int8 or int4 weights under 16-bit arithmetic. ``scaling`` tells how
    8-bit operands carry their scales: "" not at all, ``tensor`` one for each operand, ``row`` one for each row of A and
    column of B, ``block`` one for 128 values of a row of A and 128x128 of B, ``micro`` one for 16 values of a row of
    either, which matrix units apply themselves (NVFP4), ``group`` one for 32 values of a row of either, applied to
    partial sums on ordinary lanes (llama.cpp). ``quantised``: A arrives in 16 bits and is made narrow within
    the kernel's time. ``accumulates``: the product is added to a C that lies in float32, as gradients of weights are
    over micro-batches (Megatron-LM, ``fused_weight_gradient_dense``).
    """

    family: ClassVar[str] = "gemm"
    op: str = "linear"
    batch: int = 1
    m: int
    n: int
    k: int
    layout: str = "tn"
    bias: bool = False
    dtype: str = "float32"
    weight_dtype: str = ""
    scaling: str = ""
    quantised: bool = False
    accumulates: bool = False


@dataclass(frozen=True, kw_only=True)
class Conv2d:
    """2-D convolution; ``op`` is ``forward``, ``input_grad`` or ``weight_grad``; images lie as ``image_layout``
    says, ``nchw`` or ``nhwc``.

    ``in_channels``, ``height`` and ``width`` are those of the forward input in every direction. Where the
    dimensions differ in stride or padding, ``output_height`` and ``output_width`` state the forward output; elsewhere
    they are 0 and follow. A 3-D convolution counts its depth, also that of kernel and output, into the height.
    """

    family: ClassVar[str] = "conv2d"
    op: str = "forward"
    batch: int
    in_channels: int
    out_channels: int
    height: int
    width: int
    kernel_height: int
    kernel_width: int
    stride: int = 1
    padding: int = 0
    dilation: int = 1
    groups: int = 1
    image_layout: str = "nchw"
    dtype: str = "float32"
    output_height: int = 0
    output_width: int = 0


@dataclass(frozen=True, kw_only=True)
class Elementwise:
    """A pointwise kernel over ``elements`` outputs: arithmetic, activations, dropout, pooling.

    Bytes are those of the tensors as stored (a broadcast operand counts once); ``flops`` is the total.
    ``op`` is the plain operator name: add, mul, div, pow, gelu, relu, tanh, add_scalar, dropout, max_pool2d, …
    ``passes`` kernels run one after another where an operator is written out in simpler ones (``rope_eager``); bytes
    are then those of all passes.
    """

    family: ClassVar[str] = "elementwise"
    op: str
    elements: int
    read_bytes: int
    write_bytes: int
    flops: int
    dtype: str = "float32"
    passes: int = 1


@dataclass(frozen=True, kw_only=True)
class RowReduction:
    """A reduction over ``cols``, once for each of ``rows``: softmax, layer_norm, batch_norm, sum, and their gradients.

    ``op``: softmax, log_softmax, layer_norm, rms_norm, batch_norm, group_norm, sum, mean, max, argmax, topk, cumsum,
    and ``<op>_backward``. ``batch_norm`` has channels as rows and batch x height x width as cols, in memory as
    ``image_layout`` says. ``passes`` as in ``Elementwise``.
    """

    family: ClassVar[str] = "row_reduction"
    op: str
    rows: int
    cols: int
    read_bytes: int
    write_bytes: int
    flops: int
    dtype: str = "float32"
    passes: int = 1
    image_layout: str = "nchw"


@dataclass(frozen=True, kw_only=True)
class Attention:
    """Fused scaled-dot-product attention (flash or memory-efficient): scores never reach DRAM.

    ``op`` is ``forward``, ``backward`` or ``indexer``: the scores alone, summed over heads and written in float32, by
    which sparse attention chooses its keys (DeepSeek-V3.2). The last of ``kv_len`` keys are the queries' own, so that
    a prefix makes ``kv_len`` larger than ``q_len``. ``window`` 0 means full (causal if ``causal``) attention.
    ``kv_dtype`` is that in which keys and values lie in memory, "" where it is ``dtype``: an 8-bit cache under a 16-bit
    model. The output has 16 bits where ``dtype`` has 8.

    ``value_dim`` is the width of values, 0 where it is ``head_dim``, that of queries and keys. ``shared_kv``: values
    are a part of the keys, as in multi-head latent attention over its compressed cache (DeepSeek-V2), and lie in memory
    once. ``selected`` keys are what a query attends to in sparse attention, 0 for all that it sees.
    """

    family: ClassVar[str] = "attention"
    op: str = "forward"
    batch: int
    heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    head_dim: int
    causal: bool = False
    window: int = 0
    dtype: str = "float32"
    kv_dtype: str = ""
    value_dim: int = 0
    shared_kv: bool = False
    selected: int = 0


@dataclass(frozen=True, kw_only=True)
class GroupedGemm:
    """C_g[m_g,n] = A_g[m_g,k] B_g[k,n] for each of ``groups`` experts, in one kernel.

    ``tokens`` is the sum of all m_g, ``largest`` the rows of the fullest group: 0 stands for the least there can be,
    ceil(tokens / groups), with the tokens spread evenly. Results, ``weight_dtype`` and ``scaling`` are as in ``Gemm``.
    """

    family: ClassVar[str] = "grouped_gemm"
    op: str = "forward"
    groups: int
    tokens: int
    largest: int = 0
    n: int
    k: int
    dtype: str = "float32"
    weight_dtype: str = ""
    scaling: str = ""


@dataclass(frozen=True, kw_only=True)
class Moe:
    """One device's share of a mixture-of-experts layer as an engine runs it: tokens to their experts, the product up
    (and gate), the activation, the product down, and the sum over a token's experts. Routing itself is not part of it.

    ``tokens`` are all that the layer gets; the device has ``experts`` of ``all_experts``, of which each token takes
    ``top_k``, and ``ffn`` of their inner width, after tensor parallelism. ``distribution`` is how tokens fall on
    experts: ``balanced``, ``uniform`` (each choice at random) or ``power_law_<exponent>``, see
    ``neusight.kernels.moe``. ``dtype`` is that of both products, activations have 16 bits; ``weight_dtype`` and
    ``scaling`` are as in ``Gemm``.
    """

    family: ClassVar[str] = "moe"
    op: str = "forward"
    tokens: int
    hidden: int
    ffn: int
    experts: int
    all_experts: int
    top_k: int
    gated: bool = True
    distribution: str = "balanced"
    dtype: str = "float32"
    weight_dtype: str = ""
    scaling: str = ""


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Data movement without arithmetic: copy, fill, cat, transpose, embedding, embedding_backward, gather, scatter."""

    family: ClassVar[str] = "memory"
    op: str
    elements: int
    read_bytes: int
    write_bytes: int
    dtype: str = "float32"


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """One multi-tensor optimizer kernel over ``elements`` parameters in ``tensors`` tensors.

    ``op`` names algorithm and form: adamw_fused, sgd_fused; the foreach form is many ``foreach_*`` kernels
    (foreach_add, foreach_lerp, foreach_addcmul, foreach_sqrt, …), each one pass over its operands.
    """

    family: ClassVar[str] = "optimizer"
    op: str
    elements: int
    tensors: int
    read_bytes: int
    write_bytes: int
    flops: int
    dtype: str = "float32"


@dataclass(frozen=True, kw_only=True)
class Collective:
    """Exchange between ``ranks`` devices, one process each.

    ``op`` is all_reduce, all_gather, reduce_scatter, all_to_all, send_recv, or host_copy, which is between a device and
    its host. ``bytes`` are counted as nccl-tests does: the larger of what a rank puts in and what it gets out, so that
    for an all-gather it is the gathered whole. ``per_node`` ranks share a node, 0 where all do. ``redirected``: PCIe
    access control services send what its boards exchange through the host's root complex. ``algorithm``: those of
    ``ALGORITHMS`` that NCCL may choose of, as NCCL_ALGO has them: ``ring,tree`` these, ``^nvls`` all but that, "" all.
    ``max_ctas`` are the thread blocks that NCCL may take, 0 as many as it wants.
    """

    family: ClassVar[str] = "collective"
    op: str = "all_reduce"
    ranks: int
    per_node: int = 0
    bytes: int
    dtype: str = "bfloat16"
    redirected: bool = False
    algorithm: str = ""
    max_ctas: int = 0


Kernel = Gemm | Conv2d | Elementwise | RowReduction | Attention | GroupedGemm | Moe | Memory | Optimizer | Collective
KERNEL_CLASSES: dict[str, type[Any]] = {
    c.family: c
    for c in (Gemm, Conv2d, Elementwise, RowReduction, Attention, GroupedGemm, Moe, Memory, Optimizer, Collective)
}


COMPOSED = frozenset({"moe", "collective"})
"""Families that have no tiles of their own, and of which no kernel is collected as such: those of several kernels of
other families, see ``neusight.kernels.moe``, and what several devices do together, which has a table of its own."""

LATER_FIELDS = frozenset({
    "weight_dtype", "scaling", "quantised", "passes", "value_dim", "shared_kv", "selected", "accumulates",
    "output_height", "output_width", "image_layout", "redirected", "algorithm", "max_ctas",
})  # fmt: skip
"""Fields that families got after kernels of theirs had been measured and written down: where they are missing, they
have their defaults, and a kernel that has the defaults keeps the name it had."""


def is_single(column: np.ndarray) -> bool:
    """Tell whether one value stands for all rows of a column, as ``KernelBatch.from_columns`` stores a scalar."""
    return column.strides == (0,)


@dataclass(frozen=True)
class KernelBatch(ColumnRecord):
    """Kernels of one family as columns: the unit on which laws, tilings, features and tile models work.

    ``columns`` maps every field of the family's dataclass to an array of shape (n,): int64, bool, or str.
    """

    family: str
    columns: Mapping[str, np.ndarray]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, name: str) -> np.ndarray:
        return self.columns[name]

    def take(self, index: np.ndarray) -> KernelBatch:
        """The rows that ``index`` (integers or a mask) selects; a column that is one value for all stays one."""
        n = int(np.count_nonzero(index)) if index.dtype == bool else len(index)
        columns = {
            name: np.broadcast_to(column[:1], (n,)) if is_single(column) and len(column) else column[index]
            for name, column in self.columns.items()
        }
        return KernelBatch(self.family, columns)

    @classmethod
    def joined(cls, parts: Sequence[KernelBatch]) -> KernelBatch:
        """All rows of batches of one family, one after another; a column that is one value for all stays one in
        memory.
        """
        first, n, columns = parts[0], sum(map(len, parts)), {}
        for name in first.columns:
            pieces = [batch[name] for batch in parts]
            single = all(is_single(piece) and piece[0] == pieces[0][0] for piece in pieces)
            columns[name] = np.broadcast_to(pieces[0][:1], (n,)) if single else np.concatenate(pieces)
        return KernelBatch(first.family, columns)

    @staticmethod
    def of(kernels: Sequence[Kernel]) -> KernelBatch:
        """Columns of kernels that are all of one family."""
        kind = type(kernels[0])
        columns = {f.name: np.array([getattr(k, f.name) for k in kernels]) for f in fields(kind)}
        return KernelBatch(kind.family, columns)

    @staticmethod
    def from_columns(family: str, **columns: Any) -> KernelBatch:
        """Columns given as arrays or scalars; missing fields take the family's defaults, scalars are repeated.

        Raises:
            CoverageError: unknown family or field, or a required field is missing.
        """
        kind = KERNEL_CLASSES.get(family)
        if kind is None:
            raise CoverageError(f"unknown kernel family '{family}': one of {', '.join(KERNEL_CLASSES)}")
        by_name = {f.name: f for f in fields(kind)}
        if unknown := columns.keys() - by_name.keys():
            raise CoverageError(f"{family} has no field {', '.join(sorted(unknown))}: it has {', '.join(by_name)}")
        length = max((len(v) for v in columns.values() if np.ndim(v)), default=1)
        filled = {}
        for name, field in by_name.items():
            value = columns.get(name, field.default)
            if not isinstance(value, np.ndarray | list | tuple | int | float | str | bool | np.generic):
                raise CoverageError(f"{family} needs '{name}'")
            filled[name] = np.broadcast_to(np.asarray(value), (length,))
        return KernelBatch(family, filled)

    def kernel(self, row: int) -> Kernel:
        """One row as a kernel; columns that are no fields of its family, such as zeros, are left out."""
        kind = KERNEL_CLASSES[self.family]
        return kind(**{field.name: self.columns[field.name][row].item() for field in fields(kind)})


def kernel_of(family: str, row: Mapping[str, Any]) -> Kernel:
    """The kernel whose fields a row contains among other columns; ``LATER_FIELDS`` may be missing or empty.

    Raises:
        KeyError: an unknown family, or a field that is missing.
    """
    kind = KERNEL_CLASSES[family]
    present = [f.name for f in fields(kind) if f.name not in LATER_FIELDS or row.get(f.name) is not None]
    return kind(**{name: row[name] for name in present})


def group_by_family(kernels: Iterable[Kernel]) -> Iterator[tuple[KernelBatch, np.ndarray]]:
    """Split kernels into one batch a family; yields each with the positions its rows had."""
    positions: dict[str, list[int]] = {}
    listed = list(kernels)
    for position, kernel in enumerate(listed):
        positions.setdefault(kernel.family, []).append(position)
    for where in positions.values():
        yield KernelBatch.of([listed[i] for i in where]), np.array(where)
