"""Matrix products, and fused attention: one kernel forward, two backward (row sums of gradient times output, then the
gradients)."""

from __future__ import annotations

from neusight.kernels import Attention, Gemm, GroupedGemm, Kernel, Memory, RowReduction
from neusight.kernels.operators import ELEMENTWISE, ROW_REDUCTION
from neusight.workloads.rules.registry import rule
from neusight.workloads.tensors import REAL_PART, Call, TensorSpec


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


def product(a: TensorSpec, b: TensorSpec, *, op: str, bias: bool = False) -> tuple[Kernel, ...]:
    """C[(b,) m, n] = A[(b,) m, k] B[(b,) k, n], with copies of operands that no layout of cuBLAS fits."""
    orders = _order(b), _order(a)
    batch = a.shape[0] if len(a.shape) == 3 else 1
    (m, k), n = a.shape[-2:], b.shape[-1]
    if not batch * m * n * k:
        return ()
    copies = tuple(copy_of(t) for t, order in zip((b, a), orders, strict=True) if order == "c")
    layout = "".join(orders).replace("c", "n")
    # A complex product is four real ones: twice the rows by twice the columns.
    parts = 2 if a.complex else 1
    dtype = REAL_PART.get(a.dtype, a.dtype)
    return (
        *copies,
        Gemm(op=op, batch=batch, m=parts * m, n=parts * n, k=k, layout=layout, bias=bias, dtype=dtype),
    )


@rule("mm")
def mm(call: Call) -> tuple[Kernel, ...]:
    """2 m n k FLOP."""
    return product(call.args[0], call.args[1], op="linear")


@rule("addmm")
def addmm(call: Call) -> tuple[Kernel, ...]:
    """A vector is added in the epilogue; a matrix is first copied into the result, which the product accumulates to."""
    added, a, b = call.args[:3]
    if len(added.shape) == 1:
        return product(a, b, op="linear", bias=True)
    return (copy_of(added), *product(a, b, op="linear"))


