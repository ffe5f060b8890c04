"""Optimisations of deployments that serve a language model, or generate with it."""

from __future__ import annotations

from collections.abc import Callable

from neusight.engines import server_named
from neusight.errors import InapplicableError
from neusight.kernels.precision import GGUF_BITS
from neusight.kernels.schemes import schemes_by_name
from neusight.what_if.catalogue.quantisation import (
    fp8_dynamic,
    fp8_dynamic_rows,
    fp8_weights,
    int4_weights,
    int8_dynamic,
    int8_weights,
)
from neusight.what_if.questions import DeploymentQuestion
from neusight.what_if.transforms import transform

_PLAIN = ("", "none", "bf16", "bfloat16", "fp16", "float16", "half")
_TORCHAO = "PyTorch, torchao quantization README"
_BITSANDBYTES = "Dettmers et al. 2022, LLM.int8(); bitsandbytes, Linear8bitLt"
_QLORA = "Dettmers et al. 2023, QLoRA, section 3; bitsandbytes, Linear4bit"
_CLIPPED, _CLOSE, _SOME = "outliers are clipped", "about 1 % of a benchmark's score", "some tenths of perplexity"
_BITS = "the worse the fewer"
_WEIGHTS = {
    "fp8-weights": ("fp8", "Weights and activations of large products in float8.", "vLLM, FP8 W8A8", _CLOSE),
    "int4-int8": ("w4a8", "Weights in int4, activations in int8.", _TORCHAO, _SOME),
    "fp6-weight-only": ("fp6", "Weights in 6 bits, 16-bit arithmetic.", "Xia et al. 2024, FP6-LLM", "small"),
    "awq": ("w4a16", "Weights of layers in int4, scaled by what activations need.", "Lin et al. 2024, AWQ", _SOME),
    "nvfp4": ("nvfp4", "Weights and activations in 4-bit floats with scales of 16.", "NVIDIA, NVFP4", _CLOSE),
    "nf4": ("nf4", "Weights in NF4, widened for each product.", _QLORA, _SOME),
    "nf4-double": ("nf4_double", "Weights in NF4, their scales quantised too.", _QLORA, _SOME),
    "llm-int8": ("llm_int8", "Products in int8 between casts of their own.", _BITSANDBYTES, _CLIPPED),
    "llm-int8-outliers": ("llm_int8_outliers", "The same, large columns of activations in 16 bits.", _BITSANDBYTES, ""),
    "llm-int8-turned": ("llm_int8_turned", "The same by bitsandbytes before 0.45.", _BITSANDBYTES, _CLIPPED),
    "llm-int8-turned-outliers": ("llm_int8_turned_outliers", "That, large columns in 16 bits.", _BITSANDBYTES, ""),
    **{
        f"uint{bits}-weight-only": (
            f"uint{bits}",
            f"Weights in {bits} bits, unpacked for each product.",
            _TORCHAO,
            _BITS,
        )
        for bits in range(1, 8)
    },
    **{name: (name, f"Weights in {name.upper()}.", "llama.cpp, quantize README", _SOME) for name in GGUF_BITS},
}
"""Scheme of ``schemes.toml``, summary, source, and possible cost in accuracy, by name."""


_ENGINES = ("vllm", "sglang", "tensorrt-llm")
_OF_PROGRAMS = {
    **dict.fromkeys(GGUF_BITS, ("llama.cpp",)),
    **dict.fromkeys(("fp6", "w4a8", *(f"uint{bits}" for bits in range(1, 8))), ("gpt-fast",)),
    **dict.fromkeys((name for name in schemes_by_name() if name.startswith(("nf4", "llm_int8"))), ("transformers",)),
    **dict.fromkeys(("fp8", "nvfp4"), _ENGINES),
    "w4a16": (*_ENGINES, "tinychat"),
}
"""Programs whose kernels a scheme is priced by, for schemes that are not priced in every program."""
_OF_STEPS_TOO = (
    (int8_weights, "int8_linear"), (int4_weights, "int4_linear"), (fp8_weights, "fp8_linear"),
    (int8_dynamic, "int8_dynamic"), (fp8_dynamic, "fp8_dynamic"), (fp8_dynamic_rows, "fp8_row_dynamic"),
)  # fmt: skip
"""Transforms of torchao, which quantise every linear layer in any program, with their schemes."""


