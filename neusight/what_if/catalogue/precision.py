"""Precision: in which dtypes a step's numbers are kept and computed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from neusight.devices import DeviceSpec
from neusight.devices.chosen import as_device
from neusight.distributed.training_run import TrainingRun
from neusight.errors import InapplicableError
from neusight.kernels.precision import Precision
from neusight.what_if.catalogue.deployments import OF_SCHEMES
from neusight.what_if.catalogue.devices import with_figures
from neusight.what_if.questions import DeploymentQuestion, StepQuestion
from neusight.what_if.transforms import transform
from neusight.workloads.decoders.known import known_decoder
from neusight.workloads.decoders.recipes import recipe_named

_PYTORCH_AMP = "Micikevicius et al. 2018, Mixed precision training; PyTorch, Automatic mixed precision"


def _wide(step: StepQuestion) -> None:
    """Raises:
    InapplicableError: the step is in another dtype than float32.
    """
    precision = step.precision
    if precision.autocast or precision.weights != "float32":
        raise InapplicableError(f"the step runs in {precision} already: this is for a step in float32")


def _in(step: StepQuestion, dtype: str) -> StepQuestion:
    _wide(step)
    step.device.gemm_flops_per_s(Precision.named(dtype).of_products)
    return step.asking(precision=Precision.named(dtype))


@transform("amp", group="precision", source=_PYTORCH_AMP, accuracy="losses are scaled; some models need float32 parts")
def amp(step: StepQuestion) -> StepQuestion:
    """Products and convolutions in float16 under autocast, weights and what is sensitive in float32."""
    after = _in(step, "amp")
    return after.asking(grad_scaler=True) if after.request.optimizer != "none" else after


@transform("amp-bf16", group="precision", source=_PYTORCH_AMP, accuracy="8 bits of mantissa in products")
def amp_bf16(step: StepQuestion) -> StepQuestion:
    """Products and convolutions in bfloat16 under autocast, weights and what is sensitive in float32."""
    return _in(step, "amp_bf16")


@transform("fp16", group="precision", source="PyTorch, torch.Tensor.half", accuracy="range of float16 in all results")
def fp16(step: StepQuestion) -> StepQuestion:
    """Weights and activations in float16."""
    return _in(step, "float16")


@transform("bf16", group="precision", source="Kalamkar et al. 2019, A study of bfloat16", accuracy="8 bits of mantissa")
def bf16(step: StepQuestion) -> StepQuestion:
    """Weights and activations in bfloat16."""
    return _in(step, "bfloat16")


@transform(
    "tf32", group="precision", source="PyTorch, torch.backends.cuda.matmul.allow_tf32", accuracy="10 bits in products"
)
def tf32(step: StepQuestion) -> StepQuestion:
    """Products and convolutions of float32 in TF32."""
    return _in(step, "tf32")


@transform(
    "fp16-accumulation", group="precision", source="PyTorch, torch.backends.cuda.matmul.allow_fp16_accumulation",
    accuracy="11 bits in sums of products",
)  # fmt: skip
def fp16_accumulation(step: StepQuestion) -> StepQuestion:
    """Products, convolutions and attention of float16 add up in float16, at half the rate of integers: matrix units of
    GeForce boards add in float32 half as fast (NVIDIA Ada GPU architecture, appendix A).
    """
    return with_figures(step, _narrow_sums(step.device, step.precision.of_products))


@fp16_accumulation.also
def fp16_accumulation_of_a_deployment(served: DeploymentQuestion) -> DeploymentQuestion:
    """The same of a served decoder."""
    model = known_decoder(served.model) if isinstance(served.model, str) else served.model
    if isinstance(model, Path):
        raise InapplicableError("the dtype of a served file is not read: name a decoder")
    device = served.device
    if device.hypothetical:
        raise InapplicableError(f"figures of the device are changed already: {', '.join(device.hypothetical)}")
    return replace(served, gpu=as_device(device.id, (_narrow_sums(device, model.dtype),)))


def _narrow_sums(device: DeviceSpec, dtype: str) -> str:
    """The change of a device whose products of a dtype are summed in float16.

    Raises:
        InapplicableError: another dtype, or a device that gains nothing.
    """
    if dtype != "float16":
        raise InapplicableError(f"products run in {dtype}, not in float16")
    rates = device.matrix_flops_per_s
    narrow = rates.get("int8", 0.0) / 2
    if narrow < 1.5 * rates.get("float16", narrow):
        raise InapplicableError(f"matrix units of {device.id} add in float32 as fast, or faster")
    return f"matrix_flops.float16={narrow} FLOP/s"


@transform(
    "fp8", group="precision", source="Micikevicius et al. 2022, FP8 formats; Transformer Engine", effort="a library",
    accuracy="converges as bfloat16 with scaling; some layers stay wide",
)  # fmt: skip
def fp8(run: TrainingRun) -> TrainingRun:
    """Large products in float8 with one scale a tensor."""
    return _recipe(run, "fp8")


@transform(
    "fp8-tensorwise", group="precision", source="torchao.float8, tensorwise; Transformer Engine, Float8CurrentScaling",
    effort="a library", accuracy="converges as bfloat16; some layers stay wide",
)  # fmt: skip
def fp8_tensorwise(run: TrainingRun) -> TrainingRun:
    """Large products in float8 with one scale a tensor, for which each operand is searched first."""
    return _recipe(run, "fp8_current")


@transform(
    "fp8-rowwise", group="precision", source="torchao.float8, rowwise", effort="a library",
    accuracy="closer to bfloat16 than one scale a tensor",
)  # fmt: skip
def fp8_rowwise(run: TrainingRun) -> TrainingRun:
    """Large products in float8 with a scale a row, along both dimensions."""
    return _recipe(run, "fp8_row")


@transform(
    "mxfp8", group="precision", source="OCP Microscaling Formats 1.0; Transformer Engine, MXFP8BlockScaling",
    effort="a library", accuracy="as float8 with finer scales",
)  # fmt: skip
def mxfp8(run: TrainingRun) -> TrainingRun:
    """Large products in float8 with a scale for 32 values."""
    return _recipe(run, "mxfp8")


@OF_SCHEMES["nvfp4"].also
def nvfp4_products(run: TrainingRun) -> TrainingRun:
    """Large products in 4-bit floats, with scales of 16."""
    return _recipe(run, "nvfp4")


def _recipe(run: TrainingRun, name: str) -> TrainingRun:
    if run.products:
        raise InapplicableError(f"products run in {run.products} already")
    run.cluster.device.gemm_flops_per_s(recipe_named(name).dtype)
    return replace(run, products=name)