@rule("linear")
def linear(call: Call) -> tuple[Kernel, ...]:
    """x[..., k] W[n, k]ᵀ + bias[n], undecomposed."""
    x, weight, bias = call.args[0], call.args[1], call.arg(2, "bias")
    flat = TensorSpec((x.elements // x.shape[-1], x.shape[-1]), x.dtype)
    turned = TensorSpec(weight.shape[::-1], weight.dtype, weight.strides[::-1])
    return product(flat, turned, op="linear", bias=bias is not None)


@rule("bmm")
def bmm(call: Call) -> tuple[Kernel, ...]:
    """2 b m n k FLOP."""
    return product(call.args[0], call.args[1], op="bmm")


@rule("baddbmm")
def baddbmm(call: Call) -> tuple[Kernel, ...]:
    """The addend is copied into the result, which the product accumulates to; with beta 0 it is not read."""
    kernels = product(call.args[1], call.args[2], op="bmm")
    return kernels if call.kwargs.get("beta", 1) == 0 else (copy_of(call.args[0]), *kernels)


@rule("addbmm")
def addbmm(call: Call) -> tuple[Kernel, ...]:
    """A sum of products: the addend is copied into the result, to which every product accumulates."""
    a, b = call.args[1:3]
    matrices = TensorSpec(a.shape[1:], a.dtype, a.strides[1:]), TensorSpec(b.shape[1:], b.dtype, b.strides[1:])
    return (copy_of(call.args[0]), *product(*matrices, op="linear") * a.shape[0])


@rule("mv", "dot", "vdot")
def mv(call: Call) -> tuple[Kernel, ...]:
    """A product with a vector is a GEMM with n = 1."""
    a, vector = call.args[:2]
    matrix = a if len(a.shape) == 2 else TensorSpec((1, a.elements), a.dtype)
    return product(matrix, TensorSpec((vector.elements, 1), vector.dtype), op="linear")


@rule("addmv")
def addmv(call: Call) -> tuple[Kernel, ...]:
    """A matrix-vector product that accumulates to a copy of the addend."""
    return (copy_of(call.args[0]), *mv(Call("mv", "default", call.args[1:3])))


@rule("_int_mm", "_scaled_mm")
def narrow_mm(call: Call) -> tuple[Kernel, ...]:
    """8-bit operands; their scales come with them."""
    return product(call.args[0], call.args[1], op="linear")


@rule("_grouped_mm", "_scaled_grouped_mm")
def group_products(call: Call) -> tuple[Kernel, ...]:
    """Products of groups of rows, of columns or of a depth, whose ends are in ``offs``; the groups are taken as even.

    [t, k] x [g, k, n] gives [t, n], a layer of experts; [g, m, k] x [k, t] the same turned around; [m, t] x [t, n]
    gives [g, m, n], the gradient of their weights; [g, m, k] x [g, k, n] is a batch of products. Others than bfloat16
    and fp8 run as one product a group (PyTorch's ``GroupedMMUtils.h``).
    """
    a, b = call.args[:2]
    (m, k), n = a.shape[-2:], b.shape[-1]
    forms = len(a.shape), len(b.shape)
    if forms == (3, 3):
        return product(a, b, op="bmm")
    groups = call.output.shape[0] if forms == (2, 2) else max(a.shape, b.shape, key=len)[0]
    if a.dtype in _ONE_BY_ONE:
        return _one_by_one(a, b, groups)
    if forms == (2, 2):
        return (Gemm(op="bmm", batch=groups, m=m, n=n, k=max(1, k // groups), layout="nt", dtype=a.dtype),)
    tokens, across = (m, n) if forms == (2, 3) else (n, m)
    return (GroupedGemm(groups=groups, tokens=tokens, n=across, k=k, dtype=a.dtype),)


_ONE_BY_ONE = ("float32", "float16")


def _one_by_one(a: TensorSpec, b: TensorSpec, groups: int) -> tuple[Kernel, ...]:
    """A product for each group that has any rows, each with an even share of them."""
    (m, k), n = a.shape[-2:], b.shape[-1]
    shared = n if len(a.shape) == 3 else m if len(b.shape) == 3 else k
    filled = max(1, min(groups, shared))
    share = -(-shared // filled)
    (m, n, k) = (m, share, k) if len(a.shape) == 3 else (share, n, k) if len(b.shape) == 3 else (m, n, share)
    left = TensorSpec((m, k), a.dtype, (a.strides[-2], a.strides[-1]))
    right = TensorSpec((k, n), b.dtype, (b.strides[-2], b.strides[-1]))
    return product(left, right, op="linear") * filled


def _attention(op: str, q: TensorSpec, k: TensorSpec, causal: bool) -> Attention:
    """Attention kernel from queries and keys of [batch, heads, length, head_dim]."""
    batch, heads, q_len, head_dim = q.shape
    return Attention(
        op=op, batch=batch, heads=heads, kv_heads=k.shape[1], q_len=q_len, kv_len=k.shape[2], head_dim=head_dim,
        causal=causal, dtype=q.dtype,
    )  # fmt: skip


@rule("_scaled_dot_product_flash_attention")
def flash(call: Call) -> tuple[Kernel, ...]:
    """Arguments: q, k, v, dropout_p, is_causal."""
    return (_attention("forward", call.args[0], call.args[1], bool(call.arg(4, "is_causal", False))),)


@rule("_scaled_dot_product_efficient_attention")
def efficient(call: Call) -> tuple[Kernel, ...]:
    """Arguments: q, k, v, bias, compute_log_sumexp, dropout_p, is_causal."""
    return (_attention("forward", call.args[0], call.args[1], bool(call.arg(6, "is_causal", False))),)


def _backward(grad: TensorSpec, q: TensorSpec, k: TensorSpec, causal: bool) -> tuple[Kernel, ...]:
    return gradient_row_sums(grad), _attention("backward", q, k, causal)


def gradient_row_sums(grad: TensorSpec) -> RowReduction:
    """Row sums of the gradient times the output, which the backward pass of fused attention begins with."""
    rows = grad.elements // grad.shape[-1]
    return RowReduction(
        op="sum", rows=rows, cols=grad.shape[-1], read_bytes=2 * grad.nbytes, write_bytes=4 * rows,
        flops=(ELEMENTWISE["mul"].flops + ROW_REDUCTION["sum"].flops) * grad.elements, dtype=grad.dtype,
    )  # fmt: skip


@rule("_scaled_dot_product_flash_attention_backward")
def flash_backward(call: Call) -> tuple[Kernel, ...]:
    """Arguments: grad, q, k, v, out, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal."""
    return _backward(call.args[0], call.args[1], call.args[2], bool(call.arg(11, "is_causal", False)))


@rule("_scaled_dot_product_efficient_attention_backward")
def efficient_backward(call: Call) -> tuple[Kernel, ...]:
    """Arguments: grad, q, k, v, bias, out, logsumexp, seed, offset, dropout_p, grad_input_mask, is_causal."""
    return _backward(call.args[0], call.args[1], call.args[2], bool(call.arg(11, "is_causal", False)))
