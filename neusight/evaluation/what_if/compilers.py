"""Compilers and libraries of inference (FasterTransformer, AITemplate, torch.compile) against what ran before."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from neusight.engines import ENGINES, Engine
from neusight.errors import DataError
from neusight.evaluation.what_if.cases import Pair, UnnamedModelError, gpu_of, reads, whole
from neusight.measured.score import Row
from neusight.questions.step import step_question
from neusight.what_if.questions import StepQuestion

_TRACED = ("torchscript", "jit.trace")
_FUSED_LENGTH = 384
"""Tokens up to which FasterTransformer has fused attention, in 16 bits (``getAttentionType``)."""
_DTYPES = {"FP32": "float32_ieee", "TF32": "tf32", "FP16": "float16", "INT8": "float16"}
_GPUS = {"A100": "a100-sxm-40gb", "A10": "a10", "T4": "t4", "V100": "v100-sxm2-16gb"}
_CLOCKS_GHZ = {"t4": 1.7, "v100-sxm2-16gb": 3.6}
"""Highest, of the processors that the guide of decoders has beside some GPUs: Xeon E5-2603 v4 and E5-2698 v4 (Intel,
specifications)."""
_USUAL_GHZ = 3.5
"""Highest of servers' processors, from Intel's Broadwell to AMD's EPYC 7003 between 3.4 and 3.7."""
_INT8 = {"v1": "int8-static-wide", "v2": "int8-static"}
_ENCODERS = {
    "bert": ("bert-base", None),
    "xlnet": ("xlnet/xlnet-base-cased", None),
    "vit": ("timm:vit_base_patch16_384", 577),
    "Swin-V1": ("timm:swin_tiny_patch4_window7_224", 49),
    "Swin-V2": ("timm:swinv2_tiny_window8_256", 64),
}
"""Models of its guides with the tokens of an attention: BERT base, ViT-B/16, the smallest Swin."""


def _first(stated: dict[str, str], *names: str) -> str:
    """What is told under one of some names, '' where under none."""
    return next((stated[name] for name in names if name in stated), "")


def _precision(stated: dict[str, str]) -> str:
    """Of the baseline: as told, or by its name or the heading of its table."""
    words = " ".join((_first(stated, "precision"), _first(stated, "before"), _first(stated, "section")))
    told = re.findall(r"FP32|TF32|FP16|INT8", f"{words}")
    if not told:
        raise UnnamedModelError("the dtype is not told")
    return _DTYPES[told[0] if stated.get("precision") or "-FP16" in _first(stated, "before") else told[-1]]


def _headed_gpu(record: Row, stated: dict[str, str]) -> str:
    """The GPU that the last heading above a table names, which tells A10 from A100."""
    named = [word for word in re.findall(r"\bon (\w+)", _first(stated, "section")) if word in _GPUS]
    return _GPUS[named[-1]] if named else gpu_of(record)


def _before(words: str, *, encoder: bool) -> Engine:
    """The engine of a baseline. The guide's script of encoders turns XLA on, that of decoders does not; PyTorch is one
    before 1.12, by operator or traced.
    """
    if "tensorflow" in words.lower() or words.startswith("TF"):
        return ENGINES["tensorflow-xla" if encoder else "tensorflow"]
    traced = any(word in words.lower() for word in _TRACED)
    return replace(ENGINES["torchscript" if traced else "torch-eager"], attention="eager", written_out=("bias",))


@reads("fused_encoder_fastertransformer")
def of_faster_transformer(record: Row, stated: dict[str, str]) -> Pair:
    """Encoders; half of all tokens are padding (``bert_example.py``: lengths are half of the longest)."""
    if str(record["model"]) == "decoder":
        return _decoding(record, stated)
    heading, model = _first(stated, "section"), str(record["model"])
    kind = model if model in _ENCODERS else next((name for name in _ENCODERS if name in heading), "")
    if not kind:
        raise DataError(f"the model '{model}' is not known to be one of {', '.join(_ENCODERS)}")
    name, tokens = _ENCODERS[kind]
    pair = re.findall(r"\d+", next((stated[key] for key in stated if key.startswith("<batch")), ""))
    batch, seq = pair if pair else (_first(stated, "batch_size"), _first(stated, "seq_len"))
    sparse = "sparse" in str(record["as_written"])
    dtype = "float16" if sparse else _precision(stated)
    seq_len = whole(seq, "length") if seq else None
    words = {"batch": whole(batch, "batch"), "dtype": dtype, "attention": "eager"} | (
        {"seq_len": seq_len} if seq else {}
    )
    before = step_question(name, _headed_gpu(record, stated), **words)
    before = before.asking(engine=_before(_first(stated, "before"), encoder=True))
    length = seq_len or tokens
    layers = ["fused-layers"]
    if dtype == "float16" and length is not None and length <= _FUSED_LENGTH:
        layers.append("flash" if seq else "sdpa")
    if sparse:
        return _sparse(record, before, layers)
    written = str(record["as_written"])
    layers += [name for mode, name in _INT8.items() if f"INT8-{mode}" in written]
    return Pair.of(record, before, [*layers, *(["padding-dropped"] if "EFF" in written else [])])


