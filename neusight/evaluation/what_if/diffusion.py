"""Pipelines of images and clips by their denoiser, which takes nearly all of their time: attention, compilers, torchao.

With classifier-free guidance a denoiser sees each sample twice, with the prompt and without.
"""

from __future__ import annotations

from dataclasses import dataclass

from neusight.errors import DataError
from neusight.evaluation.what_if.cases import Pair, UnnamedModelError, gpu_of, reads, whole
from neusight.measured.score import Row
from neusight.questions.step import step_question
from neusight.transforms.passes import Pass
from neusight.transforms.quantised import SCHEMES, quantised
from neusight.what_if import applied
from neusight.what_if.questions import StepQuestion
from neusight.what_if.transforms import applicable


@dataclass(frozen=True, kw_only=True)
class _Pipeline:
    """Names of a denoiser and of the whole, the edge of its images where that is not its own [pixels], and whether it
    is guided by a second pass without the prompt.
    """

    denoiser: str
    whole: str = ""
    image_size: int | None = None
    guided: bool = True


_SD = _Pipeline(denoiser="sd-1.5-unet", whole="sd-1.5-pipeline")
PIPELINES = {
    "stable-diffusion-v1-4": _SD,
    "sd 1.5": _SD,
    "sd1.5": _SD,
    "sd2": _Pipeline(denoiser="sd-2.1-unet"),
    "sdxl": _Pipeline(denoiser="sdxl-unet"),
    "sd xl": _Pipeline(denoiser="sdxl-unet"),
    "pixart": _Pipeline(denoiser="pixart-alpha", whole="pixart-alpha-pipeline"),
    "sd35": _Pipeline(denoiser="sd3-medium"),
    "sd3": _Pipeline(denoiser="sd3-medium"),
    "flux": _Pipeline(denoiser="flux-dev", whole="flux-dev-pipeline", guided=False),
    "cogvideox-2b": _Pipeline(denoiser="cogvideox-2b", whole="cogvideox-2b-pipeline"),
    "cogvideox-5b": _Pipeline(denoiser="cogvideox-5b", whole="cogvideox-5b-pipeline"),
}
"""By what a name begins with. A ControlNet is a copy of a UNet's first half beside it: kernels of the same kinds;
Stable Diffusion 1.4 and 1.5 have the same sizes."""
_DTYPES = {"fp16": "float16", "fp32": "float32", "bf16": "bfloat16", "fp16/bf16": "float16"}
_COMPILED = ("inference-compiler", "channels-last", "fp16-accumulation")
"""What compilers of denoisers do where it applies: AITemplate's example (``use_fp16_acc``), OneDiff
(``ONEFLOW_*_ALLOW_HALF_PRECISION_ACCUMULATION``, ``ONEFLOW_MLIR_PREFER_NHWC``), stable-fast ("compute with fp16
precision", ``memory_format``), TensorRT's demo (``BuilderFlag.FP16``)."""
_COMPILERS = {
    **dict.fromkeys(
        (
            "OneDiff compiler",
            "compiler: AITemplate",
            "compiler: OneFlow",
            "compiler: TensorRT Official Demo",
            "compiler: stable-fast (with xformers & Triton)",
        ),
        _COMPILED,
    ),
    "OneDiff compiler + int8/fp8 quantisation": ("int8dq", *_COMPILED),
    "torch.compile max-autotune": ("compile",),
}
_SCHEMES = {
    **{name: name for name in ("int8wo", "int4wo", "fp8wo", "int8dq", "fp8dq", "int4dq")},
    "fp8": "fp8dq",
    "fp8dqrow": "fp8dq-row",
    "autoquant": "int8dq",
    "sparsify": "int8dq-2:4",
    **dict.fromkeys(("fp6", "fp6_e3m2"), "fp6wo"),
}
"""torchao's words. What ``autoquant`` takes for large products after timing each compiled is int8 on both sides."""
_HELD = {"int8dq": "int8wo", "fp8dq-row": "fp8wo", "fp8dq": "fp8wo"}
"""Schemes with the same weights whose products a whole pipeline has kernels for at all of its sizes."""


