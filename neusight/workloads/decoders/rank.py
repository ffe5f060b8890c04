"""Kernels of one rank of a decoder as parts: a product, a norm, a copy or a collective of a number of rows.

A part has a row for each pass: one of a micro-batch in training, as many as are asked at once in serving. Rows of
kernels are numbers or arrays of shape (n,); 0 stands for a kernel that does not run and becomes 1, so that every row
holds a kernel that can be priced.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from neusight.engines import Engine
from neusight.kernels.families import KernelBatch
from neusight.kernels.operators import OPERATORS, operator, operator_bytes
from neusight.kernels.precision import DTYPE_BYTES, stored_bytes
from neusight.kernels.schemes import Quantisation
from neusight.requests import Plan
from neusight.workloads.decoders.decoder import Decoder
from neusight.workloads.decoders.quantisation import ServingPrecision
from neusight.workloads.decoders.recipes import ProductRecipe, recipe_named
from neusight.workloads.decoders.shares import AdapterSlots, CachedPasses, Local, Steps, whole
from neusight.workloads.program import Part

FLOAT_BYTES = DTYPE_BYTES["float32"]
INDEX_BYTES = 8
"""Bytes of the number of a token or an expert."""
Count = int | np.ndarray
GENERATED = {"rms_norm": "mean", "rms_norm_backward": "sum", "rms_norm_weight_backward": "sum"}
"""Reductions of which kernels are generated for norms that a module of transformers writes out."""
EAGER = {"rope": "rope_eager", "silu_and_mul": "silu_mul_eager", "rms_norm": "rms_norm_eager"}
"""The same operators as such a module writes them."""


def configure(engine: Engine, decoder: Decoder) -> Engine:
    """The engine with settings that the model's configuration decides."""
    return replace(engine, hidden_dropout=decoder.dropout) if engine.module_dropout else engine


