"""Matrix products. A transposed operand is a layout, not a copy, as long as one of its last two strides is 1."""

from __future__ import annotations

from neusight.kernels import Gemm, Kernel, Memory
from neusight.workloads.rules.registry import rule
from neusight.workloads.tensors import Call, TensorSpec


def _order(matrix: TensorSpec) -> str:
    """``n`` row-major, ``t`` column-major, ``c`` neither: cuBLAS then needs a copy. A unit dimension fits both."""
    rows, cols = matrix.shape[-2:]
    row_stride, col_stride = matrix.strides[-2:]
    if col_stride == 1 and (rows == 1 or row_stride >= max(1, cols)):
        return "n"
    if row_stride == 1 and (cols == 1 or col_stride >= max(1, rows)):
        return "t"
    return "n" if rows == 1 or cols == 1 else "c"


def copy_of(tensor: TensorSpec, op: str = "copy") -> Memory:
    """A copy of a tensor into a dense one."""
    size = tensor.elements * (tensor.nbytes // max(1, tensor.elements)) if tensor.elements else 0
    return Memory(
        op=op,
        elements=tensor.elements,
        read_bytes=tensor.nbytes,
        write_bytes=max(size, tensor.nbytes),
        dtype=tensor.dtype,
    )


def _product(a: TensorSpec, b: TensorSpec, *, op: str, bias: bool = False) -> tuple[Kernel, ...]:
    orders = _order(b), _order(a)
    batch = a.shape[0] if len(a.shape) == 3 else 1
    (m, k), n = a.shape[-2:], b.shape[-1]
    if not batch * m * n * k:
        return ()
    copies = tuple(copy_of(t) for t, order in zip((b, a), orders, strict=True) if order == "c")
    layout = "".join(orders).replace("c", "n")
    return (*copies, Gemm(op=op, batch=batch, m=m, n=n, k=k, layout=layout, bias=bias, dtype=a.dtype))


@rule("mm")
def mm(call: Call) -> tuple[Kernel, ...]:
    """2 m n k FLOP."""
    return _product(call.args[0], call.args[1], op="linear")


@rule("addmm")
def addmm(call: Call) -> tuple[Kernel, ...]:
    """A vector is added in the epilogue; a matrix is first copied into the result, which the product accumulates to."""
    added, a, b = call.args[:3]
    if len(added.shape) == 1:
        return _product(a, b, op="linear", bias=True)
    return (copy_of(added), *_product(a, b, op="linear"))


@rule("linear")
def linear(call: Call) -> tuple[Kernel, ...]:
    """x[..., k] W[n, k]ᵀ + bias[n], undecomposed."""
    x, weight, bias = call.args[0], call.args[1], call.arg(2, "bias")
    flat = TensorSpec((x.elements // x.shape[-1], x.shape[-1]), x.dtype)
    turned = TensorSpec(weight.shape[::-1], weight.dtype, weight.strides[::-1])
    return _product(flat, turned, op="linear", bias=bias is not None)


@rule("bmm")
def bmm(call: Call) -> tuple[Kernel, ...]:
    """2 b m n k FLOP."""
    return _product(call.args[0], call.args[1], op="bmm")


@rule("baddbmm")
def baddbmm(call: Call) -> tuple[Kernel, ...]:
    """The addend is copied into the result, which the product accumulates to; with beta 0 it is not read."""
    product = _product(call.args[1], call.args[2], op="bmm")
    return product if call.kwargs.get("beta", 1) == 0 else (copy_of(call.args[0]), *product)


@rule("addbmm")
def addbmm(call: Call) -> tuple[Kernel, ...]:
    """A sum of products: the addend is copied into the result, to which every product accumulates."""
    a, b = call.args[1:3]
    product = TensorSpec(a.shape[1:], a.dtype, a.strides[1:]), TensorSpec(b.shape[1:], b.dtype, b.strides[1:])
    return (copy_of(call.args[0]), *_product(*product, op="linear") * a.shape[0])


@rule("mv", "dot", "vdot")
def mv(call: Call) -> tuple[Kernel, ...]:
    """A product with a vector is a GEMM with n = 1."""
    a, vector = call.args[:2]
    matrix = a if len(a.shape) == 2 else TensorSpec((1, a.elements), a.dtype)
    return _product(matrix, TensorSpec((vector.elements, 1), vector.dtype), op="linear")


@rule("addmv")
def addmv(call: Call) -> tuple[Kernel, ...]:
    """A matrix-vector product that accumulates to a copy of the addend."""
    return (copy_of(call.args[0]), *mv(Call("mv", "default", call.args[1:3])))
