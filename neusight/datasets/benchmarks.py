"""Steps of public benchmarks made canonical: image models of timm and torchvision, and training of others.

Tables of other people's benchmarks, each with columns of its own; what a row does not tell is taken as its
benchmark's code has it, and said beside the prediction.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from neusight.datasets.rows import Row, positive
from neusight.errors import DataError

_FUSED_ATTENTION = (2, 1)
"""PyTorch from which the benchmarks of timm ran attention as one kernel."""
_PRECISIONS = {"amp_float16": "amp", "float16": "float16", "float32": "float32_ieee", "tf32": "tf32"}
_MIXED = {"amp": "amp", "apex_o2": "float16", "fp16_model": "float16"}
"""How training ran in 16 bit: under autocast, or with the model itself in 16 bit. Apex keeps float32 masters of the
weights beside it ("O2"), whose update is left out."""
BERT_MODELS = ("bert_base", "bert_large")
RESNET = "resnet50_v1.5"
"""With the stride in the 3x3 convolution, as torchvision's ``resnet50`` has it."""
_CHANNELS = 3
_CUDNN_DIGITS = 4
"""Of cuDNN's number before its ninth version."""
WAVEGLOW = "waveglow"
"""Of the benchmark's sizes, as the model of this name has them: 8,000 samples an item."""
MASTERS = "the update of float32 masters of the weights is left out"
STEP_NEEDED = ("gpu", "model", "step_ms")
STEP_READ = frozenset((
    *STEP_NEEDED, "workload", "precision", "layout", "compile", "reparam", "batch", "batch_failed", "image_size",
    "torch", "timm", "global_batch", "host_copy", "mixed", "sequence_or_image", "run",
    "cudnn", "library", "energy_uj", "worker",
))  # fmt: skip
STEP_NOTES = frozenset((
    "samples_per_s", "mega_params", "gmacs", "mega_activations", "cuda", "source", "commit", "num_gpus",
    "nvlink_bridge", "step_ms_p10", "step_ms_p90", "steps_timed", "unit", "step_from", "units_per_s",
    "device_memory_used_mib", "spread", "runs", "systems",
))  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class StepRow:
    """A step of a public benchmark in canonical words.

    ``model`` is a name that ``Predictor.estimate`` takes, or one of ``BERT_MODELS``, which ``seq_len`` belongs to;
    ``options`` of the step: mode, batch, dtype and, where they differ from the usual, layout, attention, launch,
    optimizer; ``columns`` name the row; ``assumed`` is what it does not tell; ``batch_failed`` the next larger batch,
    where that was tried and did not run. ``run`` names the host of steps that are each waited for, "" where it is
    not told, None where steps follow each other; ``copied_bytes`` [B] they copy from it. ``version`` of PyTorch, or of
    cuDNN where only that is told, such as "torch 1.13"; "" where neither is. ``energy_j`` [J] where a meter was read.
    ``worker`` is what runs it by itself: a ``device``, or a ``core`` of one.
    """

    gpu: str
    model: str
    options: Row
    measured_ms: float
    columns: Row
    seq_len: int | None = None
    assumed: tuple[str, ...] = ()
    batch_failed: int | None = None
    run: str | None = None
    copied_bytes: int = 0
    version: str = ""
    energy_j: float | None = None
    worker: str = "device"


def benchmark_step(row: Row) -> StepRow:
    """A row of ``vision-models``, or of a table with the columns of one of its three benchmarks.

    Raises:
        DataError: a model, precision or way to run that is not estimated, or no time.
    """
    positive(row, "step_ms", 1e12)
    if "library" in row:
        return _of_board(row)
    if "worker" in row:
        return _of_worker(row)
    if "timm" in row:
        return _of_timm(row)
    return _of_torchvision(row) if "host_copy" in row else _of_training_benchmark(row)


def _of_timm(row: Row) -> StepRow:
    if row.get("reparam"):
        raise DataError("a model whose branches were folded before it ran is not estimated")
    fused, compiled = _version(str(row.get("torch", ""))) >= _FUSED_ATTENTION, str(row.get("compile", "eager"))
    layout, size = str(row.get("layout", "nchw")), int(positive(row, "image_size"))
    options = _options(row, int(positive(row, "batch")), _precision(row))
    options |= {"layout": layout, "attention": "sdpa" if fused else "eager"}
    options |= {"launch": "eager" if compiled == "eager" else "compiled"}
    if options["mode"] == "training":
        options["optimizer"] = "sgd"
    step = _step(row, f"timm:{row['model']}@{size}", options, layout=layout, compile=compiled, image_size=size)
    failed = row.get("batch_failed", 0)
    return replace(step, batch_failed=int(failed)) if failed == failed and failed > options["batch"] else step