@dataclass(frozen=True, kw_only=True)
class Rank:
    """Share of one rank in a model that is ``hidden`` wide, and the settings of its kernels.

    ``tokens`` are those that attention and feed-forwards see, ``resident_tokens`` those of the residual stream that the
    rank holds. ``ranks`` counts members of each group. ``local`` is set in training, ``passes`` in serving, with
    ``slots`` of adapters. Parts are made as of the forward pass; operations tell which pass runs them.
    """

    hidden: int
    engine: Engine
    dtype: str
    quantisation: Quantisation
    ranks: Mapping[str, int]
    tokens: Any
    resident_tokens: Any
    sequence_parallel: bool = False
    reduces: bool = True
    """Partial sums of the branch are exchanged at its end, not with those of the next."""
    recipe: ProductRecipe = field(default_factory=ProductRecipe)
    """Recipe of large products in training; their ``quantisation`` is its scheme."""
    local: Local | None = None
    passes: CachedPasses | None = None
    slots: AdapterSlots | None = None

    @classmethod
    def for_training(cls, hidden: int, local: Local, engine: Engine) -> Rank:
        """A rank's share of a micro-batch."""
        recipe = recipe_named(local.products)
        return cls(
            hidden=hidden,
            engine=engine,
            dtype=local.dtype,
            quantisation=recipe.scheme,
            recipe=recipe,
            ranks={
                "tp": local.tp,
                "cp": local.cp // local.ulysses,
                "ulysses": local.ulysses,
                "ep": local.ep,
                "etp": local.etp,
            },
            tokens=local.tokens,
            resident_tokens=local.resident_tokens,
            sequence_parallel=local.sequence_parallel,
            local=local,
        )

    @classmethod
    def for_serving(cls, hidden: int, steps: Steps, precision: ServingPrecision, plan: Plan, engine: Engine) -> Rank:
        """Passes over a cache."""
        passes = CachedPasses.of(steps, precision.kv_cache)
        return cls(
            hidden=hidden,
            engine=engine,
            dtype=precision.dtype,
            quantisation=precision.quantisation,
            ranks={"tp": plan.tp, "ep": plan.ep, "dp": plan.dp},
            tokens=passes.tokens,
            resident_tokens=passes.tokens,
            passes=passes,
        )

    @property
    def serves(self) -> bool:
        """Tell whether it runs passes over a cache: nothing is differentiated."""
        return self.passes is not None

    @property
    def share(self) -> Local:
        """Share of a micro-batch, in training."""
        assert self.local is not None
        return self.local

    @property
    def source(self) -> Rank:
        """The same rank on the tokens that an encoder reads."""
        return Rank.for_training(self.hidden, self.share.source, self.engine)

    @property
    def tp(self) -> int:
        """Ranks that share every matrix."""
        return self.ranks["tp"]

    @property
    def kept_tokens(self) -> Any:
        """Tokens saved of the input of column-parallel products: gathered ones are saved where nothing gathers them
        again.
        """
        return self.resident_tokens if self.engine.regathers else self.tokens

    @property
    def size(self) -> int:
        """Bytes of a value of activations."""
        return DTYPE_BYTES[self.dtype]

    @property
    def runs(self) -> Any:
        """Number of runs of kernels of all tokens: in serving one in passes that have any, shape (n,)."""
        return 1 if self.passes is None else (self.tokens > 0).astype(np.int64)

    def narrow(self, kind: str) -> bool:
        """Tell whether products of a kind of projection run in fewer bits than activations have."""
        return bool(self.quantisation.of(kind).activations)

    def arithmetic(self, kind: str) -> dict[str, str]:
        """Fields of products of a kind: 8-bit ones carry scales, weight-only ones keep 16-bit arithmetic."""
        scheme = self.quantisation.of(kind)
        if scheme.activations:
            narrower = scheme.weights if scheme.weights != scheme.activations and scheme.scaling != "micro" else ""
            return {"dtype": scheme.activations, "weight_dtype": narrower, "scaling": scheme.scaling}
        return {"dtype": self.dtype, "weight_dtype": scheme.weights, "scaling": ""}

    def gathered_bytes(self, elements: Any, kind: str) -> Any:
        """Bytes of inputs of products of a kind that ranks gather: in few bits where their recipe does that."""
        return elements * (self.recipe.value_bytes if self.narrow(kind) and self.recipe.gathered else self.size)

    def of(self, tokens: np.ndarray, dtype: str = "") -> Rank:
        """The same with other tokens, and maybe another dtype."""
        return replace(self, tokens=tokens, dtype=dtype or self.dtype)

    def part(self, name: str, batch: KernelBatch, runs: Any = None) -> Part:
        """A kernel of the forward pass, unless told otherwise once a pass that has tokens."""
        return Part(name=name, phase="forward", batch=batch, runs=self.runs if runs is None else runs)

    def pointwise(self, name: str, op: str, rows: Count, cols: int, runs: int = 1) -> Part:
        """A pass with ``rows`` x ``cols`` results, of an operator whose operands the table has."""
        op = self._form("elementwise", op)
        rows, form = np.maximum(rows, 1), operator("elementwise", op)
        read, written = operator_bytes(form, (rows * cols, rows, cols), self.size)
        batch = KernelBatch.from_columns(
            "elementwise", op=op, elements=rows * cols, read_bytes=read, write_bytes=written,
            flops=form.flops * rows * cols, dtype=self.dtype, passes=form.passes,
        )  # fmt: skip
        return self.part(name, batch, self.runs * runs)

    def rows(self, name: str, op: str, rows: Count, cols: int, *, more_read: Any = 0, more_written: Any = 0) -> Part:
        """A reduction over rows of activations; ``more_read`` and ``more_written`` [B] beside what the table has."""
        rows, op = np.maximum(rows, 1), self._form("row_reduction", op)
        read, written = operator_bytes(operator("row_reduction", op), (rows * cols, rows, cols), self.size)
        kernel = GENERATED.get(op, op) if self.engine.generated else op
        return self.reduce(name, kernel, (rows, cols), read + more_read, written + more_written)

    def _form(self, family: str, op: str) -> str:
        """The operator as the engine runs it: written out where it is and there is such a form."""
        eager = EAGER.get(op, "") if self.engine.eager_passes and self.serves else ""
        return eager if eager in OPERATORS[family] else op

    def reduce(self, name: str, op: str, shape: tuple[Count, Count], read: Any, written: Any) -> Part:
        """A reduction of ``shape`` (rows, columns) with these bytes."""
        rows, cols = shape
        batch = KernelBatch.from_columns(
            "row_reduction", op=op, rows=rows, cols=cols, read_bytes=read, write_bytes=written,
            flops=operator("row_reduction", op).flops * rows * cols, dtype=self.dtype,
            passes=operator("row_reduction", op).passes,
        )  # fmt: skip
        return self.part(name, batch)

    def sweep(self, name: str, op: str, elements: int, read: int, written: int) -> Part:
        """A pointwise pass whose operands differ in width, with these bytes."""
        batch = KernelBatch.from_columns(
            "elementwise", op=op, elements=elements, read_bytes=read, write_bytes=written,
            flops=operator("elementwise", op).flops * elements, dtype=self.dtype,
        )  # fmt: skip
        return self.part(name, batch)

    def move(self, name: str, op: str, elements: Any, read: Any, written: Any) -> Part:
        """Data movement with these bytes."""
        batch = KernelBatch.from_columns(
            "memory", op=op, elements=elements, read_bytes=read, write_bytes=written, dtype=self.dtype
        )
        return self.part(name, batch)

    def widen(self, name: str, weights: int, size: float, wide: float = 0.0) -> Part:
        """The pass before a product that writes ``weights`` values, of ``size`` bytes with their scales, in the model's
        dtype, or in one of ``wide`` bytes.
        """
        count = np.full_like(self.runs, weights)
        written = np.full_like(self.runs, weights * (wide or self.size))
        return self.move(f"{name} dequantise", "copy", count, round(weights * size), written)

    def copy(self, name: str, rows: int, cols: int, op: str = "copy") -> Part:
        """Values of activations read and written once."""
        size = rows * cols * self.size
        return self.move(name, op, rows * cols, size, size)

    def write_cache(self, name: str, width: int) -> Part:
        """The write of ``width`` values a token into a paged cache, each row to a place of its own."""
        assert self.passes is not None
        rows = np.maximum(self.tokens, 1)
        written = whole(rows * width * stored_bytes(self.passes.kv_dtype))
        return self.move(name, "scatter", rows * width, rows * (width * self.size + INDEX_BYTES), written)

    def grown(self, name: str, width: int) -> Part:
        """Cached keys, or values, of ``width`` a token copied with the new ones behind them, of every sequence."""
        passes = self.passes
        assert passes is not None
        tokens = np.maximum(passes.prompts * passes.prompt_context + passes.decodes * passes.decode_context, 1)
        return self.copy(name, tokens, width, op="cat")

    def exchange(
        self, name: str, op: str, group: str, size: Any, *, overlapped: bool = False, runs: int = 1
    ) -> tuple[Part, ...]:
        """A collective of ``size`` [B], as ``Collective`` counts them, among a group; none of a single rank.

        Ranks that share an expert are neighbours, as those of ``tp`` are: their group counts as ``tp``.
        """
        ranks = self.ranks[group]
        if ranks == 1 or not runs:
            return ()
        if self.passes is not None:
            size = np.maximum(whole(size), 1)
        batch = KernelBatch.from_columns("collective", op=op, ranks=ranks, bytes=size, dtype=self.dtype)
        members = "tp" if group == "etp" else group
        part = self.part(name, batch, self.runs * runs)
        return (replace(part, group=members, overlapped=overlapped),)

    def row_bytes(self, rows: Any) -> Any:
        """Bytes of rows of the residual stream."""
        return rows * self.hidden * self.size

    def accumulate(self, name: str, elements: int) -> tuple[Part, ...]:
        """Gradients that no product adds to their sums: in the dtype of weights, or in float32, where the engine keeps
        such.
        """
        if self.engine.accumulation == "none" or not elements:
            return ()
        wide = "accumulate_widened" if self.engine.accumulation == "widened" else "accumulate"
        narrow = self.engine.narrow_sums and self.dtype == "float16"
        return (self.pointwise(f"{name} accumulate", "add" if narrow else wide, 1, elements),)
