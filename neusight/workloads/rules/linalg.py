"""Dense linear algebra: factorisations go column by column, each of which waits for the one before it.

Arithmetic is that of the textbook algorithm; time is mostly the chain of columns, so that a factorisation is as many
``passes`` as it has dependent steps. Of each step, the part of the matrix that is not yet done is read and written, n/3
of n columns on average where both dimensions shrink. Libraries block these algorithms, which saves traffic, and wait
between the scalar rotations of an iteration, which costs time; neither is counted.

Source: Golub and Van Loan, Matrix Computations, 4th edition 2013: Cholesky 4.2.5, LU 3.2.9, QR 5.2.2, the symmetric
eigenproblem 8.3, singular values 8.6.3, the unsymmetric eigenproblem 7.5.6.
"""

from __future__ import annotations

from math import ceil, log2, prod

from neusight.kernels import Kernel
from neusight.workloads.rules.memory import move
from neusight.workloads.rules.registry import one_pass, rule
from neusight.workloads.tensors import Call, TensorSpec

_COMPLEX = 4
"""Real multiply-adds of a complex one."""
_ITERATIONS = 2
"""Steps of the QR iteration that an eigenvalue or singular value takes to converge (Golub and Van Loan, 8.3.5)."""
_SINGLY = frozenset({"qr", "eigh", "svd", "eig"})
"""Decompositions of a batch for which PyTorch hands matrices to cuSOLVER one by one (BatchLinearAlgebraLib.cpp)."""