def _of_board(row: Row) -> StepRow:
    """One inference in integers, at a clock that may not be the board's usual one."""
    clock = {"overrides": [f"clock={row['clock_mhz']:g}MHz"]} if "clock_mhz" in row else {}
    options = {"mode": "inference", "batch": 1, "dtype": "int8", **clock}
    return replace(_step(row, str(row["model"]), options), version=str(row["library"]))


def _of_worker(row: Row) -> StepRow:
    """Of an encoder that transformers names, on a core of its own."""
    options = _options(row, int(positive(row, "batch")), str(row["precision"]))
    return replace(_step(row, str(row["model"]), options), seq_len=int(positive(row, "seq")), worker=str(row["worker"]))


def _of_torchvision(row: Row) -> StepRow:
    options, size = _options(row, int(positive(row, "global_batch")), _precision(row)), int(positive(row, "image_size"))
    step = _step(row, f"torchvision:{row['model']}@{size}", options, image_size=size)
    images = options["batch"] * _CHANNELS * size**2 * (2 if options["dtype"] == "float16" else 4)
    return replace(step, run=str(row.get("run", "")), copied_bytes=images if row["host_copy"] else 0)


def _of_training_benchmark(row: Row) -> StepRow:
    """Training alone; with the optimizer of NVIDIA's examples for each model."""
    mixed = str(row.get("mixed") or "")
    if mixed and mixed not in _MIXED:
        raise DataError(f"mixed precision '{mixed}' is not estimated: one of {', '.join(_MIXED)}")
    options = _options({"workload": "training"}, int(positive(row, "global_batch")), _MIXED.get(mixed, ""))
    options["dtype"] = options["dtype"] or _precision(row)
    assumed = (MASTERS,) if mixed == "apex_o2" else ()
    if row["model"] == RESNET:
        step = _step(row, "torchvision:resnet50", options | {"optimizer": "sgd"}, image_size=224)
    elif row["model"] == WAVEGLOW:
        step = _step(row, WAVEGLOW, options | {"optimizer": "adam"})
    elif row["model"] in BERT_MODELS:
        # NVIDIA's example has Apex' fused Adam in 16 bit, and its own, a loop, in 32.
        options |= {"optimizer": "adam", "fused_optimizer": True} if mixed else {"optimizer": "bert_adam"}
        step = replace(_step(row, row["model"], options), seq_len=int(positive(row, "sequence_or_image")))
    else:
        raise DataError(f"{row['model']} is not estimated: no source has this model")
    return replace(step, assumed=assumed)


def _step(row: Row, model: str, options: Row, **columns: Any) -> StepRow:
    named = {"gpu": row["gpu"], "model": row["model"], "workload": options["mode"], "precision": options["dtype"]}
    named |= {"layout": "nchw", "compile": "eager", "image_size": None} | columns | {"batch": options["batch"]}
    return StepRow(
        gpu=str(row["gpu"]),
        model=model,
        options=options,
        measured_ms=float(row["step_ms"]),
        columns=named,
        version=_libraries(row),
        energy_j=1e-6 * float(row["energy_uj"]) if "energy_uj" in row else None,
    )


def _libraries(row: Row) -> str:
    """PyTorch brings its libraries; cuDNN counts 7605 for 7.6.5."""
    if any(version := _version(str(row.get("torch", "")))):
        return "torch {}.{}".format(*version)
    number = str(row.get("cudnn", ""))
    return f"cudnn {number[0]}.{number[1]}" if number.isdigit() and len(number) == _CUDNN_DIGITS else ""


def _options(row: Row, batch: int, dtype: str) -> dict[str, Any]:
    mode = str(row.get("workload", ""))
    if mode not in ("inference", "training"):
        raise DataError(f"workload '{mode}': one of inference, training")
    return {"mode": mode, "batch": batch, "dtype": dtype, "attention": "eager"}


def _precision(row: Row) -> str:
    name = row.get("precision")
    if name not in _PRECISIONS:
        raise DataError(f"precision '{name}' is not estimated: one of {', '.join(_PRECISIONS)}")
    return _PRECISIONS[name]


def _version(text: str) -> tuple[int, int]:
    numbers = re.match(r"(\d+)\.(\d+)", text)
    return (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)
