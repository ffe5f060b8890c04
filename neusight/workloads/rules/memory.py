"""Data movement: copies, fills, concatenation, gathers and scatters, embeddings and their gradient."""

from __future__ import annotations

from math import prod

from neusight.kernels import Kernel, Memory
from neusight.workloads.rules.registry import one_pass, rule
from neusight.workloads.tensors import Call, TensorSpec


def move(op: str, out: TensorSpec, read_bytes: int, write_bytes: int | None = None) -> tuple[Kernel, ...]:
    """One kernel that writes ``out``; none when it is empty."""
    if not out.elements:
        return ()
    written = out.nbytes if write_bytes is None else write_bytes
    return (Memory(op=op, elements=out.elements, read_bytes=read_bytes, write_bytes=written, dtype=out.dtype),)


@rule("clone", "contiguous", "_to_copy", "copy", "to", "lift_fresh_copy", "_pack_padded_sequence")
def copy_dense(call: Call) -> tuple[Kernel, ...]:
    """Reads the source as stored, writes a dense result; a cast is a copy between two widths."""
    return move("copy", call.output, call.args[0].nbytes)


@rule("copy_")
def copied_into(call: Call) -> tuple[Kernel, ...]:
    """The destination is overwritten, not read."""
    return move("copy", call.output, call.args[1].nbytes)


@rule("cat", "stack", "hstack", "vstack", "concat", "block_diag")
def concatenate(call: Call) -> tuple[Kernel, ...]:
    """Reads every part, writes the whole."""
    return move("cat", call.output, call.read_bytes)


@rule("repeat", "repeat_interleave", "roll", "flip", "constant_pad_nd", "im2col", "col2im", "pixel_shuffle",
      "pixel_unshuffle", "channel_shuffle", "native_channel_shuffle", "rot90", "unfold_backward",
      "lu_unpack", *(f"{kind}_pad{n}d{end}" for kind in ("reflection", "replication") for n in (1, 2, 3)
                     for end in ("", "_backward")))  # fmt: skip
def rearrange(call: Call) -> tuple[Kernel, ...]:
    """Reads the source once, writes the result."""
    return move("copy", call.output, call.args[0].nbytes)


@rule("fill", "fill_", "zero_", "zeros", "zeros_like", "ones", "ones_like", "full", "full_like", "new_zeros",
      "new_ones", "new_full", "arange", "linspace", "eye", "tril_indices", "triu_indices")  # fmt: skip
def fill(call: Call) -> tuple[Kernel, ...]:
    """Writes only."""
    return move("fill", call.output, 0)


@rule("embedding")
def embedding(call: Call) -> tuple[Kernel, ...]:
    """Reads the indices and one row for each, not the table."""
    return move("embedding", call.output, call.args[1].nbytes + call.output.nbytes)


@rule("embedding_dense_backward")
def embedding_backward(call: Call) -> tuple[Kernel, ...]:
    """Zeroes the table's gradient, then adds a row for each index, which it reads, adds to and writes."""
    grad, indices = call.args[:2]
    return (*move("fill", call.output, 0), *_added_rows(grad, indices))


def _added_rows(rows: TensorSpec, indices: TensorSpec) -> tuple[Kernel, ...]:
    return move("embedding_backward", rows, 2 * rows.nbytes + indices.nbytes)


@rule("_embedding_bag", "_embedding_bag_forward_only")
def embedding_bag(call: Call) -> tuple[Kernel, ...]:
    """Reads a row for each index, adds or compares those of a bag, and writes one; the rows are never written out.

    Of a table that has fewer rows than are asked for, every row comes from memory once.
    """
    weight, indices, bags = call.args[0], call.args[1], call.output
    row = weight.shape[-1]
    elements = indices.elements * row
    read = min(elements, weight.elements) * weight.element_bytes + sum(t.nbytes for t in call.inputs[1:])
    flops = elements * (1 + (len(call.args) > 6 and call.args[6] is not None))
    return one_pass(
        call, "embedding_bag", elements, flops, read_bytes=read, write_bytes=bags.nbytes, dtype=weight.dtype
    )


