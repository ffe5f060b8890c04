"""NVIDIA's examples of deep learning (github.com/NVIDIA/DeepLearningExamples) in mixed precision: what their tables of
training and inference gain over float32, or over TF32 where the device has it.

Tables tell framework, batch and devices; how else an example runs is as its scripts have it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from neusight.devices.chosen import as_device
from neusight.engines import Host
from neusight.errors import DataError
from neusight.evaluation.what_if.cases import Pair, UnnamedModelError, gpu_of, metric_of, reads, whole
from neusight.measured.score import Row
from neusight.questions.step import step_question
from neusight.requests import Plan
from neusight.what_if.questions import StepQuestion
from neusight.what_if.transforms import applied
from neusight.workloads.target import TargetDevice

Batches = tuple[int, int]
"""Samples a device and micro-batch, before and after."""


@dataclass(frozen=True, kw_only=True)
class Example:
    """How an example is run.

    Attributes:
        model: as ``neusight predict`` takes it, where a row names none of ``models``.
        models: the same by the words that rows name one of several by, in small letters.
        by_batch: models by the least samples of a device that each is run with, the largest first, where a table has
            several and names none.
        batches: where a table states none, by ``float32`` or ``tf32`` before.
        words: fields of the request.
        length: of sequences or sounds, the word for it and its value where a row states none: of pre-training or of
            all, then of fine-tuning.
        training, inference: optimisations of a step.
        wide: what a step in float32 has alone.
        channels_last: images lie in NHWC with mixed precision alone.
        launch: as its framework launches where '', ``eager`` where an example has XLA off unless told.
        counted: samples of a batch that several were joined to, which tables of training count as one.
        copied_bytes: of a sample, from pageable memory of the host before each call of inference, which is waited for.
        devices: of a table that states none; 0: as the row has it.
    """

    model: str = ""
    models: Mapping[str, str] = field(default_factory=dict)
    by_batch: tuple[tuple[int, str], ...] = ()
    batches: Mapping[str, Batches] = field(default_factory=dict)
    words: Mapping[str, Any] = field(default_factory=dict)
    length: tuple[str, Any, Any] | None = None
    training: tuple[str, ...] = ("amp",)
    inference: tuple[str, ...] = ("amp",)
    wide: tuple[str, ...] = ()
    channels_last: bool = False
    launch: str = ""
    counted: int = 1
    copied_bytes: int = 0
    devices: int = 0


_SGD = {"optimizer": "sgd"}
_ONE_BY_ONE = {"optimizer": "bert_adam"}
"""An operator after another on each parameter, as Adam is written out in an example of BERT: NovoGrad in PyTorch, LAMB
in TensorFlow 1, whose variables by reference XLA does not compile."""
_LAMB = {"optimizer": "adam", "fused_optimizer": True, "attention": "eager"}
"""LAMB reads and writes what Adam does, by Apex's kernels over all parameters."""
_ADAM = {"optimizer": "adam", "fused_optimizer": True}
_SPEECH: dict[str, Any] = {"inference": ("fp16",), "length": ("seconds", 16.7, 16.7), "words": _ONE_BY_ONE}
"""Speech: ``train.py`` under autocast, ``inference.py`` with ``model.half()``."""
_NETS = {
    "efficientnet-b0": "timm:efficientnet_b0",
    "efficientnet-b4": "timm:efficientnet_b4@380",
    "efficientnet-widese-b0": "timm:efficientnet_b0",
    "efficientnet-widese-b4": "timm:efficientnet_b4@380",
    "resnet50": "timm:resnet50",
    "resnext101-32x4d": "timm:resnext101_32x4d",
    "se-resnext101-32x4d": "timm:legacy_seresnext101_32x4d",
}
"""``ConvNets``: timm's networks of the same depths and widths."""
_B0 = {"float32": (64, 128), "tf32": (256, 256)}
_RESNEXT = {"float32": (64, 128), "tf32": (128, 128)}
NET_BATCHES: Mapping[str, Mapping[str, Batches]] = {
    "timm:efficientnet_b0": _B0,
    "timm:efficientnet_b4@380": {"float32": (16, 32), "tf32": (64, 128)},
    "timm:resnet50": {"float32": (112, 256), "tf32": (256, 256)},
    "timm:resnext101_32x4d": _RESNEXT,
    "timm:legacy_seresnext101_32x4d": _RESNEXT,
}
"""``ConvNets/configs.yml``, by the platform that runs in that precision."""


def _net(name: str = "", batches: Mapping[str, Batches] | None = None, **more: Any) -> Example:
    return Example(
        model=name, models=_NETS, batches=batches or {}, words=_SGD, channels_last=True, launch="eager", **more
    )


def _unet(name: str, **more: Any) -> Example:
    return Example(model=name, words={"optimizer": "adam"}, **more)