@reads("diffusion_attention_compile")
def of_diffusers(record: Row, stated: dict[str, str]) -> Pair:
    """Attention written out against fused, eager against compiled."""
    how = str(record["as_written"])
    if "reduce-overhead" in how:
        before = _question(record, stated, attention="sdpa", layout="nhwc")
        return Pair.of(record, before, ["reduce-overhead"])
    if how.startswith(("sdpa", "xformers")):
        return Pair.of(record, _question(record, stated, attention="eager"), ["sdpa"])
    if how.startswith("fp32 -> bf16"):
        return Pair.of(record, _question(record, {**stated, "dtype": "fp32"}, attention="eager"), ["bf16"])
    if "channels_last" in how:
        return Pair.of(record, _question(record, stated, attention="sdpa"), ["compile", "channels-last"])
    if how == "int8 dynamic quantisation":
        (compiled,) = applied(_question(record, stated, attention="sdpa", layout="nhwc"), ["compile"])
        return Pair.of(record, compiled, ["int8dq"])
    if "compile" in how:
        return Pair.of(record, _question(record, stated, attention="sdpa"), ["compile"])
    raise DataError(f"'{how}' is no change of the denoiser's step")


def _compiles_images(record: Row) -> bool:
    return str(record["as_written"]) in _COMPILERS and _beginning(record) != ""


@reads("misc_ladders", of=_compiles_images)
def of_compilers(record: Row, stated: dict[str, str]) -> Pair:
    """Eager PyTorch with fused attention against compilers of denoisers."""
    before = _question(record, stated, attention="sdpa")
    able, _ = applicable(before, _COMPILERS[str(record["as_written"])])
    return Pair.of(record, before, able)


@reads("quant_compile_torchao_diffusion")
def of_torchao(record: Row, stated: dict[str, str]) -> Pair:
    """Quantised by torchao, eager and compiled, in bfloat16."""
    if record["metric"] == "memory":
        return _narrowed(record, stated)
    scheme = stated.get("quantization", "")
    if scheme == "None":
        scheme = "bf16"
    names = [_scheme(scheme)] if scheme not in ("", "bf16", "fp16") else []
    before = _question(record, {**stated, "dtype": "fp16" if scheme == "fp16" else "bf16"})
    if "compile" in str(record["as_written"]):
        return Pair.of(record, _applied(before, names), ["compile"])
    compiled = ["compile"] if stated.get("compile") == "True" else []
    name = _scheme(str(record["as_written"]).removeprefix("quantisation "))
    return Pair.of(record, _applied(before, compiled), [name])


def _narrowed(record: Row, stated: dict[str, str]) -> Pair:
    """Memory of a pipeline: of images the denoiser is quantised on the device (``benchmark_image.py``), of clips all
    parts are before they get there (``benchmark_video.py``). What compiles the denoiser leaves the decoder as it is.
    """
    name = _scheme(str(record["as_written"]).removeprefix("quantisation "))
    name = _HELD.get(name, name)
    before = _question(record, {**stated, "dtype": "bf16"})
    (after,) = applied(before, [name])
    if "frames" not in stated.get("resolution", "") and name in SCHEMES:
        change = Pass(part="quantised weights", change=quantised, arguments=(name, "denoiser", True))
        after = before.changed_by(change)
    return Pair.between(record, before, after, [name])


def _applied(step: StepQuestion, names: list[str]) -> StepQuestion:
    return applied(step, names)[-1] if names else step


def _scheme(name: str) -> str:
    if name not in _SCHEMES:
        raise DataError(f"torchao's {name} is not known here: one of {', '.join(_SCHEMES)}")
    return _SCHEMES[name]


def _question(record: Row, stated: dict[str, str], **options: str) -> StepQuestion:
    """A step of the denoiser on as many samples as it sees; of memory that of the whole pipeline, whose images are
    decoded in it.

    Raises:
        UnnamedModelError: an unknown pipeline, or dtype. DataError: one whose configuration is not known.
    """
    if not (begins := _beginning(record)):
        raise DataError(f"no denoiser is known of '{record['model']}'")
    if (dtype := _DTYPES.get(stated.get("dtype", ""))) is None:
        raise UnnamedModelError(f"dtype '{stated.get('dtype', '')}' is none that a whole denoiser has")
    pipeline = PIPELINES[begins]
    model, samples = pipeline.denoiser, whole(stated.get("batch", "1"), "batch")
    if record["metric"] == "memory":
        if not (model := pipeline.whole):
            raise DataError(f"what lies beside the denoiser of '{record['model']}' is not known")
    elif pipeline.guided:
        samples *= 2
    return step_question(model, gpu_of(record), batch=samples, dtype=dtype, image_size=pipeline.image_size, **options)


def _beginning(record: Row) -> str:
    """With which of ``PIPELINES`` the name of a row's model begins, '' where with none."""
    name = str(record["model"]).lower()
    return next((begin for begin in PIPELINES if name.startswith(begin)), "")