def _decoding(record: Row, stated: dict[str, str]) -> Pair:
    """A token of a translation: of beams, or drawn, which takes what one beam does. FT Decoder replaces the layers, FT
    Decoding the search as well. A thread of the host takes the longer, the lower its clock.
    """
    beams = _first(stated, "beam_width") or "1"
    gpu = _headed_gpu(record, stated)
    before = step_question(
        f"translation-decoder@{whole(beams, 'beams')}",
        gpu,
        batch=whole(_first(stated, "batch_size"), "batch"),
        dtype=_precision(stated),
        attention="eager",
    )
    engine = _before(_first(stated, "before"), encoder=False)
    slower = _USUAL_GHZ / _CLOCKS_GHZ.get(gpu, _USUAL_GHZ)
    before = before.asking(engine=replace(engine, host_s_per_operator=slower * engine.host_s_per_operator))
    search = ["fused-search"] if "Decoding" in str(record["as_written"]) else []
    return Pair.of(record, before, ["fused-layers", *search])


def _sparse(record: Row, before: StepQuestion, layers: list[str]) -> Pair:
    """Products of a fused encoder, dense and sparse; the slower of two tables is in int8."""
    dense = Pair.of(record, before, layers).after
    assert isinstance(dense, StepQuestion)
    return Pair.of(record, dense, ["2:4-sparsity"])


_POSITIONS = 512
"""Of BERT; the example makes its table longer where it asks for more."""
_DIES = re.compile(r"\((\d) GCD")
_IMAGES = re.compile(r"(\d+)x(\d+)")