_RESNET50 = _net("timm:resnet50", {"float32": (128, 256), "tf32": (256, 256)})
EXAMPLES: dict[str, Example] = {
    "BERT": Example(model="bert-large", words=_LAMB, length=("seq_len", 512, 384), launch="compiled"),
    "BERT/biobert": Example(
        model="bert-base", words=_ONE_BY_ONE | {"attention": "eager"}, length=("seq_len", 128, 128)
    ),
    "ELECTRA": Example(model="google/electra-base-discriminator", words=_LAMB, length=("seq_len", 128, 384)),
    "ConvNets": _net(devices=8),
    "ConvNets/efficientnet": _net(),
    "ConvNets/resnet50v1.5": _RESNET50,
    "ConvNets/resnext101-32x4d": _net("timm:resnext101_32x4d"),
    "ConvNets/se-resnext101-32x4d": _net("timm:legacy_seresnext101_32x4d"),
    "ConvNets/efficientnet_v1": _net(),
    "ConvNets/efficientnet_v2": _net("timm:efficientnetv2_s@300", {"float32": (64, 128), "tf32": (128, 256)}),
    "RN50v1.5": _RESNET50,
    "nnUNet": _unet("", models={"2": "nnu-net-2d", "3": "nnu-net-3d"}),
    "UNet_3D_Medical": _unet("nnu-net-3d"),
    "UNet_Medical": _unet("u-net"),
    "SSD": Example(
        model="ssd300-resnet50", words=_SGD | {"layout": "nhwc"}, launch="eager", copied_bytes=4 * 3 * 300 * 300
    ),
    "WideAndDeep": Example(model="wide-and-deep", launch="eager"),
    "DLRM": Example(models={"small": "dlrm-terabyte"}),
    "HiFiGAN": Example(model="hifi-gan", words=_ADAM),
    "Tacotron2": Example(by_batch=((11, ""), (1, "waveglow")), words=_ADAM),
    "wav2vec2": Example(model="facebook/wav2vec2-base", words=_LAMB, length=("seconds", 15.6, 15.6), counted=5),
    "GNMT": Example(model="gnmt-v2", words=_ADAM),
    "Transformer-XL": Example(
        by_batch=((9, "transformer-xl-base"), (1, "transformer-xl-large")), words=_ADAM, launch="eager"
    ),
    "Jasper": Example(model="jasper-10x5-dr", wide=("fft-convolutions",), **_SPEECH),
    "QuartzNet": Example(model="quartznet-15x5", **_SPEECH),
}
"""By the folder of the example."""
LAUNCHES = {"TensorFlow": "compiled", "TensorFlow2": "compiled"}
"""By framework: XLA compiles graphs. Its convolutions are those of cuDNN as PyTorch calls them, in NCHW in float32 and
in NHWC in 16 bits (``gpu_layout_assignment.cc``), so that networks of images are launched as written."""
ALONG = {"MxNet": ("compile",)}
"""By framework, what it has in 16 bits alone: MXNet norms fused with what follows them, cuDNN's in NHWC."""
OPERATOR_S = 2.0e-5
"""What hosts of 2018 to 2021 take to dispatch an operator with the PyTorch of those years [s], twice as long as later
ones (``Engine.host_s_per_operator``): 16, 18, 21 and 28 µs in batches of twelve images of torchvision's networks in
float16, which leave the device idle more than half of the time (ryujaehun/pytorch-gpu-benchmark)."""
_OF_TRAINING = ("optimizer", "fused_optimizer")
_OF_NODE = 8
"""Devices of a DGX, where a table of nodes does not tell."""


@reads("amp_deeplearningexamples")
def of_examples(record: Row, stated: dict[str, str]) -> Pair:
    """A row of a table: one example on one or several devices, which exchange gradients as those of one node do."""
    example, framework = _example(str(record["model"]))
    mode, gpu = _mode(record, stated), gpu_of(record)
    wide = "tf32" if TargetDevice.of(as_device(gpu)).tf32 else "float32_ieee"
    model = _model(example, stated)
    first, second = _batches(example, model, stated, wide)
    before = step_question(
        model, gpu, mode=mode, dtype=wide, launch=example.launch or LAUNCHES.get(framework, "eager"),
        **_words(example, mode, stated),
    ).running(host_s_per_operator=OPERATOR_S)  # fmt: skip
    names = (example.training if mode == "training" else example.inference) + ALONG.get(framework, ())
    after = applied(before, names)[-1]
    if example.channels_last:
        after = after.running(layout="nhwc")
    if wide == "float32_ieee":
        before = [before, *applied(before, example.wide)][-1]
    devices = (example.devices or _devices(record, stated)) if mode == "training" else 1
    steps = _accumulated(stated)
    copied_bytes = example.copied_bytes if mode == "inference" else 0
    return Pair(
        before=_called(_shared(before, devices, first, steps[0]), copied_bytes),
        after=_called(_shared(after, devices, second, steps[1]), copied_bytes),
        applied=names,
        metric=metric_of(record),
    )


def _example(name: str) -> tuple[Example, str]:
    """The example that a folder and its framework are.

    Raises:
        DataError: none is known.
    """
    folder, _, framework = name.rstrip(")").rpartition(" (")
    if folder not in EXAMPLES:
        raise DataError(f"no description of the example {name}: add it to EXAMPLES")
    return EXAMPLES[folder], framework


