"""Floating-point operations an element of pointwise and row-wise operators: one table for traces and measurements.

The figures count the arithmetic of the usual GPU implementation, an add, multiply, compare or select as one, a fused
multiply-add as two, and a special function by the instructions its float32 expansion takes (rounded, since it varies
with compiler and fast-math flags). These kernels are limited by DRAM nearly everywhere, so that a factor of two here
seldom shows; what matters is that a trace and a training row of the same kernel carry the same number.
"""

from __future__ import annotations

_DIV, _SQRT, _EXP, _LOG, _ERF, _TANH, _POW = 8.0, 8.0, 8.0, 10.0, 20.0, 16.0, 24.0

FLOPS_PER_ELEMENT: dict[str, float] = {
    # Arithmetic on two tensors or on a tensor and a number.
    "add": 1.0,
    "sub": 1.0,
    "rsub": 1.0,
    "mul": 1.0,
    "div": _DIV,
    "pow": _POW,
    "add_scalar": 1.0,
    "sub_scalar": 1.0,
    "mul_scalar": 1.0,
    "div_scalar": 1.0,  # a multiplication by the reciprocal, which the host computes
    "pow_scalar": 2.0,  # small integer exponents are multiplied out
    "addcmul": 3.0,
    "addcdiv": 2.0 + _DIV,
    "lerp": 3.0,
    "fma": 2.0,
    "maximum": 1.0,
    "minimum": 1.0,
    "clamp": 2.0,
    "remainder": _DIV + 2.0,
    "floor_divide": _DIV + 1.0,
    # Functions of one tensor.
    "neg": 1.0,
    "abs": 1.0,
    "sign": 2.0,
    "floor": 1.0,
    "round": 1.0,
    "reciprocal": _DIV,
    "square": 1.0,
    "sqrt": _SQRT,
    "rsqrt": _SQRT,
    "exp": _EXP,
    "log": _LOG,
    "log1p": _LOG + 1.0,
    "erf": _ERF,
    "sin": 16.0,
    "cos": 16.0,
    # Activations and their gradients.
    "relu": 1.0,
    "relu_backward": 1.0,
    "threshold": 1.0,
    "threshold_backward": 1.0,
    "leaky_relu": 2.0,
    "sigmoid": _EXP + _DIV + 1.0,
    "sigmoid_backward": 3.0,
    "tanh": _TANH,
    "tanh_backward": 3.0,
    "silu": _EXP + _DIV + 2.0,
    "silu_backward": _EXP + _DIV + 6.0,
    "gelu": _ERF + 4.0,
    "gelu_backward": _ERF + _EXP + 8.0,
    "gelu_tanh": _TANH + 8.0,
    "gelu_tanh_backward": _TANH + 16.0,
    "softplus": _EXP + _LOG,
    "hardtanh": 2.0,
    # Dropout: Philox draws four 32-bit numbers with 10 rounds, about 10 operations each, then compare and scale.
    "dropout": 12.0,
    "dropout_backward": 2.0,
    "bernoulli": 10.0,
    "uniform": 10.0,
    # Comparison, logic and selection.
    "eq": 1.0,
    "ne": 1.0,
    "lt": 1.0,
    "le": 1.0,
    "gt": 1.0,
    "ge": 1.0,
    "logical_and": 1.0,
    "logical_or": 1.0,
    "logical_not": 1.0,
    "bitwise_and": 1.0,
    "bitwise_or": 1.0,
    "bitwise_not": 1.0,
    "isinf": 1.0,
    "isnan": 1.0,
    "where": 1.0,
    "masked_fill": 1.0,
    "tril": 1.0,
    "triu": 1.0,
    # Reductions and normalisations over rows, per input element.
    "sum": 1.0,
    "mean": 1.0,
    "max": 1.0,
    "min": 1.0,
    "amax": 1.0,
    "argmax": 2.0,
    "topk": 4.0,
    "cumsum": 1.0,
    "prod": 1.0,
    "any": 1.0,
    "all": 1.0,
    "norm": 2.0,
    "var_mean": 4.0,
    "softmax": 2.0 * _EXP + 4.0,  # max; exp and sum; exp again and divide (as a multiplication)
    "softmax_backward": 4.0,
    "log_softmax": _EXP + 4.0,
    "log_softmax_backward": _EXP + 4.0,
    "layer_norm": 8.0,  # Welford mean and variance, then normalise, scale and shift
    "layer_norm_backward": 14.0,
    "rms_norm": 4.0,
    "rms_norm_backward": 9.0,
    "batch_norm": 8.0,
    "batch_norm_backward": 12.0,
    "batch_norm_inference": 2.0,
    "group_norm": 8.0,
    "group_norm_backward": 14.0,
}
