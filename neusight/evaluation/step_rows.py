"""What a row of measured whole models ran, as a question: image models of timm and torchvision, training of others.

Three tables of other people's benchmarks, each with columns of its own; what a row does not tell is taken as its
benchmark's code has it, and said beside the prediction.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from neusight.errors import DataError

if TYPE_CHECKING:
    import torch

FUSED_ATTENTION = (2, 1)
"""PyTorch from which the benchmarks of timm ran attention as one kernel."""
_PRECISIONS = {"amp_float16": "amp", "float16": "float16", "float32": "float32", "tf32": "tf32"}
_MIXED = {"amp": "amp", "apex_o2": "float16", "fp16_model": "float16"}
"""How training ran in 16 bit: under autocast, or with the model itself in 16 bit. Apex keeps float32 masters of the
weights beside it ("O2"), whose update is left out."""
_BERT_SIZES = {"bert_base": (12, 768, 12), "bert_large": (24, 1024, 16)}
"""Layers, width and heads: Devlin et al. 2019, section 3."""
RESNET = "resnet50_v1.5"
"""With the stride in the 3x3 convolution, as torchvision's ``resnet50`` has it."""
WAVEGLOW = "waveglow"
"""Of the benchmark's sizes, as the model of this name has them: 8,000 samples an item."""
HOST_COPY = "the copy of the images from the host, inside what was measured, is left out"
_LARGEST = 10**6


@dataclass(frozen=True, kw_only=True)
class ToldStep:
    """A row as a question: ``model`` as ``Predictor.estimate`` takes it, with ``inputs`` where it is a function that
    builds a module; ``options`` of the step; ``told`` the columns that name the row; ``assumed`` what was not told;
    ``batch_failed`` the next larger batch, where it was tried and did not run.
    """

    gpu: str
    model: Any
    inputs: Mapping[str, Any] | None
    options: Mapping[str, Any]
    measured_ms: float
    told: Mapping[str, Any]
    assumed: tuple[str, ...] = field(default=())
    batch_failed: int | None = None


def told_step(row: Mapping[str, Any]) -> ToldStep:
    """The question of a row.

    Raises:
        DataError: a model, precision or way to run that is not estimated, or no time.
    """
    _number(row, "step_ms", 1e12)
    if "timm" in row:
        return _of_timm(row)
    return _of_torchvision(row) if "host_copy" in row else _of_benchmark(row)


def _of_timm(row: Mapping[str, Any]) -> ToldStep:
    if row.get("reparam"):
        raise DataError("a model whose branches were folded before it ran is not estimated")
    fused = _version(str(row["torch"])) >= FUSED_ATTENTION
    options = _options(row, int(_number(row, "batch")), _precision(row["precision"]))
    options |= {"layout": row["layout"], "attention": "sdpa" if fused else "eager"}
    options |= {"launch": "eager" if row["compile"] == "eager" else "compiled"}
    if options["mode"] == "training":
        options["optimizer"] = "sgd"
    name = f"timm:{row['model']}@{int(_number(row, 'image_size'))}"
    told = _told(row, name, options, layout=row["layout"], compile=row["compile"], image_size=int(row["image_size"]))
    failed = row.get("batch_failed")
    return replace(told, batch_failed=int(failed)) if failed and failed > told.options["batch"] else told


def _of_torchvision(row: Mapping[str, Any]) -> ToldStep:
    options = _options(row, int(_number(row, "global_batch")), _precision(row["precision"]))
    assumed = (HOST_COPY,) if row["host_copy"] else ()
    size = int(_number(row, "image_size"))
    return _told(row, f"torchvision:{row['model']}@{size}", options, assumed=assumed, image_size=size)