@reads("compiler_aitemplate")
def of_aitemplate(record: Row, stated: dict[str, str]) -> Pair:
    """Models in float16 against PyTorch 1.12 by operator; a batch on both dies of an MI250 is half on each."""
    name, words = _example(str(record["model"]), _first(stated, "module"))
    dies = _DIES.search(str(record.get("gpu_as_written")))
    batch = whole(_first(stated, "batch_size", "batch") or "1", "batch") * words.pop("images", 1)
    batch = max(1, batch // (int(dies[1]) if dies else 1))
    before = step_question(name, gpu_of(record), batch=batch, dtype=_first(stated, "dtype"), **words)
    layout = [] if "attention" in words else ["channels-last"]
    fused = [] if name.startswith(("resnet", "torchvision")) else ["sdpa"]
    return Pair.of(record, before, ["inference-compiler", *fused, *layout])


def _example(model: str, module: str) -> tuple[str, dict[str, Any]]:
    """The model of one of AITemplate's examples and what is asked of it: a denoiser sees each image with and without
    its prompt, and takes nearly all of a pipeline.
    """
    kind, _, rest = model.partition(" ")
    if kind == "ResNet-50":
        return "resnet-50", {}
    if kind == "BERT":
        length = whole(rest.rpartition(" ")[2], "length")
        longer = f"@max_position_embeddings={length}" if length > _POSITIONS else ""
        return f"bert-base{longer}", {"seq_len": length, "attention": "eager"}
    if kind == "ViT":
        return f"timm:{rest}", {"attention": "eager"}
    if kind == "Detectron2" and (size := _IMAGES.search(rest)):
        return _DETECTOR, {"image_size": round((int(size[1]) * int(size[2])) ** 0.5 / 32) * 32}
    if kind == "Stable" and module in ("", "UNet", "Pipeline"):
        return "sd-1.5-unet", {"images": 2, "attention": "eager"}
    raise UnnamedModelError(f"the model of '{model}' {module} is not named")


_DETECTOR = "torchvision:fasterrcnn_resnet50_fpn"

_TRANSFORMERS = {
    ("ViT", "Image Classification"): "google/vit-base-patch16-224",
    ("BeiT", "Image Classification"): "microsoft/beit-base-patch16-224-pt22k-ft22k",
    ("ConvNeXT", "Image Classification"): "facebook/convnext-large-224",
    ("ResNet", "Image Classification"): "microsoft/resnet-50",
    ("BeiT", "Image Segmentation"): "microsoft/beit-base-finetuned-ade-640-640",
    ("MobileNet", "Image Segmentation"): "google/deeplabv3_mobilenet_v2_1.0_513",
    ("Maskformer", "Image Segmentation"): "facebook/maskformer-swin-base-coco",
    ("DETR", "Object Detection"): "facebook/detr-resnet-101",
}
"""Checkpoints that the page on torch.compile of transformers' documentation names."""
_RESIZED = 928
"""Side of as many pixels as processors of DETR and MaskFormer make of an image of COCO, 800 x 1,066."""


@reads("compile_hf_vision")
def of_transformers_vision(record: Row, stated: dict[str, str]) -> Pair:
    """Models of transformers that take images, as their page loads them: in float32, attention written out."""
    name = _TRANSFORMERS.get((str(record["model"]), _first(stated, "task")))
    if name is None:
        raise UnnamedModelError(f"no checkpoint is named for {record['model']}, {_first(stated, 'task')}")
    batch = whole(_first(stated, "batch", "batch_size"), "batch")
    sized = {"image_size": _RESIZED} if "facebook/detr" in name or "maskformer" in name else {}
    before = step_question(name, gpu_of(record), batch=batch, dtype="float32", attention="eager", **sized)
    graphs = "reduce-overhead" in str(record["as_written"])
    return Pair.of(record, before, ["reduce-overhead" if graphs else "compile"])


_BENCHMARKS = {
    "hf_Albert": ("albert/albert-base-v2", 512),
    "hf_GPT2": ("gpt2", 512),
    "hf_GPT2_large": ("gpt2-large", 512),
    "hf_Bert": ("bert-base", 512),
    "AlbertForMaskedLM": ("albert/albert-base-v2", 512),
    "ElectraForCausalLM": ("google/electra-small-generator", 512),
    "ElectraForQuestionAnswering": ("google/electra-small-discriminator", 512),
    "MobileBertForMaskedLM": ("google/mobilebert-uncased", 128),
    "XGLMForCausalLM": ("facebook/xglm-564M", 512),
}
"""Models of torchbench and of PyTorch's ``benchmarks/dynamo/huggingface.py``, with the lengths that those give them."""


@reads("training_ladder_hf_issues_and_small_tables", of=lambda record: record["optimisation"] == "compile")
def of_dynamo_benchmarks(record: Row, stated: dict[str, str]) -> Pair:
    """Forward and backward through Inductor, with CUDA graphs or without, at the beginning of 2023: neither library
    called fused attention yet (transformers 4.36 and timm 0.9 do).
    """
    if "scope" not in stated:
        raise DataError("only steps of PyTorch's own benchmarks through Inductor are read of this set")
    suite, _, model = str(record["model"]).partition("/")
    if suite != "timm" and model not in _BENCHMARKS:
        raise UnnamedModelError(f"the model '{model}' of {suite} is not named")
    name, length = (f"timm:{model}", None) if suite == "timm" else _BENCHMARKS[model]
    before = step_question(
        name,
        gpu_of(record),
        mode="training",
        batch=whole(_first(stated, "batch"), "batch"),
        dtype=_first(stated, "dtype"),
        attention="eager",
        **({} if length is None else {"seq_len": length}),
    )
    return Pair.of(record, before, ["compile" if "without" in str(record["as_written"]) else "reduce-overhead"])


_TRAINERS = {"GPT-2 124M (nanoGPT)": "gpt2"}


@reads("misc_ladders", of=lambda record: str(record["as_written"]) == "torch.compile")
def of_trainers(record: Row, stated: dict[str, str]) -> Pair:
    """A step of a trainer under autocast, whose attention is PyTorch's own, without what ranks exchange."""
    name = _TRAINERS.get(str(record["model"]))
    if name is None or stated.get("dtype") != "bf16":
        raise UnnamedModelError(f"the model '{record['model']}' or its dtype is not told")
    before = step_question(
        name,
        gpu_of(record),
        mode="training",
        batch=whole(_first(stated, "micro_batch", "batch"), "batch"),
        seq_len=whole(_first(stated, "seq", "seq_len"), "length"),
        dtype="amp_bf16",
        optimizer="adamw",
        attention="sdpa",
    )
    return Pair.of(record, before, ["compile"])