def _work(call: Call, op: str, flops: float, steps: int) -> tuple[Kernel, ...]:
    """A factorisation or a solve of every matrix of a batch.

    Args:
        call: its first tensor is the batch of matrices [..., m, n].
        op: what it is.
        flops: of one matrix of real numbers.
        steps: that depend on each other.
    """
    matrix = call.inputs[0]
    count = prod(matrix.shape[:-2])
    passes = max(1, steps) * (count if op in _SINGLY else 1)
    touched = max(1, matrix.elements // 3) * max(1, steps)
    moved = touched * matrix.element_bytes
    return one_pass(
        call, op, max(1, touched // passes) if matrix.elements else 0,
        round(flops * count) * (_COMPLEX if matrix.complex else 1), passes=passes,
        read_bytes=call.read_bytes + moved, write_bytes=call.write_bytes + moved,
    )  # fmt: skip


def _extents(call: Call) -> tuple[int, int]:
    """The longer and the shorter side of the matrices."""
    rows, cols = call.inputs[0].shape[-2:]
    return max(rows, cols), min(rows, cols)


def _square(names: tuple[str, ...], op: str, cubes: float) -> None:
    """A rule for square matrices, of ``cubes`` n³ FLOP and n dependent steps."""

    @rule(*names)
    def factor(call: Call) -> tuple[Kernel, ...]:
        n = call.inputs[0].shape[-1]
        return _work(call, op, cubes * n**3, n)

    factor.__doc__ = f"{cubes:.2g} n³ FLOP in n steps."


_square(("linalg_cholesky_ex", "cholesky"), "cholesky", 1 / 3)
_square(("cholesky_inverse",), "cholesky_inverse", 2 / 3)
_square(("linalg_inv_ex",), "inverse", 2.0)


@rule("linalg_lu_factor_ex", "linalg_lu", "_linalg_det", "_linalg_slogdet")
def lu(call: Call) -> tuple[Kernel, ...]:
    """m n² - n³/3 FLOP, 2/3 n³ of a square matrix, in n steps; a determinant is the product of its diagonal."""
    m, n = _extents(call)
    return _work(call, "lu", m * n**2 - n**3 / 3, n)


@rule("_linalg_solve_ex")
def solve(call: Call) -> tuple[Kernel, ...]:
    """LU, then two triangular solves: 2/3 n³ + 2 n² r FLOP in 3 n steps."""
    n, right = call.inputs[0].shape[-1], _right_sides(call)
    return _work(call, "solve", 2 * n**3 / 3 + 2 * n**2 * right, 3 * n)


def _right_sides(call: Call) -> int:
    matrix, right = call.args[:2]
    return max(1, right.elements * matrix.shape[-1] // max(1, matrix.elements))


@rule("linalg_solve_triangular", "triangular_solve")
def triangular(call: Call) -> tuple[Kernel, ...]:
    """n² r FLOP in n steps."""
    matrix = call.args[0] if call.name == "linalg_solve_triangular" else call.args[1]
    right = max(1, call.output.elements * matrix.shape[-1] // max(1, matrix.elements))
    return _work(call, "solve_triangular", matrix.shape[-1] ** 2 * right, matrix.shape[-1])


@rule("cholesky_solve")
def cholesky_solved(call: Call) -> tuple[Kernel, ...]:
    """Two triangular solves with the second argument."""
    return _both_triangles(call, call.args[1], call.args[0])


@rule("linalg_lu_solve")
def lu_solved(call: Call) -> tuple[Kernel, ...]:
    """Two triangular solves with the first argument."""
    return _both_triangles(call, call.args[0], call.args[2])


def _both_triangles(call: Call, matrix: TensorSpec, right: TensorSpec) -> tuple[Kernel, ...]:
    n, sides = matrix.shape[-1], max(1, right.elements * matrix.shape[-1] // max(1, matrix.elements))
    both = Call(call.name, call.overload, (matrix, right), {}, call.outputs)
    return _work(both, "solve_triangular", 2 * n**2 * sides, 2 * n)


@rule("linalg_qr", "geqrf")
def qr(call: Call) -> tuple[Kernel, ...]:
    """2 n² (m - n/3) FLOP for R, as many for Q, each in n steps of two products with a vector."""
    m, n = _extents(call)
    both = 1 if call.name == "geqrf" or call.arg(1, "mode", "reduced") == "r" else 2
    return _work(call, "qr", both * 2 * n**2 * (m - n / 3), both * 2 * n)


@rule("linalg_householder_product")
def householder(call: Call) -> tuple[Kernel, ...]:
    """2 n² (m - n/3) FLOP in n steps of two products with a vector."""
    m, n = _extents(call)
    return _work(call, "qr", 2 * n**2 * (m - n / 3), 2 * n)


@rule("linalg_lstsq")
def least_squares(call: Call) -> tuple[Kernel, ...]:
    """QR, its transpose times the right sides, and a triangular solve."""
    m, n = _extents(call)
    right = _right_sides(call)
    return _work(call, "qr", 2 * n**2 * (m - n / 3) + 4 * m * n * right + n**2 * right, 3 * n)


def _vectors(call: Call, name: str, position: int, default: bool) -> bool:
    return bool(call.arg(position, name, default))


@rule("_linalg_eigh")
def eigh(call: Call) -> tuple[Kernel, ...]:
    """Eigenvalues by tridiagonal form: 4/3 n³ FLOP in n steps; vectors make it 9 n³ and accumulate every step of the
    iteration.
    """
    n, vectors = call.inputs[0].shape[-1], _vectors(call, "compute_v", 2, True)
    return _work(call, "eigh", (9 if vectors else 4 / 3) * n**3, n * (1 + _ITERATIONS * vectors))


@rule("linalg_eig", "linalg_eigvals", "_linalg_eigvals")
def eig(call: Call) -> tuple[Kernel, ...]:
    """Hessenberg form and shifted QR: 10 n³ FLOP, with vectors 25 n³."""
    n = call.inputs[0].shape[-1]
    return _work(call, "eig", (25 if call.name == "linalg_eig" else 10) * n**3, n * (1 + _ITERATIONS))


@rule("_linalg_svd")
def svd(call: Call) -> tuple[Kernel, ...]:
    """Singular values 4 m n² - 4/3 n³ FLOP in n steps of two products with a vector; thin U and V 14 m n² + 8 n³, a
    full U 4 m² n + 8 m n² + 9 n³, and they accumulate every step of the iteration.
    """
    m, n = _extents(call)
    if not _vectors(call, "compute_uv", 2, True):
        return _work(call, "svd", 4 * m * n**2 - 4 * n**3 / 3, 2 * n)
    full = bool(call.arg(1, "full_matrices", False)) and m > n
    flops = 4 * m**2 * n + 8 * m * n**2 + 9 * n**3 if full else 14 * m * n**2 + 8 * n**3
    return _work(call, "svd", flops, n * (2 + _ITERATIONS))


@rule("linalg_pinv")
def pseudo_inverse(call: Call) -> tuple[Kernel, ...]:
    """Singular vectors, scaled, and their product of 2 m n² FLOP."""
    m, n = _extents(call)
    return _work(call, "svd", 16 * m * n**2 + 8 * n**3, n * (2 + _ITERATIONS))


_TAYLOR_PRODUCTS = 6
"""Products of a Taylor polynomial of degree 18 (Bader, Blanes and Casas 2019, section 3), as PyTorch evaluates it,
beside those of squarings, which depend on values."""


@rule("linalg_matrix_exp")
def exponential(call: Call) -> tuple[Kernel, ...]:
    """A polynomial of a matrix, written out in its products of 2 n³ FLOP."""
    n = call.inputs[0].shape[-1]
    return _work(call, "matrix_exp", 2 * _TAYLOR_PRODUCTS * n**3, _TAYLOR_PRODUCTS)


@rule("_linalg_check_errors")
def check_status(call: Call) -> tuple[Kernel, ...]:
    """Copy of a word for each matrix, which the host reads."""
    return move("copy", call.args[0], call.args[0].nbytes)


_IN_SHARED = 4096
"""Complex float32 values of a transform that one kernel keeps in shared memory: 32 KiB of the 48 that every block may
have (CUDA C++ Programming Guide, table of compute capabilities)."""


@rule("_fft_c2c", "_fft_r2c", "_fft_c2r")
def transform(call: Call) -> tuple[Kernel, ...]:
    """5 N log2 N FLOP for N complex values, half of it where one side is real.

    Source: the count of operations by which FFTW and cuFFT state their speed (Frigo and Johnson 2005).
    """
    source, dims = call.args[0], call.args[1]
    real = call.name != "_fft_c2c"
    whole = call.output if call.name == "_fft_c2r" else source
    lengths = [whole.shape[dim] for dim in dims]
    if not whole.elements:
        return ()
    flops = 5 * whole.elements * log2(prod(lengths)) / (2 if real else 1)
    passes = sum(_passes(length) for length in lengths)
    # The first pass reads the source, the last writes the result; between them the result's size comes and goes.
    between = (passes - 1) * max(source.nbytes, call.output.nbytes)
    return one_pass(
        call, "fft", max(source.elements, call.output.elements), round(flops), passes=passes,
        read_bytes=source.nbytes + between, write_bytes=call.output.nbytes + between,
    )  # fmt: skip


def _passes(length: int) -> int:
    """Kernels of a transform along one dimension."""
    return max(1, ceil(log2(max(2, length)) / log2(_IN_SHARED)))
