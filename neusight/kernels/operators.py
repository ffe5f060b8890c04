"""The one table of what operators cost: arithmetic and operands, for traces, named kernels and measured rows alike.

The arithmetic is that of the usual GPU implementation, an add, multiply, compare or select as one, a fused multiply-add
as two, and a special function by the instructions its float32 expansion takes (rounded, since it varies with compiler
and fast-math flags). These kernels are limited by DRAM nearly everywhere, so that a factor of two here seldom shows;
what matters is that a trace and a training row of the same kernel carry the same number.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from neusight.errors import CoverageError, nearest

Each = tuple[int, int, int]
"""Amount per element, per row and per column."""

_NONE: Each = (0, 0, 0)
"""Nothing (definition)."""
_DIV, _SQRT, _EXP, _LOG, _ERF, _TANH, _POW, _SIN = 8, 8, 8, 10, 20, 16, 24, 16
"""Instructions of special functions in float32, range reduction and polynomial (assumption: counts of CUDA's maths
functions, rounded; their compiled code would tell)."""
_PHILOX = 10
"""Integer operations a random number: 10 rounds of about 4, for four numbers (cited: Salmon et al. 2011)."""


class Operator(NamedTuple):
    """One operator: FLOP an element, values of the kernel's dtype that it reads and writes, and beside them bytes that
    don't go with the dtype: masks (1), indices (8), float32 statistics (4).

    Elements are those of the result, of a reduction those of its input. ``read`` is None where the shape alone does
    not tell the operands. ``passes`` kernels run one after another, each of which reads and writes: bytes are of all.
    """

    flops: int
    read: Each | None = (1, 0, 0)
    written: Each = (1, 0, 0)
    bytes_read: Each = _NONE
    bytes_written: Each = _NONE
    passes: int = 1


_ONE, _TWO, _THREE = (1, 0, 0), (2, 0, 0), (3, 0, 0)
"""Values an element of as many tensors (definition)."""
_MASK, _INDEX_A_ROW = (1, 0, 0), (0, 8, 0)
"""Bytes of a mask and of an index a row (definition)."""
_A_ROW, _TWO_A_ROW = (0, 1, 0), (0, 2, 0)
"""Values a row (definition)."""

_OF_ONE_TENSOR: dict[str, int] = {
    "neg": 1, "abs": 1, "sign": 2, "sgn": 2, "floor": 1, "ceil": 1, "round": 1, "trunc": 1,
    "reciprocal": _DIV, "sqrt": _SQRT, "rsqrt": _SQRT, "exp": _EXP, "exp2": _EXP, "expm1": _EXP + 2, "log": _LOG,
    "log2": _LOG, "log1p": _LOG + 1, "erf": _ERF, "sin": _SIN, "cos": _SIN, "atan": _SIN, "sinh": _EXP + _DIV,
    "cosh": _EXP + _DIV, "clamp": 2, "clamp_min": 1, "clamp_max": 1, "tril": 1, "triu": 1, "bitwise_not": 1,
    "rsub": 1, "add_scalar": 1, "sub_scalar": 1, "mul_scalar": 1,
    "div_scalar": 1,  # a multiplication by the reciprocal, which the host computes
    "pow_scalar": 2,  # small integer exponents are multiplied out
    "relu": 1, "leaky_relu": 2, "hardtanh": 2, "hardsigmoid": 4, "hardswish": 5, "sigmoid": _EXP + _DIV + 1,
    "tanh": _TANH, "silu": _EXP + _DIV + 2, "gelu": _ERF + 4, "elu": _EXP + 2, "softplus": _EXP + _LOG,
    "mish": _EXP + _LOG + _TANH + 1,
}  # fmt: skip
"""Operations an element, of one tensor (cited: PyTorch's kernels, counted)."""
_OF_TWO_TENSORS: dict[str, int] = {
    "add": 1, "sub": 1, "mul": 1, "div": _DIV, "pow": _POW, "maximum": 1, "minimum": 1, "lerp": 3, "bitwise_and": 1,
    "bitwise_or": 1, "bitwise_xor": 1, "remainder": _DIV + 2, "fmod": _DIV + 2, "floor_divide": _DIV + 1,
    "logaddexp": _EXP + _LOG + 3, "xlogy": _LOG + 1, "heaviside": 2,
    "relu_backward": 2, "leaky_relu_backward": 2, "hardtanh_backward": 3, "hardsigmoid_backward": 3,
    "hardswish_backward": 6, "sigmoid_backward": 3, "tanh_backward": 3, "silu_backward": _EXP + _DIV + 6,
    "gelu_backward": _ERF + _EXP + 8, "elu_backward": _EXP + 4, "softplus_backward": _EXP + _DIV + 2,
    "mish_backward": _EXP + _LOG + _TANH + 8,
}  # fmt: skip
"""The same of two tensors (cited: PyTorch's kernels, counted)."""
_COMPARED: dict[str, tuple[int, Each]] = {
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor"), (1, _TWO)),
    "logical_not": (1, _ONE), "isnan": (1, _ONE), "isinf": (2, _ONE),
}  # fmt: skip
"""FLOP and values read; the result is a byte an element (cited: PyTorch's kernels, counted)."""
_OF_OTHER_OPERANDS: dict[str, int] = {
    "batch_norm": 2, "isin": 1, "log_sigmoid": _EXP + _LOG + 2, "glu_backward": _EXP + _DIV + 6, "_prelu_kernel": 2,
    "_prelu_kernel_backward": 4, "mse_loss": 2, "mse_loss_backward": 3, "smooth_l1_loss": 4,
    "smooth_l1_loss_backward": 5, "huber_loss": 4, "huber_loss_backward": 5,
    "binary_cross_entropy_with_logits": _EXP + _LOG + 6, "polar": 2 * _SIN + 2, "complex": 0,
}  # fmt: skip
"""Operands that are broadcast, reduced, optional or of a dtype of their own (cited: PyTorch's kernels, counted)."""
_SERIES = _EXP + _LOG + _DIV + 20
"""A special function by two expansions, of which one is taken: rational of degree 8 to 10 (cited: Cephes, Moshier
1989)."""
_OF_MATHEMATICS: dict[str, int] = {
    "tan": _SIN + _DIV, "asin": _SQRT + _SIN, "acos": _SQRT + _SIN, "atan2": _SIN + _DIV, "asinh": _LOG + _SQRT + 2,
    "acosh": _LOG + _SQRT + 2, "atanh": _LOG + _DIV + 2, "hypot": _SQRT + 3, "frac": 2, "log10": _LOG, "square": 1,
    "sinc": _SIN + _DIV + 1, "logit": _LOG + _DIV + 1, "logit_backward": _DIV + 3, "logaddexp2": _EXP + _LOG + 3,
    "copysign": 2, "deg2rad": 1, "rad2deg": 1, "nan_to_num": 3, "angle": _SIN + _DIV, "signbit": 1, "isfinite": 1,
    "erfc": _ERF, "erfinv": _LOG + _SQRT + _ERF, "lgamma": _SERIES, "digamma": _SERIES, "polygamma": 2 * _SERIES,
    "i0": _SERIES, "special_i0e": _SERIES, "special_i1": _SERIES, "special_i1e": _SERIES, "special_ndtri": _SERIES,
    "special_entr": _LOG + 2, "_conj_physical": 1, "conj_physical": 1, "nextafter": 4, "gcd": 32 * _DIV,
    "hardshrink": 2, "hardshrink_backward": 2, "softshrink": 3, "softshrink_backward": 2, "threshold": 2,
    "celu": _EXP + 3, "rrelu_with_noise": _PHILOX + 2, "rrelu_with_noise_backward": 2, "log_sigmoid_backward": _EXP + 5,
    "binary_cross_entropy": 2 * _LOG + 4, "binary_cross_entropy_backward": _DIV + 4,
    "soft_margin_loss": _EXP + _LOG + 3, "soft_margin_loss_backward": _EXP + _DIV + 3,
    "__lshift__": 1, "__rshift__": 1, "bitwise_left_shift": 1, "bitwise_right_shift": 1, "diag_embed": 0,
    "linalg_cross": 9, "affine_grid_generator": 12, "hann_window": _SIN + 3, "hamming_window": _SIN + 3,
    "_standard_gamma": 4 * _PHILOX + 2 * _SERIES, "_sample_dirichlet": 4 * _PHILOX + 2 * _SERIES,
    "poisson": 4 * _PHILOX + _SERIES, "binomial": 4 * _PHILOX + _SERIES,
}  # fmt: skip
"""Of one or two tensors, which calls tell; a sampler by rejection takes a few tries (cited: PyTorch's kernels,
counted)."""
_SIGMOID = _EXP + _DIV + 1
"""An exponential, a sum and a quotient (definition)."""
_OF_RECURRENT_CELLS: dict[str, int] = {
    # Sums of two products and two biases for each gate, the gates, and the new state.
    "rnn_cell": 3 + _TANH, "gru_cell": 9 + 2 * _SIGMOID + _TANH + 5, "lstm_cell": 12 + 3 * _SIGMOID + 2 * _TANH + 4,
    "rnn_cell_backward": 4, "gru_cell_backward": 20, "lstm_cell_backward": 24 + _TANH,
}  # fmt: skip
"""Pointwise part of a step of a recurrent layer, an element of its state (cited: Appleyard et al. 2016, section
3.1.2)."""

ELEMENTWISE: dict[str, Operator] = {
    **{op: Operator(flops) for op, flops in _OF_ONE_TENSOR.items()},
    **{op: Operator(flops, _TWO) for op, flops in _OF_TWO_TENSORS.items()},
    **{op: Operator(flops, read, _NONE, bytes_written=_MASK) for op, (flops, read) in _COMPARED.items()},
    **{op: Operator(flops, None) for op, flops in (_OF_OTHER_OPERANDS | _OF_MATHEMATICS | _OF_RECURRENT_CELLS).items()},
    "addcmul": Operator(3, _THREE),
    "addcdiv": Operator(2 + _DIV, _THREE),
    "where": Operator(1, _TWO, bytes_read=_MASK),
    "masked_fill": Operator(1, bytes_read=_MASK),
    "dropout": Operator(_PHILOX + 2, bytes_written=_MASK),
    "dropout_backward": Operator(2, bytes_read=_MASK),
    "random": Operator(_PHILOX, _NONE),
    "glu": Operator(_EXP + _DIV + 2, _TWO),
}
"""Pointwise operators, an element of the result (cited: PyTorch's kernels, counted)."""

ROW_REDUCTION: dict[str, Operator] = {
    "softmax": Operator(2 * _EXP + 4),  # max; exp and sum; exp again and divide (as a multiplication)
    "log_softmax": Operator(_EXP + 4),
    "softmax_backward": Operator(4, _TWO),
    "log_softmax_backward": Operator(_EXP + 4, _TWO),
    # Welford mean and variance, then normalise, scale and shift: two values a column, two statistics a row.
    "layer_norm": Operator(8, (1, 0, 2), (1, 2, 0)),
    "layer_norm_backward": Operator(14, (2, 2, 1)),
    # Its rows are the layer's columns, and its columns the layer's rows.
    "layer_norm_weight_backward": Operator(5, (2, 0, 2), _TWO_A_ROW),
    "rms_norm": Operator(4, (1, 0, 1), (1, 1, 0)),
    "rms_norm_backward": Operator(9, (2, 1, 1)),
    "rms_norm_weight_backward": Operator(3, (2, 0, 1), _A_ROW),
    # Channels are rows: scale, shift and both running statistics of each are read.
    "batch_norm": Operator(8, (1, 4, 0), (1, 2, 0)),
    "batch_norm_backward": Operator(12, _TWO, (1, 2, 0), bytes_read=(0, 12, 0)),
    # Rows are groups of channels, whose number they do not tell: scale and shift are left out.
    "group_norm": Operator(8, (1, 0, 0), (1, 2, 0)),
    "group_norm_backward": Operator(14, (2, 2, 0)),
    **{op: Operator(1, written=_A_ROW) for op in ("sum", "mean", "amax", "prod", "nansum")},
    **{op: Operator(1, written=_NONE, bytes_written=_A_ROW) for op in ("any", "all")},
    "max": Operator(1, written=_A_ROW, bytes_written=_INDEX_A_ROW),
    "argmax": Operator(2, written=_NONE, bytes_written=_INDEX_A_ROW),
    "count_nonzero": Operator(2, written=_NONE, bytes_written=_INDEX_A_ROW),
    "norm": Operator(2, written=_A_ROW),
    "var": Operator(4, written=_A_ROW),
    "logsumexp": Operator(_EXP + 4, written=_A_ROW),
    "cumsum": Operator(1),
    "cumprod": Operator(1),
    "logcumsumexp": Operator(_EXP + _LOG + 3),
    "cummax": Operator(1, bytes_written=(8, 0, 0)),
    "cummin": Operator(1, bytes_written=(8, 0, 0)),
    "sort": Operator(16, bytes_written=(8, 0, 0)),
    # One value of each row of log-probabilities and its target; the loss and the sum of weights.
    "nll_loss": Operator(2, written=_TWO_A_ROW, bytes_read=(8, 0, 0)),
    **{op: Operator(1, None) for op in ("nonzero", "unique_dim", "bincount", "trace", "segment_reduce")},
    "topk": Operator(8, None),
}
"""Reductions over rows, an element of the input (cited: PyTorch's kernels, counted)."""

MEMORY: dict[str, Operator] = {
    "copy": Operator(0),
    "cat": Operator(0),
    "transpose": Operator(0),
    "fill": Operator(0, _NONE),
    "embedding": Operator(0, bytes_read=_INDEX_A_ROW),
    "copy_in": Operator(0, written=_NONE),  # from device memory to memory on the chip
    "embedding_backward": Operator(0, _TWO, bytes_read=_INDEX_A_ROW),
    "gather": Operator(0, bytes_read=_INDEX_A_ROW),
    "scatter": Operator(0, bytes_read=_INDEX_A_ROW),
}
"""Data movement; an index stands for a row (cited: PyTorch's kernels, counted)."""

_FOREACH = (
    *("add", "sub", "mul", "neg", "abs", "div", "reciprocal", "sqrt", "rsqrt", "addcmul", "addcdiv", "lerp", "pow"),
    *("maximum", "minimum", "clamp_min", "clamp_max", "exp", "sign"),
)
_ADAM = 3 + 4 + (_SQRT + 2) + (2 + _DIV) + 2
"""First moment (lerp), second (scale, addcmul), its corrected root, the step (addcdiv) and the decay (cited: Kingma and
Ba 2015, algorithm 1)."""

OPTIMIZER: dict[str, Operator] = {
    **{f"foreach_{op}": Operator(ELEMENTWISE[op].flops, None) for op in _FOREACH},
    "foreach_norm": Operator(ROW_REDUCTION["norm"].flops, None),
    "foreach_zero": Operator(0, None),
    "foreach_copy": Operator(0, None),
    # Parameter, gradient and both moments; all but the gradient are written.
    "adam_fused": Operator(_ADAM, (4, 0, 0), _THREE),
    "adamw_fused": Operator(_ADAM, (4, 0, 0), _THREE),
    # Parameter, gradient and momentum: two multiply-adds.
    "sgd_fused": Operator(4, _THREE, _TWO),
    # Parameter, gradient and the sum of squares: that sum, its root, the step (Duchi et al. 2011).
    "adagrad_fused": Operator(2 + (_SQRT + 1) + (1 + _DIV + 2), _THREE, _TWO),
    # Parameter, gradient and momentum: both interpolations, a sign, decay and step (Chen et al. 2023, algorithm 2).
    "lion_fused": Operator(3 + 2 + 3 + 4, _THREE, _TWO),
}
"""Passes over lists of tensors, an element of one list (cited: PyTorch's kernels, counted)."""

_SILU = _OF_ONE_TENSOR["silu"]
_ROTATED = 4
"""Two products, a sum and the change of a sign (definition)."""
_ANGLES = (1, 128, 0), (0, 8, 0)
"""A position's sines and cosines, 64 of each, and its number: those of one head of 128 serve them all (definition)."""

SERVING_ELEMENTWISE: dict[str, Operator] = {
    # Queries and keys of a token as one row.
    "rope": Operator(_ROTATED, _ANGLES[0], bytes_read=_ANGLES[1]),
    # Of a row twice as wide: the gate's half and the other.
    "silu_and_mul": Operator(_SILU + 1, _TWO),
    "add3": Operator(2, (4, 0, 0), (2, 0, 0), passes=2),
    # transformers' apply_rotary_pos_emb on queries and on keys, each: x·cos, -x of half, the halves together, ·sin, the
    # sum; before that cosines and sines of the positions. Half an element of 16 bits is a byte.
    "rope_eager": Operator(
        _ROTATED, (5, 256, 0), (4, 256, 0), bytes_read=(1, 16, 0), bytes_written=(1, 0, 0), passes=12
    ),
    "silu_mul_eager": Operator(_SILU + 1, _THREE, _TWO, passes=2),
}
"""Pointwise operators of serving engines, fused by hand, and the same written out in simpler ones (``_eager``) (cited:
their kernels, counted)."""

SERVING_ROWS: dict[str, Operator] = {
    "add_rms_norm": Operator(5, (2, 0, 1), _TWO),
    # transformers' LlamaRMSNorm on 16 bits: to float32, square, mean, + epsilon, root, product, to 16 bits, · weight.
    "rms_norm_eager": Operator(
        ROW_REDUCTION["rms_norm"].flops, (2, 0, 1), _TWO, bytes_read=(16, 12, 0), bytes_written=(12, 12, 0), passes=8
    ),
}
"""The same of operators on rows (cited: their kernels, counted)."""

_GELU = _OF_ONE_TENSOR["gelu"]
_SILU_BACKWARD, _GELU_BACKWARD = (_OF_TWO_TENSORS[f"{name}_backward"] for name in ("silu", "gelu"))
TRAINING_ELEMENTWISE: dict[str, Operator] = {
    # Gate and other in, one out; back: gradient, gate and other in, two gradients out (Megatron-LM, fused_bias_swiglu).
    "swiglu": Operator(_SILU + 1, _TWO),
    "swiglu_backward": Operator(_SILU_BACKWARD + _SILU + 2, _THREE, _TWO),
    "geglu": Operator(_GELU + 1, _TWO),
    "geglu_backward": Operator(_GELU_BACKWARD + _GELU + 2, _THREE, _TWO),
    # The bias of the product before it (Megatron-LM, fused_bias_gelu and fused_bias_dropout).
    "bias_gelu": Operator(_GELU + 1, (1, 0, 1)),
    "bias_gelu_backward": Operator(_GELU_BACKWARD + 1, (2, 0, 1)),
    "bias_add": Operator(2, (2, 0, 1)),
    "bias_dropout_add": Operator(_PHILOX + 4, (2, 0, 1), bytes_written=_MASK),
    "dropout_add": Operator(_PHILOX + 3, _TWO, bytes_written=_MASK),
    # Queries or keys turned by their positions, in one kernel, or written out in complex float32 (torchtitan, Llama).
    "rotary": Operator(_ROTATED),
    "rotary_complex": Operator(_ROTATED, bytes_read=(8, 0, 0), bytes_written=(8, 0, 0), passes=3),
    # To float8, as it is and transposed (Transformer Engine, cast_transpose).
    "quantise": Operator(2, _ONE, _NONE, bytes_written=(2, 0, 0)),
    # Gradients of a micro-batch to the sum in float32.
    "accumulate": Operator(1, _ONE, _NONE, bytes_read=(4, 0, 0), bytes_written=(4, 0, 0)),
    # The same through a copy in float32 (DeepSpeed, BF16_Optimizer.update_hp_grads).
    "accumulate_widened": Operator(1, _ONE, _NONE, bytes_read=(8, 0, 0), bytes_written=(8, 0, 0), passes=2),
}
"""Pointwise operators of training frameworks, fused by hand or by a compiler, and the same written out (cited: their
kernels, counted)."""

OPERATORS: dict[str, dict[str, Operator]] = {
    "elementwise": {**ELEMENTWISE, **SERVING_ELEMENTWISE, **TRAINING_ELEMENTWISE},
    "row_reduction": {**ROW_REDUCTION, **SERVING_ROWS},
    "memory": MEMORY,
    "optimizer": OPTIMIZER,
}
"""Operators by family, for families whose kernels state their own work."""


def operator(family: str, op: str) -> Operator:
    """Work and traffic of an operator.

    Raises:
        CoverageError: the table does not have it.
    """
    operators = OPERATORS[family]
    if op not in operators:
        raise CoverageError(
            f"unknown operator '{op}'{nearest(op, operators)}: give its flops=… or add it to neusight.kernels.operators"
        )
    return operators[op]


def operator_bytes(rule: Operator, extents: tuple[Any, Any, Any], size: int) -> tuple[Any, Any]:
    """Bytes that an operator reads and writes, each operand once.

    Args:
        found: an operator whose operands follow from the shape.
        extents: elements, rows and columns, numbers or arrays of whole numbers.
        size: bytes of one value.
    """
    read = size * _times(rule.read or _NONE, extents) + _times(rule.bytes_read, extents)
    return read, size * _times(rule.written, extents) + _times(rule.bytes_written, extents)


def _times(each: Each, extents: tuple[Any, Any, Any]) -> Any:
    return sum(number * extent for number, extent in zip(each, extents, strict=True))