def _of_benchmark(row: Mapping[str, Any]) -> ToldStep:
    """Training alone; with the optimizer of NVIDIA's examples for each model."""
    mixed = str(row.get("mixed") or "")
    if mixed and mixed not in _MIXED:
        raise DataError(f"mixed precision '{mixed}' is not estimated: one of {', '.join(_MIXED)}")
    dtype = _MIXED[mixed] if mixed else _precision(row["precision"])
    assumed = ("the update of float32 masters of the weights is left out",) if mixed == "apex_o2" else ()
    options = _options({"workload": "training"}, int(_number(row, "global_batch")), dtype)
    if row["model"] == RESNET:
        options["optimizer"] = "sgd"
        return _told(row, "torchvision:resnet50", options, assumed=assumed, image_size=224)
    if row["model"] == WAVEGLOW:
        return _told(row, WAVEGLOW, options | {"optimizer": "adam"}, assumed=assumed)
    if row["model"] not in _BERT_SIZES:
        raise DataError(f"{row['model']} is not estimated: no source has this model")
    # NVIDIA's example has Apex' fused Adam in 16 bit, and its own, a loop, in 32.
    options |= {"optimizer": "adam", "fused_optimizer": True} if mixed else {"optimizer": "bert_adam"}
    return _told(row, _question_answering(str(row["model"])), options, assumed=assumed, inputs=_tokens(row))


def _told(
    row: Mapping[str, Any],
    model: Any,
    options: Mapping[str, Any],
    *,
    assumed: tuple[str, ...] = (),
    inputs: Mapping[str, Any] | None = None,
    **told: Any,
) -> ToldStep:
    named = {"layout": "nchw", "compile": "eager", "image_size": None} | told
    return ToldStep(
        gpu=str(row["gpu"]),
        model=model,
        inputs=inputs,
        options=options,
        measured_ms=float(row["step_ms"]),
        told={"gpu": row["gpu"], "model": row["model"], "workload": options["mode"], "precision": options["dtype"]}
        | named
        | {"batch": options["batch"]},
        assumed=assumed,
    )


def _options(row: Mapping[str, Any], batch: int, dtype: str) -> dict[str, Any]:
    mode = str(row["workload"])
    if mode not in ("inference", "training"):
        raise DataError(f"workload '{mode}': one of inference, training")
    return {"mode": mode, "batch": batch, "dtype": dtype}


def _precision(name: Any) -> str:
    if name not in _PRECISIONS:
        raise DataError(f"precision '{name}' is not estimated: one of {', '.join(_PRECISIONS)}")
    return _PRECISIONS[name]


def _number(row: Mapping[str, Any], name: str, at_most: float = _LARGEST) -> float:
    """A positive number of a row.

    Raises:
        DataError: it is none.
    """
    value = row.get(name)
    try:
        found = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        found = 0.0
    if not 0 < found <= at_most:
        raise DataError(f"{name} '{value}' is no positive number up to {at_most:g}: correct the row")
    return found


def _version(text: str) -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _question_answering(name: str) -> Any:
    """A function that builds BERT with the head for SQuAD: start and end of the answer (Devlin et al. 2019, 4.2)."""
    layers, width, heads = _BERT_SIZES[name]

    def build() -> torch.nn.Module:
        from transformers import BertConfig, BertForQuestionAnswering

        config = BertConfig(
            num_hidden_layers=layers, hidden_size=width, num_attention_heads=heads, intermediate_size=4 * width
        )
        config._attn_implementation = "eager"
        return BertForQuestionAnswering(config)

    build.__name__ = name
    return build


def _tokens(row: Mapping[str, Any]) -> dict[str, Any]:
    from neusight.workloads.tensors import TensorSpec

    shape = int(_number(row, "global_batch")), int(_number(row, "sequence_or_image"))
    names = ("input_ids", "token_type_ids", "start_positions", "end_positions")
    shapes = (shape, shape, shape[:1], shape[:1])
    tokens = {name: TensorSpec(each, "int64") for name, each in zip(names, shapes, strict=True)}
    return tokens | {"attention_mask": TensorSpec((shape[0], 1, 1, shape[1]), "float32")}
