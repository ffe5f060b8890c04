"""Quantised weights, and products of quantised weights and activations, of a step."""

from __future__ import annotations

from neusight.errors import InapplicableError
from neusight.kernels.precision import stored_bytes
from neusight.kernels.schemes import scheme_named
from neusight.transforms.passes import Change, Pass
from neusight.transforms.quantised import quantise
from neusight.transforms.trained import int8_products, sparse_products
from neusight.what_if.questions import StepQuestion
from neusight.what_if.transforms import check_mode, transform

_TORCHAO = "PyTorch, torchao.quantization"


def _in(step: StepQuestion, name: str) -> StepQuestion:
    """Raises:
    InapplicableError: a step in float32, or of training. DeviceError: the device does not multiply in the dtype.
    """
    if stored_bytes(step.precision.activations) != 2:
        raise InapplicableError(f"{name} is of a step in 16 bits, not in {step.precision}: --dtype bfloat16")
    check_mode(step, "inference")
    if (scheme := scheme_named(name)).activations and not scheme.simulated:
        step.device.gemm_flops_per_s(scheme.activations)
    return step.changed_by(Pass(part="quantised weights", change=quantise, arguments=(name,)))


@transform("int8wo", group="quantisation", source=_TORCHAO, accuracy="8 bits a weight, a scale a column")
def int8_weights(step: StepQuestion) -> StepQuestion:
    """Weights of products in int8, made wide in a kernel before each product; few rows of a compiled step excepted."""
    return _in(step, "int8wo")


@transform("int4wo", group="quantisation", source=_TORCHAO, accuracy="4 bits a weight, a scale for 64")
def int4_weights(step: StepQuestion) -> StepQuestion:
    """Weights of products in int4, made wide within a kernel that is made for few rows."""
    return _in(step, "int4wo")


@transform("fp6wo", group="quantisation", source="Xia et al. 2024, FP6-LLM; torchao", accuracy="2 bits of mantissa")
def fp6_weights(step: StepQuestion) -> StepQuestion:
    """Weights of products in 6 bits, made wide within a kernel that is made for up to 64 rows."""
    return _in(step, "fp6wo")


@transform("fp8wo", group="quantisation", source=_TORCHAO, accuracy="4 bits of mantissa a weight")
def fp8_weights(step: StepQuestion) -> StepQuestion:
    """Weights of products in float8, made wide before each product."""
    return _in(step, "fp8wo")


@transform("int8dq", group="quantisation", source=_TORCHAO, accuracy="8 bits, a scale a row and a column")
def int8_dynamic(step: StepQuestion) -> StepQuestion:
    """Products in int8, of activations that are scaled by rows as they come."""
    return _in(step, "int8dq")


@transform(
    "int8dq-2:4", group="quantisation", source=_TORCHAO, accuracy="8 bits, two of four weights zero", effort="pruning"
)
def int8_dynamic_sparse(step: StepQuestion) -> StepQuestion:
    """Products in int8, of activations scaled by rows and of weights of which two of four are zero."""
    if not step.device.facts.sparse_products:
        raise InapplicableError(f"matrix units of {step.device.id} skip no zeros")
    return _in(step, "int8dq-2:4")


@transform("fp8dq", group="quantisation", source=_TORCHAO, accuracy="4 bits of mantissa, a scale a tensor")
def fp8_dynamic(step: StepQuestion) -> StepQuestion:
    """Products in float8, of activations that are scaled by tensors as they come."""
    return _in(step, "fp8dq")


@transform("fp8dq-row", group="quantisation", source=_TORCHAO, accuracy="4 bits of mantissa, a scale a row")
def fp8_dynamic_rows(step: StepQuestion) -> StepQuestion:
    """Products in float8, of activations that are scaled by rows as they come."""
    return _in(step, "fp8dqrow")


@transform("int4dq", group="quantisation", source=_TORCHAO, accuracy="4 bits a weight, 8 an activation")
def int4_dynamic(step: StepQuestion) -> StepQuestion:
    """Weights rounded to 4 bits and activations to 8, for devices that multiply so; here products stay in 16 bits."""
    return _in(step, "int4dq")


def _of_training(step: StepQuestion, part: str, change: Change) -> StepQuestion:
    check_mode(step, "training")
    return step.changed_by(Pass(part=part, order=2, change=change))


@transform(
    "int8-training", group="quantisation", source="PyTorch, torchao, int8_mixed_precision_training", effort="a library",
    accuracy="8 bits, a scale a row, also of gradients",
)  # fmt: skip
def int8_training(step: StepQuestion) -> StepQuestion:
    """Products of weights and for gradients in int8, of operands that are scaled by rows as they come."""
    step.device.gemm_flops_per_s("int8")
    return _of_training(step, "dtype of products", int8_products)


@transform(
    "2:4-training", group="quantisation", source="Hubara et al. 2021, Accelerated sparse neural training; PyTorch, "
    "Accelerating neural network training with semi-structured (2:4) sparsity", effort="a library",
    accuracy="0.1 to 0.4 points where the last tenth of steps is dense, as the source states it",
)  # fmt: skip
def two_of_four_training(step: StepQuestion) -> StepQuestion:
    """Two of four weights are zero, along both sides, in products forward and for gradients of activations."""
    if not step.device.facts.sparse_products:
        raise InapplicableError(f"matrix units of {step.device.id} skip no zeros")
    return _of_training(step, "zeros of weights", sparse_products)