def _mode(record: Row, stated: Mapping[str, str]) -> str:
    """Tables of training count samples of a GPU, those of inference a batch; some evaluate."""
    where = stated.get("where", "").lower()
    batch = any(name in ("batch", "batch_size") for name in stated) and "train" not in where
    if batch or "inferenc" in where or "evaluat" in where:
        return "inference"
    return str(record["mode"])


def _model(example: Example, stated: Mapping[str, str]) -> str:
    """Raises:
    UnnamedModelError: the example has several models, and the row tells neither which nor a batch that does.
    """
    name = next((stated[key] for key in ("model", "model_size", "dimension") if key in stated), "")
    model = example.models.get(name.lower(), "") if name else example.model
    if example.by_batch and (key := _batch_key(stated)):
        batch = max(_pair(stated[key], key))
        model = next((model for least, model in example.by_batch if batch >= least), "")
    if not model:
        raise UnnamedModelError(f"which model of the example is not told, or unknown: {name or '-'}")
    return model


def _words(example: Example, mode: str, stated: Mapping[str, str]) -> dict[str, Any]:
    """Fields of the request."""
    training = mode == "training"
    words = {name: value for name, value in example.words.items() if training or name not in _OF_TRAINING}
    if example.length:
        name, usual, tuned = example.length
        told = stated.get("sequence_length") or stated.get("duration")
        value = tuned if "fine-tuning" in stated.get("where", "").lower() else usual
        if told:
            value = float(told.removesuffix(" s")) if name == "seconds" else whole(told, "length")
        words[name] = value
    return words


def _batches(example: Example, model: str, stated: Mapping[str, str], wide: str) -> Batches:
    """Samples of a device and micro-batch, before and after.

    Raises:
        UnnamedModelError: they are not told, and the example runs with several.
    """
    key = _batch_key(stated)
    if not key:
        usual = example.batches or NET_BATCHES.get(model, {})
        if not usual:
            raise UnnamedModelError("the batch is not told")
        return usual[wide.removesuffix("_ieee")]
    first, second = _pair(stated[key], key)
    counted = example.counted if key.startswith("concat") else 1
    batches = counted * first, counted * second
    if "accumulated" in "".join(stated):
        return batches
    # Some tables state what a device has of a whole step.
    steps = [_pair(value, name) for name, value in stated.items() if name.startswith("accumulation_steps")]
    if steps and all(batch % count == 0 for batch, count in zip(batches, steps[0], strict=True)):
        return batches[0] // steps[0][0], batches[1] // steps[0][1]
    return batches


def _batch_key(stated: Mapping[str, str]) -> str:
    return next((name for name in stated if re.match("(concat_)?batch(es|_size|$)", name)), "")


def _accumulated(stated: Mapping[str, str]) -> Batches:
    """Micro-batches of a device, before and after."""
    named = [(value, name) for name, value in stated.items() if name.startswith(("accumulation_steps", "grad_accum"))]
    return _pair(*named[0]) if named else (1, 1)


def _pair(text: str, name: str) -> Batches:
    """One number, or two whose precisions the text or the name of its column tells.

    Raises:
        DataError: neither.
    """
    found = re.findall(r"(\d+)(k?)(?:\s*[@(]\s*(\w+))?", text)
    numbers = [int(digits) * (1024 if thousands else 1) for digits, thousands, _ in found]
    if len(numbers) == 1:
        return numbers[0], numbers[0]
    if len(numbers) != 2:
        raise DataError(f"cannot read {name} '{text}': give one number, or one of each precision")
    first = found[0][2] or name.partition("gpu")[2]
    narrow_first = re.match(r"\W*_*(mixed|fp16|amp)", first.lower())
    return (numbers[1], numbers[0]) if narrow_first else (numbers[0], numbers[1])


def _devices(record: Row, stated: Mapping[str, str]) -> int:
    """All that share a step: of so many nodes, or of one."""
    devices = int(record.get("n_gpus") or 1)
    if "nodes" not in stated:
        return devices
    node = re.findall(r"\((\d+)x", stated.get("where", ""))
    return whole(stated["nodes"], "nodes") * max(devices, int(node[-1]) if node else _OF_NODE)


def _shared(step: StepQuestion, devices: int, batch: int, accumulated: int) -> StepQuestion:
    """A step of so many samples a device and micro-batch."""
    samples = batch * devices * accumulated
    plan = Plan(dp=devices, micro_batch_size=batch, global_batch_size=samples)
    return step.asking(batch=samples).under(plan=plan if plan.world > 1 or accumulated > 1 else None)


def _called(step: StepQuestion, copied_bytes: int) -> StepQuestion:
    """A step that is waited for, after so many bytes of each sample were copied, where any are."""
    engine, copied = step.request.engine, copied_bytes * step.request.batch
    host = Host(call_s=0.0, operator_s=OPERATOR_S, spread=engine.host_spread, copied_bytes=copied)
    return step.under(host=host) if copied else step