def _in(scheme: str, summary: str = "") -> Callable[[DeploymentQuestion], DeploymentQuestion]:
    """A deployment with its weights in a scheme."""

    def quantise(served: DeploymentQuestion) -> DeploymentQuestion:
        if served.setup.dtype not in _PLAIN:
            raise InapplicableError(f"weights are in {served.setup.dtype} already: this is of a model in 16 bits")
        programs = _OF_PROGRAMS.get(scheme, (served.setup.engine,))
        if server_named(served.setup.engine).name not in programs:
            raise InapplicableError(f"kernels of it are known of {', '.join(programs)}, not of {served.setup.engine}")
        return served.deployed(dtype=scheme)

    quantise.__doc__ = summary
    return quantise


for _transform, _scheme in _OF_STEPS_TOO:
    _transform.also(_in(_scheme))
OF_SCHEMES = {
    name: transform(name, group="quantisation", source=source, accuracy=accuracy)(_in(scheme, summary))
    for name, (scheme, summary, source, accuracy) in _WEIGHTS.items()
}
"""Transforms to deployments whose weights are in a scheme, by name."""


@transform(
    "fp8-cache", group="quantisation", source="vLLM, kv_cache_dtype=fp8", accuracy="small with calibrated scales"
)
def fp8_cache(served: DeploymentQuestion) -> DeploymentQuestion:
    """Keys and values are kept in float8."""
    return served.deployed(kv_dtype="fp8")


@transform("int8-cache", group="quantisation", source=f"{_TORCHAO}, KV cache quantization", accuracy="small")
def int8_cache(served: DeploymentQuestion) -> DeploymentQuestion:
    """Keys and values are kept in int8."""
    return served.deployed(kv_dtype="int8")


def _share_among(served: DeploymentQuestion, degree: int) -> DeploymentQuestion:
    if served.setup.tp != 1:
        raise InapplicableError(f"{served.setup.tp} devices share each matrix already")
    return served.deployed(tp=degree)


@transform("tensor-parallel-2", group="parallelism", source="Shoeybi et al. 2019, Megatron-LM", effort="an option")
def two_share(served: DeploymentQuestion) -> DeploymentQuestion:
    """Two devices share each matrix."""
    return _share_among(served, 2)


@transform("tensor-parallel-4", group="parallelism", source="Shoeybi et al. 2019, Megatron-LM", effort="an option")
def four_share(served: DeploymentQuestion) -> DeploymentQuestion:
    """Four devices share each matrix."""
    return _share_among(served, 4)


@transform("tensor-parallel-8", group="parallelism", source="Shoeybi et al. 2019, Megatron-LM", effort="an option")
def eight_share(served: DeploymentQuestion) -> DeploymentQuestion:
    """Eight devices share each matrix."""
    return _share_among(served, 8)


@transform("prefix-reuse", group="serving", source="Zheng et al. 2024, SGLang, section 3 (RadixAttention)")
def prefix_reuse(served: DeploymentQuestion) -> DeploymentQuestion:
    """Half of each prompt is found in the cache."""
    return with_prefix_share(served, 0.5)


def with_prefix_share(served: DeploymentQuestion, share: float) -> DeploymentQuestion:
    """The deployment with a share of each prompt in the cache.

    Raises:
        InapplicableError: some of it is there already.
    """
    if served.setup.prefix_hit or served.setup.prefix_cached_tokens:
        raise InapplicableError("a part of each prompt is found in the cache already")
    return served.deployed(prefix_hit=share)


@transform(
    "speculative-decoding", group="serving", source="Li et al. 2024, EAGLE; Leviathan et al. 2023", effort="a draft"
)
def speculative_decoding(served: DeploymentQuestion) -> DeploymentQuestion:
    """Three tokens are drafted by a layer of the model's own kind, each accepted in seven of ten cases."""
    return with_drafts(served, "draft=eagle,tokens=3,acceptance=0.7")


def with_drafts(served: DeploymentQuestion, how: str) -> DeploymentQuestion:
    """The deployment with drafts, see ``Speculation.named``.

    Raises:
        InapplicableError: there are some already.
    """
    if served.setup.speculate:
        raise InapplicableError(f"tokens are drafted already: {served.setup.speculate}")
    return served.deployed(speculate=how)
