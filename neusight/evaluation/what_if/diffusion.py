"""Pipelines of images and clips by their denoiser, which takes nearly all of their time: attention, compilers, torchao.

With classifier-free guidance a denoiser sees each sample twice, with the prompt and without.
"""

from __future__ import annotations

from dataclasses import dataclass

from neusight.errors import DataError
from neusight.evaluation.scored import Row
from neusight.evaluation.what_if.cases import Pair, UnnamedModelError, gpu_of, reads, whole
from neusight.what_if import applied
from neusight.what_if.questions import StepQuestion


@dataclass(frozen=True, kw_only=True)
class _Pipeline:
    """A denoiser's name, the edge of its images where that is not its own [pixels], and whether it is guided by a
    second pass without the prompt.
    """

    denoiser: str
    image_size: int | None = None
    guided: bool = True


_SD = _Pipeline(denoiser="sd-1.5-unet")
PIPELINES = {
    "stable-diffusion-v1-4": _SD,
    "sd 1.5": _SD,
    "sd1.5": _SD,
    "sdxl": _Pipeline(denoiser="sdxl-unet"),
    "sd xl": _Pipeline(denoiser="sdxl-unet"),
    "pixart": _Pipeline(denoiser="pixart-alpha"),
    "sd35": _Pipeline(denoiser="sd3-medium"),
    "sd3": _Pipeline(denoiser="sd3-medium"),
    "flux": _Pipeline(denoiser="flux-dev", guided=False),
    "cogvideox-2b": _Pipeline(denoiser="cogvideox-2b"),
    "cogvideox-5b": _Pipeline(denoiser="cogvideox-5b"),
}
"""By what a name begins with. A ControlNet is a copy of a UNet's first half beside it: kernels of the same kinds;
Stable Diffusion 1.4 and 1.5 have the same sizes."""
_DTYPES = {"fp16": "float16", "fp32": "float32", "bf16": "bfloat16", "fp16/bf16": "float16"}
_COMPILERS = {
    "OneDiff compiler": "inference-compiler",
    "compiler: stable-fast (with xformers & Triton)": "inference-compiler",
    "torch.compile max-autotune": "compile",
}
_PEAK = "the peak of a pipeline is that of decoding its images, which is no step of the denoiser"
_SCHEMES = {
    **{name: name for name in ("int8wo", "int4wo", "fp8wo", "int8dq", "fp8dq", "int4dq")},
    "fp8": "fp8dq",
    "fp8dqrow": "fp8dq-row",
    "autoquant": "int8dq",
    "sparsify": "2:4-sparsity",
}
"""torchao's words. What ``autoquant`` takes for large products after timing each compiled is int8 on both sides."""


@reads("diffusion_attention_compile")
def of_diffusers(record: Row, stated: dict[str, str]) -> Pair:
    """Attention written out against fused, eager against compiled."""
    how = str(record["as_written"])
    if "reduce-overhead" in how:
        before = _step(record, stated, attention="sdpa", layout="nhwc")
        return Pair.of(record, before, ["reduce-overhead"])
    if how.startswith(("sdpa", "xformers")):
        return Pair.of(record, _step(record, stated, attention="eager"), ["sdpa"])
    if how.startswith("fp32 -> bf16"):
        return Pair.of(record, _step(record, {**stated, "dtype": "fp32"}, attention="eager"), ["bf16"])
    if "channels_last" in how:
        return Pair.of(record, _step(record, stated, attention="sdpa"), ["compile", "channels-last"])
    if how == "int8 dynamic quantisation":
        (compiled,) = applied(_step(record, stated, attention="sdpa", layout="nhwc"), ["compile"])
        return Pair.of(record, compiled, ["int8dq"])
    if "compile" in how:
        return Pair.of(record, _step(record, stated, attention="sdpa"), ["compile"])
    raise DataError(f"'{how}' is no change of the denoiser's step")


def _compiles_images(record: Row) -> bool:
    return str(record["as_written"]) in _COMPILERS and _beginning(record) != ""


@reads("misc_ladders", of=_compiles_images)
def of_compilers(record: Row, stated: dict[str, str]) -> Pair:
    """Eager PyTorch with fused attention against compilers of denoisers."""
    if record["metric"] == "memory":
        raise DataError(_PEAK)
    before = _step(record, stated, attention="sdpa")
    return Pair.of(record, before, [_COMPILERS[str(record["as_written"])]])


@reads("quant_compile_torchao_diffusion")
def of_torchao(record: Row, stated: dict[str, str]) -> Pair:
    """Quantised by torchao, eager and compiled, in bfloat16."""
    if record["metric"] == "memory":
        raise DataError(_PEAK)
    scheme = stated.get("quantization", "")
    if scheme == "None":
        scheme = "bf16"
    names = [_scheme(scheme)] if scheme not in ("", "bf16", "fp16") else []
    before = _step(record, {**stated, "dtype": "fp16" if scheme == "fp16" else "bf16"})
    if "compile" in str(record["as_written"]):
        return Pair.of(record, _applied(before, names), ["compile"])
    compiled = ["compile"] if stated.get("compile") == "True" else []
    name = _scheme(str(record["as_written"]).removeprefix("quantisation "))
    return Pair.of(record, _applied(before, compiled), [name])


def _applied(step: StepQuestion, names: list[str]) -> StepQuestion:
    return applied(step, names)[-1] if names else step


def _scheme(name: str) -> str:
    if name not in _SCHEMES:
        raise DataError(f"torchao's {name} is not known here: one of {', '.join(_SCHEMES)}")
    return _SCHEMES[name]


def _step(record: Row, stated: dict[str, str], **options: str) -> StepQuestion:
    """A step of the denoiser on as many samples as it sees.

    Raises:
        UnnamedModelError: an unknown pipeline, or dtype. DataError: one whose configuration is not known.
    """
    if not (begins := _beginning(record)):
        raise DataError(f"no denoiser is known of '{record['model']}'")
    if (dtype := _DTYPES.get(stated.get("dtype", ""))) is None:
        raise UnnamedModelError(f"dtype '{stated.get('dtype', '')}' is none that a whole denoiser has")
    pipeline = PIPELINES[begins]
    samples = whole(stated.get("batch", "1"), "batch") * (2 if pipeline.guided else 1)
    return StepQuestion.of(
        pipeline.denoiser, gpu_of(record), batch=samples, dtype=dtype, image_size=pipeline.image_size, **options
    )


def _beginning(record: Row) -> str:
    """With which of ``PIPELINES`` the name of a row's model begins, '' where with none."""
    name = str(record["model"]).lower()
    return next((begin for begin in PIPELINES if name.startswith(begin)), "")