@rule("_embedding_bag_backward", "_embedding_bag_dense_backward")
def embedding_bag_backward(call: Call) -> tuple[Kernel, ...]:
    """Zeroes the table's gradient, then adds a bag's gradient to the row of each of its indices.

    A sparse gradient is made of those rows alone, which are copied from their bags.
    """
    grad, indices = call.args[:2]
    rows = TensorSpec((indices.elements, grad.shape[-1]), grad.dtype)
    if not call.output.elements:
        return move("gather", rows, min(rows.nbytes, grad.nbytes) + indices.nbytes)
    return (*move("fill", call.output, 0), *_added_rows(rows, indices))


@rule("index", "_unsafe_index")
def index(call: Call) -> tuple[Kernel, ...]:
    """Gathers as many elements as the result has."""
    return move("gather", call.output, call.output.nbytes + _indices_bytes(call))


@rule("gather", "index_select", "take_along_dim", "take")
def gather(call: Call) -> tuple[Kernel, ...]:
    """Reads the indices and as many elements as the result has."""
    # The index may be the gathered tensor itself.
    arguments = (*call.args[1:], call.kwargs.get("index"), call.kwargs.get("indices"))
    index = next(value for value in arguments if isinstance(value, TensorSpec))
    return move("gather", call.output, call.output.nbytes + index.nbytes)


def _indices_bytes(call: Call) -> int:
    return sum(t.nbytes for t in call.args[1] if isinstance(t, TensorSpec))


@rule("index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put")
def index_put(call: Call) -> tuple[Kernel, ...]:
    """Writes the values to their places; accumulation reads those first, a functional form copies the rest."""
    target, _, values = call.args[:3]
    accumulate = bool(call.arg(3, "accumulate", False))
    copy = () if call.name.endswith("_") else move("copy", call.output, target.nbytes)
    places = _places(call, target, values)
    size = places * target.nbytes // max(1, target.elements)
    read = values.nbytes + _indices_bytes(call) + size * accumulate
    kernel = Memory(op="scatter", elements=places, read_bytes=read, write_bytes=size, dtype=target.dtype)
    return (*copy, kernel) if places else copy


def _places(call: Call, target: TensorSpec, values: TensorSpec) -> int:
    """Number of elements that are written: an index entry for each, times the dimensions that are not indexed."""
    indices = [t for t in call.args[1] if isinstance(t, TensorSpec)]
    if not indices:
        return target.elements
    # A mask stands for as many dimensions as it has.
    spans = [len(t.shape) if isinstance(t, TensorSpec) and t.dtype == "bool" else 1 for t in call.args[1]]
    rest = prod(target.shape[sum(spans) :])
    for at, index in enumerate(call.args[1]):
        rest *= 1 if isinstance(index, TensorSpec) else target.shape[sum(spans[:at])]
    return max(values.elements, max(t.elements for t in indices) * rest)


@rule("scatter", "scatter_", "scatter_add", "scatter_add_", "scatter_reduce", "index_add", "index_add_", "index_reduce",
      "index_reduce_", "put", "put_", "masked_scatter_backward", "index_copy",
      "index_copy_", "index_fill", "index_fill_", "masked_scatter", "masked_scatter_")  # fmt: skip
def scatter(call: Call) -> tuple[Kernel, ...]:
    """Reads indices and source, writes as many elements; additions read them too, functional forms first copy."""
    target, others = call.args[0], call.inputs[1:]
    source = max(others, key=lambda t: t.elements)
    size = source.elements * target.nbytes // max(1, target.elements)
    adds = "add" in call.name or "reduce" in call.name
    copy = () if call.name.endswith("_") else move("copy", call.output, target.nbytes)
    read = sum(t.nbytes for t in others) + size * adds
    return (
        *copy,
        Memory(op="scatter", elements=source.elements, read_bytes=read, write_bytes=size, dtype=target.dtype),
    )


@rule("slice_backward", "select_backward", "diagonal_backward", "slice_scatter", "select_scatter", "as_strided_scatter")
def embed_slice(call: Call) -> tuple[Kernel, ...]:
    """A fresh tensor, zero or a copy, then the slice written into it."""
    part = call.args[1] if call.name.endswith("_scatter") else call.args[0]
    base = call.args[0].nbytes if call.name.endswith("_scatter") else 0
    whole = move("copy" if base else "fill", call.output, base)
    return (*whole, *move("copy", part, part.nbytes))


@rule("one_hot")
def one_hot(call: Call) -> tuple[Kernel, ...]:
    """Zeroes the result and writes a one for each index."""
    index = call.args[0]
    return (*move("fill", call.output, 0), *move("scatter", index, index.nbytes))
