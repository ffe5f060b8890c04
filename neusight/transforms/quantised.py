"""Products of a step with narrow weights, or with weights and activations narrow, and the kernels around them: each
separate in eager mode, partly joined with others by a compiler.

Eagerly, as tensor subclasses of torchao run (``AffineQuantizedTensor``, 0.5), each step of its arithmetic is a
kernel. A compiled step multiplies few rows with weights that are made wide on their way into the product; with many
rows a kernel makes them wide before it (Inductor's choice for mixed products, ``mixed_mm``); scales and biases are
pointwise work, which the compiler joins with what is near.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace
from math import ceil, prod

from neusight.errors import InapplicableError, ModelError, nearest
from neusight.kernels.families import Elementwise, Gemm, RowReduction
from neusight.kernels.precision import stored_bytes
from neusight.kernels.schemes import Quantisation, scheme_named
from neusight.transforms.unrolled import rebuild, unroll
from neusight.workloads.workload import Node, Reference, Tensor, Workload

_FEW_ROWS = 64
"""Rows up to which a compiled product reads narrow weights itself: one tile of them, so that each weight is made wide
once."""
_TOO_FEW = 16
_ON_THE_HOST = (
    f"eager products in int8 of {_TOO_FEW} rows or fewer run on the host (torchao, safe_int_mm), which is not "
    "estimated: compile the step"
)
_FLOAT, _INT32 = 4, 4
_Making = Generator[Node, None, Reference]
"""Nodes, and the tensor that the last of them makes."""


NAMES = ("int8wo", "int4wo", "fp6wo", "fp8wo", "int8dq", "int8dq-2:4", "int4dq", "fp8dq", "fp8dqrow")
"""torchao's configurations: ``int8_weight_only``, ``int4_weight_only`` (tinygemm), ``fpx_weight_only(3, 2)``,
``float8_weight_only``, ``int8_dynamic_activation_int8_weight``, ``int8_dynamic_activation_int8_semi_sparse_weight``,
``int8_dynamic_activation_int4_weight`` (whose weights lie in bytes), ``float8_dynamic_activation_float8_weight`` by
tensors and by rows; see ``schemes.toml``."""


def quantise(workload: Workload, name: str, within: str = "", on_device: bool = False) -> Workload:
    """The step with each product with a weight quantised.

    Args:
        workload: an inference step.
        name: of ``NAMES``.
        within: path of the module whose products are, '' for all.
        on_device: all weights came in 16 bits, and were quantised where they lay: memory holds them once.

    Raises:
        ModelError: no such scheme. InapplicableError: a step with a backward pass, or without such a product.
    """
    if name not in NAMES:
        raise ModelError(f"unknown quantisation '{name}'{nearest(name, NAMES)}: one of {', '.join(NAMES)}")
    if workload.request.mode != "inference":
        raise InapplicableError("quantised weights take no gradients: this is of inference")
    step = unroll(workload)
    made = _Quantised(step, scheme_named(name))
    inside = [node.layer.name().startswith(within) for node in step.nodes]
    pairs = zip(step.nodes, inside, strict=True)
    nodes = [part for node, narrow in pairs for part in (made.nodes_of(node) if narrow else (node,))]
    if not made.weights:
        raise InapplicableError("no product of the model is with a weight of 16 bits")
    done = rebuild(replace(step, tensors=tuple(made.tensors)), nodes, held=True)
    return _allocate(done, sum(step.tensors[at].nbytes - made.tensors[at].nbytes for at in made.weights), on_device)


def _allocate(workload: Workload, freed_bytes: int, on_device: bool) -> Workload:
    """The workload with the bytes that quantisation has freed, allocated until the step begins."""
    if not on_device:
        return workload
    wide = Tensor(
        shape=(freed_bytes,), dtype="uint8", kind="intermediate", nbytes=freed_bytes, touched_bytes=0, born=-1, died=0
    )
    return replace(workload, tensors=(*workload.tensors, wide))


class _Quantised:
    """Nodes of a step in a scheme, and the tensors that they make in addition to those of the step."""

    def __init__(self, step: Workload, scheme: Quantisation) -> None:
        self.scheme = scheme
        self.generated = step.request.engine.generated
        self.tensors: list[Tensor] = list(step.tensors)
        self.weights: set[int] = set()

    def nodes_of(self, node: Node) -> Iterator[Node]:
        """A node with what runs before and after it; as it is where it multiplies with no weight."""
        weight = self._weight_of(node)
        if weight is None:
            yield node
            return
        self._narrow(weight)
        product = next(kernel for kernel in node.kernels if isinstance(kernel, Gemm))
        source = next(r for r in node.reads if self.tensors[r.tensor].kind != "weight")
        yield from self._product(node, product, (source, Reference(weight)))

    def _weight_of(self, node: Node) -> int | None:
        """The weight that a node multiplies with, where both of its dtypes are of 16 bits."""
        product = next((k for k in node.kernels if isinstance(k, Gemm)), None)
        if product is None or product.op != "linear" or product.weight_dtype or stored_bytes(product.dtype) != 2:
            return None
        read = ((r.tensor, self.tensors[r.tensor]) for r in node.reads)
        weights = (at for at, tensor in read if tensor.kind == "weight" and prod(tensor.shape) == product.n * product.k)
        return next(weights, None)

    def _narrow(self, at: int) -> None:
        """A weight in its narrow dtype, once for all products with it."""
        if at in self.weights:
            return
        self.weights.add(at)
        tensor = self.tensors[at]
        size = round(tensor.nbytes / stored_bytes(tensor.dtype) * self.scheme.weight_bytes(tensor.dtype))
        self.tensors[at] = replace(tensor, dtype=self.scheme.weights, nbytes=size, touched_bytes=size)

    def _product(self, node: Node, product: Gemm, operands: tuple[Reference, Reference]) -> Iterator[Node]:
        scheme = self.scheme
        source, weight = operands
        narrow = replace(product, bias=product.bias and not scheme.scaled_after)
        if scheme.activations:
            source = yield from self._narrow_activations(node, product, source)
        if scheme.activations and not scheme.simulated:
            dense_int8 = scheme.activations == "int8" and not scheme.two_of_four
            if dense_int8 and not self.generated and product.m <= _TOO_FEW:
                raise InapplicableError(_ON_THE_HOST)
            depth = product.k // 2 if scheme.two_of_four else product.k
            narrow = replace(narrow, dtype=scheme.activations, scaling=scheme.scaling, k=depth)
        elif scheme.block_rows:
            narrow = _by_blocks(replace(narrow, weight_dtype=scheme.weights), scheme.block_rows)
        elif self.generated and product.m <= _FEW_ROWS:
            narrow = replace(narrow, weight_dtype=scheme.weights)
        else:
            weight = yield from self._make_wide(node, product, weight)
        others = tuple(r for r in node.reads if self.tensors[r.tensor].kind == "weight" and r != operands[1])
        yield replace(node, kernels=(narrow,), reads=(source, weight, *others))
        yield from self._scale(node, product)

    def _make_wide(self, node: Node, product: Gemm, weight: Reference) -> _Making:
        """Passes over a weight that make it wide; a compiler joins them."""
        count, passes = product.n * product.k, self.scheme.widening
        moved = ((passes[0][0], passes[-1][1]),) if self.generated else passes
        for read, written in moved:
            made = self._new(node, count * written, product.dtype)
            yield _beside(node, _pointwise(count, (read, written), product.dtype), weight, made)
            weight = made
        return weight

    def _narrow_activations(self, node: Node, product: Gemm, source: Reference) -> _Making:
        """Activations made narrow by the largest of each row, or of all: one kernel where they are compiled by rows,
        else the search, and a kernel for each step of the arithmetic.
        """
        count, dtype, size = product.m * product.k, product.dtype, int(stored_bytes(product.dtype))
        kept_bytes = size if self.scheme.simulated else 1
        result = self._new(node, count * kept_bytes, dtype if self.scheme.simulated else self.scheme.activations)
        maximum = self._new(node, product.m * _FLOAT, "float32")
        search = _search(product, size)
        if self.generated and self.scheme.scaling == "row":
            rounded = replace(search, write_bytes=search.write_bytes + count * kept_bytes, flops=4 * count)
            yield _beside(node, rounded, source, result)
            return result
        for _ in range(1 if self.generated else 2):
            yield _beside(node, search, source, maximum)
        *first, last = ((size, kept_bytes),) if self.generated else self._steps(size)
        for moved in first:
            made = self._new(node, count * moved[1], dtype)
            yield _beside(node, _pointwise(count, moved, dtype), source, made)
            source = made
        yield _beside(node, _pointwise(count, last, dtype), source, result)
        return result

    def _steps(self, size: int) -> tuple[tuple[int, int], ...]:
        """Eager arithmetic on each value, in bytes read and written: by scales of float32 for integers (multiplied,
        rounded, moved, clamped, cast), in float32 too for floats (cast, multiplied, clamped, cast); back again (moved,
        multiplied, cast) where narrow values are simulated.
        """
        wide = (_FLOAT, _FLOAT)
        moved = (wide,) if self.scheme.activations == "int8" else ()
        back = ((1, _FLOAT), wide, (_FLOAT, size)) if self.scheme.simulated else ()
        return ((size, _FLOAT), wide, wide, *moved, (_FLOAT, 1), *back)

    def _scale(self, node: Node, product: Gemm) -> Iterator[Node]:
        """Results multiplied with scales, and the bias added."""
        if not self.scheme.scaled_after:
            return
        count, size = product.m * product.n, int(stored_bytes(product.dtype))
        integers = self.scheme.activations == "int8" and not self.generated
        moved = [(_INT32, size)] if integers else []
        moved += [(size, size)] * (1 + product.bias)
        for read, written in moved:
            yield _beside(node, _pointwise(count, (read, written), product.dtype), *node.writes, *node.writes)

    def _new(self, node: Node, size: int, dtype: str) -> Reference:
        """A new tensor of ``size`` bytes, made at the place of a node."""
        shape = (max(1, round(size / stored_bytes(dtype))),)
        self.tensors.append(
            Tensor(
                shape=shape,
                dtype=dtype,
                kind="intermediate",
                nbytes=size,
                touched_bytes=size,
                born=node.id,
                died=node.id,
            )
        )
        return Reference(len(self.tensors) - 1)


def _beside(node: Node, kernel: Elementwise | RowReduction, source: Reference, made: Reference) -> Node:
    """A node of one kernel, of the module of another."""
    return replace(node, operator=f"aten.{kernel.op}", kernels=(kernel,), reads=(source,), writes=(made,))


def _pointwise(count: int, moved: tuple[int, int], dtype: str) -> Elementwise:
    """One operation on each of ``count`` values, with bytes read and written of each in ``moved``."""
    read, written = moved
    return Elementwise(
        op="mul_scalar", elements=count, read_bytes=count * read, write_bytes=count * written, flops=count, dtype=dtype
    )


def _search(product: Gemm, size: int) -> RowReduction:
    """The largest value of each row of a product's operand, in values of ``size`` bytes."""
    count = product.m * product.k
    return RowReduction(
        op="max",
        rows=product.m,
        cols=product.k,
        read_bytes=count * size,
        write_bytes=product.m * _FLOAT,
        flops=count,
        dtype=product.dtype,
    )


def _by_blocks(product: Gemm, rows: int) -> Gemm:
    """A product whose blocks of rows share nothing, as though each had weights of its own."""
    blocks = ceil(product.m / rows)
    return product if blocks == 1 else replace(product, op="bmm", batch=blocks, m=rows)
