"""Compilers and libraries of inference: a model's operators as the fewest kernels, and what they do with padding."""

from __future__ import annotations

from neusight.errors import InapplicableError
from neusight.transforms.layers import as_library_layers, with_search_of_one_kernel
from neusight.transforms.narrowed import in_int8, with_sparse_weights
from neusight.transforms.passes import Pass
from neusight.what_if.catalogue.launching import with_launch
from neusight.what_if.questions import StepQuestion
from neusight.what_if.transforms import check_mode, transform

_FUSED_ENCODERS = "NVIDIA, guide to its fused BERT encoders (2019 to 2023)"


@transform(
    "inference-compiler", group="launch", source="AITemplate (Xu et al. 2022); NVIDIA TensorRT, Layer fusion",
    effort="a build for each GPU",
)  # fmt: skip
def inference_compiler(step: StepQuestion) -> StepQuestion:
    """Products of one operand are one, what follows a product runs in its kernel, and compiled code launches all."""
    check_mode(step, "inference")
    return step.asking(engine=with_launch(step.request.engine, "static"))


@transform(
    "fused-layers", group="launch", source=f"{_FUSED_ENCODERS}; Ivanov et al. 2021, Data movement is all you need",
    effort="a library, for models that it knows",
)  # fmt: skip
def fused_layers(step: StepQuestion) -> StepQuestion:
    """Layers by a library's few kernels: one product for query, key and value, addition and norm in one."""
    check_mode(step, "inference")
    return step.changed_by(Pass(part="layers", order=3, change=as_library_layers))


@transform(
    "fused-search", group="launch", source="NVIDIA, guide to its fused decoders (2019 to 2023): Decoding",
    effort="a library, for models that it knows",
)  # fmt: skip
def fused_search(step: StepQuestion) -> StepQuestion:
    """Tokens are chosen by one kernel that reads the logits once, and beams by index, without copies of caches."""
    check_mode(step, "inference")
    return step.changed_by(Pass(part="search", order=2, change=with_search_of_one_kernel))


@transform(
    "padding-dropped", group="attention", source=f"ByteDance 2020, Effective Transformer; {_FUSED_ENCODERS}",
    effort="a library",
)  # fmt: skip
def padding_dropped(step: StepQuestion) -> StepQuestion:
    """Sequences lie one after the other without padding: half of the longest's length each, as lengths up to it are
    on average.
    """
    length = step.request.seq_len
    if length is None or length < 2:
        raise InapplicableError("the length of sequences is not stated, or is one: there is no padding to drop")
    return step.asking(seq_len=length // 2)


def _integers(step: StepQuestion, *, wide: bool) -> StepQuestion:
    check_mode(step, "inference")
    step.device.gemm_flops_per_s("int8")
    return step.changed_by(Pass(part="dtype of products", order=1, change=in_int8, arguments=(wide,)))


@transform(
    "int8-static", group="quantisation", source=f"{_FUSED_ENCODERS}, int8_mode 2", effort="calibration",
    accuracy="residual stream in 8 bits: about 1 point of SQuAD's F1 after training for it",
)  # fmt: skip
def int8_static(step: StepQuestion) -> StepQuestion:
    """Products of weights take and give 8-bit integers, and all that lies between them has 8 bits."""
    return _integers(step, wide=False)


@transform(
    "int8-static-wide", group="quantisation", source=f"{_FUSED_ENCODERS}, int8_mode 1", effort="calibration",
    accuracy="less than int8-static: residual stream and attention keep their dtype",
)  # fmt: skip
def int8_static_wide(step: StepQuestion) -> StepQuestion:
    """Products of weights take 8-bit integers and give sums of 32 bits, which the kernels after them scale back."""
    return _integers(step, wide=True)


@transform(
    "2:4-sparsity", group="quantisation", source="Mishra et al. 2021, Accelerating sparse deep neural networks",
    effort="pruning and training again", accuracy="as dense after training again, says the source",
)  # fmt: skip
def two_of_four(step: StepQuestion) -> StepQuestion:
    """Two of four weights of products that compute bounds are zero, and matrix units skip them."""
    check_mode(step, "inference")
    if not step.device.facts.sparse_products:
        raise InapplicableError(f"matrix units of {step.device.id} skip no zeros")
    return step.changed_by(Pass(part="zeros of weights", order=2, change=with_sparse_weights))
